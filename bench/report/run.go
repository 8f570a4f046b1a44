package report

import (
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"slices"

	"github.com/prefixring/prefixring/bench"
)

// FromRun shows one measurement.
func FromRun(title string, r *bench.Result) *Document {
	d := &Document{Title: title, Warnings: r.InvalidFor, Data: r}
	d.Subtitle = fmt.Sprintf("%s, %s, %d requests, seed %d, nonce %s", r.Mode, r.Settings.Workload.Name, r.Sent, r.Seed, r.Nonce)
	d.Tiles = []Tile{
		{"Time to first token, p50", quantile(r.TTFT, func(q *bench.Quantiles) float64 { return q.P50 }), "from the planned send time"},
		{"Time to first token, p99", quantile(r.TTFT, func(q *bench.Quantiles) float64 { return q.P99 }), ""},
		{"Hit rate", share(r.HitRate), "cached / prompt tokens"},
		{"Errors", fmt.Sprint(r.Sent - r.Succeeded), fmt.Sprintf("of %d sent", r.Sent)},
		{"Achieved rate", short(r.AchievedRate) + " req/s", fmt.Sprintf("planned %s", short(r.PlannedRate))},
		{"Send lag, max", short(r.MaxSendLagMS) + " ms", fmt.Sprintf("own CPU %.2f cores", r.OwnCPU)},
	}
	d.Charts = append(d.Charts, curves(map[string]*bench.Result{"": r}), timeline(r), rates(r))
	d.Heat = heat(r.Heat)
	d.Tables = append(d.Tables, latencies(r), errorTable(r), groups("Prefixes", r.Prefixes), groups("Nodes", r.Nodes), settings(r))
	d.Tables = slices.DeleteFunc(d.Tables, func(t Table) bool { return len(t.Rows) == 0 })
	return d
}

func quantile(q *bench.Quantiles, f func(*bench.Quantiles) float64) string {
	if q == nil {
		return "-"
	}
	return ms(f(q))
}

func ms(v float64) string {
	if v >= 1000 {
		return short(v/1000) + " s"
	}
	return short(v) + " ms"
}

func share(v *float64) string {
	if v == nil {
		return "-"
	}
	return fmt.Sprintf("%.1f %%", 100*(*v))
}

// curves draws percentile curves on a scale that spreads the tail: x = -log10(1-p).
func curves(runs map[string]*bench.Result) Chart {
	c := Chart{Title: "Percentiles", X: "percentile", Y: "ms", LogY: true,
		Note: "Successes only, from the planned send time. The scale spreads the tail."}
	place := func(p float64) float64 { return -math.Log10(1 - min(p, 99.97)/100) }
	for _, p := range []float64{0, 50, 90, 99, 99.9} {
		c.XTicks = append(c.XTicks, Tick{place(p), fmt.Sprintf("%g", p)})
	}
	for _, name := range slices.Sorted(maps.Keys(runs)) {
		for _, k := range []string{"ttft_ms", "e2e_ms"} {
			v := runs[name].Curves[k]
			if len(v) == 0 {
				continue
			}
			l := Line{Name: map[string]string{"ttft_ms": "time to first token", "e2e_ms": "end to end"}[k]}
			if name != "" {
				l.Name = name + ", " + l.Name
			}
			for i, p := range bench.CurvePercentiles {
				l.X, l.Y = append(l.X, place(p)), append(l.Y, v[i])
			}
			c.Lines = append(c.Lines, l)
		}
	}
	return c
}

func timeline(r *bench.Result) Chart {
	c := Chart{Title: "Time to first token over time", X: "seconds", Y: "ms", LogY: true}
	p50, p99 := Line{Name: "p50"}, Line{Name: "p99"}
	for i := range r.Series {
		b := &r.Series[i]
		add(&p50, b.At, b.TTFT50)
		add(&p99, b.At, b.TTFT99)
	}
	c.Lines = []Line{p50, p99}
	return c
}

func add(l *Line, x float64, y *float64) {
	l.X = append(l.X, x)
	if y == nil {
		l.Y = append(l.Y, math.NaN())
	} else {
		l.Y = append(l.Y, *y)
	}
}

func rates(r *bench.Result) Chart {
	c := Chart{Title: "Load over time", X: "seconds", Y: "requests per second"}
	sent, done, failed := Line{Name: "sent"}, Line{Name: "succeeded"}, Line{Name: "errors"}
	for i := range r.Series {
		b := &r.Series[i]
		for l, n := range map[*Line]int64{&sent: b.Sent, &done: b.Done, &failed: b.Errors} {
			l.X, l.Y = append(l.X, b.At), append(l.Y, float64(n)/b.Width)
		}
	}
	c.Lines = []Line{sent, done, failed}
	return c
}

func heat(cells []bench.Cell) *Heat {
	if len(cells) == 0 {
		return nil
	}
	rows, cols := map[int]int{}, map[string]int{}
	h := &Heat{Title: "Prefix x node", Note: "Darker is colder: the share of requests answered from less than half of the prompt in cache. Empty: no request."}
	nodes := map[string]bool{}
	for _, c := range cells {
		nodes[c.Node] = true
	}
	for _, n := range slices.Sorted(maps.Keys(nodes)) {
		cols[n] = len(h.Cols)
		h.Cols = append(h.Cols, n)
	}
	for _, c := range cells { // sorted by prefix
		if _, ok := rows[c.Prefix]; !ok && len(h.Rows) < 64 {
			rows[c.Prefix] = len(h.Rows)
			h.Rows = append(h.Rows, fmt.Sprintf("prefix %d", c.Prefix))
			h.Share = append(h.Share, make([]float64, len(h.Cols)))
			h.Count = append(h.Count, make([]int64, len(h.Cols)))
		}
		if r, ok := rows[c.Prefix]; ok {
			h.Count[r][cols[c.Node]] = c.Requests
			h.Share[r][cols[c.Node]] = float64(c.Cold) / float64(c.Requests)
		}
	}
	return h
}

func latencies(r *bench.Result) Table {
	t := Table{Title: "Latencies, ms", Head: []string{"", "p50", "p90", "p99", "max", "mean", "samples", "what it is"}}
	for _, row := range []struct {
		name, key string
		q         *bench.Quantiles
	}{
		{"time to first token", "ttft_ms", r.TTFT}, {"same, from the actual send", "ttft_from_send_ms", r.TTFTSent},
		{"first event of any kind", "ttft_first_chunk_ms", r.TTFTChunk}, {"first byte", "first_byte_ms", r.FirstByte},
		{"time per output token", "tpot_ms", r.TPOT}, {"gap between events", "itl_ms", r.ITL}, {"end to end", "e2e_ms", r.E2E},
	} {
		if q := row.q; q != nil {
			t.Rows = append(t.Rows, []string{row.name, short(q.P50), short(q.P90), short(q.P99), short(q.Max), short(q.Mean), fmt.Sprint(q.Count), r.Definitions[row.key]})
		}
	}
	return t
}

func errorTable(r *bench.Result) Table {
	t := Table{Title: "Errors by kind", Head: []string{"kind", "requests"}}
	for _, k := range slices.Sorted(maps.Keys(r.Errors)) {
		t.Rows = append(t.Rows, []string{k, fmt.Sprint(r.Errors[k])})
	}
	return t
}

func groups(title string, all []bench.Group) Table {
	t := Table{Title: title, Head: []string{"", "requests", "errors", "hit rate", "TTFT p50", "TTFT p99"}}
	for _, g := range all[:min(len(all), 100)] {
		t.Rows = append(t.Rows, []string{g.Name, fmt.Sprint(g.Requests), fmt.Sprint(g.Errors), share(g.HitRate),
			quantile(g.TTFT, func(q *bench.Quantiles) float64 { return q.P50 }), quantile(g.TTFT, func(q *bench.Quantiles) float64 { return q.P99 })})
	}
	if len(all) > 100 {
		t.Note = fmt.Sprintf("The first 100 of %d.", len(all))
	}
	return t
}

func settings(r *bench.Result) Table {
	t := Table{Title: "Settings", Head: []string{"setting", "value"}}
	w, err := json.Marshal(r.Settings.Workload)
	if err != nil {
		panic("BUG: a workload must marshal: " + err.Error())
	}
	a := r.Settings.Arrivals
	for _, kv := range [][2]string{
		{"endpoint", fmt.Sprint(r.Settings.URLs)}, {"model", r.Settings.Model}, {"protocol", r.Settings.Protocol},
		{"arrivals", fmt.Sprintf("%s, %g req/s, %v", a.Kind, a.Rate, a.Duration)}, {"workload", string(w)},
		{"output tokens counted by", r.OutputBasis}, {"valid", fmt.Sprint(r.Valid)},
	} {
		t.Rows = append(t.Rows, []string{kv[0], kv[1]})
	}
	return t
}

// Diff sets two runs side by side.
func Diff(nameA, nameB string, a, b *bench.Result) *Document {
	d := &Document{Title: nameA + " against " + nameB, Data: map[string]*bench.Result{nameA: a, nameB: b}}
	for _, w := range a.InvalidFor {
		d.Warnings = append(d.Warnings, nameA+": "+w)
	}
	for _, w := range b.InvalidFor {
		d.Warnings = append(d.Warnings, nameB+": "+w)
	}
	if a.Seed != b.Seed || a.Settings.Workload.Name != b.Settings.Workload.Name {
		d.Warnings = append(d.Warnings, "seed or workload differ: this compares two different loads")
	}
	t := Table{Title: "Side by side", Head: []string{"", nameA, nameB, "change"}}
	num := func(name string, x, y float64, show func(float64) string) {
		change := "-"
		if x != 0 && !bad(x) && !bad(y) {
			change = fmt.Sprintf("%+.1f %%", 100*(y/x-1))
		}
		cell := func(v float64) string {
			if bad(v) {
				return "-"
			}
			return show(v)
		}
		t.Rows = append(t.Rows, []string{name, cell(x), cell(y), change})
	}
	val := func(q *bench.Quantiles, f func(*bench.Quantiles) float64) float64 {
		if q == nil {
			return math.NaN()
		}
		return f(q)
	}
	rate := func(v *float64) float64 {
		if v == nil {
			return math.NaN()
		}
		return 100 * *v
	}
	p50 := func(q *bench.Quantiles) float64 { return q.P50 }
	p99 := func(q *bench.Quantiles) float64 { return q.P99 }
	num("requests sent", float64(a.Sent), float64(b.Sent), short)
	num("errors", float64(a.Sent-a.Succeeded), float64(b.Sent-b.Succeeded), short)
	num("time to first token, p50", val(a.TTFT, p50), val(b.TTFT, p50), ms)
	num("time to first token, p99", val(a.TTFT, p99), val(b.TTFT, p99), ms)
	num("time per output token, p50", val(a.TPOT, p50), val(b.TPOT, p50), ms)
	num("end to end, p99", val(a.E2E, p99), val(b.E2E, p99), ms)
	num("output tokens per second", a.TokenRate, b.TokenRate, short)
	num("hit rate, %", rate(a.HitRate), rate(b.HitRate), short)
	d.Tables = []Table{t}
	d.Charts = []Chart{curves(map[string]*bench.Result{nameA: a, nameB: b})}
	return d
}
