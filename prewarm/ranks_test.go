package prewarm

import (
	"strings"
	"testing"
)

// Field case B55: an engine spreads requests over its ranks by itself, each rank with a
// cache of its own. One warm answer proves one rank.
func TestB55EveryRankBehindAPortIsWarmed(t *testing.T) {
	c := newFakeClock()
	e := newToy(t, "a", c)
	e.ranks = 4
	p := onePlan(t, c, e, "tokens: 3001")
	pr := runOne(t, c, p, false)
	if !pr.Warm || e.cold != 4 {
		t.Fatalf("%d cold prefills, %+v", e.cold, pr)
	}
	if pr.Tries > 1+4*4 {
		t.Errorf("%d requests", pr.Tries)
	}
	if pr := runOne(t, c, p, true); !pr.Warm || pr.Tries != 4 {
		t.Errorf("verified: %+v", pr)
	}
}

func TestB55RankThatNeverHoldsIsNotWarm(t *testing.T) {
	c := newFakeClock()
	e := newToy(t, "a", c)
	e.ranks, e.capacity = 4, 3*188 // three of four copies
	m := manifest(t, map[string]string{"manifest.yaml": "prefixes:\n  - {name: alpha, model: m, file: alpha.txt}\n", "alpha.txt": policy("alpha", 3000)})
	n := e.node()
	n.KVTokens = 0
	p, err := NewPlan(m, Fleet{Nodes: []Node{n}}, PlanOptions{Now: c.Now()})
	if err != nil {
		t.Fatal(err)
	}
	pr := runOne(t, c, p, false)
	if pr.Warm || pr.Tries != 1+4*4 || pr.Why == "" {
		t.Fatalf("%+v", pr)
	}
}

func TestPinnedRankIsAsked(t *testing.T) {
	c := newFakeClock()
	e := newToy(t, "a", c)
	n := e.node()
	n.Pinned, n.Rank, n.Ranks = true, 3, 4
	m := manifest(t, threeFiles())
	p, err := NewPlan(m, Fleet{Nodes: []Node{n}}, PlanOptions{Now: c.Now()})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Run(t.Context(), p, quick(c)); err != nil {
		t.Fatal(err)
	}
	for _, h := range e.headers {
		if got := h.Get("X-Data-Parallel-Rank"); got != "3" && strings.HasPrefix(h.Get("Content-Type"), "application/json") {
			t.Errorf("rank %q", got)
		}
	}
}
