package proxy

import (
	"time"

	"github.com/prefixring/prefixring/internal/residency"
	"github.com/prefixring/prefixring/ring"
)

// gate decides, inside a pick, whether a node may take this call: not while the
// engine refuses connections or asked to be left alone, and not while it is cold
// for a fat prefix that somebody else is prefilling there already.
type gate struct {
	c       *call
	now     time.Time
	sick    bool // ask nodes that refuse connections too: nothing else is left
	busy    bool // and nodes that asked to be left alone
	cold    bool // the warm gate is off for this pick: the wait limit has passed
	probing *Upstream
	lead    *ring.Node // node for which this call is the one cold prefill
	skipped bool       // a node was passed over for its connection or its refusal
	closed  bool       // a node was passed over by the warm gate
}

var _ ring.Gate = (*gate)(nil)

// Admit implements ring.Gate.
func (g *gate) Admit(n *ring.Node) (extra int64, ok bool) {
	up, _ := n.Value().(*Upstream)
	if up == nil {
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
	if !g.sick && !up.breaker.allow(g.now) {
		g.skipped = true
		g.drop()
		return 0, false
	}
	return extra, true
}

// warm asks residency. The extra work is the static prefix when the node would have
// to compute it.
func (g *gate) warm(n *ring.Node) (extra int64, ok bool) {
	c := g.c
	table := c.route.pool.Residency
	if table == nil || c.key == 0 {
		return 0, true
	}
	cost := c.units(c.static)
	w, _ := table.Warmth(n.ID(), c.key)
	if w == residency.Warm {
		return 0, true
	}
	fat := c.p.opts.FatTokens
	if g.cold || fat < 0 || c.static < int64(fat) {
		return cost, true
	}
	if !table.Lead(n.ID(), c.key) {
		return 0, false
	}
	g.lead = n
	return cost, true
}

// drop gives the lead back, if this call has it: the prefill is done, failed, or
// never began.
func (g *gate) drop() {
	if g.lead != nil {
		g.c.route.pool.Residency.Done(g.lead.ID(), g.c.key)
		g.lead = nil
	}
}
