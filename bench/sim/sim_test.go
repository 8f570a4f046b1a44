package sim

import (
	"context"
	"encoding/json"
	"errors"
	"runtime"
	"slices"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/prefixring/prefixring/bench"
	"github.com/prefixring/prefixring/internal/fakeengine/core"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func smallSale(rate float64, length time.Duration) (Source, []Prefix) {
	w := saleWorkload()
	w.Prefixes = 12
	return FromWorkload(w, bench.Arrivals{Kind: "sale", Rate: rate, Duration: length}, 7, 16)
}

func run(t *testing.T, o Options) Result {
	t.Helper()
	r, err := Run(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestEqualSeedsGiveEqualResultsOnAnyNumberOfCores(t *testing.T) {
	for _, policy := range Policies() {
		var first string
		for _, cores := range []int{1, 2, 1} {
			old := runtime.GOMAXPROCS(cores)
			src, _ := smallSale(40, time.Minute)
			r := run(t, Options{Policy: policy, Engines: 70, Engine: engineOf("70b-tp4"), Source: src, Seed: 3,
				Changes: []Change{{30 * time.Second, 3, Kill}, {40 * time.Second, 3, Start}}})
			runtime.GOMAXPROCS(old)
			r.Wall = 0
			b, err := json.Marshal(r)
			if err != nil {
				t.Fatal(err)
			}
			if first == "" {
				first = string(b)
			} else if first != string(b) {
				t.Fatalf("%s: two runs of one seed differ:\n%s\n%s", policy, first, b)
			}
		}
	}
}

// One engine, one request: the whole time can be worked out by hand.
func TestTimesAreThoseOfTheStepEquation(t *testing.T) {
	e := core.Config{Cost: core.Cost{Token: 100e-6, Floor: 10e-3, Fixed: 1e-3, FrontFixed: 20e-3}, KVTokens: 100_000, BlockSize: 16, Budget: 8192, MaxSeqs: 64}
	src, _ := FromWorkload(bench.Workload{Prefixes: 1, Prefix: bench.Exactly(4000), User: bench.Exactly(96), Output: bench.Exactly(11)},
		bench.Arrivals{Kind: "constant", Rate: 0.1, Duration: 20 * time.Second}, 1, 16)
	r := run(t, Options{Policy: "random", Engines: 1, Engine: e, Source: src, Seed: 1})
	// First: 20 ms in front, one step of 1 + 409.6 ms. Second: 4,000 of 4,096 tokens hit.
	near(t, "slowest first token", r.TTFT.Max, 20+1+409.6, 0.5)
	near(t, "mean first token", r.TTFT.Mean, (430.6+20+1+10)/2, 0.5)
	near(t, "mean end to end", r.E2E.Mean, (430.6+31)/2+10*11, 1)
	near(t, "time per token", r.TPOT.Mean, 11, 0.05)
	near(t, "hit rate", r.HitRate, 4000.0/(2*4096), 1e-9)
	if r.Finished != 2 || r.ColdPrefills != 1 || r.OutputTokens != 22 {
		t.Errorf("%d finished, %d cold, %d tokens, want 2, 1 and 22", r.Finished, r.ColdPrefills, r.OutputTokens)
	}
}

func TestTokensAndRequestsAddUp(t *testing.T) {
	for _, policy := range Policies() {
		src, _ := smallSale(20, 2*time.Minute)
		r := run(t, Options{Policy: policy, Engines: 40, Engine: engineOf("70b-tp4"), Source: src, Seed: 5})
		if r.Finished+r.Errors != r.Requests || r.Errors != 0 || r.TTFT.Count != r.Finished {
			t.Errorf("%s: %d requests, %d finished, %d errors, %d samples", policy, r.Requests, r.Finished, r.Errors, r.TTFT.Count)
		}
		if r.OutputTokens != 500*r.Finished || r.PromptTokens != 60200*r.Finished {
			t.Errorf("%s: %d output and %d prompt tokens for %d requests", policy, r.OutputTokens, r.PromptTokens, r.Finished)
		}
		var n, cold, cached int64
		for _, m := range r.Minutes {
			n, cold, cached = n+m.Requests, cold+m.Cold, cached+m.Cached
		}
		if n != r.Requests || cold != r.ColdPrefills || cached != r.CachedTokens {
			t.Errorf("%s: the series holds %d requests, %d cold, %d cached, the totals %d, %d, %d", policy, n, cold, cached, r.Requests, r.ColdPrefills, r.CachedTokens)
		}
	}
}

func TestAffinityBeatsRoundRobinAndPrewarmTakesTheColdOnesAway(t *testing.T) {
	got := map[string]Result{}
	for _, policy := range []string{"round-robin", "ring", "ring" + PrewarmedSuffix} {
		src, pre := smallSale(30, 3*time.Minute)
		o := Options{Engines: 48, Engine: engineOf("70b-tp4"), Source: src, Prefixes: pre, Seed: 2}
		o.Policy, o.Prewarm = trimPrewarm(policy)
		got[policy] = run(t, o)
	}
	rr, ring, warm := got["round-robin"], got["ring"], got["ring+prewarm"]
	if ring.HitRate < 0.95 || rr.HitRate > 0.8 || ring.ColdPrefills*4 > rr.ColdPrefills {
		t.Errorf("ring hits %.3f with %d cold, round robin %.3f with %d", ring.HitRate, ring.ColdPrefills, rr.HitRate, rr.ColdPrefills)
	}
	if warm.ColdPrefills >= ring.ColdPrefills || warm.PrewarmPrefills == 0 || warm.PrewarmSeconds <= 0 {
		t.Errorf("prewarm computed %d prefixes and left %d cold prefills, without it there are %d", warm.PrewarmPrefills, warm.ColdPrefills, ring.ColdPrefills)
	}
}

func TestLaterTurnsComeAfterTheAnswerAndHitTheirHistory(t *testing.T) {
	w := bench.Workload{Prefixes: 2, Prefix: bench.Exactly(2000), Turns: bench.Exactly(5), Think: 10 * time.Second, User: bench.Exactly(160), Output: bench.Exactly(160)}
	src, _ := FromWorkload(w, bench.Arrivals{Kind: "constant", Rate: 0.5, Duration: 20 * time.Second}, 1, 16)
	r := run(t, Options{Policy: "ring+bindings", Engines: 4, Engine: engineOf("8b-tp1"), Source: src, Seed: 1})
	if r.Finished != 50 {
		t.Fatalf("%d turns of 10 conversations of 5", r.Finished)
	}
	if r.Reasons["binding"] < 38 {
		t.Errorf("%d of 40 later turns followed their binding: %v", r.Reasons["binding"], r.Reasons)
	}
	// All but the first prefixes and each turn's own text must hit.
	if r.HitRate < 0.85 {
		t.Errorf("hit rate %.3f", r.HitRate)
	}
	if r.Duration < 4*10 {
		t.Errorf("the run took %v s: think time is missing", r.Duration)
	}
}

func TestADyingEngineLosesItsCacheAndItsRequestsMoveOn(t *testing.T) {
	src, _ := smallSale(10, 2*time.Minute)
	quiet := run(t, Options{Policy: "ring", Engines: 20, Engine: engineOf("70b-tp4"), Source: src, Seed: 4})
	var changes []Change
	for i := range 10 {
		changes = append(changes, Change{70 * time.Second, i, Kill}, Change{80 * time.Second, i, Start})
	}
	slices.SortStableFunc(changes, func(a, b Change) int { return int(a.At - b.At) })
	src, _ = smallSale(10, 2*time.Minute)
	hit := run(t, Options{Policy: "ring", Engines: 20, Engine: engineOf("70b-tp4"), Source: src, Seed: 4, Changes: changes})
	if hit.Retried == 0 || hit.ColdPrefills <= quiet.ColdPrefills {
		t.Errorf("ten deaths: %d retried, %d cold against %d", hit.Retried, hit.ColdPrefills, quiet.ColdPrefills)
	}
	// Only an answer that had begun cannot be saved.
	if hit.Finished+hit.Errors != hit.Requests || hit.Errors != hit.Cut || hit.Cut == 0 {
		t.Errorf("%d requests, %d finished, %d errors, %d cut", hit.Requests, hit.Finished, hit.Errors, hit.Cut)
	}
}

func TestNonsenseIsRefused(t *testing.T) {
	src, _ := smallSale(1, time.Minute)
	for name, o := range map[string]Options{
		"no engines": {Policy: "ring", Engine: engineOf("70b-tp4"), Source: src},
		"no policy":  {Engines: 2, Engine: engineOf("70b-tp4"), Source: src},
		"no source":  {Policy: "ring", Engines: 2, Engine: engineOf("70b-tp4")},
		"no front":   {Policy: "ring", Engines: 2, Engine: core.Config{}, Source: src},
		"bad change": {Policy: "ring", Engines: 2, Engine: engineOf("70b-tp4"), Source: src, Changes: []Change{{0, 5, Kill}}},
	} {
		if _, err := Run(t.Context(), o); !errors.Is(err, ErrUsage) {
			t.Errorf("%s: %v", name, err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Run(ctx, Options{Policy: "ring", Engines: 2, Engine: engineOf("70b-tp4"), Source: src}); !errors.Is(err, context.Canceled) {
		t.Errorf("a cancelled run gave %v", err)
	}
}

func near(t *testing.T, what string, got, want, tolerance float64) {
	t.Helper()
	if got < want-tolerance || got > want+tolerance {
		t.Errorf("%s is %v, want %v +- %v", what, got, want, tolerance)
	}
}
