package health

import (
	"fmt"
	"time"

	"github.com/prefixring/prefixring/internal/dialect"
)

// SetPools says how the nodes of each pool are watched and judged from now on: what was
// seen of them stays, and the next probe and the next page are held to the new settings.
// A pool that is not named has the settings that the manager was made with. An error
// names the first bad setting, and nothing has changed then.
func (m *Manager) SetPools(pools map[string]Settings) error {
	next := make(map[string]*Settings, len(pools))
	for name, s := range pools {
		if err := s.fill(); err != nil {
			return fmt.Errorf("cannot watch pool %q: %w", name, err)
		}
		next[name] = &s
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.settings = next
	for _, n := range m.nodes {
		n.core.opt = m.settingsOf(n.target.Pool)
	}
	for _, ep := range m.endpoints {
		m.retime(ep)
	}
	return nil
}

// settingsOf are those of a pool. They are never changed, only replaced.
func (m *Manager) settingsOf(pool string) *Settings {
	if s := m.settings[pool]; s != nil {
		return s
	}
	return &m.opt.Settings
}

// retime sets the clocks of an endpoint. It is polled once for all nodes behind it, so
// that those of the most demanding pool hold: the shortest period and the longest
// patience of each probe. The caller holds mu.
func (m *Manager) retime(ep *endpoint) {
	if len(ep.nodes) == 0 {
		return
	}
	s := *m.settingsOf(ep.nodes[0].target.Pool)
	for _, n := range ep.nodes[1:] {
		o := m.settingsOf(n.target.Pool)
		s.Metrics.meet(&o.Metrics)
		s.Health.meet(&o.Health)
		s.Models.meet(&o.Models)
		s.Version.meet(&o.Version)
	}
	if old := ep.clock.Swap(&s); old == nil || old.Metrics.Period <= s.Metrics.Period {
		return
	}
	select { // a loop that sleeps through the old, longer period is woken
	case ep.sooner <- struct{}{}:
	default:
	}
}

func (p *Probe) meet(o *Probe) {
	p.Period, p.Timeout = min(p.Period, o.Period), max(p.Timeout, o.Timeout)
}

// hangAfter is the limit for an engine's dialect, 0 = off.
func (o *Settings) hangAfter(e dialect.Engine) time.Duration {
	switch {
	case o.HangAfter < 0:
		return 0
	case o.HangAfter > 0:
		return o.HangAfter
	case e == dialect.SGLang:
		// Gauges move every 40 decode steps while busy and every 30 s when idle.
		return time.Minute
	}
	return 30 * time.Second
}
