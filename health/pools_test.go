package health

import (
	"strings"
	"testing"
	"time"

	"github.com/prefixring/prefixring/ring"
)

// twoPools are engines of which the first is in pool "p" and the second in pool "q".
func twoPools(f *fleet) []Target {
	targets := f.targets()
	targets[1].Pool = "q"
	return targets
}

func kvAt(x float64) Thresholds {
	return Thresholds{KVUsage: Steps{Enter: [3]float64{x, 0.96, 0.99}, Leave: [3]float64{x - 0.1, 0.9, 0.95}}}
}

func (f *fleet) setPools(pools map[string]Settings) {
	f.t.Helper()
	if err := f.m.SetPools(pools); err != nil {
		f.t.Fatal(err)
	}
}

// The same page is judged by the thresholds of the node's own pool, those of a pool that
// is not named are the manager's, and a change counts from the next page on.
func TestEachPoolHasItsThresholds(t *testing.T) {
	run(t, 2, Options{}, func(f *fleet) {
		for _, e := range f.engines {
			e.set(func(e *engine) { e.metrics = busyPage(4, 0, 0.7, 5) })
		}
		f.setPools(map[string]Settings{"q": {Thresholds: kvAt(0.6)}})
		f.apply(twoPools(f)...)
		f.wait(5 * time.Second)
		f.is("n0", Ready)
		f.is("n1", Saturated)
		if err := f.m.SetPools(map[string]Settings{"p": {Thresholds: kvAt(0.6)}, "q": {Outliers: Outliers{Share: 2}}}); err == nil || !strings.Contains(err.Error(), `"q"`) {
			t.Errorf("a share of 2: %v", err)
		}
		f.wait(10 * time.Second)
		f.is("n0", Ready) // a bad setting of one pool changes none
		f.is("n1", Saturated)
		f.setPools(map[string]Settings{"p": {Thresholds: kvAt(0.6)}})
		f.wait(10 * time.Second)
		f.is("n0", Saturated)
		f.is("n1", Ready)
	})
}

// A node that moves to another pool is judged by that one's settings.
func TestANodeTakesTheSettingsOfItsPool(t *testing.T) {
	run(t, 1, Options{}, func(f *fleet) {
		f.engines[0].set(func(e *engine) { e.metrics = busyPage(4, 0, 0.7, 5) })
		f.setPools(map[string]Settings{"q": {Thresholds: kvAt(0.6), Metrics: Probe{Period: 100 * time.Millisecond}}})
		f.apply(f.targets()...)
		f.wait(5 * time.Second)
		f.is("n0", Ready)
		moved := f.targets()[0]
		moved.Pool = "q"
		f.apply(moved)
		from := f.engines[0].count("/metrics")
		f.wait(5 * time.Second)
		f.is("n0", Saturated)
		if n := f.engines[0].count("/metrics") - from; n < 40 || n > 60 {
			t.Errorf("the page was read %d times in 5 s, want each 100 ms", n)
		}
	})
}

// Failures, probe periods and the slow start are the pool's as well.
func TestEachPoolHasItsProbes(t *testing.T) {
	run(t, 2, Options{}, func(f *fleet) {
		f.setPools(map[string]Settings{"q": {
			Metrics: Probe{Period: 250 * time.Millisecond}, Failures: 20, SlowStart: time.Minute,
		}})
		f.apply(twoPools(f)...)
		f.wait(10 * time.Second)
		slow, quick := f.engines[0].count("/metrics"), f.engines[1].count("/metrics")
		if slow < 8 || slow > 12 || quick < 35 || quick > 45 {
			t.Errorf("pages read in 10 s: %d each second, %d each 250 ms", slow, quick)
		}
		for _, e := range f.engines {
			e.down()
		}
		f.wait(1500 * time.Millisecond)
		if s := f.status("n1"); !s.State.Serving() {
			t.Errorf("n1 is %v after fewer than 20 failures", s.State)
		}
		f.wait(10 * time.Second)
		f.is("n0", Unhealthy)
		f.is("n1", Unhealthy)
		for _, e := range f.engines {
			e.up()
		}
		f.wait(25 * time.Second)
		if s := f.is("n0", Ready); s.Ramp != 1 || s.Level != ring.Open {
			t.Errorf("n0: ramp %v, level %v", s.Ramp, s.Level)
		}
		if s := f.is("n1", Ready); s.Ramp >= 1 || s.Ramp < 0.2 {
			t.Errorf("n1: ramp %v in the first minute", s.Ramp)
		}
	})
}

// An engine behind nodes of two pools is polled once, on the shorter clock; a shorter
// period that comes while a loop sleeps counts at once.
func TestOneEngineBehindTwoPools(t *testing.T) {
	run(t, 1, Options{Settings: Settings{Metrics: Probe{Period: time.Minute}}}, func(f *fleet) {
		a := f.targets()[0]
		b := a
		b.Name, b.Pool = "n1", "q"
		f.apply(a, b)
		f.wait(30 * time.Second)
		if n := f.engines[0].count("/metrics"); n != 1 {
			t.Fatalf("the page was read %d times in half of its period", n)
		}
		f.setPools(map[string]Settings{"q": {Metrics: Probe{Period: time.Second}}})
		f.wait(10 * time.Second)
		if n := f.engines[0].count("/metrics") - 1; n < 9 || n > 12 {
			t.Errorf("the page was read %d times in 10 s by the clock of pool q", n)
		}
		f.apply(a) // q is empty: p's own clock again
		f.wait(time.Minute)
		from := f.engines[0].count("/metrics")
		f.wait(5 * time.Minute)
		if n := f.engines[0].count("/metrics") - from; n < 4 || n > 6 {
			t.Errorf("the page was read %d times in 5 minutes by the clock of pool p", n)
		}
	})
}
