//go:build !race

package ring

import (
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
)

// The full table and the plot of docs/placement.md:
//
//	go test ./ring -run TestReplayTable -replay.write
var replayWrite = flag.Bool("replay.write", false, "play all rows and write docs/placement-replay.md and .svg")

var unbounded = Options{Factor: 100, Floor: 1 << 40, Margin: -1}

const (
	chatRoom  = 1_380_000 // KV tokens of a node; about a 70B model on 4 x H100
	agentRoom = 3_000_000
	keepHits  = 0.95 // issue 4: of the unbounded hit rate
	peakLoad  = 1.35 // issue 4: busy time of the busiest node over the mean
)

// At one to four requests in flight per node the defaults keep 95 % of the hits that
// placement without a bound would have, and the busiest node works at most 1.35 x the mean.
func TestReplayMooncakeQualityAtDefaults(t *testing.T) {
	jobs := loadMooncake(t)
	free := play(t, jobs, setup{nodes: 8, room: chatRoom, speed: 1, o: unbounded, k: 1})
	for _, speed := range []float64{0.25, 0.5, 0.75, 1} {
		o := play(t, jobs, setup{nodes: 8, room: chatRoom, speed: speed, k: 0})
		t.Logf("%.2f in flight per node: kept %.1f %% of %.1f %%, spilled %.1f %%, busiest node %.2f x mean",
			o.inflight, 100*o.hit/free.hit, 100*free.hit, 100*o.spilled, o.work)
		if o.inflight < 0.8 || o.inflight > 5 {
			t.Errorf("speed %g: %.2f requests in flight per node: the replay no longer asks what it should", speed, o.inflight)
		}
		if o.hit < keepHits*free.hit {
			t.Errorf("speed %g: hit rate %.4f is below %g x %.4f", speed, o.hit, keepHits, free.hit)
		}
		if o.work > peakLoad {
			t.Errorf("speed %g: busiest node has %.3f x the mean work", speed, o.work)
		}
	}
}

// The bound must be able to fail this test: plain c = 1.25 does.
func TestReplayMooncakePlainRatioLosesHits(t *testing.T) {
	jobs := loadMooncake(t)
	free := play(t, jobs, setup{nodes: 8, room: chatRoom, speed: 1, o: unbounded, k: 1})
	plain := play(t, jobs, setup{nodes: 8, room: chatRoom, speed: 0.5, o: Options{Floor: Unit, Margin: -1}, k: 1})
	if plain.hit > 0.8*free.hit {
		t.Errorf("without floor and margin the hit rate is %.4f of %.4f: then why have them?", plain.hit, free.hit)
	}
}

// Agents, with conversations bound to the node they were on: 64 conversations on four
// nodes. On eight there are eight conversations a node, and then the draw of the prefixes
// decides the balance and no bound that keeps the hits can mend it: those rows are in
// docs/placement.md, 1.2 to 1.8 x the mean, and are not asserted.
func TestReplayClaudeCodeQualityAtDefaults(t *testing.T) {
	jobs := loadClaude(t)
	free := play(t, jobs, setup{nodes: 4, room: agentRoom, speed: 1, o: unbounded, k: 1})
	for _, speed := range []float64{0.5, 1, 2} {
		o := play(t, jobs, setup{nodes: 4, room: agentRoom, speed: speed, k: 0, bind: true})
		t.Logf("%.2f in flight per node: kept %.1f %% of %.1f %%, busiest node %.2f x mean (unbounded %.2f)",
			o.inflight, 100*o.hit/free.hit, 100*free.hit, o.work, free.work)
		if o.hit < keepHits*free.hit {
			t.Errorf("speed %g: hit rate %.4f is below %g x %.4f", speed, o.hit, keepHits, free.hit)
		}
		if o.work > peakLoad {
			t.Errorf("speed %g: busiest node has %.3f x the mean work", speed, o.work)
		}
	}
}

// TestReplayTable writes the table that led to the defaults. Without -replay.write it
// checks that the committed files exist and name the defaults in force.
func TestReplayTable(t *testing.T) {
	const table, plot = "../docs/placement-replay.md", "../docs/placement-replay.svg"
	if *replayWrite {
		md, svg := replayTable(t)
		for path, text := range map[string]string{table: md, plot: svg} {
			if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
	b, err := os.ReadFile(table)
	if err != nil {
		t.Fatal(err)
	}
	if want := label(DefaultFactor, DefaultFloor, DefaultMargin) + " (default)"; !strings.Contains(string(b), want) {
		t.Errorf("%s has no row %q: run it again with -replay.write", table, want)
	}
	if _, err := os.Stat(plot); err != nil {
		t.Error(err)
	}
}

func label(c float64, floor, margin int64) string {
	return fmt.Sprintf("c %.2f, floor %d, margin %d", c, floor/Unit, margin/Unit)
}

// row is one bound of the table; margin 0 means none here.
type row struct {
	c             float64
	floor, margin int64
}

func (w row) options() Options {
	o := Options{Factor: w.c, Floor: w.floor * Unit, Margin: w.margin * Unit}
	if o.Margin == 0 {
		o.Margin = -1
	}
	return o
}

func (w row) label() string {
	l := label(w.c, w.floor*Unit, w.margin*Unit)
	if w.c == DefaultFactor && w.floor*Unit == DefaultFloor && w.margin*Unit == DefaultMargin {
		l += " (default)"
	}
	return l
}

var rows = []row{
	{1.25, 1, 0}, {1.25, 4, 0}, {1.25, 4, 1}, {1.25, 8, 0}, {1.25, 8, 1}, {1.25, 8, 2}, {1.25, 12, 1},
	{1.5, 1, 0}, {1.5, 8, 1}, {2, 1, 0}, {2, 8, 1},
}

var speeds = []float64{0.25, 0.5, 0.75, 1, 2, 4}

func replayTable(t *testing.T) (md, svg string) {
	jobs, agents := loadMooncake(t), loadClaude(t)
	free := play(t, jobs, setup{nodes: 8, room: chatRoom, speed: 1, o: unbounded, k: 1})
	var b strings.Builder
	fmt.Fprintf(&b, "Mooncake conversation trace, 8 nodes of %d tokens, K measured. Each cell: share of the unbounded hit rate (%.1f %%) kept / busiest node's work over the mean.\n\n| bound |", chatRoom, 100*free.hit)
	var curves []curve
	for i, w := range rows {
		c := curve{name: w.label()}
		line := "| " + w.label() + " |"
		for _, speed := range speeds {
			o := play(t, jobs, setup{nodes: 8, room: chatRoom, speed: speed, o: w.options(), k: 0})
			if i == 0 {
				fmt.Fprintf(&b, " %.1f in flight |", o.inflight)
			}
			line += fmt.Sprintf(" %.1f %% / %.2f |", 100*o.hit/free.hit, o.work)
			c.x, c.y = append(c.x, o.inflight), append(c.y, 100*o.hit/free.hit)
		}
		if i == 0 {
			b.WriteString("\n|---|" + strings.Repeat("---|", len(speeds)) + "\n")
		}
		b.WriteString(line + "\n")
		curves = append(curves, c)
	}
	fmt.Fprintf(&b, "| no bound | %s\n", strings.Repeat(fmt.Sprintf(" 100 %% / %.2f |", free.work), len(speeds)))
	b.WriteString(agentTable(t, agents))
	return b.String(), plotSVG(curves)
}

// agentTable shows K and the choice inside K: by the conversation, or (second key zero)
// the least loaded owner, which the binding then remembers.
func agentTable(t *testing.T, jobs []job) string {
	free := play(t, jobs, setup{nodes: 8, room: agentRoom, speed: 4, o: unbounded, k: 1})
	least := slices.Clone(jobs)
	for i := range least {
		least[i].second = 0
	}
	var b strings.Builder
	fmt.Fprintf(&b, "\nClaude-Code sample, nodes of %d tokens, default bound, conversations bound to their last node. Unbounded hit rate %.1f %%. Each cell as above.\n\n| nodes | K | choice inside K |",
		agentRoom, 100*free.hit)
	for i, c := range []struct {
		nodes, k int
		jobs     []job
		choice   string
	}{
		{4, 1, jobs, "-"},
		{4, 4, jobs, "conversation"},
		{4, 4, least, "least loaded"},
		{8, 1, jobs, "-"},
		{8, 2, jobs, "conversation"},
		{8, 2, least, "least loaded"},
		{8, 8, jobs, "conversation"},
		{8, 8, least, "least loaded"},
	} {
		line := fmt.Sprintf("| %d | %d | %s |", c.nodes, c.k, c.choice)
		for _, perNode := range []float64{0.25, 0.5, 1} {
			o := play(t, c.jobs, setup{nodes: c.nodes, room: agentRoom, speed: perNode * float64(c.nodes), k: c.k, bind: true})
			if i == 0 {
				fmt.Fprintf(&b, " %.1f in flight |", o.inflight)
			}
			line += fmt.Sprintf(" %.1f %% / %.2f |", 100*o.hit/free.hit, o.work)
		}
		if i == 0 {
			b.WriteString("\n|---|---|---|---|---|---|\n")
		}
		b.WriteString(line + "\n")
	}
	return b.String()
}
