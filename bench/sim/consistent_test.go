package sim

import (
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/prefixring/prefixring/bench"
	"github.com/prefixring/prefixring/internal/fakeengine"
)

// The simulator and the simulated engine over real HTTP must tell the same story of the
// same traffic: hit rate, first tokens and whole answers within 5 %. Real time is
// noisy, so a busy machine gets three tries; the simulator needs one.
func TestSimulatorAndEngineOverHTTPAgree(t *testing.T) {
	const speed = 4
	w := bench.Workload{Prefixes: 4, Prefix: bench.Exactly(20000), Zipf: 1, User: bench.Exactly(100), Output: bench.Exactly(50)}
	a := bench.Arrivals{Kind: "poisson", Rate: 2, Duration: 16 * time.Second}
	src, _ := FromWorkload(w, a, 1, 16)
	sim := run(t, Options{Policy: "round-robin", Engines: 2, Engine: engineOf("70b-tp4"), Source: src, Seed: 1})

	var last string
	for range 3 {
		var urls []string
		var engines []*fakeengine.Engine
		for i := range 2 {
			e, err := fakeengine.New(fakeengine.Options{Name: fmt.Sprint(i), Model: "m", Preset: "70b-tp4", Speed: speed, ReportCached: true, AnswerTokens: 1000})
			if err != nil {
				t.Fatal(err)
			}
			u, err := e.Start("127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			engines, urls = append(engines, e), append(urls, u)
		}
		fast := a
		fast.Rate, fast.Duration = a.Rate*speed, a.Duration/speed
		res, err := bench.Run(t.Context(), bench.Options{Targets: urls, Model: "m", Arrivals: fast, Workload: w, Seed: 1})
		var prompt, cached int64
		for _, e := range engines {
			c := e.Counters()
			prompt, cached = prompt+c.PromptTokens, cached+c.CachedTokens
			e.Close()
		}
		if err != nil {
			t.Fatal(err)
		}
		if res.Succeeded != sim.Finished {
			t.Fatalf("%d requests over HTTP, %d simulated", res.Succeeded, sim.Finished)
		}
		last = ""
		for _, c := range []struct {
			name      string
			http, sim float64
		}{
			{"hit rate", float64(cached) / float64(prompt), sim.HitRate},
			{"mean time to first token", res.TTFT.Mean * speed, sim.TTFT.Mean},
			{"mean time of an answer", res.E2E.Mean * speed, sim.E2E.Mean},
		} {
			off := c.http/c.sim - 1
			t.Logf("%s: %.4f over HTTP, %.4f simulated (%+.1f %%)", c.name, c.http, c.sim, 100*off)
			if math.Abs(off) > 0.05 {
				last += fmt.Sprintf("%s differs by %+.1f %%; ", c.name, 100*off)
			}
		}
		if last == "" {
			return
		}
	}
	t.Error(last)
}
