package health

import (
	"math"
	"time"

	"github.com/prefixring/prefixring/internal/dialect"
)

// progress watches whether an engine that says it works gets anywhere. A frozen core
// behind a live front end answers /health for hours (vLLM issues 36451 and 39863,
// field case B40); only standing counters show it.
type progress struct {
	mark  [6]float64
	known bool
	moved time.Time // when the mark last changed, or when there was nothing to do
	hung  bool
}

func (p *progress) reset() { *p = progress{} }

// since is the time that has passed since the last evidence of progress; very long
// without any.
func (p *progress) since(now, lastSuccess time.Time) time.Duration {
	last := p.moved
	if lastSuccess.After(last) {
		last = lastSuccess
	}
	if last.IsZero() {
		return math.MaxInt64
	}
	return now.Sub(last)
}

// marks are the numbers that move while a core works. vLLM's are counters, the first
// of which moves on every engine step. SGLang's counters move only when a request
// finishes, so that its gauges must serve where the live counter is missing; the queue
// is not among them, because the front end fills it.
func marks(s *Signals, e dialect.Engine) ([6]float64, bool) {
	m := [6]float64{s.Steps, s.GenerationTokens, s.PromptTokens, s.Finished}
	if e == dialect.SGLang && math.IsNaN(s.Steps) {
		m[4], m[5] = s.UsedTokens, s.Throughput
	}
	known := false
	for i, v := range m {
		if math.IsNaN(v) {
			m[i] = -1
		} else if i != 2 && i < 4 {
			known = true
		}
	}
	return m, known
}

// step takes a page. after is the limit, 0 for none.
func (p *progress) step(s *Signals, e dialect.Engine, after time.Duration, lastSuccess, now time.Time) {
	m, known := marks(s, e)
	switch {
	case !p.known || m != p.mark:
		// First page, or something moved. What the first page shows may be hours old,
		// so that the clock starts now.
		p.mark, p.known, p.moved, p.hung = m, true, now, false
	case !(s.Running > 0):
		p.moved, p.hung = now, false // nothing to do is no hang
	}
	if after > 0 && known && s.Running > 0 && p.since(now, lastSuccess) >= after {
		p.hung = true
	}
}

// restartedBetween says whether two pages of one address come from two processes: the
// process start time differs, or a counter went backwards. Pages with different sets
// of ranks have sums that cannot be compared.
func restartedBetween(a, b *Signals) bool {
	// The Python client works the start time out once per process: it does not drift.
	if d := b.StartTime - a.StartTime; d > 0.01 || d < -0.01 {
		return true
	}
	if len(a.Ranks) != len(b.Ranks) {
		return false
	}
	return b.GenerationTokens < a.GenerationTokens || b.PromptTokens < a.PromptTokens ||
		b.Finished < a.Finished || b.Steps < a.Steps ||
		b.PrefixQueries < a.PrefixQueries || b.PrefixHits < a.PrefixHits || b.QueueCount < a.QueueCount
}

// identify says that a later page of another process would differ: by its start time,
// or by counters that begin at zero again.
func (s *Signals) identify() bool {
	return !math.IsNaN(s.StartTime) || s.PromptTokens > 0 || s.GenerationTokens > 0 || s.Steps > 0
}

// onMetrics takes an accepted page.
func (c *core) onMetrics(s *Signals, lastSuccess, now time.Time) {
	c.observed = true
	c.touch(obsNoPage, result{status: 200})
	c.metricsOff = false
	if c.pages > 0 && restartedBetween(&c.signals, s) {
		c.restarted()
	} else if c.signals.identify() {
		c.lostTouch = false // the same process, out of reach for a while
	}
	c.pages++
	ranks := append(c.signals.Ranks[:0], s.Ranks...)
	c.signals = *s
	c.signals.Ranks = ranks
	c.signals.At = now
	c.onSleep()
	c.progress.step(s, c.engine, c.opt.hangAfter(c.engine), lastSuccess, now)
	switch {
	case c.progress.hung && c.trialAt.IsZero():
		c.trialAt = now.Add(c.opt.Outliers.Cooldown)
	case !c.progress.hung && !c.ejected:
		c.trialAt = time.Time{}
	}
	c.rates.add(s, now)
	c.hits.step(s, now)
	c.full.observe(c, now)
}
