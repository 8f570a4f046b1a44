package main

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/urfave/cli/v2"

	"github.com/prefixring/prefixring/bench"
	"github.com/prefixring/prefixring/bench/report"
)

// benchOutcome shows what a run measured, also after it was interrupted.
func benchOutcome(c *cli.Context, res *bench.Result, err error) error {
	if err != nil {
		return benchError(err)
	}
	if c.Bool("json") {
		err = writeJSON(c.App.Writer, res)
	} else {
		err = printBench(c.App.Writer, res)
	}
	if err != nil {
		return failed{exitNo, fmt.Errorf("cannot write the result: %w", err)}
	}
	if path := c.String("report"); path != "" {
		if err := saveReport(c, report.FromRun("Load on "+strings.Join(res.Settings.URLs, ", "), res), path); err != nil {
			return err
		}
	}
	if !res.Valid {
		fmt.Fprintf(c.App.ErrWriter, "the run is not valid: %s\n", strings.Join(res.InvalidFor, "; "))
	}
	if res.Succeeded == 0 {
		return failed{exitNo, fmt.Errorf("none of %d requests succeeded", res.Sent)}
	}
	return nil
}

// saveReport writes the page and the figures beside it, and says where.
func saveReport(c *cli.Context, d *report.Document, path string) error {
	files, err := d.Save(path)
	if err != nil {
		return failed{exitNo, err}
	}
	fmt.Fprintf(c.App.ErrWriter, "written: %s\n", strings.Join(files, ", "))
	return nil
}

// printBench writes the result for people. What is not known is a dash.
func printBench(out io.Writer, r *bench.Result) error {
	fmt.Fprintf(out, "%d requests planned, %d sent, %d succeeded (%s)\n", r.Planned, r.Sent, r.Succeeded, r.Mode)
	for _, kind := range sortedKeys(r.Errors) {
		fmt.Fprintf(out, "  errors  %-20s %d\n", kind, r.Errors[kind])
	}
	fmt.Fprintf(out, "rate      %.2f requests/s of %.2f planned; latest send %.1f ms behind plan; %.2f own cores\n",
		r.AchievedRate, r.PlannedRate, r.MaxSendLagMS, r.OwnCPU)
	if !r.Valid {
		fmt.Fprintf(out, "NOT VALID %s\n", strings.Join(r.InvalidFor, "; "))
	}
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "ms\tp50\tp90\tp99\tmax\tsamples\t")
	for _, row := range []struct {
		name string
		q    *bench.Quantiles
	}{
		{"first byte", r.FirstByte}, {"time to first token", r.TTFT}, {"per output token", r.TPOT},
		{"between tokens", r.ITL}, {"whole answer", r.E2E},
	} {
		if row.q == nil {
			fmt.Fprintf(w, "%s\t-\t-\t-\t-\t0\t\n", row.name)
			continue
		}
		fmt.Fprintf(w, "%s\t%.1f\t%.1f\t%.1f\t%.1f\t%d\t\n", row.name, row.q.P50, row.q.P90, row.q.P99, row.q.Max, row.q.Count)
	}
	if err := w.Flush(); err != nil {
		return err
	}
	printBenchTokens(out, r)
	printGroups(out, "NODE", r.Nodes)
	_, err := fmt.Fprintf(out, "seed %d, nonce %s\n", r.Seed, r.Nonce)
	return err
}

func printBenchTokens(out io.Writer, r *bench.Result) {
	hits := "unknown"
	if r.HitRate != nil && r.CachedTokens != nil {
		hits = fmt.Sprintf("%.1f %% (%d tokens)", 100**r.HitRate, *r.CachedTokens)
	}
	fmt.Fprintf(out, "tokens    %d prompt, from cache %s; %d output (%s), %.1f/s\n", r.PromptTokens, hits, r.OutputTokens, r.OutputBasis, r.TokenRate)
	if r.UnknownCache > 0 {
		fmt.Fprintf(out, "          %d answers did not tell cached tokens\n", r.UnknownCache)
	}
	if g := r.Goodput; g != nil {
		fmt.Fprintf(out, "goodput   %d requests met every limit: %.1f %% of those sent, %.2f/s\n", g.Good, 100*g.Share, g.PerSec)
	}
	for i := range r.Engines {
		e := &r.Engines[i]
		fmt.Fprintf(out, "engine    %s counted %d requests, %d prompt tokens, %d of them from cache\n", e.Name, e.Requests, e.PromptTokens, e.CachedTokens)
	}
}

// printGroups is the breakdown by node. One group is no breakdown.
func printGroups(out io.Writer, title string, groups []bench.Group) {
	if len(groups) < 2 {
		return
	}
	groups = slices.Clone(groups)
	slices.SortFunc(groups, func(a, b bench.Group) int { return strings.Compare(a.Name, b.Name) })
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintf(w, "%s\tREQUESTS\tERRORS\tHIT RATE\tTTFT P50\n", title)
	for _, g := range groups {
		hit, ttft := "-", "-"
		if g.HitRate != nil {
			hit = fmt.Sprintf("%.1f %%", 100**g.HitRate)
		}
		if g.TTFT != nil {
			ttft = fmt.Sprintf("%.1f ms", g.TTFT.P50)
		}
		fmt.Fprintf(w, "%s\t%d\t%d\t%s\t%s\n", g.Name, g.Requests, g.Errors, hit, ttft)
	}
	w.Flush()
}
