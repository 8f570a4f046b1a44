package main

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/prefixring/prefixring/bench"
	"github.com/prefixring/prefixring/bench/sim"
	"github.com/prefixring/prefixring/internal/fakeengine/core"
)

func benchSimCommand() *cli.Command {
	return &cli.Command{
		Name:      "sim",
		Usage:     "routing policies side by side on a simulated fleet, in simulated time",
		ArgsUsage: "[TRACE...]",
		UsageText: "prefixring bench sim --scenario s3-sale --policies round-robin,ring+bindings+prewarm\n" +
			"prefixring bench sim --format mooncake --engines 8 --preset 70b-tp4 --policies round-robin,ring trace.jsonl.gz\n" +
			"prefixring bench sim --calibrate",
		Description: "Every policy sees the same requests of the same seed; equal options give equal figures. Scenarios:\n" + scenarioHelp() +
			"Policies: " + strings.Join(sim.Policies(), ", ") + "; with " + sim.PrewarmedSuffix + " the prefixes are warmed first.",
		Flags: append(traceFlags(),
			&cli.StringFlag{Name: "scenario", Usage: "play the built-in `NAME` instead of a trace"},
			&cli.StringFlag{Name: "policies", Usage: "`NAME,...` (default: all)"},
			&cli.IntFlag{Name: "engines", Usage: "size of the fleet", DefaultText: "the scenario's, else 8"},
			&cli.IntFlag{Name: "routers", Usage: "routers that do not talk to each other", DefaultText: "the scenario's, else 1"},
			&cli.StringFlag{Name: "preset", Value: "70b-tp4", Usage: "engines of a trace's fleet"},
			&cli.BoolFlag{Name: "calibrate", Usage: "show published figures beside the simulated ones, with the errors"},
			&cli.Uint64Flag{Name: "seed", Value: 1, Usage: "of everything random"},
			&cli.BoolFlag{Name: "json", Usage: "print JSON; progress goes to standard error"},
		),
		Action: runSim,
	}
}

func scenarioHelp() string {
	var b strings.Builder
	for _, s := range sim.Scenarios() {
		fmt.Fprintf(&b, "  %-16s %s\n", s.Name, s.About)
	}
	return b.String()
}

func runSim(c *cli.Context) error {
	if c.Bool("calibrate") {
		fits, err := sim.Calibrate(c.Context, c.Uint64("seed"))
		if err != nil {
			return simError(err)
		}
		sim.WriteFits(c.App.Writer, fits)
		return nil
	}
	sc, err := simScenario(c)
	if err != nil {
		return err
	}
	if n := c.Int("engines"); n > 0 {
		sc.Engines = n
	}
	if n := c.Int("routers"); n > 0 {
		sc.Routers = n
	}
	policies := splitList(c.String("policies"))
	if len(policies) == 0 {
		policies = sim.Policies()
	}
	out, err := sc.Run(c.Context, policies, c.Uint64("seed"), simProgress(c))
	if err != nil {
		return simError(err)
	}
	if c.Bool("json") {
		return writeJSON(c.App.Writer, map[string]any{
			"scenario": sc.Name, "engines": sc.Engines, "seed": c.Uint64("seed"), "policies": out,
		})
	}
	fmt.Fprintf(c.App.Writer, "%s: %s (%d engines, seed %d)\n\n", sc.Name, sc.About, sc.Engines, c.Uint64("seed"))
	sim.WriteOutcomes(c.App.Writer, out)
	return nil
}

// simScenario is the built-in one, or that of a trace.
func simScenario(c *cli.Context) (sim.Scenario, error) {
	name := c.String("scenario")
	switch {
	case name != "" && c.Args().Present():
		return sim.Scenario{}, usageError(errors.New("--scenario and a trace exclude each other"))
	case name != "":
		sc, err := sim.FindScenario(name)
		if err != nil {
			return sc, usageError(err)
		}
		return sc, nil
	case !c.Args().Present():
		return sim.Scenario{}, usageError(errors.New("nothing to simulate: give --scenario NAME or the file of a trace"))
	}
	t, err := readTrace(c)
	if err != nil {
		return sim.Scenario{}, err
	}
	if t, err = t.Shape(replayOptions(c)); err != nil {
		return sim.Scenario{}, benchError(err)
	}
	if _, err := core.FindPreset(c.String("preset")); err != nil {
		return sim.Scenario{}, usageError(err)
	}
	return sim.TraceScenario(t.Name, fmt.Sprintf("%d requests of %s", len(t.Requests), c.Args().First()), t, 8, c.String("preset")), nil
}

func simError(err error) error {
	if errors.Is(err, sim.ErrUsage) || errors.Is(err, bench.ErrUsage) {
		return usageError(err)
	}
	return failed{exitNo, fmt.Errorf("cannot simulate: %w", err)}
}

// simProgress writes a line now and then, by wall clock: simulated time runs unevenly.
func simProgress(c *cli.Context) func(policy string, now time.Duration, done int64) {
	var last time.Time
	return func(policy string, now time.Duration, done int64) {
		if time.Since(last) < 2*time.Second {
			return
		}
		last = time.Now()
		fmt.Fprintf(c.App.ErrWriter, "%-24s %10s simulated  %d requests done\n", policy, now.Round(time.Second), done)
	}
}
