package proxy

import (
	"time"

	"github.com/prefixring/prefixring/ring"
)

// pick is step 4: choose a node and reserve a slot on it, or wait for one within
// limits, or say why not.
func (c *call) pick() *failure {
	if c.choose(false) {
		return nil
	}
	if c.ntried > 0 {
		// A retry does not queue: every node that could take it has refused or is full.
		return c.refused()
	}
	return c.wait()
}

// choose tries once. cold passes the warm gate.
func (c *call) choose(cold bool) bool {
	pool := c.route.pool
	c.gate = gate{c: c, now: c.p.opts.Now(), cold: cold}
	c.query = ring.Query{
		Key: c.key, Second: c.second, K: 1, Work: c.work,
		Bound: c.bound.node, Tried: c.tried[:c.ntried], Gate: &c.gate,
	}
	if pool.Owners != nil && c.key != 0 && c.ntried == 0 {
		c.query.K = pool.Owners(c.key, c.work)
	}
	if c.reserve(pool) {
		return true
	}
	if c.gate.skipped {
		// Nothing but nodes that asked to be left alone, or that refused connections,
		// is left: asking one of them beats refusing everybody.
		c.gate.busy, c.gate.skipped = true, false
		if c.reserve(pool) {
			return true
		}
		if c.gate.skipped && c.ntried == 0 {
			c.gate.sick = true
			return c.reserve(pool)
		}
	}
	return false
}

func (c *call) reserve(pool *Pool) bool {
	slot, reason, refusal := pool.Ring.Pick(&c.query)
	c.refusal = refusal
	if reason == ring.None {
		return false
	}
	c.ex.slot, c.ex.node, c.ex.held = slot, slot.Node(), true
	c.node, c.rank, c.reason = c.ex.node, slot.Rank(), reason
	return true
}

// refused maps the ring's refusal.
func (c *call) refused() *failure {
	switch c.refusal {
	case ring.Empty, ring.AllClosed:
		return &failNoEngine
	default:
		return &failBound
	}
}

// hopeless reports that waiting cannot help.
func hopeless(r ring.Refusal) bool {
	return r != ring.Gated && r != ring.AtBound
}

// wait queues the call until a node can take it, the limits pass, or the client
// leaves.
func (c *call) wait() *failure {
	if hopeless(c.refusal) {
		return c.refused()
	}
	o := &c.p.opts.Queue
	pool := c.route.pool
	if o.Wait == 0 && c.refusal != ring.Gated {
		return &failBound
	}
	w := &waiter{ready: make(chan struct{}, 1), scope: c.scope(), class: c.class()}
	if !pool.queue.join(w, o.Depth) {
		return &failQueueFull
	}
	began := c.p.opts.Now()
	served := false
	defer func() {
		pool.queue.leave(w, served)
		c.record.Queue = c.p.opts.Now().Sub(began)
		c.reason = ring.Wait
	}()
	limit := time.NewTimer(o.Wait)
	defer limit.Stop()
	gateLimit := time.NewTimer(max(o.Gate, o.Wait))
	defer gateLimit.Stop()
	for {
		gone := c.waiter()
		if gone == nil {
			return c.cancelled().failure()
		}
		var leader <-chan struct{}
		var timeUp <-chan time.Time = limit.C
		if c.refusal == ring.Gated {
			// The leader of this prefix may begin to answer; that can take the
			// whole prefill, so the longer limit holds.
			leader, timeUp = pool.Residency.Changed(c.key), gateLimit.C
			if c.choose(false) { // it may have changed before we looked
				served = true
				return nil
			}
		}
		late, woken := false, false
		select {
		case <-w.ready:
			woken = true
		case <-leader:
		case <-timeUp:
			late = true
		case <-gone:
			return c.cancelled().failure()
		}
		if c.choose(late) {
			served = true
			return nil
		}
		if late {
			return &failQueueWait
		}
		if woken {
			pool.queue.pass()
		}
	}
}

// scope and class are the tenant's, or those of nobody.
func (c *call) scope() uint64 {
	if c.head.tenant == nil {
		return 0
	}
	return c.head.tenant.Scope()
}

func (c *call) class() int {
	if c.head.tenant == nil {
		return 0
	}
	return c.head.tenant.Class()
}
