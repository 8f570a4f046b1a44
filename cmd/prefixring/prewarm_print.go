package main

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/prefixring/prefixring/prewarm"
)

// printPlan writes each node's list in order, then what cannot work.
func printPlan(out io.Writer, p *prewarm.Plan) {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "NODE\tPREFIX\tTOKENS\tFROM\tSTART\tSECONDS\tDEADLINE")
	for i := range p.Nodes {
		n := &p.Nodes[i]
		for _, it := range n.Items {
			deadline := "-"
			if it.Deadline != nil {
				deadline = it.Deadline.Format(time.RFC3339)
			}
			fmt.Fprintf(w, "%s\t%s\t%d\t%s\t%s\t%.1f\t%s\n", n.Node, it.Name, it.Tokens, p.Prefixes[it.Prefix].TokensFrom,
				it.Start.Format(time.TimeOnly), it.Seconds, deadline)
		}
	}
	w.Flush()
	for i := range p.Nodes {
		n := &p.Nodes[i]
		if n.KV == 0 {
			fmt.Fprintf(out, "%s: KV memory unknown\n", n.Node)
			continue
		}
		fmt.Fprintf(out, "%s: %d of %d KV tokens planned, %d left to running requests\n", n.Node, n.Planned, n.KV, n.Reserved)
		if len(n.Evicts) > 0 {
			fmt.Fprintf(out, "%s: evicts %s\n", n.Node, strings.Join(n.Evicts, ", "))
		}
	}
	fmt.Fprintf(out, "%d prefixes, %d prefills, %d tokens, about %.1f s\n", len(p.Prefixes), p.Items, p.Tokens, p.Seconds)
	for _, x := range p.Problems {
		if x.Note {
			fmt.Fprintf(out, "note: %s\n", x)
		}
	}
}

// warmReport is the last line of --json.
type warmReport struct {
	Kind string `json:"event"` // "report"
	*prewarm.Report
}

// printWarm writes the outcome. What is not warm is listed, whatever the format.
func printWarm(c *cli.Context, r *prewarm.Report) error {
	if c.Bool("json") {
		return json.NewEncoder(c.App.Writer).Encode(warmReport{"report", r})
	}
	for _, it := range r.Cold() {
		fmt.Fprintf(c.App.Writer, "NOT WARM  %s on %s: %s\n", it.Prefix, it.Node, it.Proof.Why)
	}
	fmt.Fprintf(c.App.Writer, "%d of %d places are proven warm", r.Warm, len(r.Items))
	if r.Weak > 0 {
		fmt.Fprintf(c.App.Writer, ", %d of them by weaker evidence than reported cached tokens", r.Weak)
	}
	_, err := fmt.Fprintf(c.App.Writer, "; %.1f s\n", r.End.Sub(r.Start).Seconds())
	return err
}

// printCells writes what a running router keeps warm.
func printCells(out io.Writer, cells []prewarm.CellStatus) {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "PREFIX\tVERSION\tNODE\tSTATE\tTOKENS\tDEADLINE\tLAST USE\tTOUCH\tWHY")
	for i := range cells {
		s := &cells[i]
		deadline, used := "-", "-"
		if !s.Deadline.IsZero() {
			deadline = s.Deadline.Format(time.RFC3339)
		}
		if !s.Used.IsZero() {
			used = time.Since(s.Used).Round(time.Second).String() + " ago"
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%d\t%s\t%s\t%.0fs\t%s\n", s.Prefix, s.Version, s.Node, s.State, s.Tokens, deadline, used, s.Touch, s.Why)
	}
	w.Flush()
}
