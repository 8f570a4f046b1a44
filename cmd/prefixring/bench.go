package main

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/urfave/cli/v2"
	"golang.org/x/term"

	"github.com/prefixring/prefixring/bench"
	"github.com/prefixring/prefixring/internal/dialect"
)

func benchCommand() *cli.Command {
	return &cli.Command{
		Name:        "bench",
		Usage:       "make load, replay a trace, simulate a fleet, report",
		UsageText:   "prefixring bench run --url http://127.0.0.1:8080 --model llama --rate 50 --duration 60s",
		Subcommands: []*cli.Command{benchRunCommand(), benchReplayCommand(), benchSimCommand(), benchReportCommand()},
	}
}

func benchRunCommand() *cli.Command {
	return &cli.Command{
		Name:  "run",
		Usage: "open-loop load against any endpoint that speaks one of the protocols",
		UsageText: "prefixring bench run --url http://127.0.0.1:8080 --model llama --rate 50 --duration 60s --arrivals poisson --json\n" +
			"prefixring bench run --url http://127.0.0.1:8080 --model llama --workload fat --rate 5 --engines http://a:8000,http://b:8000",
		Description: "Latencies count from the planned send time, tokens are what the endpoint's usage says. --workload takes lengths\n" +
			"and arrivals of a preset; flags override them. Presets:\n" + presetHelp() + "\n" +
			"Ctrl-C stops the sending, waits up to 30 s for open answers and reports what was measured. Exits 1 if no\n" +
			"request succeeded, 3 if the endpoint cannot be reached or refuses the load.",
		Flags: append(endpointFlags(),
			&cli.Float64Flag{Name: "rate", Value: 10, Usage: "requests per second; at the peak for sale, ramp, step and day"},
			&cli.DurationFlag{Name: "duration", Value: 30 * time.Second, Usage: "length of the schedule"},
			&cli.StringFlag{Name: "arrivals", Value: "poisson", Usage: strings.Join(bench.Kinds(), ", ")},
			&cli.Float64Flag{Name: "shape", Usage: "of gamma and weibull arrivals; below 1 comes in bursts", DefaultText: "0.5"},
			&cli.Float64Flag{Name: "from", Usage: "first or quiet rate of ramp, step, sale and day", DefaultText: "a tenth of --rate"},
			&cli.IntFlag{Name: "steps", Usage: "plateaus of step arrivals", DefaultText: "5"},
			&cli.IntFlag{Name: "closed", Usage: "closed loop of `N` users instead; labelled, because it hides stalls", DefaultText: "open loop"},
			&cli.IntFlag{Name: "requests", Usage: "end after `N` requests", DefaultText: "the whole schedule"},
			&cli.StringFlag{Name: "workload", Usage: "start from the preset `NAME`"},
			&cli.StringFlag{Name: "requests-file", Usage: "send the bodies of a JSON Lines `FILE` instead of a made workload"},
			&cli.IntFlag{Name: "prefixes", Value: 8, Usage: "distinct static prefixes; 0 = every request has its own"},
			&cli.IntFlag{Name: "prefix-tokens", Value: 1000, Usage: "length of each"},
			&cli.Float64Flag{Name: "zipf", Usage: "popularity exponent of the prefixes; 0 = all equally hot"},
			&cli.IntFlag{Name: "tail-tokens", Usage: "dynamic end of the system text, different each time"},
			&cli.IntFlag{Name: "user-tokens", Value: 64, Usage: "length of the user's text"},
			&cli.IntFlag{Name: "output-tokens", Value: 64, Usage: "tokens to generate"},
			&cli.IntFlag{Name: "turns", Value: 1, Usage: "turns of each conversation"},
			&cli.DurationFlag{Name: "think", Usage: "pause between two turns"},
			&cli.IntFlag{Name: "tools", Usage: "tool definitions in each request"},
		),
		Action: func(c *cli.Context) error {
			o, err := benchOptions(c)
			if err != nil {
				return err
			}
			res, err := bench.Run(c.Context, o)
			return benchOutcome(c, &res, err)
		},
	}
}

// endpointFlags are those of run and replay: what is loaded and how it is watched.
func endpointFlags() []cli.Flag {
	return []cli.Flag{
		&cli.StringFlag{Name: "url", Required: true, Usage: "base `URL` of the endpoint; several, with commas, are used in turn"},
		&cli.StringFlag{Name: "model", Usage: "model `NAME` to ask for"},
		&cli.StringFlag{Name: "protocol", Value: "chat", Usage: "chat, completions, responses or messages"},
		&cli.BoolFlag{Name: "no-stream", Usage: "ask for whole answers; then there is no time to first token"},
		&cli.BoolFlag{Name: "ignore-eos", Usage: "have vLLM and SGLang generate the full length"},
		&cli.StringFlag{Name: "api-key-file", Usage: "`FILE` with the key that is sent"},
		&cli.StringSliceFlag{Name: "header", Usage: "send `NAME:VALUE`, too; once per header"},
		&cli.BoolFlag{Name: "explain", Usage: "ask a prefixring for its explain headers: adds the breakdown by node"},
		&cli.BoolFlag{Name: "insecure", Usage: "do not verify the endpoint's certificate"},
		&cli.BoolFlag{Name: "skip-preflight", Usage: "do not ask /v1/models first"},
		&cli.StringFlag{Name: "engines", Usage: "`URL,...` of engines whose own counters are read before and after"},
		&cli.DurationFlag{Name: "timeout", Value: bench.DefaultTimeout, Usage: "of one request"},
		&cli.DurationFlag{Name: "slo-ttft", Usage: "limit of time to first token, for goodput", DefaultText: "none"},
		&cli.DurationFlag{Name: "slo-tpot", Usage: "limit of time per output token, for goodput", DefaultText: "none"},
		&cli.DurationFlag{Name: "slo-e2e", Usage: "limit of the whole answer, for goodput", DefaultText: "none"},
		&cli.Uint64Flag{Name: "seed", Value: 1, Usage: "of everything random"},
		&cli.StringFlag{Name: "nonce", Usage: "`TEXT` mixed into every prompt; the same one finds the caches of an earlier run (default: a fresh one)"},
		&cli.StringFlag{Name: "report", Usage: "write an HTML page to `FILE`, and .json and .csv beside it"},
		&cli.BoolFlag{Name: "json", Usage: "print JSON; progress goes to standard error"},
	}
}

func presetHelp() string {
	var b strings.Builder
	for _, p := range bench.Presets() {
		fmt.Fprintf(&b, "  %-16s %s\n", p.Workload.Name, p.About)
	}
	return b.String()
}

// endpointOptions reads what endpointFlags gave.
func endpointOptions(c *cli.Context, label string) (bench.Options, error) {
	if c.Args().Present() && label != "replay" {
		return bench.Options{}, usageError(fmt.Errorf("bench run takes no argument %q", c.Args().First()))
	}
	protocol, err := parseProtocol(c.String("protocol"))
	if err != nil {
		return bench.Options{}, usageError(err)
	}
	o := bench.Options{
		Targets: splitList(c.String("url")), Model: c.String("model"), Protocol: protocol, NoStream: c.Bool("no-stream"),
		IgnoreEOS: c.Bool("ignore-eos"), Explain: c.Bool("explain"), Insecure: c.Bool("insecure"), SkipPreflight: c.Bool("skip-preflight"),
		Timeout: c.Duration("timeout"), Seed: c.Uint64("seed"), Nonce: c.String("nonce"), Headers: map[string]string{},
		SLO: bench.SLO{TTFT: c.Duration("slo-ttft"), TPOT: c.Duration("slo-tpot"), E2E: c.Duration("slo-e2e")},
	}
	for _, h := range c.StringSlice("header") {
		name, value, ok := strings.Cut(h, ":")
		if !ok || name == "" {
			return o, usageError(fmt.Errorf("--header %q is not NAME:VALUE", h))
		}
		o.Headers[name] = strings.TrimSpace(value)
	}
	if path := c.String("api-key-file"); path != "" {
		k := &secretFile{path: path}
		if err := k.read(); err != nil {
			return o, usageError(err)
		}
		o.APIKey = k.value()
	}
	if engines := splitList(c.String("engines")); len(engines) > 0 {
		o.Counters = bench.ScrapeCounters(engines)
	}
	o.OnProgress = benchProgress(c, label)
	return o, nil
}

// benchOptions are those of bench run.
func benchOptions(c *cli.Context) (bench.Options, error) {
	o, err := endpointOptions(c, "load")
	if err != nil {
		return o, err
	}
	o.Closed, o.Requests = c.Int("closed"), c.Int("requests")
	var preset bench.Preset
	if name := c.String("workload"); name != "" {
		if preset, err = bench.FindPreset(name); err != nil {
			return o, usageError(err)
		}
	}
	if path := c.String("requests-file"); path != "" {
		f, err := openInput(path)
		if err != nil {
			return o, usageError(err)
		}
		defer f.Close()
		if o.Workload.Lines, err = bench.ReadLines(f); err != nil {
			return o, usageError(fmt.Errorf("%s: %w", path, err))
		}
	} else {
		o.Workload = workload(c, preset.Workload)
	}
	o.Arrivals = arrivals(c, preset.Arrivals)
	return o, nil
}

// given says if a flag counts: it always does without a preset, whose values it would
// otherwise replace with its default.
func given(c *cli.Context, preset bool, flag string) bool { return !preset || c.IsSet(flag) }

func workload(c *cli.Context, w bench.Workload) bench.Workload {
	preset := w.Name != ""
	if !preset {
		w.Name = "flags"
	}
	for flag, to := range map[string]*int{"prefixes": &w.Prefixes, "tools": &w.Tools} {
		if given(c, preset, flag) {
			*to = c.Int(flag)
		}
	}
	for flag, to := range map[string]*bench.Length{
		"prefix-tokens": &w.Prefix, "tail-tokens": &w.Tail, "user-tokens": &w.User, "output-tokens": &w.Output, "turns": &w.Turns,
	} {
		if given(c, preset, flag) {
			*to = bench.Exactly(c.Int(flag))
		}
	}
	if given(c, preset, "zipf") {
		w.Zipf = c.Float64("zipf")
	}
	if given(c, preset, "think") {
		w.Think = c.Duration("think")
	}
	return w
}

func arrivals(c *cli.Context, a bench.Arrivals) bench.Arrivals {
	preset := a.Kind != ""
	if given(c, preset, "arrivals") {
		a.Kind = c.String("arrivals")
	}
	for flag, to := range map[string]*float64{"rate": &a.Rate, "from": &a.From, "shape": &a.Shape} {
		if given(c, preset, flag) {
			*to = c.Float64(flag)
		}
	}
	if given(c, preset, "duration") {
		a.Duration = c.Duration("duration")
	}
	if given(c, preset, "steps") {
		a.Steps = c.Int("steps")
	}
	return a
}

func parseProtocol(name string) (dialect.Protocol, error) {
	for _, p := range []dialect.Protocol{dialect.Chat, dialect.Completions, dialect.Responses, dialect.Messages} {
		if p.String() == name {
			return p, nil
		}
	}
	return dialect.Opaque, fmt.Errorf("unknown protocol %q; there are chat, completions, responses and messages", name)
}

// splitList splits at commas and drops what is empty.
func splitList(s string) []string {
	return strings.FieldsFunc(s, func(r rune) bool { return r == ',' || r == ' ' })
}

// benchProgress shows the run on standard error: a bar on a terminal, else a line now
// and then.
func benchProgress(c *cli.Context, label string) func(bench.Progress) {
	return bench.NewRenderer(c.App.ErrWriter, isTerminal(c.App.ErrWriter), label).Update
}

func isTerminal(w any) bool {
	f, ok := w.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

// benchError gives an error of the bench its exit code.
func benchError(err error) error {
	var line *bench.TraceError
	switch {
	case errors.Is(err, bench.ErrUsage), errors.As(err, &line):
		return usageError(err)
	case errors.Is(err, bench.ErrUnreachable), errors.Is(err, bench.ErrRefused):
		return failed{exitUnreachable, err}
	}
	return failed{exitUnreachable, fmt.Errorf("cannot measure: %w", err)}
}
