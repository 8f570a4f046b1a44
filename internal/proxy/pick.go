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
func (c *call) pick() (progress, *failure) {
	if c.inLine != nil {
		return c.wait() // a heartbeat was due while it waited
	}
	// A retry passes the warm gate: a second prefill costs less than a lost request.
	if c.choose(c.ntried > 0) {
		return ready, nil
	}
	if c.ntried > 0 || c.blocked == blockedNever {
		// A retry does not queue: every node that could take it has refused or is full.
		return over, c.refused()
	}
	if c.blocked != blockedPrefill && c.elsewhereUp() {
		return over, c.refused() // why wait, where another tier has room
	}
	o := &c.p.opts.Queue
	if o.Wait == 0 && c.blocked != blockedPrefill {
		return over, c.refused()
	}
	w := &waiter{ready: make(chan struct{}, 1), scope: c.scope(), class: c.class()}
	if !c.route.pool.queue.join(w, o.Depth) {
		return over, &failQueueFull
	}
	now := time.Now()
	c.inLine = &place{waiter: w, since: now, short: now.Add(o.Wait), long: now.Add(max(o.Gate, o.Wait))}
	return c.wait()
}

// place is a call's place in the queue. It waits by the wall clock: its limits are
// timers.
type place struct {
	*waiter
	since, short, long time.Time
}

// choose tries once. cold passes the warm gate.
func (c *call) choose(cold bool) bool {
	pool := c.route.pool
	if c.owners == 0 && pool.Owners != nil && c.key != 0 {
		c.owners = pool.Owners(c.key, c.work)
	}
	k := max(c.owners, 1)
	c.ex.gate = gate{c: c, now: c.p.opts.Now(), cold: cold, leads: k}
	c.query = ring.Query{
		Key: c.key, Second: c.second, K: k, Next: c.learned.next, Work: c.work,
		Bound: c.bound.node, BoundWork: c.boundWork(), Tried: c.tried[:c.ntried], Gate: &c.ex.gate,
	}
	if c.key == 0 {
		// Nothing to key on: the least loaded node of the whole pool.
		c.query.Key, c.query.Second, c.query.K = c.seq.Load()+c.p.nextID.Load(), 0, len(pool.Ring.Nodes())
	}
	if pool.Hosted {
		c.hostedQuery(&c.query)
	}
	if c.reserve(pool) {
		return true
	}
	if c.ex.gate.closed {
		// Others are cold or full: a node that is proven warm may go above its usual
		// bound rather than have the prefix computed once more.
		c.query.Hard, c.ex.gate.proven = true, true
		if c.reserve(pool) {
			return true
		}
		c.blocked = blockedPrefill
		return false
	}
	if c.ex.gate.skipped && c.lastResort(pool) {
		return true
	}
	c.blocked = c.waitsFor(pool)
	return false
}

// lastResort asks nodes that asked to be left alone, and on a first attempt those
// that refused connections: asking one of them beats refusing everybody.
func (c *call) lastResort(pool *Pool) bool {
	c.ex.gate.busy, c.ex.gate.skipped = true, false
	if c.reserve(pool) {
		return true
	}
	if !c.ex.gate.skipped || c.ntried > 0 {
		return false
	}
	c.ex.gate.sick = true
	return c.reserve(pool)
}

// waitsFor says what the call waits for.
func (c *call) waitsFor(pool *Pool) blocked {
	switch {
	case c.refusal == ring.AtBound || c.ex.gate.full:
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
	ex := c.ex
	ex.slot, ex.node, ex.reason, ex.held = slot, slot.Node(), reason, true
	ex.up = ex.node.Value().(*Upstream) // the gate admits no other
	c.use(ex)
	c.noteFollow()
	return true
}

// refused is the answer when no node may be asked and none is waited for.
func (c *call) refused() *failure {
	if c.blocked == blockedFull {
		return &failBound
	}
	return &failNoEngine
}

// wait stays in line until a node can take the call, the limits pass, a heartbeat is
// due, or the client leaves.
func (c *call) wait() (progress, *failure) {
	p, f := c.waitOn()
	if p == beat {
		return p, nil
	}
	c.record.Queue = time.Since(c.inLine.since)
	c.route.pool.queue.leave(c.inLine.waiter, p == ready)
	c.inLine = nil
	if p == ready {
		c.reason, c.ex.reason = ring.Wait, ring.Wait
	}
	return p, f
}

func (c *call) waitOn() (progress, *failure) {
	q, at := &c.route.pool.queue, c.inLine
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		gone := c.waiter()
		if gone == nil {
			return over, c.cancelled().failure()
		}
		var leader <-chan struct{}
		until := at.short
		if c.blocked == blockedPrefill {
			// The prefill can take many seconds, so the longer limit holds. It may have
			// ended before the channel was made: look once more.
			leader, until = c.route.pool.Residency.Changed(c.key), at.long
			if c.choose(false) {
				return ready, nil
			}
		}
		wakeAt := until
		if c.beats() && c.nextBeat.Before(until) {
			wakeAt = c.nextBeat
		}
		timer.Reset(time.Until(wakeAt))
		woken, late := false, false
		select {
		case <-at.ready:
			woken = true
		case <-leader:
		case <-timer.C:
			if wakeAt != until {
				return beat, nil
			}
			late = true
		case <-gone:
			return over, c.cancelled().failure()
		}
		if c.choose(late) {
			return ready, nil
		}
		if late {
			return over, &failQueueWait
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
