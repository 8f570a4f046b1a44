package prewarm

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/prefixring/prefixring/internal/dialect"
	"github.com/prefixring/prefixring/internal/fakeengine"
)

// sim is a fleet of simulated engines.
type sim struct {
	engines []*fakeengine.Engine
	fleet   Fleet
}

func newSim(t *testing.T, n int, o fakeengine.Options) *sim {
	t.Helper()
	s := &sim{}
	o.Model = "m"
	for i := range n {
		o.Name = fmt.Sprint("e", i)
		e, url := fakeengine.StartT(t, o)
		s.engines = append(s.engines, e)
		node := Node{Name: o.Name, URL: url, Engine: o.Dialect, APIKey: func() string { return o.APIKey }}
		s.fleet.Nodes = append(s.fleet.Nodes, node)
	}
	if err := s.fleet.Discover(t.Context(), Options{}); err != nil {
		t.Fatal(err)
	}
	return s
}

func (s *sim) plan(t *testing.T, m *Manifest) *Plan {
	t.Helper()
	p, err := NewPlan(m, s.fleet, PlanOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// every protocol, one prefix each.
func fourProtocols() map[string]string {
	return map[string]string{
		"manifest.yaml": `
prefixes:
  - {name: chat, model: m, file: chat.txt, where: broadcast, tools: tools.json, template_args: {enable_thinking: true}}
  - {name: completions, model: m, file: completions.txt, where: broadcast, protocol: completions}
  - {name: responses, model: m, file: responses.txt, where: broadcast, protocol: responses}
  - {name: messages, model: m, file: messages.txt, where: broadcast, protocol: messages}
`,
		"chat.txt": policy("chat", 2000), "completions.txt": policy("completions", 2000),
		"responses.txt": policy("responses", 2000), "messages.txt": policy("messages", 2000),
		"tools.json": `[{"type":"function","function":{"name":"refund","parameters":{"type":"object","properties":{"z":{"type":"string"},"a":{"type":"number"}}}}}]`,
	}
}

func TestSimulatedEnginesOfBothDialects(t *testing.T) {
	for _, c := range []struct {
		name string
		o    fakeengine.Options
		want Evidence
	}{
		{"vllm", fakeengine.Options{ReportCached: true, BlockSize: 16}, EvidenceUsage},
		{"vllm with blocks of 128 and a key", fakeengine.Options{ReportCached: true, BlockSize: 128, APIKey: "k"}, EvidenceUsage},
		{"vllm that reports nothing", fakeengine.Options{}, EvidenceCounters},
		{"sglang", fakeengine.Options{Dialect: dialect.SGLang, ReportCached: true, BlockSize: 64}, EvidenceUsage},
		{"sglang that reports nothing", fakeengine.Options{Dialect: dialect.SGLang}, EvidenceCounters},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newSim(t, 2, c.o)
			p := s.plan(t, manifest(t, fourProtocols()))
			rep, err := Run(t.Context(), p, Options{Retries: -1})
			if err != nil {
				t.Fatal(err)
			}
			for _, it := range rep.Items {
				// vLLM's Responses usage has cached_tokens with and without the flag.
				always := it.Prefix == "responses" && c.o.Dialect == dialect.VLLM && it.Proof.Evidence == EvidenceUsage
				if !it.Proof.Warm || it.Proof.Evidence != c.want && !always {
					t.Errorf("%s on %s: %+v", it.Prefix, it.Node, it.Proof)
				}
			}
			for _, e := range s.engines {
				// A raw prompt has no head that the engine could tell from the rest: its cold
				// prefill does not count as one.
				if got := e.Counters().ColdPrefills; got != 3 {
					t.Errorf("%d cold prefills", got)
				}
			}
			if rep, err = Verify(t.Context(), p, Options{Retries: -1}); err != nil || rep.NotWarm != 0 {
				t.Errorf("verify: %v %+v", err, rep.Cold())
			}
		})
	}
}

// A customer's request, in its own protocol, finds the prefix.
func TestSimulatedTrafficHitsWhatWasWarmed(t *testing.T) {
	s := newSim(t, 1, fakeengine.Options{ReportCached: true})
	if _, err := Run(t.Context(), s.plan(t, manifest(t, fourProtocols())), Options{}); err != nil {
		t.Fatal(err)
	}
	before := s.engines[0].Counters()
	files := fourProtocols()
	for path, body := range map[string]string{
		"/v1/chat/completions": `{"model":"m","tools":` + files["tools.json"] + `,"chat_template_kwargs":{"enable_thinking":true},"messages":[{"role":"system","content":"` + files["chat.txt"] + `"},{"role":"user","content":"where is my parcel"}],"max_tokens":4}`,
		"/v1/completions":      `{"model":"m","prompt":"` + files["completions.txt"] + ` where is my parcel","max_tokens":4}`,
		"/v1/responses":        `{"model":"m","instructions":"` + files["responses.txt"] + `","input":"where is my parcel","max_output_tokens":4}`,
		"/v1/messages":         `{"model":"m","system":"` + files["messages.txt"] + `","messages":[{"role":"user","content":"where is my parcel"}],"max_tokens":4}`,
	} {
		resp, err := http.Post(s.fleet.Nodes[0].URL+path, "application/json", bytes.NewReader([]byte(body)))
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != 200 {
			t.Errorf("%s: %d", path, resp.StatusCode)
		}
	}
	after := s.engines[0].Counters()
	if after.ColdPrefills != before.ColdPrefills {
		t.Errorf("%d cold prefills", after.ColdPrefills-before.ColdPrefills)
	}
	http.DefaultClient.CloseIdleConnections()
}

func TestSimulatedRestartIsFoundByVerify(t *testing.T) {
	s := newSim(t, 2, fakeengine.Options{ReportCached: true})
	p := s.plan(t, manifest(t, fourProtocols()))
	if _, err := Run(t.Context(), p, Options{}); err != nil {
		t.Fatal(err)
	}
	if err := s.engines[1].Restart(); err != nil {
		t.Fatal(err)
	}
	rep, err := Verify(t.Context(), p, Options{})
	if err != nil || rep.NotWarm != 4 {
		t.Fatalf("%v, %d not warm", err, rep.NotWarm)
	}
	for _, it := range rep.Cold() {
		if it.Node != "e1" {
			t.Errorf("%s on %s: %s", it.Prefix, it.Node, it.Proof.Why)
		}
	}
}

func TestSimulatedEvictionIsFoundByVerify(t *testing.T) {
	s := newSim(t, 1, fakeengine.Options{ReportCached: true, KVTokens: 12_800, MaxModelLen: 12_700})
	m := manifest(t, map[string]string{"manifest.yaml": "prefixes:\n  - {name: a, model: m, file: a.txt}\n", "a.txt": policy("a", 2000)})
	p := s.plan(t, m)
	if rep, err := Run(t.Context(), p, Options{}); err != nil || rep.Warm != 1 {
		t.Fatal(err, rep.Cold())
	}
	other := manifest(t, map[string]string{"manifest.yaml": "prefixes:\n  - {name: b, model: m, file: b.txt}\n", "b.txt": policy("othertext", 3300)})
	op, err := NewPlan(other, s.fleet, PlanOptions{Force: true})
	if err != nil {
		t.Fatal(err)
	}
	if rep, err := Run(t.Context(), op, Options{}); err != nil || rep.Warm != 1 {
		t.Fatal(err, rep.Cold())
	}
	rep, err := Verify(t.Context(), p, Options{})
	if err != nil || rep.NotWarm != 1 {
		t.Fatalf("%v %+v", err, rep.Items)
	}
}

// Field case B55 on the simulated engine: four ranks behind one port.
func TestB55SimulatedRanks(t *testing.T) {
	s := newSim(t, 1, fakeengine.Options{ReportCached: true, Ranks: 4})
	if s.fleet.Nodes[0].Ranks != 4 {
		t.Fatalf("%d ranks discovered", s.fleet.Nodes[0].Ranks)
	}
	m := manifest(t, map[string]string{"manifest.yaml": "prefixes:\n  - {name: a, model: m, file: a.txt}\n", "a.txt": policy("a", 2000)})
	rep, err := Run(t.Context(), s.plan(t, m), Options{})
	if err != nil || rep.Warm != 1 {
		t.Fatalf("%v %+v", err, rep.Items)
	}
	if got := s.engines[0].Counters().ColdPrefills; got != 4 {
		t.Errorf("%d cold prefills on 4 ranks", got)
	}
}

func TestSimulatedEngineThatDiesInTheMiddleIsResumed(t *testing.T) {
	s := newSim(t, 2, fakeengine.Options{ReportCached: true})
	p := s.plan(t, manifest(t, fourProtocols()))
	o := Options{Retries: 1, Backoff: time.Millisecond, State: filepath.Join(t.TempDir(), "state")}
	o.Events = func(e Event) {
		if e.Kind == EventWarm && e.Node == "e1" && e.NodeDone == 2 {
			s.engines[1].Kill()
		}
	}
	rep, err := Run(t.Context(), p, o)
	if err != nil || rep.Warm != 6 || rep.NotWarm != 2 {
		t.Fatalf("%v, %d warm", err, rep.Warm)
	}
	if err := s.engines[1].Revive(); err != nil {
		t.Fatal(err)
	}
	o.Events, o.Trust = nil, time.Nanosecond // it came back cold: nothing of before counts
	rep, err = Run(t.Context(), p, o)
	if err != nil || rep.Warm != 8 {
		t.Fatalf("%v, %d warm after resuming: %+v", err, rep.Warm, rep.Cold())
	}
}

func TestSimulatedSleepThenWake(t *testing.T) {
	s := newSim(t, 1, fakeengine.Options{ReportCached: true, DevMode: true})
	m := manifest(t, map[string]string{"manifest.yaml": "prefixes:\n  - {name: a, model: m, file: a.txt}\n", "a.txt": policy("a", 2000)})
	p := s.plan(t, m)
	s.engines[0].Sleep(1)
	woke := false
	o := Options{Poll: time.Millisecond, Events: func(e Event) {
		if e.Kind == EventPaused && strings.Contains(e.Why, "asleep") {
			woke = true
			s.engines[0].Wake()
		}
	}}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	rep, err := Run(ctx, p, o)
	if err != nil || rep.Warm != 1 || !woke {
		t.Fatalf("%v, %d warm, woke %v", err, rep.Warm, woke)
	}
}
