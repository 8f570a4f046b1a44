package proxy

import (
	"errors"
	"fmt"
	"runtime/debug"
	"time"

	"github.com/valyala/fasthttp"
)

// Handler serves one request. It returns when the response head is decided; the
// body follows in call.WriteTo, and call.Close settles.
func (p *Proxy) Handler(ctx *fasthttp.RequestCtx) {
	c := p.newCall(ctx)
	defer func() {
		if r := recover(); r != nil {
			p.panicked(r)
			c.cancel(causePanic)
			c.ex.close()
			c.refuse(&failInternal)
		}
	}()
	if f := c.serve(); f != nil {
		c.refuse(f)
	}
}

// serve is one request, top to bottom. A nil answer means that a response was
// committed, or that the answer was local.
func (c *call) serve() *failure {
	if f := c.admit(); f != nil {
		return f
	}
	if c.head.route.Local {
		return c.serveModels()
	}
	if f := c.read(); f != nil {
		return f
	}
	if f := c.limits(); f != nil {
		return f
	}
	c.p.budget.deposit()
	c.recall()
	if c.beats() {
		c.nextBeat = time.Now().Add(c.p.opts.Heartbeat)
	}
	switch p, f := c.advance(); p {
	case ready:
		c.commit()
	case beat:
		c.commitEarly()
	default:
		return c.conclude(f)
	}
	return nil
}

// refuse answers with an error of the router, in the protocol of the client.
func (c *call) refuse(f *failure) {
	c.ex.close()
	c.failed, c.status = f, f.status
	resp := &c.ctx.Response
	resp.ResetBody()
	resp.Header.SetStatusCode(f.status)
	c.ctx.Response.Header.Set("X-Prefixring-Error", f.code)
	resp.Header.SetBytesV("X-Request-Id", c.id)
	resp.Header.SetContentType("application/json")
	if s := f.retrySeconds(); s > 0 {
		resp.Header.Set(fasthttp.HeaderRetryAfter, itoa(s))
	}
	if f.code == failMethod.code {
		resp.Header.Set(fasthttp.HeaderAllow, c.head.route.Allow())
	}
	c.addLimits(&resp.Header)
	if c.explain {
		c.explainHeaders(&resp.Header)
	}
	if f.close || c.p.retiring.Load() {
		c.ctx.SetConnectionClose()
	}
	e := f.dialect()
	e.RequestID = string(c.id)
	body := e.Body(c.protocol)
	c.out = int64(len(body))
	resp.SetBodyRaw(body)
	c.releaseBody()
	c.settle()
}

// onError answers requests that the server could not read. They never reach
// Handler, but they are counted, logged and answered in the client's protocol like
// all others (field cases B12, B21).
func (p *Proxy) onError(ctx *fasthttp.RequestCtx, err error) {
	c := p.newCall(ctx)
	f := readFailure(err, &p.opts)
	if c.conn != nil {
		c.protocol = c.conn.protocol
		if c.conn.refusal != nil && f.code == failBodySize.code {
			f = c.conn.refusal // the body was not read on purpose
		}
		c.conn.protocol, c.conn.refusal = 0, nil
	}
	c.makeID(nil)
	c.refuseUnread(f)
}

// refuseUnread refuses a request that was not read to its end.
func (c *call) refuseUnread(f *failure) {
	closing := *f
	closing.close = true
	if c.conn != nil {
		c.conn.linger = true
	}
	c.refuse(&closing)
}

// readFailure maps what fasthttp says about a request that it could not read.
func readFailure(err error, o *Options) *failure {
	var small *fasthttp.ErrSmallBuffer
	switch {
	case errors.As(err, &small):
		return limitHead(o.MaxHeader)
	case errors.Is(err, fasthttp.ErrBodyTooLarge):
		return limitBody(o.MaxBody)
	case isTimeout(err):
		return &failSlow
	case errors.Is(err, fasthttp.ErrDuplicateContentLength), errors.Is(err, fasthttp.ErrUnsupportedTransferEncoding):
		return &failFraming
	}
	return &failRequest
}

// onExpect decides, before the client sends its body, if it should.
func (p *Proxy) onExpect(ctx *fasthttp.RequestCtx) int {
	_, f := p.checkHead(&ctx.Request.Header)
	if f == nil {
		return fasthttp.StatusContinue
	}
	c := p.newCall(ctx)
	hd, _ := p.checkHead(&ctx.Request.Header)
	c.head, c.protocol = hd, hd.route.Protocol
	c.makeID(nil)
	c.refuseUnread(f)
	return f.status
}

// panicked reports a panic of ours. The request fails; the process goes on.
func (p *Proxy) panicked(r any) {
	p.counts.panics.Add(1)
	p.opts.Log.Error("panic while serving a request", "panic", fmt.Sprint(r), "stack", string(debug.Stack()))
}
