package main

import (
	"fmt"
	"io"
	"math"
	"text/tabwriter"

	"github.com/shopspring/decimal"

	"github.com/prefixring/prefixring/bench"
)

// demoArm is what one arm measured. Times are simulated; tokens, cold prefills and busy
// time are the engines' own count.
type demoArm struct {
	Requests     int64        `json:"requests"`
	Errors       int64        `json:"errors"`
	HitRate      float64      `json:"hit_rate"`
	ColdPrefills int64        `json:"cold_prefills"`
	TTFT         demoQuantile `json:"ttft_ms"`
	BusySeconds  float64      `json:"engine_busy_seconds"`
	PromptTokens int64        `json:"prompt_tokens"`
	CachedTokens int64        `json:"cached_tokens"`
	OutputTokens int64        `json:"output_tokens"`
	Cost         string       `json:"estimated_cost"`
	Valid        bool         `json:"valid"`
	InvalidFor   []string     `json:"invalid_because,omitempty"`
	Prewarm      *demoPrewarm `json:"prewarm,omitempty"`
}

type demoQuantile struct {
	P50 float64 `json:"p50"`
	P90 float64 `json:"p90"`
	P99 float64 `json:"p99"`
}

func newDemoArm(r *bench.Result, speed float64) demoArm {
	t := bench.Total(r.Engines)
	a := demoArm{
		Requests: r.Sent, Errors: r.Sent - r.Succeeded, ColdPrefills: t.ColdPrefills, BusySeconds: t.BusySeconds,
		PromptTokens: t.PromptTokens, CachedTokens: t.CachedTokens, OutputTokens: t.GenerationTokens,
		Valid: r.Valid, InvalidFor: r.InvalidFor,
	}
	if t.PromptTokens > 0 {
		a.HitRate = float64(t.CachedTokens) / float64(t.PromptTokens)
	}
	if q := r.TTFT; q != nil {
		sim := func(ms float64) float64 { return math.Round(ms * speed) }
		a.TTFT = demoQuantile{sim(q.P50), sim(q.P90), sim(q.P99)}
	}
	return a
}

type demoSettings struct {
	Engines   int     `json:"engines"`
	Preset    string  `json:"preset"`
	Prefixes  int     `json:"prefixes"`
	Tokens    int     `json:"prefix_tokens"`
	Seconds   float64 `json:"seconds"`
	Rate      float64 `json:"peak_rate"`
	Speed     float64 `json:"speed"`
	Seed      uint64  `json:"seed"`
	Price     string  `json:"prices"`
	TimesNote string  `json:"times"`
}

func (d *demo) settings() demoSettings {
	return demoSettings{
		Engines: demoEngines, Preset: demoPreset, Prefixes: demoPrefixes, Tokens: demoTokens,
		Seconds: d.seconds, Rate: d.rate, Speed: d.speed, Seed: d.seed, Price: demoPrices,
		TimesNote: "simulated seconds: wall clock times speed",
	}
}

type demoReport struct {
	Settings   demoSettings `json:"settings"`
	RoundRobin demoArm      `json:"round_robin"`
	Prefixring demoArm      `json:"prefixring"`
}

// The prices of the demo: the round figures of the sale-day preset of `cost estimate`.
const demoPrices = "2.00 input, 0.20 cached input, 6.00 output per million tokens (assumed list price)"

var (
	demoInput  = decimal.RequireFromString("2.00")
	demoCached = decimal.RequireFromString("0.20")
	demoOutput = decimal.RequireFromString("6.00")
	million    = decimal.NewFromInt(1_000_000)
)

// price estimates what the counted tokens would cost.
func (r *demoReport) price() {
	for _, a := range []*demoArm{&r.RoundRobin, &r.Prefixring} {
		sum := decimal.NewFromInt(a.PromptTokens - a.CachedTokens).Mul(demoInput).
			Add(decimal.NewFromInt(a.CachedTokens).Mul(demoCached)).
			Add(decimal.NewFromInt(a.OutputTokens).Mul(demoOutput))
		a.Cost = sum.Div(million).StringFixed(2)
	}
}

// won says if prefixring did better on what it is for, and no worse in errors.
func (r *demoReport) won() bool {
	a, b := &r.RoundRobin, &r.Prefixring
	return b.Requests > 0 && b.Errors <= a.Errors && b.HitRate > a.HitRate && b.TTFT.P50 < a.TTFT.P50 && b.ColdPrefills < a.ColdPrefills
}

// print writes the table side by side.
func (r *demoReport) print(out io.Writer) {
	a, b := &r.RoundRobin, &r.Prefixring
	fmt.Fprintln(out)
	w := tabwriter.NewWriter(out, 0, 0, 3, ' ', tabwriter.AlignRight)
	row := func(name, x, y string) { fmt.Fprintf(w, "%s\t%s\t%s\t\n", name, x, y) }
	count := func(name string, x, y int64) { row(name, fmt.Sprint(x), fmt.Sprint(y)) }
	ms := func(name string, x, y float64) { row(name, seconds(x), seconds(y)) }
	row("", "round robin", "prefixring")
	count("requests", a.Requests, b.Requests)
	count("errors", a.Errors, b.Errors)
	row("hit rate (engines' count)", fmt.Sprintf("%.1f %%", 100*a.HitRate), fmt.Sprintf("%.1f %%", 100*b.HitRate))
	count("cold prefills", a.ColdPrefills, b.ColdPrefills)
	ms("TTFT p50", a.TTFT.P50, b.TTFT.P50)
	ms("TTFT p90", a.TTFT.P90, b.TTFT.P90)
	ms("TTFT p99", a.TTFT.P99, b.TTFT.P99)
	row("engine busy time", fmt.Sprintf("%.0f s", a.BusySeconds), fmt.Sprintf("%.0f s", b.BusySeconds))
	row("estimated cost", a.Cost, b.Cost)
	w.Flush()
	if p := b.Prewarm; p != nil {
		fmt.Fprintf(out, "prewarm before the sale: %d prefixes, %d of %d (prefix, engine) pairs proven warm in %.0f simulated seconds\n",
			p.Prefixes, p.Warm, p.Items, p.Seconds)
	}
	fmt.Fprintf(out, "prices: %s\n", r.Settings.Price)
	for _, arm := range []*demoArm{a, b} {
		for _, why := range arm.InvalidFor {
			fmt.Fprintf(out, "caution: %s\n", why)
		}
	}
}

func seconds(ms float64) string {
	if ms < 1000 {
		return fmt.Sprintf("%.0f ms", ms)
	}
	return fmt.Sprintf("%.1f s", ms/1000)
}
