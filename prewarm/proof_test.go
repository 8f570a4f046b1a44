package prewarm

import (
	"strings"
	"testing"
)

// onePlan is one prefix of 3,000 words on one toy engine.
func onePlan(t *testing.T, c *fakeClock, e *toy, extra string) *Plan {
	t.Helper()
	m := manifest(t, map[string]string{
		"manifest.yaml": "prefixes:\n  - {name: alpha, model: m, file: alpha.txt, " + extra + "}\n",
		"alpha.txt":     policy("alpha", 3000),
	})
	return planFor(t, m, c.Now(), e)
}

func runOne(t *testing.T, c *fakeClock, p *Plan, verify bool) Proof {
	t.Helper()
	run := Run
	if verify {
		run = Verify
	}
	rep, err := run(t.Context(), p, quick(c))
	if err != nil {
		t.Fatal(err)
	}
	return rep.Items[0].Proof
}

func TestBlockSizes(t *testing.T) {
	for _, block := range []int{1, 16, 128, 784} {
		c := newFakeClock()
		e := newToy(t, "a", c)
		e.block = block
		pr := runOne(t, c, onePlan(t, c, e, "tokens: 3001"), false)
		if !pr.Warm || pr.Evidence != EvidenceUsage || pr.Need != pr.Static-int64(block) || pr.Cached > pr.Static {
			t.Errorf("block %d: %+v", block, pr)
		}
		if pr := runOne(t, c, onePlan(t, c, e, "tokens: 3001"), true); !pr.Warm || pr.Tries != 1 {
			t.Errorf("block %d, verified: %+v", block, pr)
		}
	}
}

func TestReportingOffIsProvenByCounters(t *testing.T) {
	for _, sglang := range []bool{false, true} {
		c := newFakeClock()
		e := newToy(t, "a", c)
		e.report, e.sglang = false, sglang
		p := onePlan(t, c, e, "tokens: 3001")
		pr := runOne(t, c, p, false)
		if !pr.Warm || pr.Evidence != EvidenceCounters || pr.Cached < pr.Need {
			t.Errorf("sglang %v: %+v", sglang, pr)
		}
		e.restart()
		if pr := runOne(t, c, p, true); pr.Warm || pr.Evidence != EvidenceCounters {
			t.Errorf("sglang %v: a restarted engine verified as %+v", sglang, pr)
		}
	}
}

func TestReportCountsWeakEvidence(t *testing.T) {
	c := newFakeClock()
	e := newToy(t, "a", c)
	e.report = false
	rep, err := Run(t.Context(), onePlan(t, c, e, "tokens: 3001"), quick(c))
	if err != nil || rep.Warm != 1 || rep.Weak != 1 {
		t.Fatalf("%v %+v", err, rep)
	}
}

// The counters hold other requests' tokens: they prove nothing, time does.
func TestBusyEngineWithoutReportingIsProvenByTime(t *testing.T) {
	c := newFakeClock()
	e := newToy(t, "a", c)
	e.report = false
	e.before = func(path string) int {
		if path == "/v1/chat/completions" {
			e.traffic(t, request("a customer of another shop with some words", "hello"))
		}
		return 0
	}
	p := onePlan(t, c, e, "tokens: 3001")
	pr := runOne(t, c, p, false)
	if !pr.Warm || pr.Evidence != EvidenceTime {
		t.Fatalf("%+v", pr)
	}
	e.restart()
	if pr := runOne(t, c, p, true); pr.Warm {
		t.Fatalf("cold, and verified as %+v", pr)
	}
}

func TestNoEvidenceIsNotWarm(t *testing.T) {
	c := newFakeClock()
	e := newToy(t, "a", c)
	e.report, e.metrics, e.rate = false, false, 1e6 // a cold prefill of 3 ms tells nothing
	pr := runOne(t, c, onePlan(t, c, e, "tokens: 3001"), false)
	if pr.Warm || pr.Evidence != EvidenceNone || !strings.Contains(pr.Why, "--enable-prompt-tokens-details") {
		t.Fatalf("%+v", pr)
	}
}

// Field case B67: SGLang leaves the count out when it is zero, so absent is not a miss
// and not a hit.
func TestB67AbsentCountIsUnknown(t *testing.T) {
	c := newFakeClock()
	e := newToy(t, "a", c)
	e.sglang = true
	pr := runOne(t, c, onePlan(t, c, e, "tokens: 3001"), false)
	if !pr.Warm || pr.Evidence != EvidenceUsage {
		t.Fatalf("%+v", pr)
	}
	e.restart()
	pr = runOne(t, c, onePlan(t, c, e, "tokens: 3001"), true)
	if pr.Warm || pr.Evidence != EvidenceCounters {
		t.Fatalf("a cold engine that leaves the zero out: %+v", pr)
	}
}

func TestWithoutTokenizerTheStaticCountIsAnEstimate(t *testing.T) {
	c := newFakeClock()
	e := newToy(t, "a", c)
	e.tokenize = false
	pr := runOne(t, c, onePlan(t, c, e, "where: auto"), false)
	if !pr.Warm || pr.From != TokensEstimated || pr.Static < 2900 || pr.Static > 3003 {
		t.Fatalf("%+v", pr)
	}
}

// An engine that evicts the prefix before it can be proven is never called warm.
func TestPrefixLargerThanTheCacheIsNeverWarm(t *testing.T) {
	c := newFakeClock()
	e := newToy(t, "a", c)
	e.capacity = 100 // blocks of 16: half of the prefix
	m := manifest(t, map[string]string{"manifest.yaml": "prefixes:\n  - {name: alpha, model: m, file: alpha.txt}\n", "alpha.txt": policy("alpha", 3000)})
	n := e.node()
	n.KVTokens = 0 // unknown, so the plan cannot refuse
	p, err := NewPlan(m, Fleet{Nodes: []Node{n}}, PlanOptions{Now: c.Now()})
	if err != nil {
		t.Fatal(err)
	}
	pr := runOne(t, c, p, false)
	if pr.Warm || !strings.Contains(pr.Why, "tokens were cached") || pr.Tries != 1+maxProofs {
		t.Fatalf("%+v", pr)
	}
}

func TestSaltsAreWarmedApart(t *testing.T) {
	c := newFakeClock()
	e := newToy(t, "a", c)
	m := manifest(t, map[string]string{
		"manifest.yaml": "prefixes:\n  - {name: alpha, model: m, file: alpha.txt, salts_file: salts.txt, tokens: 3000}\n",
		"alpha.txt":     policy("alpha", 3000), "salts.txt": "salt-one\n\nsalt-two\n",
	})
	p := planFor(t, m, c.Now(), e)
	if len(p.Prefixes) != 2 || p.Prefixes[1].Name != "alpha#2" || p.Prefixes[0].Key == p.Prefixes[1].Key {
		t.Fatalf("%d prefixes", len(p.Prefixes))
	}
	rep, err := Run(t.Context(), p, quick(c))
	if err != nil || rep.Warm != 2 || e.cold != 2 {
		t.Fatalf("%v, warm %d, cold prefills %d", err, rep.Warm, e.cold)
	}
}

// Hybrid models give no hit to the second request, and hits from the third on.
func TestHybridModelIsProvenByASecondProof(t *testing.T) {
	c := newFakeClock()
	e := newToy(t, "a", c)
	e.hybrid, e.block = true, 784
	pr := runOne(t, c, onePlan(t, c, e, "tokens: 3001"), false)
	if !pr.Warm || pr.Tries != 3 || e.cold != 2 {
		t.Fatalf("%d cold prefills, %+v", e.cold, pr)
	}
	if pr := runOne(t, c, onePlan(t, c, e, "tokens: 3001"), true); !pr.Warm || pr.Tries != 1 {
		t.Fatalf("%+v", pr)
	}
}
