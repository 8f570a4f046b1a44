package proxy

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"strconv"

	"github.com/prefixring/prefixring/internal/dialect"
	"github.com/prefixring/prefixring/internal/fingerprint"
)

// plan decides which fields of the body are changed for the engine. Nothing is
// re-serialised: each change is a splice, and without one the body goes out as it
// came in.
func (c *call) plan(up *Upstream) {
	c.splices.reset()
	if !c.scanned {
		return
	}
	var head []byte
	engine := up.account == nil // a host knows no fields of engines
	if class := c.class(); engine && class != 0 && c.protocol != dialect.Opaque {
		head = c.planPriority(dialect.EnginePriority(up.engine, class), head)
	}
	if c.route.alias && c.scan.Model.Present() {
		c.splices.replace(c.scan.Model, func(b []byte) []byte {
			return appendJSONString(b, c.route.model)
		})
	}
	if engine && up.engine == dialect.SGLang {
		// vLLM drops this block itself; here it would change the prompt of every
		// request (engine_contracts 6.3).
		for _, s := range c.scan.Strip {
			c.splices.replace(s, func(b []byte) []byte { return b })
		}
	}
	if c.wantsUsage() {
		c.strip.on = true
		head = spliceUsage(&c.splices, c.body, c.scan.StreamOptions, head)
	}
	if engine && c.saltable() {
		head = append(append(append(head, `"cache_salt":"`...), c.tenantSalt()...), `",`...)
	}
	if at, comma, ok := headInsert(c.body); ok && len(head) > 0 {
		if !comma {
			head = head[:len(head)-1]
		}
		c.splices.replace(at, func(b []byte) []byte { return append(b, head...) })
	}
}

// planPriority sets the field that orders requests inside an engine to the tenant's
// class: a client does not choose its own.
func (c *call) planPriority(value int, head []byte) []byte {
	if c.scan.Priority.Present() {
		c.splices.replace(c.scan.Priority, func(b []byte) []byte {
			return strconv.AppendInt(b, int64(value), 10)
		})
		return head
	}
	head = append(head, `"priority":`...)
	return append(strconv.AppendInt(head, int64(value), 10), ',')
}

// wantsUsage says if the router asks for usage on behalf of its own accounting. A
// client that said no is not overridden (field case B06c).
func (c *call) wantsUsage() bool {
	return c.p.opts.InjectUsage && c.stream && dialect.TakesIncludeUsage(c.protocol) &&
		c.scan.IncludeUsage == fingerprint.Unset
}

// saltable says if the tenant's own salt is added: generation only, and never over
// a salt that the client chose.
func (c *call) saltable() bool {
	return c.p.opts.SaltTenants && c.head.tenant != nil &&
		c.protocol != dialect.Opaque && !c.scan.CacheSalt.Present()
}

// tenantSalt is stable per tenant and tells nothing about it.
func (c *call) tenantSalt() string {
	h := hmac.New(sha256.New, c.p.opts.SaltSecret)
	h.Write(strconv.AppendUint(nil, c.scope(), 16))
	return hex.EncodeToString(h.Sum(nil)[:16])
}
