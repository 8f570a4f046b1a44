package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"sync"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/prefixring/prefixring/internal/config"
	"github.com/prefixring/prefixring/prewarm"
)

func prewarmCommand() *cli.Command {
	return &cli.Command{
		Name:      "prewarm",
		Usage:     "make known prefixes warm before traffic comes, and prove it",
		UsageText: "prefixring prewarm run --config configs/router.yaml --manifest sale.yaml",
		Subcommands: []*cli.Command{
			prewarmPlanCommand(), prewarmRunCommand(), prewarmVerifyCommand(), prewarmWatchCommand(), prewarmCaptureCommand(),
		},
	}
}

// manifestFlags are those of plan, run and verify.
func manifestFlags(more ...cli.Flag) []cli.Flag {
	return append(append([]cli.Flag{
		&cli.StringFlag{Name: "manifest", Aliases: []string{"m"}, Usage: "`FILE` with the prefixes (default: prewarm.manifest of the configuration)"},
		&cli.StringSliceFlag{Name: "only", Usage: "only the entry `NAME`; once per entry"},
		&cli.DurationFlag{Name: "timeout", Value: 8 * time.Second, Usage: "how long to wait for the engines to answer"},
	}, configFlags()[:2]...), more...)
}

func prewarmPlanCommand() *cli.Command {
	return &cli.Command{
		Name:      "plan",
		Usage:     "which node warms what, in which order, how long it takes, does it fit; nothing is prefilled",
		UsageText: "prefixring prewarm plan --manifest sale.yaml --engine http://10.0.0.7:8000 --engine http://10.0.0.8:8000",
		Description: "Exits 1 with the figures when the plan cannot work (too late, too little KV memory), 2 when the manifest or the\n" +
			"configuration is wrong, 3 when no engine answers.",
		Flags: manifestFlags(
			&cli.BoolFlag{Name: "force", Usage: "plan what cannot work in time or in memory all the same"},
			&cli.BoolFlag{Name: "estimate", Usage: "estimate tokens by length instead of asking the engines' tokenizers"},
			&cli.BoolFlag{Name: "json", Usage: "print JSON"},
		),
		Action: func(c *cli.Context) error {
			return withWarmFleet(c, func(f *warmFleet) error {
				p, err := f.plan(c)
				if p == nil {
					return err
				}
				if c.Bool("json") {
					if werr := writeJSON(c.App.Writer, p); werr != nil {
						return failed{exitNo, werr}
					}
					return err
				}
				printPlan(c.App.Writer, p)
				return err
			})
		},
	}
}

func prewarmRunCommand() *cli.Command {
	return &cli.Command{
		Name:      "run",
		Usage:     "warm the prefixes on their engines and prove each with a second request",
		UsageText: "prefixring prewarm run --config configs/router.yaml --manifest sale.yaml --state /var/lib/prefixring/sale.state",
		Description: "Requests go to the engines directly, one prefill at a time on each, and wait while an engine is full. What is\n" +
			"warm already is proven, not prefilled again. After Ctrl-C the same command resumes from --state.\n" +
			"Exits 1 if something is not proven warm. --json prints each event as one line, then the report as the last one.",
		Flags: manifestFlags(
			&cli.BoolFlag{Name: "force", Usage: "run a plan that cannot work in time or in memory all the same"},
			&cli.BoolFlag{Name: "estimate", Usage: "estimate tokens by length instead of asking the engines' tokenizers"},
			&cli.StringFlag{Name: "state", Usage: "keep the progress in `FILE`; it holds digests, names and times"},
			&cli.IntFlag{Name: "per-node", Value: 1, Usage: "prefills at a time on one engine"},
			&cli.IntFlag{Name: "nodes", Usage: "engines at work at a time", DefaultText: "all"},
			&cli.Int64Flag{Name: "max-tokens", Usage: "prompt tokens in prefill at a time, over the whole fleet", DefaultText: "no bound"},
			&cli.DurationFlag{Name: "pause-max", Usage: "longest wait for room on an engine", DefaultText: "30m"},
			&cli.BoolFlag{Name: "json", Usage: "print events and report as JSON lines"},
		),
		Action: func(c *cli.Context) error { return warm(c, prewarm.Run) },
	}
}

func prewarmVerifyCommand() *cli.Command {
	return &cli.Command{
		Name:      "verify",
		Usage:     "prove again that every prefix is warm, and list what is not",
		UsageText: "prefixring prewarm verify --config configs/router.yaml --manifest sale.yaml",
		Description: "Exits 0 when everything is proven warm, 1 with the list of what is not. The proof is a request: what is found cold\n" +
			"is warm afterwards.",
		Flags:  manifestFlags(&cli.BoolFlag{Name: "json", Usage: "print events and report as JSON lines"}),
		Action: func(c *cli.Context) error { return warm(c, prewarm.Verify) },
	}
}

// warmFleet is the fleet as a router with this configuration would know it, with the
// manifest's prefixes.
type warmFleet struct {
	*fleet
	m *prewarm.Manifest
}

// withWarmFleet reads configuration and manifest, asks the engines who they are, and
// calls work with health running.
func withWarmFleet(c *cli.Context, work func(*warmFleet) error) error {
	if c.Args().Present() {
		return usageError(fmt.Errorf("unknown argument %q", c.Args().First()))
	}
	cfg, err := loadConfig(c)
	if err != nil {
		return err
	}
	if path := c.String("manifest"); path != "" {
		if cfg.Prewarm.Manifest, err = filepath.Abs(path); err != nil {
			return usageError(err)
		}
	}
	if cfg.Prewarm.Manifest == "" {
		return usageError(errors.New("no manifest: give --manifest FILE, or prewarm.manifest in the configuration"))
	}
	cfg.Bindings = config.Bindings{} // of traffic only
	s, err := newServer(cfg, slog.New(slog.DiscardHandler))
	if err != nil {
		return usageError(err)
	}
	defer s.fleet.proxy.Close()
	ctx, cancel := context.WithCancel(c.Context)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	wg.Go(func() { s.fleet.health.Run(ctx) })
	wg.Go(func() { s.fleet.discover(ctx) })
	if err := s.fleet.meet(ctx, c.Duration("timeout")); err != nil {
		return failed{exitUnreachable, err}
	}
	return work(&warmFleet{s.fleet, s.fleet.manifest()})
}

// meet waits until every engine serves, or the time is up and at least one does.
func (f *fleet) meet(ctx context.Context, limit time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	poll := time.NewTicker(20 * time.Millisecond)
	defer poll.Stop()
	for !allServe(f.health.Snapshot()) {
		select {
		case <-poll.C:
			continue
		case <-ctx.Done():
		}
		break
	}
	why := ""
	for _, s := range f.health.Snapshot() {
		if s.State.Serving() {
			return nil
		}
		why += fmt.Sprintf("; %s is %s: %s", s.Name, s.State, s.Reason)
	}
	return fmt.Errorf("no engine answers within %s%s", limit, why)
}

// plan plans the manifest, by the engines' own token counts where they tell. A plan that
// cannot work comes with an error.
func (f *warmFleet) plan(c *cli.Context) (*prewarm.Plan, error) {
	o := prewarm.PlanOptions{Force: c.Bool("force"), Only: c.StringSlice("only")}
	facts := f.facts()
	// What health has not read yet, such as the KV capacity, is asked for here. Engines that
	// do not answer keep what is known: the plan notes that, and their places stay cold.
	_ = facts.Discover(c.Context, prewarm.Options{})
	p, err := prewarm.NewPlan(f.m, facts, o)
	if p != nil && len(p.Prefixes) > 0 && !c.Bool("estimate") {
		counted, merr := p.Measure(c.Context, prewarm.Options{})
		if c.Context.Err() != nil {
			return nil, failed{exitNo, errors.New("interrupted")}
		}
		if merr == nil && len(counted) > 0 {
			facts.Counted = counted
			p, err = prewarm.NewPlan(f.m, facts, o)
		}
	}
	if err != nil {
		return p, failed{exitNo, err}
	}
	return p, nil
}

// warm runs or verifies the plan and reports.
func warm(c *cli.Context, do func(context.Context, *prewarm.Plan, prewarm.Options) (prewarm.Report, error)) error {
	return withWarmFleet(c, func(f *warmFleet) error {
		p, err := f.plan(c)
		if err != nil {
			return err
		}
		o := prewarm.Options{
			State: c.String("state"), PerNode: c.Int("per-node"), Total: c.Int("nodes"), MaxTokens: c.Int64("max-tokens"),
			PauseMax: c.Duration("pause-max"), Proven: f.proven,
		}
		if c.Bool("json") {
			o.Events = prewarm.JSONEvents(c.App.Writer)
		} else {
			o.Events = prewarm.NewProgress(c.App.ErrWriter, isTerminal(c.App.ErrWriter), 0).Handle
		}
		report, err := do(c.Context, p, o)
		if perr := printWarm(c, &report); perr != nil && err == nil {
			err = perr
		}
		switch {
		case c.Context.Err() != nil && o.State != "":
			return failed{exitNo, errors.New("interrupted; the same command goes on where this one stopped")}
		case err != nil:
			return failed{exitNo, err}
		case report.NotWarm > 0:
			return failed{exitNo, fmt.Errorf("%d of %d places are not warm", report.NotWarm, len(report.Items))}
		}
		return nil
	})
}
