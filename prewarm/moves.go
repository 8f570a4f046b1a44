package prewarm

import (
	"fmt"
	"strings"
)

// movesJoin is what nodes that join must warm before they take over.
func movesJoin(in *CapacityInput, before *placement) (MoveFigures, error) {
	if in.Join == 0 {
		return MoveFigures{}, nil
	}
	names := append([]string(nil), before.names...)
	for i := range in.Join {
		names = append(names, fmt.Sprintf("joining-%d", i+1))
	}
	f := MoveFigures{Nodes: in.Join}
	if err := f.look(in, before, names, ""); err != nil {
		return f, err
	}
	f.mean()
	return f, nil
}

// movesLeave is what the others must warm when nodes fail, over every set of that many
// nodes, or over an even sample where there are too many.
func movesLeave(in *CapacityInput, before *placement) (MoveFigures, error) {
	n := len(before.names)
	f := MoveFigures{Nodes: min(in.Leave, n-1)}
	if f.Nodes <= 0 {
		return MoveFigures{}, nil
	}
	for _, gone := range samples(n, f.Nodes) {
		lost := map[int]bool{}
		var label []string
		for _, g := range gone {
			lost[g] = true
			label = append(label, before.names[g])
		}
		var names []string
		for i, name := range before.names {
			if !lost[i] {
				names = append(names, name)
			}
		}
		if err := f.look(in, before, names, strings.Join(label, ", ")); err != nil {
			return f, err
		}
	}
	f.mean()
	return f, nil
}

// maxSamples bounds the sets of failing nodes that are looked at: each costs a ring.
const maxSamples = 24

// samples are sets of m of n nodes: all of them, or runs spread over the list. Placement
// does not follow the list's order, so that a run of neighbours is as good as any set.
func samples(n, m int) [][]int {
	if m == 1 && n <= maxSamples {
		out := make([][]int, n)
		for i := range out {
			out[i] = []int{i}
		}
		return out
	}
	if m == 2 && n*(n-1)/2 <= maxSamples {
		var out [][]int
		for i := range n {
			for j := i + 1; j < n; j++ {
				out = append(out, []int{i, j})
			}
		}
		return out
	}
	count := maxSamples
	if n > 256 {
		count = 4 // rings of that size take a second each
	}
	count = min(count, n)
	out := make([][]int, count)
	for i := range out {
		for j := range m {
			out[i] = append(out[i], (i*n/count+j)%n)
		}
	}
	return out
}

// look adds one case: copies that stand on a node after the change and did not before.
func (f *MoveFigures) look(in *CapacityInput, before *placement, names []string, label string) error {
	after, err := place(in, names)
	if err != nil {
		return err
	}
	f.Cases++
	copies, seconds := 0, map[string]float64{}
	for i, p := range in.Prefixes {
		had := map[string]bool{}
		for _, n := range before.nodes[i] {
			had[before.names[n]] = true
		}
		for _, n := range after.nodes[i] {
			name := after.names[n]
			if had[name] {
				continue
			}
			copies++
			f.Tokens += float64(p.Tokens)
			seconds[name] += in.Model.Prefill(0, float64(p.Tokens))
		}
	}
	f.Copies += float64(copies)
	if copies > f.Worst || f.Cases == 1 {
		f.Worst, f.WorstCase = copies, label
	}
	for _, s := range seconds {
		f.Seconds = max(f.Seconds, s)
	}
	return nil
}

func (f *MoveFigures) mean() {
	if f.Cases > 0 {
		f.Copies /= float64(f.Cases)
		f.Tokens /= float64(f.Cases)
	}
}
