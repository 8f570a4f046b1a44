package health

import (
	"errors"
	"math"
	"testing"
	"time"

	"github.com/prefixring/prefixring/internal/dialect"
	"github.com/prefixring/prefixring/ring"
)

// script drives a core through time without clock or I/O.
type script struct {
	t   *testing.T
	c   *core
	now time.Time
	sig Signals
	ok  time.Time // last success of traffic
}

var t0 = time.Date(2031, 1, 1, 0, 0, 0, 0, time.UTC)

func newScript(t *testing.T, change func(*Options)) *script {
	t.Helper()
	o := &Options{}
	if change != nil {
		change(o)
	}
	if err := o.fill(); err != nil {
		t.Fatal(err)
	}
	s := &script{t: t, c: newCore(&o.Settings, &Target{Name: "a", Models: []string{"m1"}}), now: t0}
	s.sig.Reset()
	s.c.decide(s.now)
	return s
}

func sglang(s *script) *script { s.c.engine = dialect.SGLang; return s }

func (s *script) step(o observation) *script {
	o.lastSuccess = s.ok
	s.c.step(o, s.now)
	return s
}

func (s *script) after(d time.Duration) *script { s.now = s.now.Add(d); return s }
func (s *script) tick() *script                 { return s.step(observation{kind: obsTick}) }
func (s *script) health(r result) *script       { return s.step(observation{kind: obsHealth, result: r}) }
func (s *script) models(names ...string) *script {
	return s.step(observation{kind: obsModels, result: good, models: names})
}
func (s *script) report(k Kind) *script {
	if k == Success {
		s.ok = s.now
	}
	return s.step(observation{kind: obsPassive, outcome: PassiveOutcome{Kind: k}})
}

// page sends a metrics page with the fields changed by f, a second later.
func (s *script) page(f func(*Signals)) *script {
	s.now = s.now.Add(time.Second)
	if f != nil {
		f(&s.sig)
	}
	s.sig.Samples = 10
	s.sig.At = s.now
	return s.step(observation{kind: obsMetrics, signals: &s.sig})
}

func (s *script) is(state State, level ring.Level) *script {
	s.t.Helper()
	if s.c.state != state || s.c.level != level {
		s.t.Fatalf("at %v: %v/%s (%s), want %v/%s", s.now.Sub(t0), s.c.state, levelName(s.c.level), s.c.reason, state, levelName(level))
	}
	return s
}

func (s *script) because(reason string) *script {
	s.t.Helper()
	if s.c.reason != reason {
		s.t.Fatalf("at %v: reason %q, want %q", s.now.Sub(t0), s.c.reason, reason)
	}
	return s
}

var (
	good        = result{status: 200, took: time.Millisecond}
	nobody      = result{answer: refused, err: errors.New("connection refused"), took: time.Millisecond}
	silent      = result{answer: timedOut, err: errors.New("timed out"), took: 4 * time.Second}
	unavailable = result{status: 503, took: time.Millisecond}
	forbidden   = result{status: 401, took: time.Millisecond}
)

// ready is a node that was found running.
func ready(t *testing.T, change func(*Options)) *script {
	t.Helper()
	return newScript(t, change).health(good).models("m1").is(Ready, ring.Open)
}

func TestB51OnlyAServedModelMakesReady(t *testing.T) {
	s := newScript(t, nil).is(Unknown, ring.Closed)
	s.health(nobody).is(Starting, ring.Closed).because("connection refused")
	s.after(time.Second).health(unavailable).is(Starting, ring.Closed).because("status 503")
	s.after(time.Second).health(good).is(Starting, ring.Closed)
	s.models().is(Starting, ring.Closed).because("engine lists no model")
	s.models("other").is(Starting, ring.Closed).because("engine does not list model m1")
	s.models("m1").is(Ready, ring.NoOverflow).because("serves its model")
	s.after(11*time.Second).tick().is(Ready, ring.Open)
}

func TestB51ModelsBeforeHealthAreNotEnough(t *testing.T) {
	newScript(t, nil).models("m1").is(Starting, ring.Closed)
}

func TestB51SleepIsColdAndClosed(t *testing.T) {
	s := ready(t, nil)
	s.step(observation{kind: obsSleep, sleep: Sleeping}).is(Asleep, ring.Closed)
	if s.c.epoch != 1 {
		t.Errorf("epoch = %d after falling asleep, want 1", s.c.epoch)
	}
	s.after(time.Minute).step(observation{kind: obsSleep, sleep: Awake}).is(Ready, ring.NoOverflow)
	s.page(func(g *Signals) { g.Sleep = Sleeping }).is(Asleep, ring.Closed)
	s.step(observation{kind: obsSleep, sleep: Awake}).is(Asleep, ring.Closed) // the metrics know better
}

func TestB61AnotherModelBehindTheAddressEndsReady(t *testing.T) {
	ready(t, nil).models("m9").is(Starting, ring.Closed).because("engine does not list model m1")
}

func TestThreeFailuresInARowTakeOut(t *testing.T) {
	for _, c := range []struct {
		name   string
		result result
	}{{"refused", nobody}, {"silent", silent}} {
		t.Run(c.name, func(t *testing.T) {
			s := ready(t, nil)
			s.after(time.Minute).health(c.result).is(Ready, ring.Open)
			s.after(time.Second).health(c.result).is(Ready, ring.Open)
			s.after(time.Second).health(c.result).is(Unhealthy, ring.Closed).because(c.result.err.Error())
			s.after(time.Second).health(good).is(Unhealthy, ring.Closed) // one good answer is not yet a return
			s.after(time.Second).health(good).models("m1").is(Ready, ring.NoOverflow)
		})
	}
}

func TestAGoodAnswerForgivesFailures(t *testing.T) {
	s := ready(t, nil).after(time.Minute)
	for range 10 {
		s.health(silent).health(silent).health(good).is(Ready, ring.Open)
	}
}

func TestQuick503IsAStatement(t *testing.T) {
	s := ready(t, nil).after(time.Minute)
	s.health(unavailable).is(Unhealthy, ring.Closed).because("status 503")
	slow := unavailable
	slow.took = 3 * time.Second
	ready(t, nil).after(time.Minute).health(slow).is(Ready, ring.Open) // a stalled check, not a statement
}

func TestB40SlowHealthUnderLoadIsSuspicion(t *testing.T) {
	s := ready(t, nil)
	for i := range 20 {
		s.page(func(g *Signals) { g.Running, g.Steps = 4, float64(10*i) }).health(silent).is(Ready, ring.Open)
		if !s.c.suspect {
			t.Fatal("not suspect")
		}
	}
	// The same answers without progress are failures.
	s.after(time.Minute).health(silent).health(silent).health(silent).is(Unhealthy, ring.Closed)
}

func TestB40TrafficThatSucceedsIsProgress(t *testing.T) {
	s := ready(t, nil)
	for range 5 {
		s.after(5*time.Second).report(Success).health(silent).is(Ready, ring.Open)
	}
}

func TestB40HungCoreIsFoundByProgress(t *testing.T) {
	s := ready(t, nil)
	frozen := func(g *Signals) { g.Running, g.GenerationTokens, g.Steps = 2, 1000, 77 }
	s.page(frozen)
	for range 29 {
		s.page(frozen).health(good).is(Ready, ring.Open)
	}
	s.page(frozen).is(Unhealthy, ring.Closed).because("no progress with 2 requests running")
	s.health(good).is(Unhealthy, ring.Closed) // /health says nothing about the core
	if s.c.trialDue(s.now) {
		t.Error("trial due without a cool-down")
	}
	if s.after(5 * time.Second); !s.c.trialDue(s.now) {
		t.Error("no trial due after the cool-down")
	}
	s.step(observation{kind: obsTrial, result: silent}).is(Unhealthy, ring.Closed)
	s.after(11*time.Second).step(observation{kind: obsTrial, result: good}).is(Ready, ring.NoOverflow)
}

func TestB40ProgressEndsTheHang(t *testing.T) {
	s := ready(t, nil)
	for range 32 {
		s.page(func(g *Signals) { g.Running, g.Steps = 2, 77 })
	}
	s.is(Unhealthy, ring.Closed)
	s.page(func(g *Signals) { g.Steps = 78 }).is(Ready, ring.Open)
	if !s.c.trialAt.IsZero() {
		t.Error("a trial is still planned")
	}
}

func TestB40NoHangWithoutCause(t *testing.T) {
	for _, c := range []struct {
		name string
		f    func(i int, g *Signals)
	}{
		{"idle", func(i int, g *Signals) { g.Running, g.Steps, g.GenerationTokens = 0, 77, 1000 }},
		{"other streams progress", func(i int, g *Signals) { g.Running, g.GenerationTokens = 3, float64(1000+i) }},
		{"chunked prefill steps", func(i int, g *Signals) { g.Running, g.Steps, g.GenerationTokens = 1, float64(i), 1000 }},
		{"no counters at all", func(i int, g *Signals) { g.Running = 3 }},
		{"running unknown", func(i int, g *Signals) { g.Running, g.Steps = math.NaN(), 5 }},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := ready(t, nil)
			for i := range 100 {
				s.page(func(g *Signals) { c.f(i, g) }).is(Ready, ring.Open)
			}
		})
	}
}

func TestB40SGLangGaugesAreProgress(t *testing.T) {
	s := sglang(ready(t, nil))
	// Counters move only when a request finishes: a long answer is no hang.
	for i := range 100 {
		s.page(func(g *Signals) { g.Running, g.GenerationTokens, g.UsedTokens = 1, 50, float64(100*i) }).is(Ready, ring.Open)
	}
	for range 59 {
		s.page(nil).is(Ready, ring.Open)
	}
	s.page(nil).is(Unhealthy, ring.Closed)
}

func TestB52ClientErrorsNeverCount(t *testing.T) {
	s := ready(t, nil).after(time.Minute)
	for range 200 {
		s.report(ClientError).report(Cancelled).health(result{status: 404}).health(result{status: 429}).is(Ready, ring.Open)
	}
	if s.c.wantEject != "" {
		t.Errorf("wants ejection: %s", s.c.wantEject)
	}
}

func TestB19RefusedKeyIsNoSickness(t *testing.T) {
	s := ready(t, nil).after(time.Minute)
	for range 20 {
		s.health(forbidden)
		s.step(observation{kind: obsModels, result: forbidden})
		s.step(observation{kind: obsNoPage, result: forbidden})
		s.is(Ready, ring.Open)
	}
	if s.c.noAuth == 0 {
		t.Error("the refused key is not shown")
	}
	s.health(good).models("m1")
	s.page(nil)
	if s.c.noAuth != 0 {
		t.Error("the refused key is still shown after it works")
	}
	n := newScript(t, nil).health(good)
	n.step(observation{kind: obsModels, result: forbidden}).is(Starting, ring.Closed).because("engine refuses the configured key")
}

func TestRestartIsSeenByCountersGoingBackwards(t *testing.T) {
	for _, c := range []struct {
		name string
		from func(*Signals)
		to   func(*Signals)
		want int
	}{
		{"counter falls", func(g *Signals) { g.PromptTokens = 500 }, func(g *Signals) { g.PromptTokens = 20 }, 1},
		{"start time moves", func(g *Signals) { g.StartTime = 1e9 }, func(g *Signals) { g.StartTime = 1e9 + 60 }, 1},
		{"counter grows", func(g *Signals) { g.PromptTokens = 20 }, func(g *Signals) { g.PromptTokens = 500 }, 0},
		{"counter vanishes", func(g *Signals) { g.PromptTokens = 20 }, func(g *Signals) { g.PromptTokens = math.NaN() }, 0},
		{"gauge falls", func(g *Signals) { g.Running = 20 }, func(g *Signals) { g.Running = 0 }, 0},
		{"a rank is missing", func(g *Signals) { g.PromptTokens, g.Ranks = 500, make([]Rank, 2) },
			func(g *Signals) { g.PromptTokens, g.Ranks = 250, make([]Rank, 1) }, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := ready(t, nil).page(c.from).page(c.to)
			if s.c.epoch != c.want {
				t.Errorf("epoch = %d, want %d", s.c.epoch, c.want)
			}
			if c.want == 1 {
				s.is(Starting, ring.Closed) // another process has to show its model first
				s.health(good).models("m1").is(Ready, ring.NoOverflow)
			}
		})
	}
}

func TestRestartWithoutMetricsIsAssumedAfterAnAbsence(t *testing.T) {
	s := ready(t, nil).after(time.Minute)
	s.health(nobody).health(nobody).health(nobody).is(Unhealthy, ring.Closed)
	s.health(good).health(good).models("m1").is(Ready, ring.NoOverflow)
	if s.c.epoch != 1 {
		t.Errorf("epoch = %d, want 1: the process may be another", s.c.epoch)
	}
}

func TestRefusalOfALivingProcessIsNoRestart(t *testing.T) {
	s := ready(t, nil).page(func(g *Signals) { g.StartTime, g.PromptTokens = 1e9, 500 })
	s.health(nobody).health(nobody).health(nobody).is(Unhealthy, ring.Closed)
	s.health(good).health(good).models("m1").is(Unhealthy, ring.Closed) // not before it is known who answers
	s.page(nil).health(good).is(Ready, ring.NoOverflow)
	if s.c.epoch != 0 {
		t.Errorf("epoch = %d, want 0: the start time proves that it is the same process", s.c.epoch)
	}
}

func TestRefusalWithoutAPageAfterwardsCountsAsRestart(t *testing.T) {
	s := ready(t, nil).page(func(g *Signals) { g.StartTime, g.PromptTokens = 1e9, 500 })
	s.health(nobody).health(nobody).health(nobody)
	for range 4 {
		s.health(good).models("m1").is(Unhealthy, ring.Closed)
	}
	s.health(good).is(Ready, ring.NoOverflow)
	if s.c.epoch != 1 {
		t.Errorf("epoch = %d, want 1", s.c.epoch)
	}
}

func TestB56NoHitsAreNoticedAndRatesSurviveARestart(t *testing.T) {
	s := ready(t, nil)
	for i := range 46 {
		s.page(func(g *Signals) { g.PrefixQueries, g.PrefixHits, g.Finished = float64(1000*i), 0, float64(i) })
	}
	if !s.c.hits.none {
		t.Error("46 s of queries without a hit were not noticed")
	}
	s.page(func(g *Signals) { g.PrefixHits = 10 })
	if s.c.hits.none {
		t.Error("still no hits after a hit")
	}
	s.page(func(g *Signals) { g.PrefixQueries, g.PrefixHits, g.Finished = 5, 0, 0 })
	if r := s.c.rates.drain(); !math.IsNaN(r) {
		t.Errorf("drain rate across a restart = %v, want unknown", r)
	}
	s.page(func(g *Signals) { g.Finished = 2 })
	if r := s.c.rates.drain(); r != 2 {
		t.Errorf("drain rate after the restart = %v, want 2", r)
	}
}

func TestDrainAndCordon(t *testing.T) {
	s := ready(t, nil)
	s.c.drained = true
	s.step(observation{kind: obsOperator}).is(Draining, ring.Closed).because("drained by an operator")
	s.health(good).page(nil).is(Draining, ring.Closed)
	s.c.drained, s.c.cordoned = false, true
	s.step(observation{kind: obsOperator}).is(Ready, ring.WarmOnly)
	s.c.cordoned = false
	s.step(observation{kind: obsOperator}).is(Ready, ring.Open)
	s.c.terminating = true
	s.tick().is(Draining, ring.Closed).because("terminating, says discovery")
}

func TestSlowStartGrowsInTenths(t *testing.T) {
	s := newScript(t, nil).health(nobody).health(good).models("m1").is(Ready, ring.NoOverflow)
	for i := 1; i <= 10; i++ {
		if got, want := s.c.ramp(s.now), float64(i)/10; got != want {
			t.Errorf("ramp after %v = %v, want %v", s.now.Sub(t0), got, want)
		}
		s.after(1112 * time.Millisecond)
	}
	s.tick().is(Ready, ring.Open)
}
