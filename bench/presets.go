package bench

import (
	"fmt"
	"time"
)

// Preset is a named workload with the arrivals it was published with.
type Preset struct {
	Workload Workload
	Arrivals Arrivals
	About    string
}

// Presets returns the built-in workloads in the order in which help shows them. The
// parameters of public tools are theirs; each About names the source.
func Presets() []Preset {
	return []Preset{
		{Workload{Name: "fat", Prefixes: 24, Prefix: Exactly(60000), Zipf: 1, User: Exactly(200), Output: Exactly(500)},
			Arrivals{Kind: "sale", Rate: 50, Duration: time.Minute},
			"24 fat prefixes of 60k tokens, Zipf 1, thin queries, a sale"},
		{Workload{Name: "small", Prefixes: 16, Prefix: Exactly(128), User: Exactly(32), Output: Exactly(1)},
			Arrivals{Kind: "constant", Rate: 1000, Duration: 10 * time.Second},
			"small requests, to find out what the path itself costs"},
		{Workload{Name: "control", Prefix: Exactly(2048), User: Exactly(128), Output: Exactly(128)},
			Arrivals{Kind: "poisson", Rate: 10, Duration: time.Minute},
			"no two prompts share a prefix: no router can help, none may harm"},
		{Workload{Name: "llm-d-b2b", Prefixes: 150, Prefix: Exactly(6000), Prompts: 5, User: Exactly(1200), Output: Exactly(1000)},
			Arrivals{Kind: "step", Rate: 60, From: 3, Steps: 17, Duration: 17 * 30 * time.Second},
			"llm-d precise prefix cache guide: 150 x 5, 6,000 / 1,200 / 1,000"},
		{Workload{Name: "llm-d-37", Prefixes: 83, Prefix: Exactly(8000), Prompts: 3, User: Exactly(1000), Output: Exactly(1000)},
			Arrivals{Kind: "constant", Rate: 10, Duration: 50 * time.Second},
			"llm-d-kv-cache-manager 37 % capacity: 83 x 3, 8,000 / 1,000 / 1,000"},
		{Workload{Name: "llm-d-shared", Prefixes: 32, Prefix: Exactly(2048), Prompts: 32, User: Exactly(256), Output: Exactly(256)},
			Arrivals{Kind: "poisson", Rate: 10, Duration: 50 * time.Second},
			"llm-d-benchmark shared_prefix_synthetic: 32 x 32, 2,048 / 256 / 256"},
		{Workload{Name: "sglang-gsp", Prefixes: 64, Prefix: Exactly(2048), Prompts: 16, User: Exactly(128), Output: Exactly(256)},
			Arrivals{Kind: "poisson", Rate: 16, Duration: time.Minute},
			"SGLang generated-shared-prefix defaults: 64 x 16, 2,048 / 128 / 256"},
		{Workload{Name: "vllm-repetition", Prefixes: 10, Prefix: Exactly(256), User: Exactly(256), Output: Exactly(128)},
			Arrivals{Kind: "poisson", Rate: 16, Duration: time.Minute},
			"vLLM prefix_repetition defaults: 10 prefixes, 256 / 256 / 128"},
		{Workload{Name: "chat", Prefixes: 1, Prefix: Exactly(1000), PerUser: Length{Mean: 4000, CV: 0.6, Min: 500, Max: 15000},
			Turns: Length{Mean: 4, CV: 0.5, Min: 1, Max: 20}, Think: 45 * time.Second, User: Exactly(150), Output: Exactly(300)},
			Arrivals{Kind: "poisson", Rate: 1, Duration: 5 * time.Minute},
			"llm-d-benchmark interactive chat: shared 1,000 + about 4,000 per user, 4 turns"},
		{Workload{Name: "agent", Prefixes: 8, Prefix: Length{Mean: 15000, CV: 0.2, Min: 4000}, Tools: 24, Zipf: 1,
			PerUser: Length{Mean: 20000, CV: 0.8, Min: 1000, Max: 80000}, Turns: Length{Mean: 20, CV: 0.7, Min: 2, Max: 100},
			Think: 15 * time.Second, User: Length{Mean: 1500, CV: 0.8, Min: 50, Max: 8000}, Output: Length{Mean: 200, CV: 1, Min: 10, Max: 2000}},
			Arrivals{Kind: "poisson", Rate: 0.5, Duration: 10 * time.Minute},
			"coding agents: 15k of tools and system text, long own context, many turns (shape of the Claude-Code traces)"},
	}
}

// FindPreset returns a preset by name.
func FindPreset(name string) (Preset, error) {
	var names []string
	for _, p := range Presets() {
		if p.Workload.Name == name {
			return p, nil
		}
		names = append(names, p.Workload.Name)
	}
	return Preset{}, fmt.Errorf("%w: unknown workload %q, known are %v", ErrUsage, name, names)
}
