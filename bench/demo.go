package bench

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/shopspring/decimal"

	"github.com/prefixring/prefixring/internal/dialect"
)

// The demo's defaults. A 70B model on four H100 holds about 460,000 tokens of KV: seven
// prefixes of 60,000 tokens and nothing more. Twelve prefixes make a working set that no
// engine can hold, while the fleet of eight holds it five times over.
const (
	demoEngines  = 8
	demoPrefixes = 12
	demoTokens   = 60000
	demoSpeed    = 12
	demoRate     = 7.0
	demoPreset   = "70b-tp4"
	demoModel    = "demo-70b"
	demoKV       = 460000
)

// EngineAddr is a running simulated engine.
type EngineAddr struct {
	Name    string
	URL     string
	Dialect dialect.Engine
	Model   string
}

// NamedText is one of the demo's fat prefixes: what a prewarm manifest would name.
type NamedText struct {
	Name   string
	System string // the whole system message
	Tokens int
	Share  float64 // expected share of the requests
}

// FrontDoor is a router that the caller has started in front of the engines.
type FrontDoor struct {
	URL     string
	Prewarm func(ctx context.Context) error // warms and proves the prefixes; may be nil
	Stop    func()                          // may be nil
}

// DemoOptions says what to compare. Only StartFrontDoor is needed.
type DemoOptions struct {
	// StartFrontDoor puts the router under test in front of the engines.
	StartFrontDoor func(ctx context.Context, engines []EngineAddr, prefixes []NamedText) (FrontDoor, error)

	Engines      int           // 0 means 8
	Prefixes     int           // 0 means 12
	PrefixTokens int           // 0 means 60,000
	Zipf         float64       // 0 means 0.8
	Rate         float64       // peak, requests per simulated second; 0 means 7
	Duration     time.Duration // of the sale, in simulated time; 0 means 90 s
	KVTokens     int           // of each engine; 0 means 460,000
	Speed        float64       // simulated seconds per second; 0 means 12
	Seed         uint64
	Prices       DemoPrices

	Out io.Writer // live view and summary; nil is silent
	TTY bool      // Out is a terminal
}

// DemoPrices are per million tokens.
type DemoPrices struct {
	Input    decimal.Decimal // uncached prompt tokens; zero means 2.00
	Cached   decimal.Decimal // cached prompt tokens; zero means 0.20
	Output   decimal.Decimal // zero means 6.00
	Currency string          // empty means USD
	Source   string          // empty means that the prices are an example
}

// DemoArm is one side of the comparison. Times are simulated milliseconds.
type DemoArm struct {
	Requests      int64            `json:"requests"`
	Errors        int64            `json:"errors"`
	HitRate       float64          `json:"hit_rate"`      // the engines' own count: cached / prompt tokens
	ColdPrefills  int64            `json:"cold_prefills"` // the engines' own count
	TTFT          *Quantiles       `json:"ttft_ms"`
	E2E           *Quantiles       `json:"e2e_ms"`
	ErrorKinds    map[string]int64 `json:"error_kinds,omitempty"`
	BusySeconds   float64          `json:"engine_busy_seconds"` // simulated, summed over the engines
	PromptTokens  int64            `json:"prompt_tokens"`
	CachedTokens  int64            `json:"cached_tokens"`
	OutputTokens  int64            `json:"output_tokens"`
	EstimatedCost string           `json:"estimated_cost"` // exact decimal, of the traffic
	PrewarmCost   string           `json:"estimated_prewarm_cost"`
	WallSeconds   float64          `json:"wall_seconds"`
	PrewarmWall   float64          `json:"prewarm_wall_seconds"`
	PrewarmTokens int64            `json:"prewarm_prompt_tokens"` // computed before the sale, not in the figures above
	Valid         bool             `json:"valid"`
	InvalidFor    []string         `json:"invalid_because,omitempty"`
	Run           *Result          `json:"run,omitempty"` // the whole measurement, in wall time
}

// DemoResult is the comparison.
type DemoResult struct {
	RoundRobin DemoArm `json:"round_robin"`
	Prefixring DemoArm `json:"prefixring"`

	Speed       float64 `json:"speed"` // all times above are wall time x speed
	Engines     int     `json:"engines"`
	Prefixes    int     `json:"prefixes"`
	Seed        uint64  `json:"seed"`
	Model       string  `json:"engine_model"`
	KVTokens    int     `json:"kv_tokens_per_engine"`
	TTFTRatio   float64 `json:"ttft_p50_ratio"` // round robin / prefixring
	Currency    string  `json:"currency"`
	PriceSource string  `json:"price_source"`
}

func (o *DemoOptions) defaults() {
	o.Engines = orInt(o.Engines, demoEngines)
	o.Prefixes = orInt(o.Prefixes, demoPrefixes)
	o.PrefixTokens = orInt(o.PrefixTokens, demoTokens)
	o.KVTokens = orInt(o.KVTokens, demoKV)
	o.Zipf, o.Rate, o.Speed = orFloat(o.Zipf, 0.8), orFloat(o.Rate, demoRate), orFloat(o.Speed, demoSpeed)
	o.Duration = orDefault(o.Duration, 90*time.Second)
	p := &o.Prices
	if p.Input.IsZero() && p.Cached.IsZero() && p.Output.IsZero() {
		p.Input, p.Cached, p.Output = decimal.New(200, -2), decimal.New(20, -2), decimal.New(600, -2)
	}
	if p.Currency == "" {
		p.Currency = "USD"
	}
	if p.Source == "" {
		p.Source = "example prices, not an offer"
	}
	if o.Out == nil {
		o.Out = io.Discard
	}
}

// Demo starts simulated engines, sends them one seeded sale by round robin with cold
// caches, empties the caches, and sends the very same bytes again through the front
// door after its prewarm. Nothing in the result is canned: every figure is counted by
// the engines or measured by the load client.
func Demo(ctx context.Context, o DemoOptions) (DemoResult, error) {
	if o.StartFrontDoor == nil {
		return DemoResult{}, fmt.Errorf("%w: the demo needs a front door to show", ErrUsage)
	}
	o.defaults()
	fleet, err := startDemoFleet(&o)
	if err != nil {
		return DemoResult{}, err
	}
	defer fleet.close()
	load := o.load()
	say := func(format string, args ...any) { fmt.Fprintf(o.Out, format+"\n", args...) }
	say("%d simulated engines (%s, %d KV tokens each), %d prefixes of %d tokens, Zipf %.1f, a sale with a peak of %.0f req/s.",
		o.Engines, demoPreset, fleet.kvTokens, o.Prefixes, o.PrefixTokens, o.Zipf, o.Rate)
	say("Time runs %.0f times faster; every time shown is simulated engine time (wall time x %.0f).", o.Speed, o.Speed)
	say("One engine holds %d such prefixes, the fleet holds %d: where a request goes decides whether its prefix is there.\n",
		fleet.kvTokens/o.PrefixTokens, o.Engines*(fleet.kvTokens/o.PrefixTokens))

	res := DemoResult{Speed: o.Speed, Engines: o.Engines, Prefixes: o.Prefixes, Seed: o.Seed, Model: demoPreset,
		KVTokens: fleet.kvTokens, Currency: o.Prices.Currency, PriceSource: o.Prices.Source}
	load.Targets = fleet.urls()
	nothing := func(context.Context) error { return nil }
	if res.RoundRobin, err = fleet.arm(ctx, &o, load, "round robin", nothing); err != nil {
		return res, err
	}
	if err := fleet.flush(ctx); err != nil {
		return res, err
	}
	if res.Prefixring, err = fleet.front(ctx, &o, load); err != nil {
		return res, err
	}
	if a, b := res.RoundRobin.TTFT, res.Prefixring.TTFT; a != nil && b != nil && b.P50 > 0 {
		res.TTFTRatio = a.P50 / b.P50
	}
	res.table(o.Out)
	return res, ctx.Err()
}

// load is the traffic of both arms: same seed and same nonce, so the same bytes.
func (o *DemoOptions) load() Options {
	return Options{
		Model: demoModel, Seed: o.Seed, Nonce: fmt.Sprintf("demo-%d", o.Seed), SkipPreflight: true,
		Arrivals: Arrivals{Kind: "sale", Rate: o.Rate * o.Speed, Duration: time.Duration(float64(o.Duration) / o.Speed)},
		Workload: Workload{Name: "demo sale", Prefixes: o.Prefixes, Prefix: Exactly(o.PrefixTokens), Zipf: o.Zipf,
			User: Exactly(60), Output: Exactly(40)},
		Timeout: 2 * time.Minute, Grace: 2 * time.Second,
		// The engines run in this process and take the same cores, so the client may be
		// later than in a run of its own; 250 ms is still named in the result.
		MaxLag: 250 * time.Millisecond,
	}
}

// prefixes are the demo's texts as the prewarm manifest needs them.
func (o *DemoOptions) prefixes(load *Options) []NamedText {
	c := newComposer(load)
	z := newZipf(o.Prefixes, o.Zipf)
	out := make([]NamedText, o.Prefixes)
	for i := range out {
		out[i] = NamedText{Name: fmt.Sprintf("shop-%02d", i), System: string(c.heads[i][len(c.open):]), Tokens: o.PrefixTokens, Share: z.share(i)}
	}
	return out
}

// front runs the second arm.
func (f *demoFleet) front(ctx context.Context, o *DemoOptions, load Options) (DemoArm, error) {
	door, err := o.StartFrontDoor(ctx, f.addrs(), o.prefixes(&load))
	if err != nil {
		return DemoArm{}, fmt.Errorf("cannot start the front door: %w", err)
	}
	if door.Stop != nil {
		defer door.Stop()
	}
	var took time.Duration
	var warmed EngineCounters
	prewarm := func(ctx context.Context) error {
		before := f.counters()
		begun := time.Now()
		if door.Prewarm != nil {
			if err := door.Prewarm(ctx); err != nil {
				return fmt.Errorf("cannot prewarm: %w", err)
			}
		}
		took = time.Since(begun)
		warmed = total(subtract(f.counters(), before))
		fmt.Fprintf(o.Out, "prewarm: %d cold prefills computed ahead of the sale in %.0f simulated seconds\n", warmed.ColdPrefills, took.Seconds()*o.Speed)
		return nil
	}
	load.URL, load.Targets, load.Explain = door.URL, nil, true
	arm, err := f.arm(ctx, o, load, "prefixring", prewarm)
	arm.PrewarmWall, arm.PrewarmTokens = took.Seconds(), warmed.PromptTokens
	arm.PrewarmCost = o.Prices.estimate(warmed).StringFixed(4)
	return arm, err
}

// demoTries is how often an arm is measured when the machine was too busy to send in
// time: a stall of the whole machine says nothing about either door.
const demoTries = 2

// arm prepares and runs the load, and takes the engines' own counts around it.
func (f *demoFleet) arm(ctx context.Context, o *DemoOptions, load Options, name string, prepare func(context.Context) error) (arm DemoArm, err error) {
	for try := 1; ; try++ {
		if err := prepare(ctx); err != nil {
			return arm, err
		}
		if arm, err = f.measure(ctx, o, load, name); err != nil || arm.Valid || try == demoTries || ctx.Err() != nil {
			return arm, err
		}
		fmt.Fprintf(o.Out, "this machine was too busy (%s): measuring %s again with empty caches\n", arm.InvalidFor[0], name)
		if err := f.flush(ctx); err != nil {
			return arm, err
		}
	}
}

// measure runs the load once.
func (f *demoFleet) measure(ctx context.Context, o *DemoOptions, load Options, name string) (DemoArm, error) {
	view := NewRenderer(o.Out, o.TTY, fmt.Sprintf("%-12s", name))
	view.scale = o.Speed
	before := total(f.counters())
	load.OnProgress = func(p Progress) {
		// SGLang leaves a cached count of zero out of its usage, so what answers tell is too
		// good while the caches are cold; the engines know better.
		if now := total(f.counters()); now.PromptTokens > before.PromptTokens {
			p.HitRate = float64(now.CachedTokens-before.CachedTokens) / float64(now.PromptTokens-before.PromptTokens)
		}
		view.Update(p)
	}
	load.Counters = func(context.Context) ([]EngineCounters, error) { return f.counters(), nil }
	run, err := Run(ctx, load)
	if err != nil {
		return DemoArm{}, err
	}
	t := total(run.Engines)
	result := DemoArm{
		Requests: run.Sent, Errors: run.Sent - run.Succeeded, ErrorKinds: run.Errors, ColdPrefills: t.ColdPrefills,
		TTFT: run.TTFT.scaled(o.Speed), E2E: run.E2E.scaled(o.Speed), BusySeconds: t.BusySeconds,
		PromptTokens: t.PromptTokens, CachedTokens: t.CachedTokens, OutputTokens: t.GenerationTokens,
		WallSeconds: run.Duration, Valid: run.Valid, InvalidFor: run.InvalidFor, Run: &run,
	}
	if h := ratio(t.CachedTokens, t.PromptTokens); h != nil {
		result.HitRate = *h
	}
	result.PrewarmCost = "0"
	result.EstimatedCost = o.Prices.estimate(t).StringFixed(4)
	return result, nil
}

// scaled turns wall milliseconds into simulated ones.
func (q *Quantiles) scaled(by float64) *Quantiles {
	if q == nil {
		return nil
	}
	return &Quantiles{P50: q.P50 * by, P90: q.P90 * by, P99: q.P99 * by, Max: q.Max * by, Mean: q.Mean * by, Count: q.Count}
}

// estimate prices what the engines counted, in exact decimals.
func (p DemoPrices) estimate(t EngineCounters) decimal.Decimal {
	n := decimal.NewFromInt
	sum := n(t.PromptTokens - t.CachedTokens).Mul(p.Input).Add(n(t.CachedTokens).Mul(p.Cached)).Add(n(t.GenerationTokens).Mul(p.Output))
	return sum.Shift(-6)
}

func total(all []EngineCounters) EngineCounters {
	var t EngineCounters
	for _, c := range all {
		t.Requests += c.Requests
		t.PromptTokens += c.PromptTokens
		t.CachedTokens += c.CachedTokens
		t.GenerationTokens += c.GenerationTokens
		t.ColdPrefills += c.ColdPrefills
		t.BusySeconds += c.BusySeconds
		t.Preemptions += c.Preemptions
	}
	return t
}

// table prints the two arms side by side.
func (r *DemoResult) table(w io.Writer) {
	a, b := &r.RoundRobin, &r.Prefixring
	q := func(x *Quantiles, f func(*Quantiles) float64) string {
		if x == nil {
			return "-"
		}
		return millis(f(x))
	}
	p50 := func(x *Quantiles) float64 { return x.P50 }
	p90 := func(x *Quantiles) float64 { return x.P90 }
	p99 := func(x *Quantiles) float64 { return x.P99 }
	fmt.Fprintf(w, "\n%-42s %15s %15s\n", "", "round robin", "prefixring")
	row := func(name, x, y string) { fmt.Fprintf(w, "%-42s %15s %15s\n", name, x, y) }
	row("requests", fmt.Sprint(a.Requests), fmt.Sprint(b.Requests))
	row("errors", fmt.Sprint(a.Errors), fmt.Sprint(b.Errors))
	row("hit rate (the engines' own count)", percent(a.HitRate), percent(b.HitRate))
	row("cold prefills during the sale", fmt.Sprint(a.ColdPrefills), fmt.Sprint(b.ColdPrefills))
	row("time to first token, p50", q(a.TTFT, p50), q(b.TTFT, p50))
	row("time to first token, p90", q(a.TTFT, p90), q(b.TTFT, p90))
	row("time to first token, p99", q(a.TTFT, p99), q(b.TTFT, p99))
	row("engine busy time, simulated", fmt.Sprintf("%.0f s", a.BusySeconds), fmt.Sprintf("%.0f s", b.BusySeconds))
	row("estimated cost, "+r.Currency, a.EstimatedCost, b.EstimatedCost)
	row("estimated cost of the prewarm, "+r.Currency, "-", b.PrewarmCost)
	fmt.Fprintf(w, "\nPrices: %s. Times: wall time x %.0f.", r.PriceSource, r.Speed)
	if r.TTFTRatio > 0 {
		fmt.Fprintf(w, " First tokens come %.1f times sooner at the median.", r.TTFTRatio)
	}
	fmt.Fprintln(w)
	for _, why := range a.InvalidFor {
		fmt.Fprintf(w, "The round robin arm is not a valid measurement: %s.\n", why)
	}
	for _, why := range b.InvalidFor {
		fmt.Fprintf(w, "The prefixring arm is not a valid measurement: %s.\n", why)
	}
}
