package sim

import (
	"context"
	"fmt"
	"time"

	"github.com/prefixring/prefixring/bench"
	"github.com/prefixring/prefixring/internal/fakeengine/core"
)

// Scenario is a named experiment: a fleet, its engines and the traffic in stages.
type Scenario struct {
	Name    string
	About   string
	Engines int
	Engine  core.Config
	// Stages makes fresh sources, the same for every policy of a seed. Warm, the number
	// of leading stages that only fill caches, is left out of the tables.
	Stages   func(seed uint64) []Stage
	Warm     int
	Prefixes func(seed uint64) []Prefix
	Changes  []Change
	Routers  int
}

// engineOf returns a preset as a configuration.
func engineOf(preset string) core.Config {
	p, err := core.FindPreset(preset)
	if err != nil {
		panic("BUG: " + err.Error())
	}
	return core.Config{Cost: p.Cost, KVTokens: p.KVTokens, Budget: p.Budget, MaxSeqs: p.MaxSeqs, BlockSize: 16}
}

// The sale of the examples: 24 fat prefixes, thin queries, one prefix with a quarter
// of all requests.
func saleWorkload() bench.Workload {
	return bench.Workload{Name: "sale", Prefixes: 24, Prefix: bench.Exactly(60000), Zipf: 1, User: bench.Exactly(200), Output: bench.Exactly(500)}
}

// SalePerEngine is the requests per second of one 70B TP4 engine at which it is used to
// 70 % with its prefixes warm. At a context of 60,000 tokens decode decides: a request
// costs 500 steps, each with 1.36 ms of its own and its share of 11.8 ms, which at a
// batch of 32 is 0.90 engine-seconds with the 200 tokens of prefill.
const SalePerEngine = 0.7 / 0.90

// Scenarios lists the built-in ladders.
func Scenarios() []Scenario {
	one := func(w bench.Workload, a bench.Arrivals) func(uint64) []Stage {
		return func(seed uint64) []Stage {
			src, _ := FromWorkload(w, a, seed, 16)
			return []Stage{{Name: w.Name, Source: src}}
		}
	}
	prefixes := func(w bench.Workload) func(uint64) []Prefix {
		return func(seed uint64) []Prefix {
			_, p := FromWorkload(w, bench.Arrivals{Kind: "constant", Rate: 1, Duration: time.Second}, seed, 16)
			return p
		}
	}
	sale := bench.Arrivals{Kind: "sale", Rate: 256 * SalePerEngine, Duration: 10 * time.Minute}
	small := bench.Arrivals{Kind: "poisson", Rate: 32 * SalePerEngine * 0.8, Duration: 10 * time.Minute}
	none := bench.Workload{Name: "no reuse", Prefix: bench.Length{Mean: 2048, CV: 0.8, Min: 64, Max: 16384}, User: bench.Exactly(128), Output: bench.Length{Mean: 200, CV: 0.8, Min: 4, Max: 2000}}
	chat := bench.Workload{Name: "conversations", Prefixes: 8, Prefix: bench.Exactly(8000), Zipf: 1, Turns: bench.Length{Mean: 8, CV: 0.5, Min: 1, Max: 30},
		Think: 20 * time.Second, PerUser: bench.Length{Mean: 4000, CV: 0.6, Min: 500, Max: 15000}, User: bench.Exactly(200), Output: bench.Exactly(300)}
	return []Scenario{
		{Name: "s3-sale", About: "one cell of 256 engines of the sale: 24 prefixes of 60k, Zipf 1, peak at 70 % use", Engines: 256,
			Engine: engineOf("70b-tp4"), Stages: one(saleWorkload(), sale), Prefixes: prefixes(saleWorkload())},
		{Name: "s5-no-reuse", About: "no two prompts share anything: no router may do harm", Engines: 32, Engine: engineOf("70b-tp4"),
			Stages: one(none, bench.Arrivals{Kind: "poisson", Rate: 60, Duration: 10 * time.Minute})},
		{Name: "s4-chat", About: "conversations of 8 turns on 8 shared prefixes", Engines: 16, Engine: engineOf("70b-tp4"),
			Stages: one(chat, bench.Arrivals{Kind: "poisson", Rate: 2.5, Duration: 15 * time.Minute}), Prefixes: prefixes(chat)},
		{Name: "failures", About: "32 engines at 56 % use: one dies at 3 min and comes back cold at 5, four at 7", Engines: 32, Engine: engineOf("70b-tp4"),
			Stages: one(saleWorkload(), small), Prefixes: prefixes(saleWorkload()), Changes: []Change{
				{3 * time.Minute, 5, Kill}, {5 * time.Minute, 5, Start}, {7 * time.Minute, 8, Kill}, {7 * time.Minute, 9, Kill},
				{7 * time.Minute, 10, Kill}, {7 * time.Minute, 11, Kill}, {8 * time.Minute, 8, Start}, {8 * time.Minute, 9, Start},
				{8 * time.Minute, 10, Start}, {8 * time.Minute, 11, Start}}},
		{Name: "four-routers", About: "the failures' traffic through four routers that see each other only in the engines' metrics", Engines: 32, Engine: engineOf("70b-tp4"),
			Stages: one(saleWorkload(), small), Prefixes: prefixes(saleWorkload()), Routers: 4},
		llmd37(), llmd73(),
	}
}

// stages makes rate steps of a workload, after a warm-up that sends every prompt once.
func steps(w bench.Workload, kind string, rates []float64, length time.Duration) func(uint64) []Stage {
	return func(seed uint64) []Stage {
		// All steps and the warm-up share one seed for the prefixes; only the times differ.
		all := float64(w.Prefixes * max(w.Prompts, 1))
		warm, _ := FromWorkload(w, bench.Arrivals{Kind: "constant", Rate: 3, Duration: time.Duration(all/3) * time.Second}, seed, 16)
		out := []Stage{{Name: "warm-up", Source: warm}}
		for _, r := range rates {
			src, _ := FromWorkload(w, bench.Arrivals{Kind: kind, Rate: r, Duration: length}, seed, 16)
			out = append(out, Stage{Name: fmt.Sprintf("%g req/s", r), Source: src})
		}
		return out
	}
}

// llmd37 is llm-d's "37 % capacity" report: Llama-3.1-70B TP4 on four pods.
func llmd37() Scenario {
	e := engineOf("70b-tp4")
	// a is the value that fits the report's mixed batches; f is its floor of TTFT.
	e.Cost.Token, e.Cost.FrontFixed, e.Cost.FrontToken, e.KVTokens = 85e-6, 0.1, 0, 461_376
	w := bench.Workload{Name: "llm-d 37 %", Prefixes: 83, Prefix: bench.Exactly(8000), Prompts: 3, User: bench.Exactly(1000), Output: bench.Exactly(820)}
	return Scenario{Name: "llm-d-37", About: "83 x 3 prompts of 8,000 + 1,000, four 70B TP4 engines", Engines: 4, Engine: e,
		Stages: steps(w, "constant", []float64{3, 4, 5, 6, 8, 10, 12, 15}, 50*time.Second), Warm: 1}
}

// llmd73 is llm-d's "73 % capacity" report: Qwen3-32B TP2 on eight pods.
func llmd73() Scenario {
	e := engineOf("32b-tp2")
	e.Cost.FrontFixed, e.Cost.FrontToken, e.KVTokens = 0.1, 0, 307_328
	w := bench.Workload{Name: "llm-d 73 %", Prefixes: 150, Prefix: bench.Exactly(6000), Prompts: 5, User: bench.Exactly(1200), Output: bench.Exactly(1000)}
	return Scenario{Name: "llm-d-73", About: "150 x 5 prompts of 6,000 + 1,200, eight 32B TP2 engines", Engines: 8, Engine: e,
		Stages: steps(w, "poisson", []float64{3, 10, 15, 20, 22, 25, 30, 35, 40, 50, 60}, 30*time.Second), Warm: 1}
}

// TraceScenario plays a trace on a fleet. Engines use the trace's own block size, so
// that a block of the trace is a block of the cache.
func TraceScenario(name, about string, t *bench.Trace, engines int, preset string) Scenario {
	e := engineOf(preset)
	e.BlockSize = t.BlockTokens
	return Scenario{Name: name, About: about, Engines: engines, Engine: e,
		Stages: func(uint64) []Stage { return []Stage{{Name: t.Name, Source: FromTrace(t)}} }}
}

// FindScenario returns a built-in scenario by name.
func FindScenario(name string) (Scenario, error) {
	var names []string
	for _, s := range Scenarios() {
		if s.Name == name {
			return s, nil
		}
		names = append(names, s.Name)
	}
	return Scenario{}, fmt.Errorf("%w: unknown scenario %q, known are %v", ErrUsage, name, names)
}

// Outcome is one policy's results in a scenario, warm-up left out.
type Outcome struct {
	Policy  string   `json:"policy"`
	Results []Result `json:"results"` // by stage
}

// PrewarmedSuffix marks a policy that warms the scenario's prefixes first.
const PrewarmedSuffix = "+prewarm"

// Run plays the scenario under each policy on one seed.
func (sc Scenario) Run(ctx context.Context, policies []string, seed uint64, progress func(policy string, now time.Duration, done int64)) ([]Outcome, error) {
	var out []Outcome
	for _, name := range policies {
		o := Options{Engines: sc.Engines, Engine: sc.Engine, Seed: seed, Changes: sc.Changes, Routers: sc.Routers}
		o.Policy, o.Prewarm = trimPrewarm(name)
		if o.Prewarm && sc.Prefixes == nil {
			return out, fmt.Errorf("%w: scenario %s has no prefixes to prewarm", ErrUsage, sc.Name)
		}
		if sc.Prefixes != nil {
			o.Prefixes = sc.Prefixes(seed)
		}
		if progress != nil {
			o.Progress = func(now time.Duration, done int64) { progress(name, now, done) }
		}
		res, err := RunStages(ctx, o, sc.Stages(seed))
		if err != nil {
			return out, fmt.Errorf("cannot simulate %s: %w", name, err)
		}
		for i := range res {
			res[i].Policy = name
		}
		out = append(out, Outcome{Policy: name, Results: res[sc.Warm:]})
	}
	return out, nil
}

func trimPrewarm(name string) (string, bool) {
	if n := len(name) - len(PrewarmedSuffix); n > 0 && name[n:] == PrewarmedSuffix {
		return name[:n], true
	}
	return name, false
}
