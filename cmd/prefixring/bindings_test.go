package main

import (
	"bytes"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prefixring/prefixring/internal/config"
	"github.com/prefixring/prefixring/internal/session"
)

// recorder is a little vLLM that writes down all that reaches it.
type recorder struct {
	mu  sync.Mutex
	log bytes.Buffer
}

func (r *recorder) ServeHTTP(w http.ResponseWriter, q *http.Request) {
	body, _ := io.ReadAll(q.Body)
	switch q.URL.Path {
	case "/v1/models":
		io.WriteString(w, `{"object":"list","data":[{"id":"m","object":"model"}]}`)
	case "/v1/chat/completions":
		r.mu.Lock()
		q.Header.Del("X-Request-Id") // random by process
		fmt.Fprintf(&r.log, "%s %s %v %s\n", q.Method, q.URL, q.Header, body)
		r.mu.Unlock()
		w.Header().Set("Content-Type", "application/json")
		io.WriteString(w, `{"id":"x","choices":[{"index":0,"message":{"role":"assistant","content":"hi"},"finish_reason":"stop"}],"usage":{"prompt_tokens":5,"completion_tokens":1,"total_tokens":6}}`)
	default:
		w.WriteHeader(http.StatusOK)
	}
}

// playBindings serves two engines with a configuration, sends the same traffic each time
// and returns all that clients and engines saw.
func playBindings(t *testing.T, top, pool string, on bool) string {
	t.Helper()
	var engines [2]recorder
	file := "limits: {drain_delay: 1ms}\ntelemetry: {access_log: false}\n" + top + "pools:\n  - name: p\n" + pool + "    models: [m]\n    engines:\n"
	for i := range engines {
		s := httptest.NewServer(&engines[i])
		t.Cleanup(s.Close)
		file += fmt.Sprintf("      - {name: e%d, url: %q}\n", i, s.URL)
	}
	r := serveT(t, "--config", write(t, file))
	awaitReady(t, r, len(engines))
	var log strings.Builder
	for i := range 8 {
		body := fmt.Sprintf(`{"model":"m","prompt_cache_key":"k%d","messages":[{"role":"system","content":"s%d"},{"role":"user","content":"q"}]}`, i%2, i%4)
		code, answer, header := post(t, r.data+"/v1/chat/completions", body)
		header.Del("X-Request-Id")
		header.Del("Date")
		fmt.Fprintf(&log, "%d %v %s\n", code, header, answer)
	}
	for i := range engines {
		log.WriteString(regexp.MustCompile(`127\.0\.0\.1:\d+`).ReplaceAllString(engines[i].log.String(), "HOST"))
		fmt.Fprintf(&log, "end of engine %d\n", i)
	}
	if strings.Contains(get(t, r.admin+"/metrics"), "prefixring_bindings_bound_total") != on {
		t.Errorf("bindings in /metrics: want %t", on)
	}
	return log.String()
}

// awaitReady waits until health has found n engines ready.
func awaitReady(t *testing.T, r running, n int) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); ; <-time.After(5 * time.Millisecond) {
		if strings.Count(strings.ReplaceAll(get(t, r.admin+"/api/v1/fleet"), " ", ""), `"state":"ready"`) == n {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%d engines did not become ready", n)
		}
	}
}

// Every way to have bindings off is as if they had not been built: the same octets to
// the same engines in the same order, and the same answers.
func TestBindingsOffMeansOff(t *testing.T) {
	var never string
	for _, tc := range []struct{ name, top, pool, env, ttl string }{
		{name: "without the feature"},
		{name: "switched off", top: "bindings: {enabled: false, ttl: 60s, uses: 3, max: 50, mode: user, preset: strict}\n"},
		{name: "env off", top: onExtra, env: "0"},
		{name: "env malformed", top: onExtra, ttl: "soon"},
		{name: "off in the pool", top: onExtra, pool: "    bindings: false\n"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Setenv(session.EnvEnabled, tc.env)
			t.Setenv(session.EnvTTL, tc.ttl)
			got := playBindings(t, tc.top, tc.pool, false)
			if never == "" {
				never = got
			}
			if got != never {
				t.Errorf("differs:\n%s\nwithout the feature:\n%s", got, never)
			}
		})
	}
	t.Run("on", func(t *testing.T) { playBindings(t, onExtra, "", true) })
}

const onExtra = "bindings: {enabled: true}\n"

func get(t *testing.T, url string) string {
	t.Helper()
	resp, err := http.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// The presets, and what the environment does to them.
func TestBindingSettings(t *testing.T) {
	for name, tc := range map[string]struct {
		file, enabled, ttl string
		on                 bool
		want               string
	}{
		"default":         {file: onExtra, on: true, want: "15m0s false"},
		"hosted":          {file: "bindings: {enabled: true, preset: hosted}\n", on: true, want: "5m0s false"},
		"strict":          {file: "bindings: {enabled: true, preset: strict}\n", on: true, want: "15m0s true"},
		"hosted, own ttl": {file: "bindings: {enabled: true, preset: hosted, ttl: 7s}\n", on: true, want: "7s false"},
		"hosted by env":   {file: "bindings: {preset: hosted}\n", enabled: "true", on: true, want: "5m0s false"},
		"ttl by env":      {file: onExtra, ttl: "11", on: true, want: "11s false"},
		"off by env":      {file: onExtra, enabled: "off"},
		"malformed":       {file: onExtra, ttl: "soon"},
	} {
		cfg, err := config.Parse("r.yaml", []byte(tc.file+"pools: [{engines: [{url: 'http://a:1'}]}]\n"))
		if err != nil {
			t.Fatal(err)
		}
		var log bytes.Buffer
		applyBindingEnv(cfg, slog.New(slog.NewTextHandler(&log, nil)), func(k string) string {
			return map[string]string{session.EnvEnabled: tc.enabled, session.EnvTTL: tc.ttl}[k]
		})
		store, err := newBindings(&cfg.Bindings, &cfg.Pools[0])
		if err != nil || (store != nil) != tc.on {
			t.Errorf("%s: on %t, %v", name, store != nil, err)
		}
		if got := fmt.Sprint(bindingTTL(&cfg.Bindings), newAffinity(&cfg.Bindings, &cfg.Pools[0]).Strict); tc.on && got != tc.want {
			t.Errorf("%s: %s, want %s", name, got, tc.want)
		}
		if warned := log.Len() > 0; warned != (name == "malformed") || strings.Contains(log.String(), "soon") {
			t.Errorf("%s: log %q", name, log.String())
		}
	}
}

func TestStatusShowsBindings(t *testing.T) {
	var page strings.Builder
	printBindings(&page, map[string]session.Stats{"m": {Entries: 3, Bound: 5, Followed: 4, Expired: 1,
		Refused: map[string]uint64{"saturated": 2, "bound": 0}, Evicted: map[string]uint64{"failed": 1}}})
	if want := "bindings of m: 3 live, 5 bound, 4 followed, refused 2 saturated, evicted 1 failed, 1 expired, 0 used up\n"; page.String() != want {
		t.Errorf("got %q, want %q", page.String(), want)
	}
}
