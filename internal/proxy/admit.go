package proxy

import (
	"bytes"
	"strconv"
	"time"

	"github.com/valyala/fasthttp"

	"github.com/prefixring/prefixring/internal/dialect"
)

// earlyCheck is the announced body length from which a request is admitted before
// its body is read. Below it, reading is cheaper than checking twice.
const earlyCheck = 64 * kib

// bodyRate is the slowest upload that is waited for, in octets per second on top of
// the base time: slow-loris bodies end, honest large ones do not.
const bodyRate = 64 * kib

// headerReceived runs between head and body of a request. It bounds the time the
// body may take, keeps a body from being read that would be refused anyway, and
// notes on the connection what onError needs: fasthttp forgets the head of a request
// whose body it could not read.
func (p *Proxy) headerReceived(h *fasthttp.RequestHeader) fasthttp.RequestConfig {
	cfg := fasthttp.RequestConfig{MaxRequestBodySize: p.opts.MaxBody}
	n := h.ContentLength()
	cc, _ := p.clientOf(ctxOf(h))
	if n >= 0 && n < earlyCheck {
		if cc != nil {
			r, _ := dialect.RouteOf(pathOf(h))
			cc.protocol, cc.refusal = r.Protocol, nil
		}
		if n > 0 {
			lendBody(h, n)
		}
		return cfg
	}
	if base := p.opts.Timeouts.ReadRequest; base > 0 {
		length := p.opts.MaxBody
		if n >= 0 {
			length = min(n, length)
		}
		cfg.ReadTimeout = base + time.Duration(length/bodyRate)*time.Second
	}
	hd, f := p.checkHead(h)
	if cc != nil {
		cc.protocol, cc.refusal = hd.route.Protocol, f
	}
	if f != nil {
		// The smallest limit that is not "default": the body is not read.
		cfg.MaxRequestBodySize = 1
		return cfg
	}
	if n > 0 {
		lendBody(h, n)
	}
	return cfg
}

// head is what the request head alone decides.
type head struct {
	path   string // valid while the request is
	route  dialect.Route
	tenant Tenant
}

// checkHead decides what can be decided from the head alone.
func (p *Proxy) checkHead(h *fasthttp.RequestHeader) (head, *failure) {
	hd := head{path: pathOf(h)}
	known := false
	hd.route, known = dialect.RouteOf(hd.path)
	if f := checkHeaders(h); f != nil {
		return hd, f
	}
	switch {
	case !known:
		return hd, &failPath
	case !hd.route.Allows(b2s(h.Method())):
		return hd, &failMethod
	case h.ConnectionUpgrade():
		return hd, &failUpgrade
	case h.ContentLength() > p.opts.MaxBody:
		return hd, limitBody(p.opts.MaxBody)
	case p.cutting.Load():
		return hd, &failDraining
	}
	who := p.admission.Load()
	if who == nil {
		return hd, nil
	}
	if hd.tenant = (*who).Identify(clientKey(h)); hd.tenant == nil {
		return hd, &failKey
	}
	return hd, nil
}

// pathOf returns the exact path that was asked for: no decoding, no cleaning, so
// that nothing but the literal allow-list matches.
func pathOf(h *fasthttp.RequestHeader) string {
	target := originForm(h.RequestURI())
	if i := bytes.IndexByte(target, '?'); i >= 0 {
		target = target[:i]
	}
	return b2s(target)
}

// clientKey returns the credential of a request: a bearer token, or the header that
// Anthropic clients send.
func clientKey(h *fasthttp.RequestHeader) []byte {
	if v := h.Peek(fasthttp.HeaderAuthorization); len(v) > 0 {
		if hasFoldPrefix(v, "bearer ") {
			return trimOWS(v[len("bearer "):])
		}
		return nil
	}
	return h.Peek("X-Api-Key")
}

// admit is step 1: may this client send this request at all.
func (c *call) admit() *failure {
	h := &c.ctx.Request.Header
	hd, f := c.p.checkHead(h)
	c.head, c.protocol = hd, hd.route.Protocol
	c.http10 = !h.IsHTTP11()
	c.makeID(h.Peek("X-Request-Id"))
	o := &c.p.opts
	c.explain = o.Explain || (!o.HideExplain && string(h.Peek("X-Prefixring-Explain")) == "1")
	return f
}

// limits is the second half of admission, once the size of the request is known.
func (c *call) limits() *failure {
	t := c.head.tenant
	if t == nil {
		return nil
	}
	if r := t.Admit(c.start, c.tokens); r != nil {
		return r.failure()
	}
	c.owes = true
	return nil
}

// maxRequestID bounds what a client's id adds to every log line and engine record.
const maxRequestID = 96

// makeID makes the request's id unique: a client's own id is kept as its beginning,
// so that both sides can search for it. Ids that could break a header or a log line
// are replaced (header injection).
func (c *call) makeID(given []byte) {
	if len(given) > 0 && len(given) <= maxRequestID && plainID(given) {
		c.id = append(append(c.id[:0], given...), '-')
	} else {
		c.id = append(c.id[:0], "pr-"...)
	}
	c.id = append(c.id, c.p.idPrefix...)
	c.id = strconv.AppendUint(c.id, c.p.nextID.Add(1), 36)
}

// plainID allows the octets of UUIDs, ULIDs, base64 and trace ids.
func plainID(b []byte) bool {
	for _, c := range b {
		ok := c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' ||
			c == '-' || c == '_' || c == '.' || c == ':' || c == '/' || c == '+' || c == '='
		if !ok {
			return false
		}
	}
	return true
}

// mayUse says if the client may ask for a model by this name.
func (h *head) mayUse(model string) bool { return h.tenant == nil || h.tenant.Allows(model) }
