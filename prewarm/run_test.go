package prewarm

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

const threeShops = `
zone: Asia/Shanghai
prefixes:
  - {name: alpha, model: m, file: alpha.txt, where: broadcast, tokens: 3000}
  - {name: beta, model: m, file: beta.txt, where: broadcast, tokens: 2000}
  - {name: gamma, model: m, file: gamma.txt, where: broadcast, tokens: 1000}
`

func threeFiles() map[string]string {
	return map[string]string{
		"manifest.yaml": threeShops, "alpha.txt": policy("alpha", 3000), "beta.txt": policy("beta", 2000), "gamma.txt": policy("gamma", 1000),
	}
}

func planFor(t *testing.T, m *Manifest, now time.Time, toys ...*toy) *Plan {
	t.Helper()
	f := Fleet{}
	for _, e := range toys {
		f.Nodes = append(f.Nodes, e.node())
	}
	p, err := NewPlan(m, f, PlanOptions{Now: now})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// quick are options that a test can wait for.
func quick(c *fakeClock) Options { return Options{Clock: c} }

func request(system, turn string) string {
	b, _ := json.Marshal(map[string]any{"model": "m", "messages": []map[string]string{{"role": "system", "content": system}, {"role": "user", "content": turn}}})
	return string(b)
}

func TestRunWarmsEveryNodeAndTrafficHits(t *testing.T) {
	c := newFakeClock()
	a, b := newToy(t, "a", c), newToy(t, "b", c)
	p := planFor(t, manifest(t, threeFiles()), c.Now(), a, b)
	rep, err := Run(t.Context(), p, quick(c))
	if err != nil {
		t.Fatal(err)
	}
	if rep.Warm != 6 || rep.NotWarm != 0 || rep.Weak != 0 {
		t.Fatalf("warm %d, not warm %d, weak %d", rep.Warm, rep.NotWarm, rep.Weak)
	}
	for _, it := range rep.Items {
		if it.Proof.From != TokensCounted || it.Proof.Evidence != EvidenceUsage || it.Proof.Cached < it.Proof.Static-16 {
			t.Errorf("%s on %s: %+v", it.Prefix, it.Node, it.Proof)
		}
	}
	for _, e := range []*toy{a, b} {
		if n, cached := e.traffic(t, request(policy("alpha", 3000), "where is my parcel")); n-cached > 32 {
			t.Errorf("%s: a customer finds %d of %d tokens", e.name, cached, n)
		}
		if e.cold != 3 {
			t.Errorf("%s: %d cold prefills, want 3", e.name, e.cold)
		}
		if e.most.Load() != 1 {
			t.Errorf("%s: %d requests at a time", e.name, e.most.Load())
		}
	}
}

func TestRunIsIdempotent(t *testing.T) {
	c := newFakeClock()
	a := newToy(t, "a", c)
	p := planFor(t, manifest(t, threeFiles()), c.Now(), a)
	for range 2 {
		if _, err := Run(t.Context(), p, quick(c)); err != nil {
			t.Fatal(err)
		}
	}
	if a.cold != 3 {
		t.Errorf("%d cold prefills after two runs, want 3", a.cold)
	}
	if got := len(a.bodies); got != 3*2+3 {
		t.Errorf("%d requests, want 2 for each prefix in the first run and 1 in the second", got)
	}
}

func TestWarmRequestsAreSmallMarkedAndCarryTheEnginesKey(t *testing.T) {
	c := newFakeClock()
	a := newToy(t, "a", c)
	p := planFor(t, manifest(t, threeFiles()), c.Now(), a)
	if _, err := Run(t.Context(), p, quick(c)); err != nil {
		t.Fatal(err)
	}
	turns := map[string]bool{}
	for _, raw := range a.bodies {
		var b struct {
			MaxTokens   int      `json:"max_tokens"`
			MaxComplete int      `json:"max_completion_tokens"`
			Temperature *float64 `json:"temperature"`
			Stream      *bool    `json:"stream"`
			Messages    []struct{ Role, Content string }
		}
		if err := json.Unmarshal(raw, &b); err != nil {
			t.Fatal(err)
		}
		if b.MaxTokens != 1 || b.MaxComplete != 1 || b.Temperature == nil || *b.Temperature != 0 || b.Stream == nil || *b.Stream {
			t.Errorf("limits: %+v", b)
		}
		turn := b.Messages[1].Content
		if turns[turn] {
			t.Errorf("turn %q was sent twice: its proof could hit more than the static prefix", turn)
		}
		turns[turn] = true
	}
	for _, h := range a.headers {
		if h.Get("Authorization") != "Bearer k-a" {
			t.Errorf("Authorization %q", h.Get("Authorization"))
		}
		if h.Get("User-Agent") != "prefixring-prewarm" {
			t.Errorf("User-Agent %q", h.Get("User-Agent"))
		}
	}
}

func TestRunResumesFromState(t *testing.T) {
	c := newFakeClock()
	a := newToy(t, "a", c)
	p := planFor(t, manifest(t, threeFiles()), c.Now(), a)
	o := quick(c)
	o.State = filepath.Join(t.TempDir(), "state.json")
	o.Trust = time.Hour
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	o.Events = func(e Event) {
		if e.Kind == EventWarm {
			cancel() // as Ctrl-C would, after the first prefix
		}
	}
	rep, err := Run(ctx, p, o)
	if !errors.Is(err, context.Canceled) {
		t.Fatalf("error %v", err)
	}
	if rep.Warm != 1 || rep.NotWarm != 2 {
		t.Fatalf("warm %d, not warm %d", rep.Warm, rep.NotWarm)
	}
	data, err := os.ReadFile(o.State)
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(data), "alpha1") || strings.Contains(string(data), "alpha") {
		t.Error("the state file holds text or names of prefixes")
	}
	sent := len(a.bodies)
	o.Events = nil
	rep, err = Run(t.Context(), p, o)
	if err != nil || rep.Warm != 3 {
		t.Fatalf("resumed: %v, warm %d", err, rep.Warm)
	}
	if !rep.Items[0].Skipped || rep.Items[1].Skipped {
		t.Error("the item that was done must be skipped, the others not")
	}
	if got := len(a.bodies) - sent; got != 4 {
		t.Errorf("%d requests after resuming, want 4", got)
	}
}

func TestStateOfAnotherProgramIsRefused(t *testing.T) {
	c := newFakeClock()
	a := newToy(t, "a", c)
	p := planFor(t, manifest(t, threeFiles()), c.Now(), a)
	o := quick(c)
	o.State = filepath.Join(t.TempDir(), "state.json")
	if err := os.WriteFile(o.State, []byte("my diary"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Run(t.Context(), p, o); err == nil || len(a.bodies) > 0 {
		t.Fatalf("error %v, %d requests", err, len(a.bodies))
	}
	if data, _ := os.ReadFile(o.State); string(data) != "my diary" {
		t.Error("the file was overwritten")
	}
}

func TestRunPausesWhileSaturatedAndResumes(t *testing.T) {
	c := newFakeClock()
	a := newToy(t, "a", c)
	a.set(func() { a.waiting = 3 })
	p := planFor(t, manifest(t, threeFiles()), c.Now(), a)
	o := quick(c)
	var kinds []EventKind
	looks := 0
	o.Events = func(e Event) {
		kinds = append(kinds, e.Kind)
		if e.Kind == EventPaused && len(a.bodies) > 0 {
			t.Error("sent to a saturated node")
		}
	}
	a.set(func() {
		a.before = func(path string) int {
			if path == "/metrics" {
				if looks++; looks == 5 {
					a.set(func() { a.waiting = 0 })
				}
			}
			return 0
		}
	})
	rep, err := Run(t.Context(), p, o)
	if err != nil || rep.Warm != 3 {
		t.Fatalf("%v, warm %d", err, rep.Warm)
	}
	if !strings.Contains(fmt.Sprint(kinds), "paused resumed start") {
		t.Errorf("events %v", kinds)
	}
}

func TestRunGivesUpOnANodeWithoutRoom(t *testing.T) {
	c := newFakeClock()
	a := newToy(t, "a", c)
	a.set(func() { a.asleep = true })
	p := planFor(t, manifest(t, threeFiles()), c.Now(), a)
	rep, err := Run(t.Context(), p, quick(c))
	if err != nil || rep.NotWarm != 3 || len(a.bodies) != 0 {
		t.Fatalf("%v, not warm %d, %d requests", err, rep.NotWarm, len(a.bodies))
	}
	if why := rep.Items[0].Proof.Why; !strings.Contains(why, "asleep") {
		t.Errorf("why: %s", why)
	}
}

func TestEngineDiesInTheMiddle(t *testing.T) {
	c := newFakeClock()
	a, b := newToy(t, "a", c), newToy(t, "b", c)
	p := planFor(t, manifest(t, threeFiles()), c.Now(), a, b)
	o := quick(c)
	var mu sync.Mutex
	retries := map[string]int{}
	o.Events = func(e Event) {
		mu.Lock()
		defer mu.Unlock()
		if e.Kind == EventRetry {
			retries[e.Node]++
			if strings.Contains(e.Why, "secret") {
				t.Error("an engine's error text reached an event")
			}
		}
		if e.Kind == EventWarm && e.Node == "b" && e.NodeDone == 1 {
			b.set(func() { b.before = func(string) int { return 500 } })
		}
	}
	rep, err := Run(t.Context(), p, o)
	if err != nil {
		t.Fatal(err)
	}
	if rep.Warm != 4 || rep.NotWarm != 2 {
		t.Fatalf("warm %d, not warm %d", rep.Warm, rep.NotWarm)
	}
	if retries["a"] != 0 || retries["b"] != 10 {
		t.Errorf("retries %v", retries)
	}
	for _, it := range rep.Cold() {
		if it.Node != "b" || !strings.Contains(it.Proof.Why, "500") {
			t.Errorf("%s on %s: %s", it.Prefix, it.Node, it.Proof.Why)
		}
	}
}

func TestUnreachableEngineIsNamed(t *testing.T) {
	c := newFakeClock()
	a := newToy(t, "a", c)
	n := a.node()
	n.URL = closedPort(t)
	p, err := NewPlan(manifest(t, threeFiles()), Fleet{Nodes: []Node{n}}, PlanOptions{Now: c.Now()})
	if err != nil {
		t.Fatal(err)
	}
	rep, err := Run(t.Context(), p, Options{Clock: c, Retries: 1})
	if err != nil || rep.NotWarm != 3 || !strings.Contains(rep.Items[0].Proof.Why, "cannot reach engine") {
		t.Fatalf("%v %+v", err, rep.Items[0].Proof)
	}
}

func TestTextChangedSincePlanStopsBeforeAnythingIsSent(t *testing.T) {
	c := newFakeClock()
	a := newToy(t, "a", c)
	path := write(t, threeFiles())
	m, err := LoadManifest(path)
	if err != nil {
		t.Fatal(err)
	}
	p := planFor(t, m, c.Now(), a)
	beta := filepath.Join(filepath.Dir(path), "beta.txt")
	for _, change := range []func() error{
		func() error { return os.WriteFile(beta, []byte("other"), 0o600) },
		func() error { return os.Remove(beta) },
	} {
		if err := change(); err != nil {
			t.Fatal(err)
		}
		_, err := Run(t.Context(), p, quick(c))
		var me *ManifestError
		if !errors.As(err, &me) || len(me.Faults) != 1 || me.Faults[0].Line != 5 || me.Faults[0].Field != "prefixes[1].file" {
			t.Errorf("error %v", err)
		}
	}
	if len(a.bodies) > 0 {
		t.Errorf("%d requests were sent", len(a.bodies))
	}
}

func TestVerifyTellsWhatIsNotWarm(t *testing.T) {
	c := newFakeClock()
	a, b := newToy(t, "a", c), newToy(t, "b", c)
	p := planFor(t, manifest(t, threeFiles()), c.Now(), a, b)
	if _, err := Run(t.Context(), p, quick(c)); err != nil {
		t.Fatal(err)
	}
	rep, err := Verify(t.Context(), p, quick(c))
	if err != nil || rep.NotWarm != 0 {
		t.Fatalf("%v, not warm %d", err, rep.NotWarm)
	}
	b.restart()
	rep, err = Verify(t.Context(), p, quick(c))
	if err != nil || rep.NotWarm != 3 {
		t.Fatalf("%v, not warm %d after a restart", err, rep.NotWarm)
	}
	for _, it := range rep.Cold() {
		if it.Node != "b" || it.Proof.Why == "" || it.Proof.Cached != 0 {
			t.Errorf("%+v", it)
		}
	}
}

func TestEventsAddUpAndHoldNoText(t *testing.T) {
	c := newFakeClock()
	a, b := newToy(t, "a", c), newToy(t, "b", c)
	p := planFor(t, manifest(t, threeFiles()), c.Now(), a, b)
	var out bytes.Buffer
	o := quick(c)
	o.Events = JSONEvents(&out)
	if _, err := Run(t.Context(), p, o); err != nil {
		t.Fatal(err)
	}
	var last Event
	settled := 0
	for line := range strings.Lines(out.String()) {
		last = Event{}
		if err := json.Unmarshal([]byte(line), &last); err != nil {
			t.Fatal(err)
		}
		if last.Kind == EventWarm {
			if settled++; last.Done != settled || last.NodeDone < 1 || last.NodeTotal != 3 {
				t.Errorf("counts: %+v", last)
			}
		}
	}
	if last.Kind != EventDone || last.Done != 6 || last.SumDone != last.SumTotal || last.SumTotal != 12000 {
		t.Errorf("last event: %+v", last)
	}
	if strings.Contains(out.String(), "alpha1 ") {
		t.Error("events hold prompt text")
	}
}

func TestTokenBudgetBoundsTheFleet(t *testing.T) {
	c := newFakeClock()
	var toys []*toy
	for i := range 4 {
		toys = append(toys, newToy(t, fmt.Sprint("n", i), c))
	}
	p := planFor(t, manifest(t, threeFiles()), c.Now(), toys...)
	o := quick(c)
	o.MaxTokens = 3500
	var mu sync.Mutex
	inWork, most := int64(0), int64(0)
	o.Events = func(e Event) {
		mu.Lock()
		defer mu.Unlock()
		switch e.Kind {
		case EventStart:
			inWork += e.Tokens
			most = max(most, inWork)
		case EventWarm:
			inWork -= e.Tokens
		}
	}
	if _, err := Run(t.Context(), p, o); err != nil {
		t.Fatal(err)
	}
	// An item's tokens are given back a moment before its end is told, so that one more
	// may be told to have started.
	if most > 3500+3000 {
		t.Errorf("%d tokens in prefill", most)
	}
}
