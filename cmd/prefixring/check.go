package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"text/tabwriter"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/prefixring/prefixring/health"
	"github.com/prefixring/prefixring/internal/dialect"
)

func checkCommand() *cli.Command {
	return &cli.Command{
		Name:      "check",
		Usage:     "validate a configuration without traffic",
		UsageText: "prefixring check --config configs/router.yaml --probe",
		Description: "Exits 0 when the configuration is right (and, with --probe, every engine serves), 1 when an engine\n" +
			"does not, 2 when the configuration is wrong.",
		Flags: append(configFlags(),
			&cli.BoolFlag{Name: "probe", Usage: "ask the engines, too, and name the flags that they lack"},
			&cli.DurationFlag{Name: "timeout", Value: 8 * time.Second, Usage: "how long to wait for the engines with --probe"},
			&cli.BoolFlag{Name: "json", Usage: "print JSON"},
		),
		Action: func(c *cli.Context) error {
			cfg, err := loadConfig(c)
			if err != nil {
				return err
			}
			s, err := newServer(cfg, slog.New(slog.DiscardHandler))
			if err != nil {
				return usageError(err)
			}
			defer s.fleet.proxy.Close()
			if !c.Bool("probe") {
				n := len(s.fleet.nodes)
				if c.Bool("json") {
					return writeJSON(c.App.Writer, map[string]any{"configuration": "right", "pools": len(cfg.Pools), "engines": n, "tenants": len(cfg.Tenants)})
				}
				fmt.Fprintf(c.App.Writer, "the configuration is right: %d pools, %d engines (not asked; --probe does), %s\n", len(cfg.Pools), n, tenantsWord(cfg))
				return nil
			}
			return probe(c, s)
		},
	}
}

// probe polls the engines until all serve or the time is up, and tells what it found.
func probe(c *cli.Context, s *server) error {
	ctx, cancel := context.WithTimeout(c.Context, c.Duration("timeout"))
	defer cancel()
	var wg sync.WaitGroup
	wg.Go(func() { s.fleet.health.Run(ctx) })
	wg.Go(func() { s.fleet.discover(ctx) })
	poll := time.NewTicker(50 * time.Millisecond)
	defer poll.Stop()
	for ctx.Err() == nil && !allServe(s.fleet.health.Snapshot()) {
		select {
		case <-poll.C:
		case <-ctx.Done():
		}
	}
	v := s.fleet.view(s.totals)
	statuses := s.fleet.health.Snapshot()
	cancel()
	wg.Wait()
	if c.Bool("json") {
		if err := writeJSON(c.App.Writer, v); err != nil {
			return err
		}
	} else {
		printNodes(c.App.Writer, v.Nodes)
		printDiscovery(c.App.Writer, v.Discovery)
		for i := range statuses {
			for _, f := range dialect.RecommendedFlags(statuses[i].Engine) {
				fmt.Fprintf(c.App.Writer, "%s: start with %s: %s\n", statuses[i].Name, f.Name, f.Why)
			}
		}
	}
	if !allServe(statuses) {
		return failed{exitNo, fmt.Errorf("not every engine serves")}
	}
	return nil
}

func allServe(statuses []health.Status) bool {
	if len(statuses) == 0 {
		return false // discovery has found none yet
	}
	for i := range statuses {
		if !statuses[i].State.Serving() {
			return false
		}
	}
	return true
}

// printNodes writes the table of status and check. Unknown numbers are a dash.
func printNodes(out io.Writer, nodes []nodeView) {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "ENGINE\tPOOL\tSTATE\tTAKES\tIN FLIGHT\tLOAD\tRUNNING\tWAITING\tKV\tWHY")
	for _, n := range nodes {
		why := n.Reason
		if n.Hint != "" {
			why += "; " + n.Hint
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%d\t%.1f\t%s\t%s\t%s\t%s\n", n.Name, n.Pool, n.State, n.Takes, n.InFlight, n.Load,
			number(n.Running, "%.0f"), number(n.Waiting, "%.0f"), number(n.KVUsage, "%.2f"), why)
	}
	w.Flush()
}

func number(x *float64, format string) string {
	if x == nil {
		return "-"
	}
	return fmt.Sprintf(format, *x)
}

func writeJSON(out io.Writer, v any) error {
	enc := json.NewEncoder(out)
	enc.SetIndent("", "  ")
	return enc.Encode(v)
}

// printDiscovery writes how the engines of pools without a list were found.
func printDiscovery(out io.Writer, sources []discoveryView) {
	for _, d := range sources {
		fmt.Fprintf(out, "pool %s: %d engines by %s", d.Pool, d.Engines, d.Source)
		if d.Age != nil {
			fmt.Fprintf(out, ", confirmed %.0f s ago", *d.Age)
		}
		if d.Trouble != "" {
			fmt.Fprintf(out, "; %s", d.Trouble)
		}
		fmt.Fprintln(out)
	}
}
