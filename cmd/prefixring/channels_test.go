package main

import (
	"bytes"
	"context"
	"encoding/pem"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/prefixring/prefixring/internal/config"
)

const (
	canaryKey    = "sk-canary-4711"
	canaryPrompt = "canary prompt text"
)

// cloud is a simulated hosted endpoint: it takes one key, tells rates as the real ones do,
// and counts.
type cloud struct {
	revoked atomic.Bool
	calls   atomic.Int64
	odd     atomic.Int64 // requests that did not look as they should
}

func (c *cloud) ServeHTTP(w http.ResponseWriter, q *http.Request) {
	c.calls.Add(1)
	body, _ := io.ReadAll(q.Body)
	if q.URL.Path != "/v1/chat/completions" || !strings.Contains(string(body), `"model":"big-4"`) || q.Header.Get("X-Forwarded-For") != "" {
		c.odd.Add(1)
	}
	h := w.Header()
	h.Set("Content-Type", "application/json")
	if c.revoked.Load() || q.Header.Get("Authorization") != "Bearer "+canaryKey {
		w.WriteHeader(http.StatusUnauthorized)
		io.WriteString(w, `{"error":{"message":"Incorrect API key provided"}}`)
		return
	}
	h.Set("X-Ratelimit-Limit-Requests", "500")
	h.Set("X-Ratelimit-Remaining-Requests", "499")
	h.Set("X-Ratelimit-Reset-Requests", "120ms")
	h.Set("X-Ratelimit-Limit-Tokens", "30000")
	h.Set("X-Ratelimit-Remaining-Tokens", "29900")
	h.Set("X-Ratelimit-Reset-Tokens", "200ms")
	h.Set("Openai-Organization", "org-canary")
	io.WriteString(w, `{"id":"x","choices":[{"index":0,"message":{"role":"assistant","content":"hi"},"finish_reason":"stop"}],"usage":{"prompt_tokens":5,"completion_tokens":1,"total_tokens":6}}`)
}

// hostedConfig has a pool whose engine is down, and a channel at an https host.
func hostedConfig(t *testing.T, host http.Handler) string {
	t.Helper()
	s := httptest.NewTLSServer(host)
	t.Cleanup(s.Close)
	ca := write(t, string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw})))
	return "limits: {drain_delay: 1ms}\n" +
		"pools: [{name: own, models: [m], engines: [{name: e, url: 'http://127.0.0.1:1'}]}]\n" +
		"channels:\n  - name: cloud\n    url: " + s.URL + "/v1\n    protocol: openai\n    keys: [{name: team-a, file: " + write(t, canaryKey+"\n") + "}]\n    tls: {ca_file: " + ca + "}\n" +
		"routes: [{name: auto, tiers: [{members: [{pool: own}]}, {members: [{channel: cloud, model: big-4}]}]}]\n" +
		"bindings: {enabled: true}\n"
}

// The built router overflows to a hosted host over TLS, and nothing it says anywhere holds
// the key, the prompt or what the host said of the account.
func TestServeOverflowsToAChannel(t *testing.T) {
	host := &cloud{}
	cfg, err := config.Load(write(t, hostedConfig(t, host)))
	if err != nil {
		t.Fatal(err)
	}
	cfg.Listen, cfg.Admin = "127.0.0.1:0", "127.0.0.1:0"
	var out, log syncBuffer
	r := runServer(t, cfg, slog.New(slog.NewJSONHandler(&log, nil)), &out)
	body := `{"model":"auto","user":"ann-canary","messages":[{"role":"user","content":"` + canaryPrompt + `"}]}`
	for range 3 {
		code, answer, header := post(t, r.data+"/v1/chat/completions", body)
		if code != 200 || header.Get("Openai-Organization") != "" || header.Get("X-Ratelimit-Limit-Tokens") != "" {
			t.Fatalf("%d %v %s", code, header, answer)
		}
	}
	if host.odd.Load() != 0 {
		t.Errorf("%d odd requests at the host", host.odd.Load())
	}
	_, status, _ := invoke(t, "status", "--router", r.admin)
	for _, want := range []string{"key team-a: ready", "tokens left", "route auto, tier 2: cloud as big-4, 3 requests", "bindings of cloud: 1 live"} {
		if !strings.Contains(status, want) {
			t.Errorf("status lacks %q:\n%s", want, status)
		}
	}
	host.revoked.Store(true)
	calls := host.calls.Load()
	for range 3 {
		if code, answer, _ := post(t, r.data+"/v1/chat/completions", body); code != 503 || strings.Contains(answer, "API key") {
			t.Errorf("revoked: %d %s", code, answer)
		}
	}
	if n := host.calls.Load() - calls; n != 1 {
		t.Errorf("the refused key was used %d times", n)
	}
	page := get(t, r.admin+"/metrics")
	if !strings.Contains(page, `prefixring_channel_key_refused{channel="cloud",key="team-a"} 1`) || !strings.Contains(log.String(), "refuses its key") {
		t.Errorf("no alarm in metrics or log:\n%s", log.String())
	}
	said := out.String() + log.String() + status + page + get(t, r.admin+"/api/v1/fleet")
	for _, leak := range []string{canaryKey, canaryPrompt, "ann-canary", "org-canary"} {
		if strings.Contains(said, leak) {
			t.Errorf("%q is in the output", leak)
		}
	}
	if !strings.Contains(out.String(), "leaves 127.0.0.1") {
		t.Errorf("the banner does not say what leaves:\n%s", out.String())
	}
}

// Without a channel nothing leaves the fleet, and the router says so.
func TestNothingLeavesUnlessConfigured(t *testing.T) {
	var page bytes.Buffer
	printChannels(&page, nil)
	if !strings.Contains(page.String(), "nothing leaves the fleet") {
		t.Errorf("status: %s", page.String())
	}
	cfg, err := config.Parse("r.yaml", []byte("pools: [{engines: [{url: 'http://a:1'}]}]\n"))
	if err != nil {
		t.Fatal(err)
	}
	s, err := newServer(cfg, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	defer s.fleet.proxy.Close()
	if off := strings.Join(s.off(), "\n"); !strings.Contains(off, "nothing leaves the fleet") {
		t.Errorf("banner: %s", off)
	}
}

// A reload keeps a channel that did not change, rates and bindings included, and closes one
// that did.
func TestReloadKeepsChannels(t *testing.T) {
	file := hostedConfig(t, &cloud{})
	var kept map[string]*hosted
	load := func(text string) map[string]*hosted {
		t.Helper()
		cfg, err := config.Load(write(t, text))
		if err != nil {
			t.Fatal(err)
		}
		next, err := channelsOf(cfg, kept)
		if err != nil {
			t.Fatal(err)
		}
		return next
	}
	kept = load(file)
	defer func() { closeChannels(kept, nil) }()
	if again := load(file + "telemetry: {access_log: false}\n"); again["cloud"] != kept["cloud"] {
		t.Error("a channel that did not change was made anew")
	}
	other := load(strings.Replace(file, "name: team-a,", "name: team-a, rpm: 5,", 1))
	if other["cloud"] == kept["cloud"] {
		t.Error("a changed channel was kept")
	}
	closeChannels(other, kept)
}

// syncBuffer is a buffer that a server writes while a test reads.
type syncBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *syncBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *syncBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

// runServer runs a server with a log that the test can read, until the test ends.
func runServer(t *testing.T, cfg *config.Config, log *slog.Logger, out io.Writer) running {
	t.Helper()
	s, err := newServer(cfg, log)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.listen(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.run(ctx, out) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("serve: %v", err)
		}
	})
	return running{"http://" + s.data.Addr().String(), "http://" + s.admin.Addr().String()}
}
