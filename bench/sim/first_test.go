package sim

import (
	"testing"
	"time"

	"github.com/prefixring/prefixring/bench"
	"github.com/prefixring/prefixring/internal/fakeengine/core"
)

func preset(t testing.TB, name string) core.Config {
	t.Helper()
	p, err := core.FindPreset(name)
	if err != nil {
		t.Fatal(err)
	}
	return core.Config{Cost: p.Cost, KVTokens: p.KVTokens, Budget: p.Budget, MaxSeqs: p.MaxSeqs, BlockSize: 16}
}

func TestTry(t *testing.T) {
	for _, pol := range Policies() {
		w := bench.Workload{Prefixes: 24, Prefix: bench.Exactly(60000), Zipf: 1, User: bench.Exactly(200), Output: bench.Exactly(500)}
		src, pre := FromWorkload(w, bench.Arrivals{Kind: "sale", Rate: 30, Duration: 5 * time.Minute}, 1, 16)
		r, err := Run(t.Context(), Options{Policy: pol, Engines: 64, Engine: preset(t, "70b-tp4"), Source: src, Prefixes: pre, Prewarm: pol == "ring", Seed: 1})
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("%-14s req %d fin %d err %d hit %.4f cold %d ttft %.0f/%.0f e2e %.0f tok/s %.0f busy %.2f/%.2f prewarm %.0fs wall %.2f %v", pol, r.Requests, r.Finished, r.Errors, r.HitRate, r.ColdPrefills, r.TTFT.P50, r.TTFT.P99, r.E2E.P50, r.TokenRate, r.BusyMean, r.BusyMax, r.PrewarmSeconds, r.Wall, r.Reasons)
	}
}
