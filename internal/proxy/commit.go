package proxy

import (
	"net"
	"strconv"

	"github.com/valyala/fasthttp"
)

// commit gives the client the head of the engine's response and leaves the body to
// WriteTo. From here on nothing is retried.
func (c *call) commit() {
	ex := c.ex
	c.began()
	status := ex.head.status
	if ex.status != 0 {
		status = ex.status // an error that rode on a 200
	}
	c.status, c.committed = status, true
	resp := &c.ctx.Response
	copyReplyHead(&resp.Header, &ex.head, status)
	c.decorate(&resp.Header)
	if c.status == 503 && len(ex.head.retryAfter) == 0 {
		resp.Header.Set(fasthttp.HeaderRetryAfter, "1") // engines send none (engine_contracts 7.4)
	}
	announceTrailer(&resp.Header, &ex.head)
	c.frame(resp)
	c.releaseBody()
}

// decorate adds what the router says itself.
func (c *call) decorate(h *fasthttp.ResponseHeader) {
	if c.ex.head.eventStream {
		// Without these, proxies further out collect the stream (field case B01).
		if len(h.Peek(fasthttp.HeaderCacheControl)) == 0 {
			h.Set(fasthttp.HeaderCacheControl, "no-cache")
		}
		h.Set("X-Accel-Buffering", "no")
	}
	if len(h.Peek("X-Request-Id")) == 0 {
		h.SetBytesV("X-Request-Id", c.id)
	}
	c.addLimits(h)
	if c.explain {
		c.explainHeaders(h)
	}
	if c.p.retiring.Load() {
		c.ctx.SetConnectionClose()
	}
}

// addLimits tells a client with limits what is left of them.
func (c *call) addLimits(h *fasthttp.ResponseHeader) {
	if t := c.head.tenant; t != nil {
		limitHeaders(h, t.Limits(c.p.opts.Now()))
	}
}

// explainHeaders says where the request went and why (DESIGN 11).
func (c *call) explainHeaders(h *fasthttp.ResponseHeader) {
	if c.node != nil {
		h.Set("X-Prefixring-Engine", c.node.Name())
		h.Set("X-Prefixring-Reason", c.reason.String())
		h.Set("X-Prefixring-Rank", strconv.Itoa(c.rank))
	}
	if c.key != 0 {
		h.SetBytesV("X-Prefixring-Fingerprint", strconv.AppendUint(c.scratch[:0], c.key, 16))
	}
	h.Set("X-Prefixring-Key", c.record.Kind)
	if c.record.Depth != "" {
		h.Set("X-Prefixring-Depth", c.record.Depth)
	}
	h.Set("X-Prefixring-Tries", strconv.Itoa(c.record.Tries))
}

// frame chooses the framing of the client's response: the engine's length where it
// had one and nothing is taken out, else chunks.
func (c *call) frame(resp *fasthttp.Response) {
	ex := c.ex
	size := -1
	switch {
	case ex.head.bodyless(c.ctx.Request.Header.IsHead()):
		size = int(max(ex.head.length, 0))
		if ex.head.status == 204 || ex.head.status == 304 {
			size = 0
		}
		c.whole = true // the server will not ask for a body
	case ex.reply.mode == bodyLength && !c.strip.on:
		size = int(ex.head.length)
	case ex.reply.done && !ex.head.eventStream && len(ex.reply.trailer) == 0 && !c.strip.on:
		size = len(ex.reply.pending())
	}
	c.fixed = size >= 0
	if c.http10 && !c.fixed {
		c.hijack()
		return
	}
	if c.fixed && !ex.reply.done {
		// The rest is written past the server's buffer, as it comes.
		resp.ImmediateHeaderFlush = true
		c.headed = true
	}
	resp.SetBodyStream(c, size)
}

// releaseBody gives the request body back: a long stream must not hold 240 KB that
// nobody can need again.
func (c *call) releaseBody() {
	c.record.BytesIn = int64(len(c.body))
	c.body = nil
	if c.scan != nil {
		scans.Put(c.scan)
		c.scan = nil
	}
	reclaimBody(&c.ctx.Request)
}

// announceTrailer repeats the engine's announcement of trailer fields, which the
// server then sends after the last chunk.
func announceTrailer(dst *fasthttp.ResponseHeader, h *replyHead) {
	for _, f := range h.fields {
		if len(f.name) == len("trailer") && foldEqual(f.name, "trailer") {
			// Forbidden names are left out by the server itself.
			_ = dst.AddTrailerBytes(f.value)
		}
	}
}

// hijack serves an HTTP/1.0 client a body of unknown length: it cannot read chunks,
// which is all that the server would send, so it gets the octets and then the end of
// the connection.
func (c *call) hijack() {
	h := &c.ctx.Response.Header
	h.SetContentLength(-2)
	h.SetConnectionClose()
	head := h.AppendBytes(nil)
	c.ctx.HijackSetNoResponse(true)
	c.ctx.Hijack(func(nc net.Conn) {
		defer c.Close()
		if _, err := nc.Write(head); err != nil {
			c.cancel(causeClientGone)
			return
		}
		// An error needs no telling: the connection ends either way.
		_, _ = c.WriteTo(nc)
	})
}
