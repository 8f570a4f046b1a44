package proxy

import (
	"github.com/prefixring/prefixring/internal/session"
	"github.com/prefixring/prefixring/ring"
)

// leadsTo is the node of the binding that was found, if it may be followed. Health comes
// before cache: what is refused here competes like any other request.
func (c *call) leadsTo(store *session.Store) *ring.Node {
	n := nodeByID(c.route.pool.Ring, uint32(c.bound.found.Target))
	if n == nil {
		if !c.peeking {
			store.EvictIf(c.bound.now, c.bound.found.Gen, session.Gone)
		}
		return nil
	}
	if why, unfit := c.unfit(n); unfit {
		if !c.peeking {
			store.Refused(why)
		}
		return nil
	}
	return n
}

// unfit says why no binding may lead to a node now.
func (c *call) unfit(n *ring.Node) (why session.Refusal, unfit bool) {
	up, _ := n.Value().(*Upstream)
	if up == nil {
		return session.NotEligible, true
	}
	if v := up.state.Load(); v != 0 {
		return session.Refusal(v - 1), true
	}
	if up.account != nil {
		return c.unfitHosted(up)
	}
	switch {
	case n.Level() == ring.Closed:
		return session.NotEligible, true
	case up.isBusy(c.p.opts.Now()) || up.breaker.until.Load() != 0:
		return session.Resting, true
	}
	return 0, false
}

// noteFollow counts, once per request and when its first node is chosen, whether the
// binding was followed.
func (c *call) noteFollow() {
	b := &c.bound
	store := c.bindings()
	if store == nil || b.node == nil || b.noted {
		return
	}
	b.noted = true
	if c.node == b.node {
		store.Follow(b.now, b.found.Gen)
		return
	}
	why, unfit := c.unfit(b.node)
	if !unfit {
		why = session.AtBound
	}
	store.Refused(why)
}
