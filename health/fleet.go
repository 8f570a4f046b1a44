package health

import (
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/prefixring/prefixring/ring"
)

// The rules that look at a pool as a whole. All of them run under the manager's mu.

// panicRule opens the least bad node of a pool in which every serving node has been
// closed to new prefixes by its own numbers: somebody has to serve, up to the hard
// bound. A node that refuses work, or that an operator has cordoned, is no candidate.
func (m *Manager) panicRule(pool string, now time.Time) {
	nodes := m.pools[pool]
	var best, current *node
	relief := false
	for _, n := range nodes {
		c := n.core
		if !c.state.Serving() || c.cordoned {
			continue
		}
		if c.level < ring.WarmOnly {
			relief = true
			break
		}
		if now.Before(c.full.busyUntil) {
			continue
		}
		if n.panicking {
			current = n
		}
		if best == nil || c.full.pressure < best.core.full.pressure {
			best = n
		}
	}
	// Stay with the one that is open unless another is clearly better, or prefixes would
	// wander from node to node.
	if current != nil && current.core.full.pressure <= 1.25*best.core.full.pressure {
		best = current
	}
	for _, n := range nodes {
		if on := !relief && n == best; on != n.panicking {
			n.panicking = on
			m.note(n, now)
		}
	}
}

// tryEject ejects a node whose traffic fails, if the pool can spare it.
func (m *Manager) tryEject(n *node, now time.Time) {
	total, ejected, serving := 0, 0, 0
	for _, o := range m.pools[n.target.Pool] {
		total++
		if o.core.state == Ejected {
			ejected++
		}
		if o.core.state.Serving() {
			serving++
		}
	}
	if n.core.state.Serving() && mayEject(total, ejected, serving, n.core.opt.Outliers.Share) {
		n.core.step(observation{kind: obsEject, reason: n.core.wantEject}, now)
		n.forgetLatency()
	}
}

// latencyRule ejects a ready node whose warm first events come far later than those
// of the rest of its pool.
func (m *Manager) latencyRule(pool string, now time.Time) {
	o := &m.settingsOf(pool).Outliers
	if o.LatencyFactor <= 0 {
		return
	}
	var all []float64
	nodes := m.pools[pool]
	for _, n := range nodes {
		if n.core.state == Ready && n.samples.Load() >= 20 {
			all = append(all, math.Float64frombits(n.latency.Load()))
		}
	}
	if len(all) < 3 {
		return
	}
	slices.Sort(all)
	for _, n := range nodes {
		if n.core.state != Ready || n.samples.Load() < 20 {
			continue
		}
		own := math.Float64frombits(n.latency.Load())
		others := medianWithout(all, own)
		if own > o.LatencyFactor*others && own > o.LatencyFloor.Seconds() {
			n.core.wantEject = fmt.Sprintf("first event takes %.1f s on warm prefixes, others %.1f s", own, others)
			m.tryEject(n, now)
			n.core.wantEject = ""
			m.note(n, now)
		}
	}
}

// medianWithout is the median of sorted values but one.
func medianWithout(sorted []float64, v float64) float64 {
	i := slices.Index(sorted, v)
	rest := len(sorted) - 1
	at := func(k int) float64 {
		if k >= i {
			k++
		}
		return sorted[k]
	}
	return (at((rest-1)/2) + at(rest/2)) / 2
}

// startTrial sends the trial request of a node that is due for one.
func (m *Manager) startTrial(n *node, now time.Time) {
	if n.trying || !n.core.trialDue(now) || !m.running {
		return
	}
	n.trying = true
	ep, model, rank := n.ep, n.core.trialModel(), n.target.Rank
	ctx, limit := m.ctx, n.core.opt.TrialTimeout
	m.wg.Go(func() {
		r := m.trial(ctx, ep, model, rank, limit)
		m.mu.Lock()
		n.trying = false
		if n.ep == ep && ctx.Err() == nil {
			m.step(n, observation{kind: obsTrial, result: r}, time.Now())
		}
		m.mu.Unlock()
		m.deliver()
	})
}

// trialModel is a model that the engine lists, a wanted one if possible.
func (c *core) trialModel() string {
	for _, w := range c.want {
		if slices.Contains(c.models, w) {
			return w
		}
	}
	if len(c.models) > 0 {
		return c.models[0]
	}
	if len(c.adapters) > 0 {
		return c.adapters[0]
	}
	return ""
}
