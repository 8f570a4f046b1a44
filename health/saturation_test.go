package health

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/prefixring/prefixring/internal/dialect"
	"github.com/prefixring/prefixring/ring"
)

func TestCapturedFullQueueBesideAnEmptyKVCacheIsSaturated(t *testing.T) {
	var captured Signals
	if err := ParseMetrics(page(t, "vllm_metrics_saturated.txt"), dialect.VLLM, &captured); err != nil {
		t.Fatal(err)
	}
	s := ready(t, nil)
	s.page(func(g *Signals) { *g = captured }).is(Saturated, ring.WarmOnly).because("9 requests wait for room")
}

func TestB36FullKVClosesAndReturnsWithHysteresis(t *testing.T) {
	s := ready(t, nil)
	kv := func(v float64) *script { return s.page(func(g *Signals) { g.Running, g.KVUsage = 3, v }) }
	kv(0.97).is(Saturated, ring.Closed).because("KV cache is 0.97 full of live requests")
	kv(0.92).is(Saturated, ring.Closed) // left only at 0.90
	kv(0.95).is(Saturated, ring.Closed)
	for range 2 {
		kv(0.80).is(Saturated, ring.Closed) // dwell: 5 s since it was closed
	}
	kv(0.80).is(Ready, ring.Open)
}

func TestB36OscillatingGaugesDoNotFlap(t *testing.T) {
	s := ready(t, nil)
	var turns []time.Time
	level, rising := s.c.level, true
	for i := range 600 {
		v := 0.80
		if i%2 == 0 {
			v = 0.97
		}
		s.page(func(g *Signals) { g.KVUsage = v })
		if s.c.level != level {
			if up := s.c.level > level; up != rising || len(turns) == 0 {
				turns, rising = append(turns, s.now), up
			}
			level = s.c.level
		}
	}
	if len(turns) < 10 {
		t.Fatalf("only %d turns: the test shows nothing", len(turns))
	}
	for i := 1; i < len(turns); i++ {
		if d := turns[i].Sub(turns[i-1]); d < 5*time.Second {
			t.Errorf("turned back after %v", d)
		}
	}
}

func TestSaturationSteps(t *testing.T) {
	for _, c := range []struct {
		name  string
		f     func(*Signals)
		level ring.Level
	}{
		{"a short queue", func(g *Signals) { g.WaitingCapacity = 2 }, ring.NoOverflow},
		{"a queue", func(g *Signals) { g.WaitingCapacity = 8 }, ring.WarmOnly},
		{"a long queue", func(g *Signals) { g.WaitingCapacity = 32 }, ring.Closed},
		{"deferred requests only", func(g *Signals) { g.Waiting, g.WaitingCapacity = 40, 0 }, ring.Open},
		{"KV filling", func(g *Signals) { g.KVUsage = 0.88 }, ring.NoOverflow},
		{"KV full", func(g *Signals) { g.KVUsage = 1 }, ring.Closed},
		{"nothing known", func(g *Signals) {}, ring.Open},
		{"the loudest wins", func(g *Signals) { g.WaitingCapacity, g.KVUsage = 32, 0.12 }, ring.Closed},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := ready(t, nil)
			s.page(c.f).page(nil).page(nil)
			if s.c.level != c.level {
				t.Errorf("level %s (%s), want %s", levelName(s.c.level), s.c.reason, levelName(c.level))
			}
		})
	}
}

func TestFirstStepNeedsToLast(t *testing.T) {
	s := ready(t, nil)
	for range 20 {
		s.page(func(g *Signals) { g.WaitingCapacity = 3 }).is(Ready, ring.Open)
		s.page(func(g *Signals) { g.WaitingCapacity = 0 }).is(Ready, ring.Open)
	}
	s.page(func(g *Signals) { g.WaitingCapacity = 3 }).is(Ready, ring.Open)
	s.page(nil).is(Saturated, ring.NoOverflow)
}

func TestPreemptionRate(t *testing.T) {
	s := ready(t, nil)
	s.page(func(g *Signals) { g.Preemptions = 100 })
	s.page(func(g *Signals) { g.Preemptions = 101 }).is(Ready, ring.Open) // one is 0.2 per second, and has to last
	for range 6 {
		s.page(func(g *Signals) { g.Preemptions += 2 })
	}
	s.is(Saturated, ring.WarmOnly).because("1.00 preemptions per second")
	for range 20 {
		s.page(nil)
	}
	s.is(Ready, ring.Open)
}

func TestQueueTime(t *testing.T) {
	s := ready(t, nil)
	s.page(func(g *Signals) { g.QueueSeconds, g.QueueCount = 100, 1000 })
	s.page(func(g *Signals) { g.QueueSeconds, g.QueueCount = 108, 1002 })
	s.is(Saturated, ring.WarmOnly).because("requests wait 4.0 s in the queue")
	for range 12 {
		s.page(func(g *Signals) { g.QueueCount += 5 })
	}
	s.is(Ready, ring.Open)
}

func TestStaleMetricsLoseTheirVoiceStepByStep(t *testing.T) {
	s := ready(t, nil).page(func(g *Signals) { g.KVUsage = 0.99 }).is(Saturated, ring.Closed)
	var seen []ring.Level
	for range 200 {
		s.after(100 * time.Millisecond).tick()
		if len(seen) == 0 || seen[len(seen)-1] != s.c.level {
			seen = append(seen, s.c.level)
		}
	}
	if len(seen) != 4 || seen[0] != ring.Closed || seen[3] != ring.Open {
		t.Errorf("levels = %v, want closed, warm-only, no-overflow, open", seen)
	}
	s.is(Ready, ring.Open)
	if v := s.c.voice(s.now); v != 0 {
		t.Errorf("voice = %v", v)
	}
}

func TestBusyAnswerClosesAtOnceAndOnlyAsLongAsItSays(t *testing.T) {
	s := ready(t, nil)
	s.step(observation{kind: obsPassive, outcome: PassiveOutcome{Kind: Busy, RetryAfter: 2 * time.Second}})
	s.is(Saturated, ring.Closed).because("engine refuses work as busy")
	s.after(1900*time.Millisecond).tick().is(Saturated, ring.Closed)
	s.after(200*time.Millisecond).tick().is(Ready, ring.Open)
	if s.c.wantEject != "" {
		t.Error("a busy engine is up for ejection")
	}
}

// Whatever the numbers do, a level never exceeds what a signal asks for at its entry
// threshold, and turns come no faster than the dwell time.
func TestSaturationLawsOnRandomWalks(t *testing.T) {
	r := rand.New(rand.NewPCG(7, 7))
	for range 50 {
		s := ready(t, nil)
		kv, level, turned, up := 0.5, ring.Open, time.Time{}, false
		peak := 0.0
		for range 300 {
			kv = min(1, max(0, kv+(r.Float64()-0.5)*0.3))
			if r.IntN(20) == 0 {
				s.page(func(g *Signals) { g.KVUsage = math.NaN() })
			} else {
				s.page(func(g *Signals) { g.KVUsage = kv })
				peak = max(peak, kv)
			}
			if peak < 0.88 && s.c.level != ring.Open {
				t.Fatalf("saturated at a peak of %v", peak)
			}
			if s.c.level == level {
				continue
			}
			if now := s.c.level > level; now != up {
				if !turned.IsZero() && s.now.Sub(turned) < 5*time.Second {
					t.Fatalf("turned after %v", s.now.Sub(turned))
				}
				up = now
			}
			level, turned = s.c.level, s.now
		}
	}
}

func TestThresholdsAreChecked(t *testing.T) {
	for _, c := range []struct {
		name string
		o    Options
	}{
		{"leave above enter", Options{Settings: Settings{Thresholds: Thresholds{Waiting: Steps{Enter: [3]float64{1, 2, 3}, Leave: [3]float64{1, 1, 2}}}}}},
		{"steps out of order", Options{Settings: Settings{Thresholds: Thresholds{KVUsage: Steps{Enter: [3]float64{0.9, 0.8, 0.95}, Leave: [3]float64{0.1, 0.2, 0.3}}}}}},
		{"silent before stale", Options{Settings: Settings{Thresholds: Thresholds{FreshFor: 20 * time.Second}}}},
		{"share above one", Options{Settings: Settings{Outliers: Outliers{Share: 1.5}}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			if _, err := New(c.o); err == nil {
				t.Error("accepted")
			}
		})
	}
}

func TestDrainTime(t *testing.T) {
	nan := math.NaN()
	for _, c := range []struct {
		name              string
		queue, room, rate float64
		want              time.Duration
	}{
		{"one finishes soon", 3, 16, 2, time.Second},
		{"one finishes late", 3, 16, 0.1, 10 * time.Second},
		{"a queue to work off", 36, 16, 2, 10500 * time.Millisecond},
		{"nothing finishes", 36, 16, 0, 2 * time.Second},
		{"rate unknown", 36, 16, nan, 2 * time.Second},
		{"queue unknown", nan, 16, 0.5, 2 * time.Second},
		{"for ever", 1e9, 16, 0.1, time.Minute},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := DrainTime(c.queue, c.room, c.rate); got != c.want {
				t.Errorf("DrainTime = %v, want %v", got, c.want)
			}
		})
	}
}
