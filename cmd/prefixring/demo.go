package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/urfave/cli/v2"
	"golang.org/x/term"

	"github.com/prefixring/prefixring/bench"
	"github.com/prefixring/prefixring/internal/dialect"
	"github.com/prefixring/prefixring/internal/fakeengine"
)

func demoCommand() *cli.Command {
	return &cli.Command{
		Name:      "demo",
		Usage:     "a sale on simulated engines: round robin beside prefixring",
		UsageText: "prefixring demo\nprefixring demo --keep",
		Description: "Starts 8 simulated engines (70B on 4 H100 each, vLLM and SGLang), then sends the same seeded traffic\n" +
			"twice: round robin onto cold engines, and through prefixring after a prewarm. Times are those of the\n" +
			"simulated engines: the wall clock times --speed. Exits 1 if prefixring did not win.",
		Flags: []cli.Flag{
			&cli.BoolFlag{Name: "json", Usage: "print one JSON object; progress goes to standard error"},
			&cli.Float64Flag{Name: "seconds", Value: 100, Usage: "length of the sale in simulated seconds"},
			&cli.Float64Flag{Name: "rate", Value: 4, Usage: "requests per simulated second at the peak"},
			&cli.Float64Flag{Name: "speed", Value: 8, Usage: "simulated seconds per second"},
			&cli.Uint64Flag{Name: "seed", Value: 1, Usage: "of traffic and engines"},
			&cli.BoolFlag{Name: "keep", Usage: "leave the router and the engines running at the end"},
		},
		Action: func(c *cli.Context) error {
			d := demo{
				seconds: c.Float64("seconds"), rate: c.Float64("rate"), speed: c.Float64("speed"), seed: c.Uint64("seed"),
				keep: c.Bool("keep"), json: c.Bool("json"), out: c.App.Writer, view: c.App.Writer,
			}
			if d.json {
				d.view = c.App.ErrWriter
			}
			if !(d.seconds >= 5) || !(d.rate > 0) || !(d.speed >= 0.1 && d.speed <= 50) {
				return usageError(errors.New("--seconds must be at least 5, --rate above 0, --speed within 0.1..50"))
			}
			return d.run(c.Context)
		},
	}
}

// What the demo runs. 12 prefixes of 60k tokens are 720k tokens; one engine's KV cache
// holds 460k. Spread over all engines they evict one another; placed, they fit.
const (
	demoEngines  = 8
	demoPrefixes = 12
	demoTokens   = 60_000
	demoPreset   = "70b-tp4"
	demoModel    = "sim"
)

type demo struct {
	seconds, rate, speed float64
	seed                 uint64
	keep, json           bool
	out, view            io.Writer
}

// demoFleet is one set of fresh, cold engines.
type demoFleet struct {
	engines []*fakeengine.Engine
	urls    []string
	names   []string
}

func (d *demo) start() (*demoFleet, error) {
	f := &demoFleet{}
	for i := range demoEngines {
		o := fakeengine.Options{
			Name: fmt.Sprintf("engine-%d", i+1), Model: demoModel, Preset: demoPreset, Speed: d.speed,
			Seed: d.seed + uint64(i), ReportCached: true, MaxModelLen: 128_000,
		}
		if i >= demoEngines/2 {
			o.Dialect = dialect.SGLang
		}
		e, err := fakeengine.New(o)
		if err != nil {
			f.close()
			return nil, err
		}
		f.engines = append(f.engines, e)
		url, err := e.Start("127.0.0.1:0")
		if err != nil {
			f.close()
			return nil, err
		}
		f.urls, f.names = append(f.urls, url), append(f.names, o.Name)
	}
	return f, nil
}

func (f *demoFleet) close() {
	for _, e := range f.engines {
		e.Close()
	}
}

// counters reads what the engines themselves have counted.
func (f *demoFleet) counters(context.Context) ([]bench.EngineCounters, error) {
	var out []bench.EngineCounters
	for i, e := range f.engines {
		c := e.Counters()
		out = append(out, bench.EngineCounters{
			Name: f.names[i], Requests: c.Requests, PromptTokens: c.PromptTokens, CachedTokens: c.CachedTokens,
			GenerationTokens: c.GeneratedTokens, ColdPrefills: c.ColdPrefills, BusySeconds: c.BusySeconds, Preemptions: c.Preemptions,
		})
	}
	return out, nil
}

// traffic is the load of both arms: same seed, same nonce, same bytes.
func (d *demo) traffic(f *demoFleet, label string) bench.Options {
	wall := time.Duration(d.seconds / d.speed * float64(time.Second))
	show := d.progress(label)
	return bench.Options{
		Model: demoModel, Seed: d.seed, Nonce: "demo", IgnoreEOS: true,
		Arrivals: bench.Arrivals{Kind: "ramp", From: d.rate * d.speed / 8, Rate: d.rate * d.speed, Duration: wall},
		Workload: bench.Workload{
			Name: "sale", Prefixes: demoPrefixes, Prefix: bench.Exactly(demoTokens), Zipf: 1,
			User: bench.Exactly(200), Output: bench.Exactly(60),
		},
		Timeout: 5 * time.Minute, SkipPreflight: true, Counters: f.counters, OnProgress: show,
	}
}

// progress shows a run: a bar on a terminal, else a line now and then.
func (d *demo) progress(label string) func(bench.Progress) {
	tty := false
	if file, ok := d.view.(*os.File); ok {
		tty = term.IsTerminal(int(file.Fd()))
	}
	r := bench.NewRenderer(d.view, tty, label)
	return func(p bench.Progress) {
		p.TTFT50, p.TTFT99, p.Rate = p.TTFT50*d.speed, p.TTFT99*d.speed, p.Rate/d.speed
		r.Update(p)
	}
}

func (d *demo) run(ctx context.Context) error {
	fmt.Fprintf(d.view, "%d simulated engines (%s, H100, KV cache 460k tokens), %d prefixes of %dk tokens, %g requests/s at the peak\n",
		demoEngines, demoPreset, demoPrefixes, demoTokens/1000, d.rate)
	fmt.Fprintf(d.view, "times are simulated: %g simulated seconds a second\n", d.speed)
	base, err := d.roundRobin(ctx)
	if err != nil {
		return err
	}
	ours, router, err := d.routed(ctx)
	if err != nil {
		return err
	}
	defer router.stop()
	if ctx.Err() != nil {
		return failed{exitNo, errors.New("interrupted")}
	}
	report := demoReport{Settings: d.settings(), RoundRobin: base, Prefixring: ours}
	report.price()
	if d.json {
		err = writeJSON(d.out, report)
	} else {
		report.print(d.out)
	}
	if err != nil {
		return err
	}
	if d.keep {
		router.invite(d.view)
		<-ctx.Done()
	}
	if !report.won() {
		return failed{exitNo, errors.New("prefixring did not beat round robin")}
	}
	return nil
}

// roundRobin is the first arm: every next request goes to the next engine.
func (d *demo) roundRobin(ctx context.Context) (demoArm, error) {
	f, err := d.start()
	if err != nil {
		return demoArm{}, err
	}
	defer f.close()
	o := d.traffic(f, "round robin")
	o.Targets = f.urls
	res, err := bench.Run(ctx, o)
	if err != nil {
		return demoArm{}, failed{exitUnreachable, err}
	}
	return newDemoArm(&res, d.speed), nil
}
