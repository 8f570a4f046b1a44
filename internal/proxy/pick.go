package proxy

import (
	"time"

	"github.com/prefixring/prefixring/ring"
)

// blocked says what a call that got no node is waiting for.
type blocked uint8

const (
	blockedNever   blocked = iota // nothing would change by waiting
	blockedFull                   // nodes at their bound or at the pool's cap
	blockedClosed                 // nodes closed to new work that are working, so they will open
	blockedPrefill                // a cold prefill of the same prefix
)

// pick is step 4: choose a node and reserve a slot on it, or wait for one within
// limits, or say why not.
func (c *call) pick() *failure {
	if c.choose(false) {
		return nil
	}
	if c.ntried > 0 || c.blocked == blockedNever {
		// A retry does not queue: every node that could take it has refused or is full.
		return c.refused()
	}
	return c.wait()
}

// choose tries once. cold passes the warm gate.
func (c *call) choose(cold bool) bool {
	pool := c.route.pool
	if c.owners == 0 && pool.Owners != nil && c.key != 0 {
		c.owners = pool.Owners(c.key, c.work)
	}
	k := max(c.owners, 1)
	c.gate = gate{c: c, now: c.p.opts.Now(), cold: cold, leads: k}
	c.query = ring.Query{
		Key: c.key, Second: c.second, K: k, Work: c.work,
		Bound: c.bound.node, Tried: c.tried[:c.ntried], Gate: &c.gate,
	}
	if c.key == 0 {
		// Nothing to key on: the least loaded node of the whole pool.
		c.query.Key, c.query.Second, c.query.K = c.seq.Load()+c.p.nextID.Load(), 0, len(pool.Ring.Nodes())
	}
	if c.reserve(pool) {
		return true
	}
	if c.gate.closed {
		// Others are cold or full: a node that is proven warm may go above its usual
		// bound rather than have the prefix computed once more.
		c.query.Hard, c.gate.proven = true, true
		if c.reserve(pool) {
			return true
		}
		c.blocked = blockedPrefill
		return false
	}
	if c.gate.skipped && c.lastResort(pool) {
		return true
	}
	c.blocked = c.waitsFor(pool)
	return false
}

// lastResort asks nodes that asked to be left alone, and on a first attempt those
// that refused connections: asking one of them beats refusing everybody.
func (c *call) lastResort(pool *Pool) bool {
	c.gate.busy, c.gate.skipped = true, false
	if c.reserve(pool) {
		return true
	}
	if !c.gate.skipped || c.ntried > 0 {
		return false
	}
	c.gate.sick = true
	return c.reserve(pool)
}

// waitsFor says what the call waits for.
func (c *call) waitsFor(pool *Pool) blocked {
	switch {
	case c.refusal == ring.AtBound || c.gate.full:
		return blockedFull
	case c.refusal == ring.AllClosed:
		for _, n := range pool.Ring.Nodes() {
			if n.InFlight() > 0 {
				return blockedClosed
			}
		}
	}
	return blockedNever
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

// refused is the answer when no node may be asked and none is waited for.
func (c *call) refused() *failure {
	if c.blocked == blockedFull {
		return &failBound
	}
	return &failNoEngine
}

// wait queues the call until a node can take it, the limits pass, or the client
// leaves.
func (c *call) wait() *failure {
	o := &c.p.opts.Queue
	if o.Wait == 0 && c.blocked != blockedPrefill {
		return c.refused()
	}
	q := &c.route.pool.queue
	w := &waiter{ready: make(chan struct{}, 1), scope: c.scope(), class: c.class()}
	if !q.join(w, o.Depth) {
		return &failQueueFull
	}
	began := c.p.opts.Now()
	f := c.waitIn(q, w)
	q.leave(w, f == nil)
	c.record.Queue = c.p.opts.Now().Sub(began)
	if f == nil {
		c.reason = ring.Wait
	}
	return f
}

func (c *call) waitIn(q *waitQueue, w *waiter) *failure {
	o := &c.p.opts.Queue
	short, long := time.NewTimer(o.Wait), time.NewTimer(max(o.Gate, o.Wait))
	defer short.Stop()
	defer long.Stop()
	for {
		gone := c.waiter()
		if gone == nil {
			return c.cancelled().failure()
		}
		leader, timeUp := (<-chan struct{})(nil), short.C
		if c.blocked == blockedPrefill {
			// The prefill can take many seconds, so the longer limit holds. It may have
			// ended before the channel was made: look once more.
			leader, timeUp = c.route.pool.Residency.Changed(c.key), long.C
			if c.choose(false) {
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
			return nil
		}
		if late {
			return &failQueueWait
		}
		if woken {
			q.pass()
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
