package health

import (
	"fmt"
	"math"
	"time"

	"github.com/prefixring/prefixring/ring"
)

// gauge follows one signal through its thresholds.
type gauge struct {
	level  ring.Level
	breach time.Time // since when the first step has been breached; zero: it is not
	value  float64
}

// step moves the level for a new value. An unknown value supports no level.
func (g *gauge) step(v float64, s *Steps, now time.Time) {
	g.value = v
	var in, out ring.Level // the level that v enters, and the one it has not left
	for i := range 3 {
		if v >= s.Enter[i] {
			in = ring.Level(i + 1)
		}
		if v > s.Leave[i] {
			out = ring.Level(i + 1)
		}
	}
	if in == ring.Open {
		g.breach = time.Time{}
	} else if g.breach.IsZero() {
		g.breach = now
	}
	if in == ring.NoOverflow && g.level == ring.Open && now.Sub(g.breach) < s.Hold {
		return
	}
	switch {
	case in > g.level:
		g.level = in
	case out < g.level:
		g.level = max(out, in)
	}
}

// saturation folds the signals into one level. No gauge is trusted alone: the fullest
// word counts, because a full queue stands beside an almost empty KV cache
// (testdata/vllm_metrics_saturated.txt).
type saturation struct {
	waiting, kv, preempt, queue gauge

	busyUntil time.Time  // an engine refused work and named a time
	level     ring.Level // by the signals, with fading and dwell
	out       ring.Level // level, or Closed while the engine refuses work
	changed   time.Time
	raised    bool // direction of the last change
	reason    string
	pressure  float64 // how far into the last step, for comparing full nodes
}

// observe takes the numbers of a fresh page.
func (f *saturation) observe(c *core, now time.Time) {
	t := &c.opt.Thresholds
	f.waiting.step(c.signals.WaitingCapacity, &t.Waiting, now)
	f.kv.step(c.signals.KVUsage, &t.KVUsage, now)
	f.preempt.step(c.rates.preempt(), &t.Preemptions, now)
	f.queue.step(c.rates.queueTime(), &t.QueueTime, now)
	f.pressure = 0
	for _, p := range []float64{
		f.waiting.value / t.Waiting.Enter[2], f.kv.value / t.KVUsage.Enter[2],
		f.preempt.value / t.Preemptions.Enter[2], f.queue.value / t.QueueTime.Enter[2],
	} {
		if p > f.pressure {
			f.pressure = p
		}
	}
}

// step settles the level at a moment: it fades with the page's age and does not turn
// back within the dwell time.
func (f *saturation) step(c *core, now time.Time) {
	t := &c.opt.Thresholds
	want := max(f.waiting.level, f.kv.level, f.preempt.level, f.queue.level)
	want = min(want, ring.Level(math.Ceil(3*c.voice(now))))
	since := now.Sub(f.changed)
	switch {
	case want > f.level && (f.raised || f.changed.IsZero() || since >= t.Dwell):
		f.set(want, true, now)
	case want < f.level && (!f.raised || since >= t.Dwell):
		f.set(want, false, now)
	}
	was := f.out
	f.out = f.level
	if now.Before(f.busyUntil) {
		f.out = ring.Closed
	}
	if f.out != was {
		f.reason = f.why(now)
	}
}

func (f *saturation) set(l ring.Level, raised bool, now time.Time) {
	f.level, f.raised, f.changed = l, raised, now
}

// why names the signal that speaks loudest.
func (f *saturation) why(now time.Time) string {
	if now.Before(f.busyUntil) {
		return "engine refuses work as busy"
	}
	switch max(f.waiting.level, f.kv.level, f.preempt.level, f.queue.level) {
	case f.waiting.level:
		return fmt.Sprintf("%.0f requests wait for room", f.waiting.value)
	case f.kv.level:
		return fmt.Sprintf("KV cache is %.2f full of live requests", f.kv.value)
	case f.preempt.level:
		return fmt.Sprintf("%.2f preemptions per second", f.preempt.value)
	}
	return fmt.Sprintf("requests wait %.1f s in the queue", f.queue.value)
}

// voice is the influence of the last page at a moment, in 0..1.
func (c *core) voice(now time.Time) float64 {
	if c.signals.At.IsZero() || c.signals.Samples == 0 {
		return 0
	}
	t := &c.opt.Thresholds
	age := now.Sub(c.signals.At)
	if age <= t.FreshFor {
		return 1
	}
	return max(0, 1-float64(age-t.FreshFor)/float64(t.SilentAfter-t.FreshFor))
}
