package health_test

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prefixring/prefixring/health"
	"github.com/prefixring/prefixring/internal/dialect"
	"github.com/prefixring/prefixring/internal/fakeengine"
	"github.com/prefixring/prefixring/internal/fakeengine/core"
)

// watched is a simulated engine on a socket, under a manager with quick clocks.
type watched struct {
	*testing.T
	e   *fakeengine.Engine
	url string
	m   *health.Manager
}

func watch(t *testing.T, o fakeengine.Options) *watched {
	t.Helper()
	o.HealthDelay = -1
	e, url := fakeengine.StartT(t, o)
	quick := func(d time.Duration) health.Probe { return health.Probe{Period: d, Timeout: 2 * time.Second} }
	m, err := health.New(health.Options{
		Settings: health.Settings{
			Metrics: quick(20 * time.Millisecond), Health: quick(50 * time.Millisecond),
			Models: quick(50 * time.Millisecond), Version: quick(time.Second),
			HangAfter: 400 * time.Millisecond, SlowStart: -1,
			Thresholds: health.Thresholds{Dwell: 100 * time.Millisecond},
			Outliers:   health.Outliers{Cooldown: 50 * time.Millisecond},
		},
		Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	target := health.Target{Name: "n", Pool: "p", URL: url, Engine: o.Dialect, Models: []string{"sim"}}
	if o.APIKey != "" {
		target.APIKey = func() string { return o.APIKey }
	}
	if err := m.Apply([]health.Target{target}); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- m.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
		http.DefaultClient.CloseIdleConnections()
	})
	w := &watched{T: t, e: e, url: url, m: m}
	w.until(health.Ready)
	return w
}

// eventually waits until cond holds.
func (w *watched) eventually(what string, cond func(health.Status) bool) health.Status {
	w.Helper()
	deadline := time.After(20 * time.Second)
	for {
		s := w.m.Snapshot()[0]
		if cond(s) {
			return s
		}
		select {
		case <-deadline:
			w.Fatalf("%s does not come: %v (%s), epoch %d, missing %v, %+v", what, s.State, s.Reason, s.Epoch, s.Missing, s.Signals)
		case <-time.After(2 * time.Millisecond):
		}
	}
}

func (w *watched) until(state health.State) health.Status {
	w.Helper()
	return w.eventually(state.String(), func(s health.Status) bool { return s.State == state })
}

// ask sends n requests at a time and returns what ends and waits for them.
func (w *watched) ask(n, tokens int) (end func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	for range n {
		wg.Go(func() {
			body := fmt.Sprintf(`{"model":"sim","prompt":%q,"max_tokens":%d,"ignore_eos":true}`, strings.Repeat("word ", 500), tokens)
			req, err := http.NewRequestWithContext(ctx, "POST", w.url+"/v1/completions", strings.NewReader(body))
			if err != nil {
				panic(err)
			}
			req.Header.Set("Content-Type", "application/json")
			resp, err := http.DefaultClient.Do(req)
			if err == nil {
				_, _ = io.Copy(io.Discard, resp.Body)
				resp.Body.Close()
			}
		})
	}
	return func() { cancel(); wg.Wait() }
}

func dialects(t *testing.T, f func(*testing.T, dialect.Engine)) {
	for _, e := range []dialect.Engine{dialect.VLLM, dialect.SGLang} {
		t.Run(e.String(), func(t *testing.T) { f(t, e) })
	}
}

func TestSimulatedEngineIsKilledAndComesBackCold(t *testing.T) {
	dialects(t, func(t *testing.T, e dialect.Engine) {
		w := watch(t, fakeengine.Options{Dialect: e})
		w.ask(3, 8)() // cancelled or done: something has been counted
		s := w.eventually("a page", func(s health.Status) bool { return s.Voice == 1 && s.Version != "" })
		if len(s.Missing) > 0 {
			t.Errorf("missing signals: %v", s.Missing)
		}
		w.e.Kill()
		w.until(health.Unhealthy)
		if err := w.e.Revive(); err != nil {
			t.Fatal(err)
		}
		if s := w.until(health.Ready); s.Epoch != 1 {
			t.Errorf("epoch %d, want 1", s.Epoch)
		}
	})
}

func TestSimulatedEngineRestartsBetweenTwoPolls(t *testing.T) {
	dialects(t, func(t *testing.T, e dialect.Engine) {
		w := watch(t, fakeengine.Options{Dialect: e})
		end := w.ask(1, 8)
		w.eventually("a finished request", func(s health.Status) bool { return s.Signals.PromptTokens > 0 })
		end()
		w.e.SetFault(fakeengine.Fault{Kind: fakeengine.FaultRestart})
		w.eventually("a new epoch", func(s health.Status) bool { return s.Epoch == 1 && s.State == health.Ready })
	})
}

func TestB51SimulatedEngineSleepsAndWakes(t *testing.T) {
	w := watch(t, fakeengine.Options{DevMode: true})
	w.e.SetFault(fakeengine.Fault{Kind: fakeengine.FaultSleep})
	if s := w.until(health.Asleep); s.Epoch != 1 {
		t.Errorf("epoch %d, want 1", s.Epoch)
	}
	w.e.ClearFaults()
	w.until(health.Ready)
}

func TestB40SimulatedCoreHangsBehindALiveFrontEnd(t *testing.T) {
	dialects(t, func(t *testing.T, e dialect.Engine) {
		// A millisecond per step, so that the request lasts.
		w := watch(t, fakeengine.Options{Dialect: e, Cost: &core.Cost{Fixed: 1e-3}, DecodeInterval: 1})
		end := w.ask(2, 100_000)
		defer end()
		w.eventually("running requests", func(s health.Status) bool { return s.Signals.Running == 2 })
		w.e.SetFault(fakeengine.Fault{Kind: fakeengine.FaultStall})
		s := w.until(health.Unhealthy)
		// SGLang's own /health sees it, too: it waits for output of the core.
		if e == dialect.VLLM && !strings.Contains(s.Reason, "no progress with 2 requests running") {
			t.Errorf("reason %q", s.Reason)
		}
		w.e.ClearFaults()
		w.until(health.Ready)
	})
}

func TestSimulatedEngineSaturatesAndRecovers(t *testing.T) {
	dialects(t, func(t *testing.T, e dialect.Engine) {
		w := watch(t, fakeengine.Options{Dialect: e, Cost: &core.Cost{Fixed: 1e-3}, MaxSeqs: 4, DecodeInterval: 1})
		end := w.ask(24, 100_000)
		if s := w.until(health.Saturated); !strings.Contains(s.Reason, "requests wait for room") {
			t.Errorf("reason %q", s.Reason)
		}
		end()
		w.until(health.Ready)
	})
}

func TestSimulatedEngineLies(t *testing.T) {
	w := watch(t, fakeengine.Options{})
	w.e.SetFault(fakeengine.Fault{Kind: fakeengine.FaultMetrics, Metrics: map[string]string{"vllm:kv_cache_usage_perc": "97"}})
	w.eventually("an unknown gauge", func(s health.Status) bool { return len(s.Missing) == 1 && s.Missing[0] == "kv_usage" })
	w.until(health.Ready)
	w.e.SetFault(fakeengine.Fault{Kind: fakeengine.FaultMetrics, Metrics: map[string]string{"vllm:kv_cache_usage_perc": "0.97"}})
	if s := w.until(health.Saturated); !s.Panicking { // the only node of its pool
		t.Error("the last node is closed")
	}
	w.e.SetFault(fakeengine.Fault{Kind: fakeengine.FaultMetrics, Remove: []string{"vllm:num_requests_waiting", "vllm:num_requests_waiting_by_reason"}})
	w.eventually("a missing gauge", func(s health.Status) bool {
		return len(s.Missing) == 1 && s.Missing[0] == "waiting" && s.State == health.Ready
	})
}

func TestSimulatedEngineBehindAKeyOrWithoutMetrics(t *testing.T) {
	w := watch(t, fakeengine.Options{APIKey: "k1", GuardAll: true})
	w.eventually("a page", func(s health.Status) bool { return s.Voice == 1 && !s.AuthFailing })
	w.e.SetAPIKey("k2")
	w.eventually("the refused key", func(s health.Status) bool { return s.AuthFailing && s.State == health.Ready })
	w = watch(t, fakeengine.Options{Dialect: dialect.SGLang, NoMetrics: true})
	w.eventually("the missing page", func(s health.Status) bool { return len(s.Missing) == 1 && s.Missing[0] == "metrics" })
}

func TestB55SimulatedRanksBehindOnePort(t *testing.T) {
	dialects(t, func(t *testing.T, e dialect.Engine) {
		w := watch(t, fakeengine.Options{Dialect: e, Ranks: 4})
		w.eventually("four ranks", func(s health.Status) bool { return s.AffinityLimited && len(s.Signals.Ranks) == 4 })
	})
}
