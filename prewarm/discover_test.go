package prewarm

import (
	"strings"
	"testing"
)

func TestDiscoverAsksTheEngines(t *testing.T) {
	c := newFakeClock()
	a, b := newToy(t, "a", c), newToy(t, "b", c)
	a.capacity, a.block = 1000, 128
	b.metrics = false
	f := Fleet{Nodes: []Node{{Name: "a", URL: a.server.URL}, {Name: "b", URL: b.server.URL, KVTokens: 7}}}
	if err := f.Discover(t.Context(), Options{Clock: c}); err != nil {
		t.Fatal(err)
	}
	if n := f.Nodes[0]; n.KVTokens != 128_000 || n.BlockSize != 128 || n.Models[0] != "m" || n.Ranks != 1 {
		t.Errorf("%+v", n)
	}
	if n := f.Nodes[1]; n.KVTokens != 7 || n.Models[0] != "m" {
		t.Errorf("%+v", n)
	}
}

func TestDiscoverNamesNodesThatDoNotAnswer(t *testing.T) {
	c := newFakeClock()
	a := newToy(t, "a", c)
	f := Fleet{Nodes: []Node{{Name: "a", URL: a.server.URL}, {Name: "gone", URL: closedPort(t)}}}
	err := f.Discover(t.Context(), Options{Clock: c})
	if err == nil || !strings.Contains(err.Error(), "node gone") || strings.Contains(err.Error(), "node a:") {
		t.Errorf("%v", err)
	}
	if f.Nodes[0].KVTokens == 0 {
		t.Error("the node that answers was not asked")
	}
}

func TestMeasuredTokensReplaceTheEstimate(t *testing.T) {
	c := newFakeClock()
	a, b := newToy(t, "a", c), newToy(t, "b", c)
	a.tokenize = false // the other one can
	m := manifest(t, map[string]string{"manifest.yaml": "prefixes:\n  - {name: alpha, model: m, file: alpha.txt, where: broadcast}\n", "alpha.txt": policy("alpha", 3000)})
	f := Fleet{Nodes: []Node{a.node(), b.node()}}
	f.Nodes[0].Name, f.Nodes[1].Name = "a", "b"
	p, err := NewPlan(m, f, PlanOptions{Now: c.Now()})
	if err != nil || p.Prefixes[0].TokensFrom != TokensEstimated {
		t.Fatalf("%v %+v", err, p.Prefixes)
	}
	if f.Counted, err = p.Measure(t.Context(), Options{Clock: c}); err != nil {
		t.Fatal(err)
	}
	if p, err = NewPlan(m, f, PlanOptions{Now: c.Now()}); err != nil {
		t.Fatal(err)
	}
	// "<system>" and the words; "<user>" follows in both requests.
	if x := p.Prefixes[0]; x.TokensFrom != TokensCounted || x.Tokens != 3002 {
		t.Errorf("%d tokens, %s", x.Tokens, x.TokensFrom)
	}
	if a.requests()+b.requests() != 0 {
		t.Error("measuring computed something")
	}
}
