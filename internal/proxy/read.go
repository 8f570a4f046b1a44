package proxy

import (
	"bytes"
	"errors"
	"io"
	"mime"
	"mime/multipart"

	"github.com/prefixring/prefixring/internal/dialect"
	"github.com/prefixring/prefixring/internal/fingerprint"
	"github.com/prefixring/prefixring/ring"
)

// read is step 2: one scan over the body says which model is asked for, what the
// request is keyed by and how much work it is. The body itself is not touched.
func (c *call) read() *failure {
	c.table = c.p.table.Load()
	if c.table == nil || len(c.table.pools) == 0 {
		return &failNoEngine
	}
	c.body = c.ctx.Request.Body()
	c.scan = newScan()
	h := &c.ctx.Request.Header
	if len(h.ContentEncoding()) > 0 {
		// Nothing is decompressed on behalf of a client: such a body is forwarded
		// unread, and only where that is unambiguous.
		c.opaque = true
	}
	if f := c.understand(h.ContentType()); f != nil {
		return f
	}
	if c.scanned {
		c.diagnose()
	}
	return nil
}

// understand scans the body, finds its route and measures it.
func (c *call) understand(contentType []byte) *failure {
	name, f := c.readModelFrom(contentType)
	if f != nil {
		return f
	}
	if f := c.findRoute(name); f != nil {
		return f
	}
	return c.weigh()
}

// weigh measures the request for the pool that it goes to.
func (c *call) weigh() *failure {
	if c.scanned {
		if f := c.rescan(); f != nil {
			return f
		}
	}
	c.measure()
	return nil
}

// rescan is for a pool that reads bodies unlike the one that the model was read with. Pools
// that share a scanner need none: only the lead of a raw completion may be another.
func (c *call) rescan() *failure {
	pool := c.route.pool
	if s := pool.Scanner; c.reader != s {
		if err := s.Scan(c.protocol, c.body, c.scan); err != nil {
			return scanFailure(err)
		}
		c.reader = s
	}
	pool.Scanner.Lead(c.scan, pool.Lead)
	return nil
}

// readModelFrom scans the body and returns the model name in it.
func (c *call) readModelFrom(contentType []byte) ([]byte, *failure) {
	c.scanned = false
	if c.opaque || (len(c.body) == 0 && c.protocol == dialect.Opaque) {
		return nil, nil
	}
	if c.head.route.Multipart || hasFoldPrefix(contentType, "multipart/") {
		return multipartModel(contentType, c.body), nil
	}
	if err := c.table.pools[0].Scanner.Scan(c.protocol, c.body, c.scan); err != nil {
		return nil, scanFailure(err)
	}
	c.scanned, c.reader = true, c.table.pools[0].Scanner
	c.stream = c.scan.StreamOn
	if !c.scan.Model.Present() {
		return nil, nil
	}
	return c.text(c.scan.Model), nil
}

// text returns the decoded string of a span, without a copy where it has no escape.
func (c *call) text(s fingerprint.Span) []byte {
	raw := c.body[s.Start:s.End]
	if len(raw) >= 2 && raw[0] == '"' && bytes.IndexByte(raw, '\\') < 0 {
		return raw[1 : len(raw)-1]
	}
	c.scratch = fingerprint.Text(c.body, s, c.scratch[:0])
	return c.scratch
}

// findRoute picks the pool of a model name.
func (c *call) findRoute(name []byte) *failure {
	if len(name) == 0 {
		if c.route = c.table.only; c.route == nil || !c.head.mayUse(c.route.model) {
			return &failNoModel
		}
		return nil
	}
	c.route = c.table.find(name)
	if c.route == nil || !c.head.mayUse(b2s(name)) {
		c.route = nil
		return c.table.unknownModel(name, &c.head)
	}
	if r := c.route.named; r != nil {
		return c.setOut(r)
	}
	return nil
}

// measure derives the routing key and the work from the scan.
func (c *call) measure() {
	o := &c.p.opts
	c.tokens = int64(len(c.body) / o.BytesPerToken)
	if c.scanned {
		if c.protocol != dialect.Opaque {
			c.tokens = int64(c.scan.PromptBytes / o.BytesPerToken)
		}
		c.setKey()
		c.static = int64(c.sharedBytes() / o.BytesPerToken)
	}
	c.record.Kind = c.kind().String()
	if i := c.scan.Named; c.scanned && i >= 0 && i < len(c.route.pool.Named) {
		c.record.Named = c.route.pool.Named[i]
	}
	c.work = ring.Unit + c.units(c.tokens-c.static)
}

// setKey derives the ring key. A request with nothing to key on has none: it goes
// where there is room, and the record says so (field case B29).
func (c *call) setKey() {
	// It may have been weighed for another pool before.
	c.key, c.family, c.learned, c.record.Depth = 0, 0, learned{}, ""
	if c.scan.Kind == fingerprint.KindNone {
		return
	}
	adapter := ""
	if c.scan.Adapter.Present() {
		adapter = string(c.text(c.scan.Adapter))
	}
	if d := c.learnKey(adapter); d != 0 {
		c.key = c.ringKey(d, adapter)
	}
}

// units turns uncached prompt tokens into ring units.
func (c *call) units(tokens int64) int64 {
	return max(tokens, 0) * ring.Unit / int64(c.p.opts.QuantumTokens)
}

// scanFailure names the place where a body stops being valid, never its content.
func scanFailure(err error) *failure {
	var se *fingerprint.SyntaxError
	if errors.As(err, &se) {
		if se.Reason == fingerprint.ReasonDuplicate {
			return failTwice.with(se.Error())
		}
		return failJSON.with("the request body is not valid: " + se.Error())
	}
	return &failJSON
}

// multipartModel finds the model field of a form. Audio comes after it in what the
// official clients send, but the order is not promised, so every part is looked at.
func multipartModel(contentType, body []byte) []byte {
	_, params, err := mime.ParseMediaType(string(contentType))
	if err != nil || params["boundary"] == "" {
		return nil
	}
	mr := multipart.NewReader(bytes.NewReader(body), params["boundary"])
	for {
		part, err := mr.NextRawPart()
		if err != nil {
			return nil
		}
		if part.FormName() == "model" {
			const longestModel = 512
			v, err := io.ReadAll(io.LimitReader(part, longestModel))
			if err != nil {
				return nil
			}
			return bytes.TrimSpace(v)
		}
	}
}
