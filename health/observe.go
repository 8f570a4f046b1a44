package health

import (
	"time"

	"github.com/prefixring/prefixring/ring"
)

// observe gives one observation to every node of an endpoint.
func (m *Manager) observe(ep *endpoint, o observation) {
	now := time.Now()
	m.mu.Lock()
	for _, n := range ep.nodes {
		m.step(n, o, now)
	}
	m.mu.Unlock()
	m.deliver()
}

// onPage gives a metrics page to every node of an endpoint, cut to its rank.
func (m *Manager) onPage(ep *endpoint, page *Signals) {
	now := page.At
	m.mu.Lock()
	told := make([]toldPage, 0, 8)
	for _, n := range ep.nodes {
		s := page
		if n.target.Rank != "" {
			own := page.ofRank(n.target.Rank)
			s = &own
		}
		m.step(n, observation{kind: obsMetrics, signals: s}, now)
		if m.opt.OnSignals != nil {
			told = append(told, toldPage{n.target.Name, s})
		}
	}
	m.mu.Unlock()
	for _, t := range told {
		m.opt.OnSignals(t.name, t.page)
	}
	m.deliver()
}

type toldPage struct {
	name string
	page *Signals
}

// step moves one node and books what is new.
func (m *Manager) step(n *node, o observation, now time.Time) {
	o.lastSuccess = n.successAt()
	n.core.step(o, now)
	if n.core.wantEject != "" {
		m.tryEject(n, now)
	}
	if n.core.state == Starting && n.told.State.Serving() && n.ep != nil {
		n.ep.wake() // another process answers: see at once whether it serves the model
	}
	if m.note(n, now) {
		m.panicRule(n.target.Pool, now)
	}
}

// note queues a change for delivery and logs it, and reports whether there was news.
func (m *Manager) note(n *node, now time.Time) bool {
	if !n.news(now) {
		return false
	}
	old := n.told
	n.told, n.toldMissing = n.status(now), n.core.missing()
	m.log(&old, &n.told, n, now)
	if m.opt.OnChange != nil {
		m.changes = append(m.changes, change{old, n.told})
	}
	return true
}

// deliver tells queued changes. Only one goroutine does so at a time, and it goes on
// until the queue is empty, so that the order holds and a callback may call the
// manager.
func (m *Manager) deliver() {
	m.mu.Lock()
	if m.delivering {
		m.mu.Unlock()
		return
	}
	m.delivering = true
	for len(m.changes) > 0 {
		batch := m.changes
		m.changes = nil
		m.mu.Unlock()
		for i := range batch {
			m.opt.OnChange(batch[i].old, batch[i].new)
		}
		m.mu.Lock()
	}
	m.delivering = false
	m.mu.Unlock()
}

// log writes one line for a transition, and one for each flag that has come up.
func (m *Manager) log(old, new *Status, n *node, now time.Time) {
	l := m.opt.Logger.With("node", new.Name)
	if (old.State != new.State || old.Level != new.Level) && new.State != Unknown {
		say := l.Info
		if !new.State.Serving() && old.State.Serving() && new.State != Draining && new.State != Gone {
			say = l.Warn
		}
		say("node changed", "from", old.State.String(), "to", new.State.String(), "reason", new.Reason,
			"level", levelName(new.Level), "panic", new.Panicking, "epoch", new.Epoch)
	}
	if new.AuthFailing && !old.AuthFailing {
		l.Warn("engine refuses the configured key")
	}
	if new.NoHits && !old.NoHits {
		l.Warn("engine reports prefix-cache queries but no hits: its cache does not work for these prompts")
	}
	if new.AffinityLimited && !old.AffinityLimited {
		l.Warn("several data-parallel ranks answer behind this node: pod affinity limited", "ranks", len(new.Signals.Ranks))
	}
	if len(new.Missing) > 0 && now.Sub(n.warned) >= time.Minute {
		n.warned = now
		l.Warn("engine does not report a signal that routing uses", "missing", new.Missing)
	}
}

func levelName(l ring.Level) string {
	switch l {
	case ring.Open:
		return "open"
	case ring.NoOverflow:
		return "no-overflow"
	case ring.WarmOnly:
		return "warm-only"
	}
	return "closed"
}

// onTick looks at what depends on time alone.
func (m *Manager) onTick() {
	now := time.Now()
	m.mu.Lock()
	m.sweep(now)
	retry := make(map[string]time.Duration, len(m.pools))
	for pool, nodes := range m.pools {
		for _, n := range nodes {
			m.step(n, observation{kind: obsTick}, now)
			m.startTrial(n, now)
		}
		m.latencyRule(pool, now)
		m.panicRule(pool, now)
		retry[pool] = m.retryAfter(pool, now)
	}
	m.retry.Store(&retry)
	m.mu.Unlock()
	m.deliver()
}

// settled says that every node of the endpoint is where it should be.
func (m *Manager) settled(ep *endpoint) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, n := range ep.nodes {
		if !n.core.healthy || !n.core.served || n.core.fails > 0 || n.core.refusals > 0 {
			return false
		}
	}
	return true
}

// allServed says that every node of the endpoint has its model.
func (m *Manager) allServed(ep *endpoint) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, n := range ep.nodes {
		if !n.core.served {
			return false
		}
	}
	return true
}

// sleepUntold says that the metrics are silent on sleep.
func (m *Manager) sleepUntold(ep *endpoint) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(ep.nodes) > 0 && ep.nodes[0].core.signals.Sleep == SleepUnknown
}
