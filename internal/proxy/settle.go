package proxy

import (
	"github.com/prefixring/prefixring/internal/dialect"
)

// noteTimes takes the times that the tap makes visible. It runs for every piece of
// a stream until the first token has been seen.
func (c *call) noteTimes() {
	r, ex := &c.record, c.ex
	if r.FirstByte == 0 && ex.begun {
		r.FirstByte = max(c.p.opts.Now().Sub(c.start), 1)
	}
	if r.FirstToken == 0 && ex.head.eventStream && ex.tap.State().FirstToken {
		r.FirstToken = max(c.p.opts.Now().Sub(c.start), 1)
	}
}

// settle is step 7: everything that a request took is given back and everything
// that it proved is told, once. The call may not be used afterwards.
func (c *call) settle() {
	if c.settled {
		return
	}
	c.settled = true
	why := c.cancelled()
	out := dialect.Outcome{Usage: dialect.NoUsage}
	if c.ex.answered {
		out = c.ex.end(c.whole)
	}
	if why == causeNone && c.committed && !c.whole && c.failed == nil {
		// The server never asked for the body: the head could not be written.
		why = causeClientGone
	}
	c.ex.close()
	if c.inLine != nil {
		c.route.pool.queue.leave(c.inLine.waiter, false)
		c.inLine = nil
	}
	r := &c.record
	r.Verdict = c.verdictOf(out.Verdict, why)
	r.Usage = out.Usage
	c.learn(out, r.Verdict)
	c.settleHosted(out.Usage)
	if c.owes {
		c.head.tenant.Settle(c.p.opts.Now(), c.tokens, used(out.Usage))
	}
	c.account(why)
	c.free()
}

// verdictOf puts the router's own knowledge above what the body proved: a client
// that left cancelled its request unless the answer was already whole.
func (c *call) verdictOf(v dialect.Verdict, why cause) dialect.Verdict {
	switch {
	case why != causeNone && !c.whole:
		if why == causeClientGone || why == causeClientStalled || why == causeDrain {
			return dialect.Cancelled
		}
		return dialect.Failed
	case c.failed != nil:
		return dialect.Failed
	case c.status >= 400:
		return dialect.Failed
	}
	return v
}

// learn feeds residency and bindings with what the response proved.
func (c *call) learn(out dialect.Outcome, v dialect.Verdict) {
	if c.ex.node == nil {
		return
	}
	if c.ex.answered {
		c.observe(out)
		c.bindStored()
		if v == dialect.Success {
			c.rememberTier()
		}
	}
	c.rebind(v)
}

// account fills in the record and hands it on.
func (c *call) account(why cause) {
	r := &c.record
	r.ID = b2s(c.id)
	r.Protocol = c.protocol.String()
	r.Stream = c.stream
	r.Start = c.start
	r.Total = c.p.opts.Now().Sub(c.start)
	r.BytesOut = c.out
	r.Fingerprint = c.key
	r.Status = c.status
	if r.BytesIn == 0 {
		r.BytesIn = int64(len(c.body))
	}
	if c.route != nil {
		r.Pool = c.route.pool.Name
		r.Model = c.route.model
	}
	r.Tenant = c.scope()
	if c.node != nil {
		r.Node = c.node.Name()
		r.Reason = c.reason.String()
		r.Rank = c.rank
	}
	if c.failed != nil {
		r.ErrorCode = c.failed.code
	}
	if why == causeClientGone || why == causeClientStalled {
		r.ErrorCode = why.failure().code
		if !c.committed {
			r.Status = why.failure().status
		}
	}
	c.p.counts.settled.Add(1)
	if c.p.opts.Sink != nil {
		c.p.opts.Sink.Settle(r)
	}
}

// used is the tokens that a tenant is charged with.
func used(u dialect.Usage) int64 {
	if u.Prompt == dialect.Unknown {
		return dialect.Unknown
	}
	return u.Prompt + max(u.Output, 0)
}
