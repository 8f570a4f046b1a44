package report

import (
	"fmt"
	"math"

	"github.com/prefixring/prefixring/bench"
	"github.com/prefixring/prefixring/bench/sim"
)

// FromSim shows policies side by side.
func FromSim(title string, sc sim.Scenario, seed uint64, out []sim.Outcome) *Document {
	d := &Document{Title: title, Data: out,
		Subtitle: fmt.Sprintf("Simulated: %s. %d engines, seed %d. Every time is simulated.", sc.About, sc.Engines, seed)}
	t := Table{Title: "Policies", Head: []string{"policy", "stage", "requests", "errors", "hit rate", "cold prefills", "TTFT p50", "TTFT p99", "ms per token", "output tok/s", "busy mean", "busy max"}}
	stages := 0
	for _, o := range out {
		stages = max(stages, len(o.Results))
		for _, r := range o.Results {
			tpot := "-"
			if r.TPOT != nil {
				tpot = short(r.TPOT.Mean)
			}
			t.Rows = append(t.Rows, []string{o.Policy, r.Stage, fmt.Sprint(r.Requests), fmt.Sprint(r.Errors), fmt.Sprintf("%.2f %%", 100*r.HitRate), fmt.Sprint(r.ColdPrefills),
				quantile(r.TTFT, func(q *bench.Quantiles) float64 { return q.P50 }), quantile(r.TTFT, func(q *bench.Quantiles) float64 { return q.P99 }),
				tpot, short(r.TokenRate), fmt.Sprintf("%.2f", r.BusyMean), fmt.Sprintf("%.2f", r.BusyMax)})
		}
	}
	d.Tables = []Table{t}
	if stages > 1 {
		d.Charts = []Chart{byStage("Time to first token, mean", "ms", true, out, func(r *sim.Result) float64 {
			if r.TTFT == nil {
				return math.NaN()
			}
			return r.TTFT.Mean
		}), byStage("Output tokens", "tokens per second", false, out, func(r *sim.Result) float64 { return r.TokenRate }),
			byStage("Hit rate", "%", false, out, func(r *sim.Result) float64 { return 100 * r.HitRate })}
		return d
	}
	d.Charts = []Chart{overTime("Time to first token, mean", "ms", true, out, func(m *sim.Minute) float64 { return zeroIsGap(m.TTFTMean) }),
		overTime("Cold prefills by the time at which the request came", "requests per step", false, out, func(m *sim.Minute) float64 { return float64(m.Cold) }),
		overTime("Requests", "per second", false, out[:min(1, len(out))], func(m *sim.Minute) float64 { return float64(m.Requests) / m.Width })}
	return d
}

func zeroIsGap(v float64) float64 {
	if v == 0 {
		return math.NaN()
	}
	return v
}

func byStage(title, y string, log bool, out []sim.Outcome, f func(*sim.Result) float64) Chart {
	c := Chart{Title: title, X: "stage", Y: y, LogY: log}
	for i, o := range out {
		l := Line{Name: o.Policy}
		for j := range o.Results {
			if i == 0 {
				c.XTicks = append(c.XTicks, Tick{float64(j), o.Results[j].Stage})
			}
			l.X, l.Y = append(l.X, float64(j)), append(l.Y, f(&o.Results[j]))
		}
		c.Lines = append(c.Lines, l)
	}
	return c
}

func overTime(title, y string, log bool, out []sim.Outcome, f func(*sim.Minute) float64) Chart {
	c := Chart{Title: title, X: "seconds", Y: y, LogY: log}
	for _, o := range out {
		if len(o.Results) == 0 {
			continue
		}
		l := Line{Name: o.Policy}
		for i := range o.Results[0].Minutes {
			m := &o.Results[0].Minutes[i]
			l.X, l.Y = append(l.X, m.At), append(l.Y, f(m))
		}
		c.Lines = append(c.Lines, l)
	}
	return c
}
