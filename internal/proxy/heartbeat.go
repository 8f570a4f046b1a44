package proxy

import (
	"bytes"
	"io"
	"time"

	"github.com/valyala/fasthttp"

	"github.com/prefixring/prefixring/internal/dialect"
)

// Heartbeats are comment lines that keep proxies further out from cutting a stream
// whose first event takes minutes (field case B05). The first one commits the client's
// head as 200, so what an engine says after that can only become an event.

var heartbeat = []byte(": keep-alive\n\n")

// beats reports that the client of this call gets heartbeats.
func (c *call) beats() bool {
	return c.p.opts.Heartbeat > 0 && c.stream && !c.http10 && c.protocol != dialect.Opaque
}

// commitEarly gives the client the head of a stream before any engine has answered.
// WriteTo then goes on where advance stopped.
func (c *call) commitEarly() {
	c.early, c.committed, c.status = true, true, 200
	h := &c.ctx.Response.Header
	h.SetStatusCode(200)
	h.SetContentType("text/event-stream; charset=utf-8")
	h.Set(fasthttp.HeaderCacheControl, "no-cache")
	h.Set("X-Accel-Buffering", "no")
	h.SetBytesV("X-Request-Id", c.id)
	if c.explain {
		c.explainHeaders(h)
	}
	c.ctx.Response.SetBodyStream(c, -1)
}

// keepAlive sends heartbeats until there is a response. It reports false when the
// stream is over: the answer was an error, and has been delivered as an event.
func (c *call) keepAlive(w io.Writer) (bool, error) {
	for {
		if err := c.deliver(w, heartbeat); err != nil {
			return false, c.lost(err)
		}
		c.nextBeat = time.Now().Add(c.p.opts.Heartbeat)
		p, f := c.advance()
		switch {
		case p == beat:
			continue
		case p == ready || c.refusedByEngine:
			return c.joinStream(w)
		}
		if why := c.cancelled(); why == causeClientGone || why == causeClientStalled {
			return false, c.lost(errAborted)
		}
		c.failed = f
		return false, c.deliver(w, f.stream(c.protocol))
	}
}

// joinStream goes on with the engine's stream, or turns what is no stream into an
// error event.
func (c *call) joinStream(w io.Writer) (bool, error) {
	ex := c.ex
	c.began()
	if ex.head.status == 200 && ex.head.eventStream && !ex.head.encoded {
		if c.wantsUsage() {
			c.strip.on = true
		}
		c.releaseBody()
		return true, nil
	}
	c.failed = &failEngine
	return false, c.deliver(w, c.eventOf(c.restOfBody()))
}

// restOfBody reads a short body to its end.
func (c *call) restOfBody() []byte {
	var b []byte
	for len(b) < maxSaved {
		b = append(b, c.ex.reply.pending()...)
		c.ex.take()
		if c.ex.more() != nil {
			break
		}
	}
	return b
}

// eventOf frames an engine's JSON error as the event that the protocol has for it.
func (c *call) eventOf(body []byte) []byte {
	body = bytes.TrimSpace(body)
	if len(body) == 0 || body[0] != '{' {
		f := failEngine
		return f.stream(c.protocol)
	}
	var out []byte
	if c.protocol == dialect.Messages || c.protocol == dialect.Responses {
		out = append(out, "event: error\n"...)
	}
	out = append(out, "data: "...)
	for _, line := range bytes.FieldsFunc(body, func(r rune) bool { return r == '\n' || r == '\r' }) {
		out = append(out, line...) // white space between tokens, so JSON stays JSON
	}
	return append(out, "\n\n"...)
}
