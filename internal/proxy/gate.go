package proxy

import (
	"time"

	"github.com/prefixring/prefixring/internal/channel"
	"github.com/prefixring/prefixring/internal/dialect"
	"github.com/prefixring/prefixring/internal/residency"
	"github.com/prefixring/prefixring/ring"
)

// gate decides, inside a pick, whether a node may take this call: not while the
// engine refuses connections or asked to be left alone, and not while it is cold
// for a fat prefix that somebody else is prefilling already.
type gate struct {
	c       *call
	now     time.Time
	leads   int        // cold prefills of this prefix that may run at the same time
	sick    bool       // ask nodes that refuse connections too: nothing else is left
	busy    bool       // and nodes that asked to be left alone
	cold    bool       // the warm gate is off for this pick: the wait limit has passed
	proven  bool       // only nodes that are proven warm
	lead    *ring.Node // node for which this call is a cold prefill
	skipped bool       // a node was passed over for its connection or its refusal
	closed  bool       // a node was passed over by the warm gate
	full    bool       // a node was passed over because of the pool's cap
	mark    channel.Mark
	probe   bool // this call probes whether the node accepts connections again
}

var _ ring.WarmGate = (*gate)(nil)

// Admit implements ring.Gate.
func (g *gate) Admit(n *ring.Node) (extra int64, ok bool) {
	up, _ := n.Value().(*Upstream)
	if up == nil {
		return 0, false
	}
	if up.account != nil {
		return g.admitHosted(up)
	}
	if limit := g.c.route.pool.MaxInFlight; limit > 0 && n.InFlight() > limit {
		// The reservation that is being decided counts already.
		g.full = true
		return 0, false
	}
	if !g.busy && up.isBusy(g.now) {
		g.skipped = true
		return 0, false
	}
	extra, ok = g.warm(n)
	if !ok {
		g.closed = true
		return 0, false
	}
	if !g.sick {
		if ok, g.probe = up.breaker.allow(g.now); !ok {
			g.skipped = true
			g.drop()
			return 0, false
		}
	}
	return extra, true
}

// Warm implements ring.WarmGate: nodes that only take what is warm there.
func (g *gate) Warm(n *ring.Node) bool {
	t := g.c.route.pool.Residency
	if t == nil || g.c.key == 0 {
		return false
	}
	w, _ := t.Warmth(n.ID(), g.c.key)
	return w == residency.Warm
}

// warm asks residency. The extra work is the static prefix when the node would have
// to compute it.
func (g *gate) warm(n *ring.Node) (extra int64, ok bool) {
	c := g.c
	table := c.route.pool.Residency
	if table == nil || c.key == 0 {
		return 0, true
	}
	if g.Warm(n) {
		return 0, true
	}
	cost := c.units(c.static)
	if !c.fat() || g.cold {
		return cost, true
	}
	if g.proven || !table.LeadAmong(n.ID(), c.key, g.leads) {
		return 0, false
	}
	g.lead = n
	return cost, true
}

// fat reports that the static prefix is long enough for the warm gate to guard it.
func (c *call) fat() bool {
	limit := int64(c.p.opts.FatTokens)
	return limit >= 0 && c.static >= limit && c.route.pool.Residency != nil && c.key != 0
}

// drop gives the lead back, if this call has it: the prefill is done, failed, or
// never began.
func (g *gate) drop() {
	if g.lead != nil {
		g.c.route.pool.Residency.Done(g.lead.ID(), g.c.key)
		g.lead = nil
	}
}

// began is called when the beginning of a body is in hand, and for a stream until its
// first event that is no announcement: the prompt has been computed. The lead of a cold prefill ends with the proof that wakes its
// followers, and the slot weighs only its request from now on.
func (c *call) began() {
	c.noteTimes()
	c.noteResponse()
	ex := c.ex
	if !ex.begun || ex.head.status != 200 {
		return
	}
	if st := ex.tap.State(); st.ErrorEvent || ex.head.eventStream && ex.tapped && !st.Output {
		return // nothing, or only announcements: WriteTo looks again
	}
	c.computed = true
	if c.fat() {
		c.route.pool.Residency.Observe(c.node.ID(), c.key, residency.Evidence{
			Kind: residency.Prefill, Prompt: dialect.Unknown, Cached: dialect.Unknown,
			Static: c.static, Sent: c.sent,
		})
	}
	if c.ex.gate.lead != nil {
		c.ex.gate.drop()
		c.route.pool.queue.wake()
	}
	c.ex.slot.Adjust(ring.Unit)
}

// observe tells residency what the engine said about its cache for this prefix. No
// report is no evidence: unknown is not zero (field case B67).
func (c *call) observe(out dialect.Outcome) {
	table := c.route.pool.Residency
	if table == nil || c.key == 0 || out.Usage.Prompt == dialect.Unknown {
		return
	}
	table.Observe(c.node.ID(), c.key, residency.Evidence{
		Kind: residency.Usage, Prompt: out.Usage.Prompt, Cached: out.Usage.Cached,
		Static: c.static, Output: max(out.Usage.Output, 0), Sent: c.sent,
	})
}
