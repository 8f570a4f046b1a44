package sim

import (
	"context"
	"fmt"
	"io"
	"math"
)

// Published is one row of a public report: what a fleet did at a rate. NaN: not given.
type Published struct {
	Scenario string
	Policy   string // ours that stands for theirs
	Stage    string
	TTFT     float64 // mean, seconds
	ITL      float64 // milliseconds
	TokRate  float64 // output tokens per second
}

// Reports are rows of llm-d's public benchmark reports: "precise" and "random" of the
// 37 % capacity report (llm-d-kv-cache-manager, benchmarking/37-capacity) and of the
// 73 % capacity report (73-capacity and the llm-d blog of 2025-09-24).
func Reports() []Published {
	no := math.NaN()
	row := func(sc, pol string, rate, ttft, itl, tok float64) Published {
		return Published{sc, pol, fmt.Sprintf("%g req/s", rate), ttft, itl, tok}
	}
	const p, r = "index-precise", "random"
	return []Published{
		row("llm-d-37", p, 3, 0.14, 13, 2580), row("llm-d-37", p, 4, 0.18, 14, 3367), row("llm-d-37", p, 5, 0.19, 15, 3941),
		row("llm-d-37", p, 6, 0.20, 16, 4666), row("llm-d-37", p, 8, 0.20, 18, 5676), row("llm-d-37", p, 10, 0.20, 20, 6457),
		row("llm-d-37", p, 12, 0.20, 21, 7062), row("llm-d-37", p, 15, 0.21, 24, 7807),
		row("llm-d-37", r, 3, 0.85, no, 2518), row("llm-d-37", r, 4, 9.5, no, 2734), row("llm-d-37", r, 5, 16, no, 2647),
		row("llm-d-37", r, 6, 30.4, no, 2947), row("llm-d-37", r, 8, 39, no, 2969), row("llm-d-37", r, 10, 41, no, 3120),
		row("llm-d-37", r, 12, 54, no, 3023),
		row("llm-d-73", p, 22, 0.30, no, 9382), row("llm-d-73", p, 30, 0.30, no, 9222), row("llm-d-73", p, 40, 0.27, no, 10271),
		row("llm-d-73", r, 22, 28, no, 4765), row("llm-d-73", r, 30, 32, no, 4636), row("llm-d-73", r, 40, 54, no, 4774),
	}
}

// Fit is one published row beside what the simulation gives.
type Fit struct {
	Published Published
	Sim       Result
}

// Calibrate simulates every published row.
func Calibrate(ctx context.Context, seed uint64) ([]Fit, error) {
	var out []Fit
	done := map[string][]Result{}
	for _, p := range Reports() {
		key := p.Scenario + "/" + p.Policy
		if done[key] == nil {
			sc, err := FindScenario(p.Scenario)
			if err != nil {
				return out, err
			}
			res, err := sc.Run(ctx, []string{p.Policy}, seed, nil)
			if err != nil {
				return out, err
			}
			done[key] = res[0].Results
		}
		for _, r := range done[key] {
			if r.Stage == p.Stage {
				out = append(out, Fit{p, r})
			}
		}
	}
	return out, nil
}

// WriteFits prints the rows as a Markdown table with the error of each.
func WriteFits(w io.Writer, fits []Fit) {
	fmt.Fprintln(w, "| report | policy | rate | TTFT mean s: report / sim | ms per token: report / sim | output tok/s: report / sim (error) | sim hit rate |")
	fmt.Fprintln(w, "|---|---|---|---|---|---|---|")
	for _, f := range fits {
		p, s := f.Published, f.Sim
		itl := "-"
		if !math.IsNaN(p.ITL) && s.TPOT != nil {
			itl = fmt.Sprintf("%.0f / %.1f (%+.0f %%)", p.ITL, s.TPOT.Mean, 100*(s.TPOT.Mean/p.ITL-1))
		}
		ttft := math.NaN()
		if s.TTFT != nil {
			ttft = s.TTFT.Mean / 1000
		}
		fmt.Fprintf(w, "| %s | %s | %s | %.2f / %.2f | %s | %.0f / %.0f (%+.0f %%) | %.1f %% |\n",
			p.Scenario, p.Policy, p.Stage, p.TTFT, ttft, itl, p.TokRate, s.TokenRate, 100*(s.TokenRate/p.TokRate-1), 100*s.HitRate)
	}
}

// WriteOutcomes prints a scenario's policies side by side as a Markdown table.
func WriteOutcomes(w io.Writer, out []Outcome) {
	fmt.Fprintln(w, "| policy | stage | requests | errors | hit rate | cold prefills | TTFT p50 / p90 / p99 ms | TTFT mean ms | ms per token | output tok/s | busy mean / max |")
	fmt.Fprintln(w, "|---|---|---|---|---|---|---|---|---|---|---|")
	for _, o := range out {
		for _, r := range o.Results {
			lat, mean, tpot := "-", "-", "-"
			if r.TTFT != nil {
				lat = fmt.Sprintf("%.0f / %.0f / %.0f", r.TTFT.P50, r.TTFT.P90, r.TTFT.P99)
				mean = fmt.Sprintf("%.0f", r.TTFT.Mean)
			}
			if r.TPOT != nil {
				tpot = fmt.Sprintf("%.1f", r.TPOT.Mean)
			}
			fmt.Fprintf(w, "| %s | %s | %d | %d | %.2f %% | %d | %s | %s | %s | %.0f | %.2f / %.2f |\n", o.Policy, r.Stage, r.Requests, r.Errors,
				100*r.HitRate, r.ColdPrefills, lat, mean, tpot, r.TokenRate, r.BusyMean, r.BusyMax)
		}
	}
}
