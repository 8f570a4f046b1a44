package prewarm

import (
	"fmt"
	"io"
	"text/tabwriter"
)

// WriteTable writes the figures for people.
func (c *Capacity) WriteTable(w io.Writer) error {
	in, p := &c.Input, &c.Peak
	t := tabwriter.NewWriter(w, 0, 4, 2, ' ', 0)
	verdict := "fits"
	if !c.Fits {
		verdict = "DOES NOT FIT: " + c.Why
	}
	fmt.Fprintf(t, "%d prefixes on %d nodes of %s (%d KV tokens each): %s\n", len(c.Use), len(c.Nodes), in.Model.Name, in.KVTokens, verdict)
	fmt.Fprintf(t, "peak: %.4g requests/s, %d user tokens, %d output tokens\n\n", in.Rate, in.User, in.Output)
	fmt.Fprintln(t, "prefix\ttokens\tshare\trequests/s\towners\tcopies\texpected hit rate\tone cold prefill")
	for _, u := range c.Use {
		fmt.Fprintf(t, "%s\t%d\t%.1f %%\t%.4g\t%d\t%d\t%.2f %%\t%.1f s\n", u.Name, u.Tokens, 100*u.Share, u.Rate, u.K, u.Copies, 100*u.HitRate, u.ColdSeconds)
	}
	fmt.Fprintln(t)
	fmt.Fprintln(t, "node\tprefixes\tprefix tokens\trunning requests\tfree\trequests/s")
	for _, n := range c.shown() {
		fmt.Fprintf(t, "%s\t%d\t%d\t%d\t%d\t%.3g\n", n.Node, n.Prefixes, n.Tokens, n.Working, n.Free, n.Rate)
	}
	if hidden := len(c.Nodes) - len(c.shown()); hidden > 0 {
		fmt.Fprintf(t, "(%d more: --json has them all)\n", hidden)
	}
	fmt.Fprintln(t)
	fmt.Fprintf(t, "one warm request\t%.2f engine seconds\n", p.EngineSeconds)
	fmt.Fprintf(t, "utilisation\t%.0f %% mean, %.0f %% on the busiest node\n", 100*p.Utilisation, 100*p.Busiest)
	if p.TokenTime < 0 {
		fmt.Fprintln(t, "time per token\tnone: the fleet is overloaded")
	} else {
		fmt.Fprintf(t, "time per token\t%.1f ms, %.1f sequences at a time\n", 1e3*p.TokenTime, p.Batch)
		fmt.Fprintf(t, "first token, warm\t%.2f s\n", p.TTFT)
	}
	fmt.Fprintf(t, "hit rate\t%.2f %% of the tokens that can hit\n", 100*p.HitRate)
	fmt.Fprintf(t, "cold prefills, first minute\t%.1f prewarmed; %.0f not prewarmed; %.0f without single flight\n", p.ColdPrewarmed, p.ColdGated, p.ColdNeither)
	fmt.Fprintf(t, "first customer, not prewarmed\twaits up to %.1f s\n\n", p.ColdWait)
	fmt.Fprintln(t, "engine\tengine seconds a request\tnodes needed\tby memory alone")
	for _, n := range c.Needed {
		fmt.Fprintf(t, "%s\t%.2f\t%d\t%d\n", n.Model, n.EngineSeconds, n.Nodes, n.ByMemory)
	}
	fmt.Fprintln(t)
	moves(t, "join", c.Join)
	moves(t, "fail", c.Leave)
	fmt.Fprintln(t, "the model leaves out:")
	for _, o := range c.Omitted {
		fmt.Fprintln(t, "  "+o)
	}
	return t.Flush()
}

func moves(w io.Writer, what string, m MoveFigures) {
	if m.Cases == 0 {
		return
	}
	fmt.Fprintf(w, "if %d nodes %s\t%.1f copies (%.0f tokens) to warm, at worst %d, done in %.1f s\n", m.Nodes, what, m.Copies, m.Tokens, m.Worst, m.Seconds)
}

// shownNodes is how many nodes the table lists.
const shownNodes = 32

// shown are the first nodes and any that do not fit, up to the limit.
func (c *Capacity) shown() []CapacityNode {
	if len(c.Nodes) <= shownNodes {
		return c.Nodes
	}
	var out []CapacityNode
	for _, n := range c.Nodes {
		if n.Free < 0 && len(out) < shownNodes {
			out = append(out, n)
		}
	}
	for _, n := range c.Nodes {
		if n.Free >= 0 && len(out) < shownNodes {
			out = append(out, n)
		}
	}
	return out
}
