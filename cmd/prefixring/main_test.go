package main

import (
	"bytes"
	"context"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/prefixring/prefixring/internal/fakeengine"
)

func TestMain(m *testing.M) {
	// The clocks of fasthttp and of the cache of idle connections live as long as the process.
	goleak.VerifyTestMain(m,
		// The server's worker pool notices its stop up to 10 s late, in a sleep.
		goleak.IgnoreAnyFunction("github.com/valyala/fasthttp.(*workerPool).Start.func2"),
		goleak.IgnoreAnyFunction("github.com/valyala/fasthttp.updateServerDate.func1"),
		goleak.Cleanup(func(code int) { http.DefaultTransport.(*http.Transport).CloseIdleConnections(); os.Exit(code) }),
	)
}

// invoke runs the app and returns its exit code and output.
func invoke(t *testing.T, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	err := newApp(&out, &errs).RunContext(t.Context(), append([]string{"prefixring"}, args...))
	code = exitCode(err, &errs)
	return code, out.String(), errs.String()
}

func write(t *testing.T, text string) string {
	t.Helper()
	p := filepath.Join(t.TempDir(), "router.yaml")
	if err := os.WriteFile(p, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return p
}

// Wrong usage and wrong configuration end with 2 and name what is wrong; what cannot be
// had ends with 3.
func TestBadInputOfCommands(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	bad := write(t, "pools:\n  - engines:\n      - url: http://a:1\nlisn: x\n")
	broken := write(t, "pools: [\n")
	for name, tc := range map[string]struct {
		args []string
		code int
		want string
	}{
		"unknown command":   {[]string{"srve"}, exitUsage, `unknown command "srve"`},
		"unknown flag":      {[]string{"serve", "--prot", "1"}, exitUsage, "prot"},
		"no engines":        {[]string{"serve"}, exitUsage, "--engine"},
		"both sources":      {[]string{"serve", "--config", bad, "--engine", "http://a:1"}, exitUsage, "exclude"},
		"unknown key":       {[]string{"serve", "--config", bad}, exitUsage, `router.yaml:4: unknown key "lisn"`},
		"malformed YAML":    {[]string{"check", "--config", broken}, exitUsage, "router.yaml:1"},
		"no such file":      {[]string{"check", "--config", "nowhere.yaml"}, exitUsage, "nowhere.yaml"},
		"bad engine":        {[]string{"serve", "--engine", "a:1"}, exitUsage, "a:1"},
		"port in use":       {[]string{"serve", "--engine", "http://127.0.0.1:1", "--listen", taken.Addr().String()}, exitUnreachable, taken.Addr().String()},
		"admin port in use": {[]string{"serve", "--engine", "http://127.0.0.1:1", "--listen", "127.0.0.1:0", "--admin", taken.Addr().String()}, exitUnreachable, "(admin)"},
		"engine port":       {[]string{"engine", "--listen", taken.Addr().String()}, exitUnreachable, taken.Addr().String()},
		"engine preset":     {[]string{"engine", "--preset", "900b"}, exitUsage, "900b"},
		"no router":         {[]string{"status", "--router", "http://127.0.0.1:1"}, exitUnreachable, "cannot reach"},
		"no body":           {[]string{"explain", "--body", "nowhere.json"}, exitUnreachable, "nowhere.json"},
	} {
		t.Run(name, func(t *testing.T) {
			code, _, stderr := invoke(t, tc.args...)
			if code != tc.code || !strings.Contains(stderr, tc.want) {
				t.Errorf("exit %d, %q; want %d with %q", code, stderr, tc.code, tc.want)
			}
		})
	}
}

func TestCheckProbesEngines(t *testing.T) {
	e, err := fakeengine.New(fakeengine.Options{Model: "m1", Preset: "instant", ReportCached: true})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	url, err := e.Start("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	if code, out, errs := invoke(t, "check", "--engine", url); code != 0 || !strings.Contains(out, "1 engines") {
		t.Errorf("check: %d %s %s", code, out, errs)
	}
	if code, out, errs := invoke(t, "check", "--probe", "--engine", url); code != 0 || !strings.Contains(out, "ready") {
		t.Errorf("probe: %d %s %s", code, out, errs)
	}
	if code, _, errs := invoke(t, "check", "--probe", "--timeout", "600ms", "--engine", url, "--engine", "http://127.0.0.1:1"); code != exitNo {
		t.Errorf("probe of a dead engine: %d %s", code, errs)
	}
}

func TestExplainWithoutARouter(t *testing.T) {
	body := filepath.Join(t.TempDir(), "body.json")
	text := `{"model":"m1","messages":[{"role":"system","content":"` + strings.Repeat("secret rule ", 2000) + `"},{"role":"user","content":"hi"}]}`
	if err := os.WriteFile(body, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	args := []string{"explain", "--body", body, "--engine", "http://a:1,name=a", "--engine", "http://b:1,name=b"}
	code, out, errs := invoke(t, args...)
	if code != 0 || !strings.Contains(out, "goes to") || strings.Contains(out, "secret") {
		t.Errorf("explain: %d %s %s", code, out, errs)
	}
	if _, again, _ := invoke(t, args...); again != out {
		t.Error("the same body is placed differently")
	}
	if err := os.WriteFile(body, []byte(`{"model":"m1","messages":[`), 0o600); err != nil {
		t.Fatal(err)
	}
	if code, _, errs := invoke(t, args...); code != exitUsage && code != exitNo || errs == "" {
		t.Errorf("truncated body: %d %s", code, errs)
	}
}

// running is serve in this process.
type running struct{ data, admin string }

// serveT runs the server for a test over the given flags, until the test ends.
func serveT(t *testing.T, cfg ...string) running {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	r, w := io.Pipe()
	var wg sync.WaitGroup
	args := append([]string{"prefixring", "serve", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"}, cfg...)
	wg.Go(func() {
		defer w.Close()
		if err := newApp(w, io.Discard).RunContext(ctx, args); err != nil {
			t.Errorf("serve: %v", err)
		}
	})
	t.Cleanup(func() { cancel(); wg.Wait() })
	var lines strings.Builder
	buf := make([]byte, 4096)
	for !strings.Contains(lines.String(), "off  ") {
		n, err := r.Read(buf)
		if err != nil {
			t.Fatalf("serve said %q and ended", lines.String())
		}
		lines.Write(buf[:n])
	}
	wg.Go(func() { io.Copy(io.Discard, r) })
	s := running{after(lines.String(), "data"), after(lines.String(), "admin")}
	return s
}

// after is the word that follows a label in the banner.
func after(banner, label string) string {
	for _, line := range strings.Split(banner, "\n") {
		if f := strings.Fields(line); len(f) > 1 && f[0] == label {
			return f[1]
		}
	}
	return ""
}

func post(t *testing.T, url, body string) (int, string, http.Header) {
	t.Helper()
	resp, err := http.Post(url, "application/json", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(b), resp.Header
}

// With engines that cannot be reached serve runs, /readyz says no, and requests get 503
// in the dialect of the client.
func TestUnreachableEngines(t *testing.T) {
	cfg := write(t, "limits: {drain_delay: 1ms, max_body: 64KiB, queue_wait: 100ms}\npools:\n  - models: [m1]\n    engines: [{url: 'http://127.0.0.1:1'}]\n")
	s := serveT(t, "--config", cfg)
	if resp, err := http.Get(s.admin + "/readyz"); err != nil || resp.StatusCode != 503 {
		t.Errorf("readyz: %v %v", resp, err)
	} else {
		resp.Body.Close()
	}
	chat := `{"model":"m1","messages":[{"role":"user","content":"hi"}]}`
	for _, tc := range []struct {
		name, path, body string
		status           int
		want             string
	}{
		{"chat", "/v1/chat/completions", chat, 503, `"error":{`},
		{"messages", "/v1/messages", chat, 503, `"type":"error"`},
		{"not JSON", "/v1/chat/completions", "hello", 400, `"error":{`},
		{"truncated", "/v1/chat/completions", chat[:30], 400, `"error":{`},
		{"truncated, Anthropic", "/v1/messages", chat[:30], 400, `"type":"error"`},
		{"too large", "/v1/chat/completions", strings.Repeat(" ", 70<<10), 413, "65536"},
		{"unknown model", "/v1/chat/completions", strings.Replace(chat, "m1", "m9", 1), 404, "the model `m9` is not served here; there is m1"},
		{"unknown path", "/v1/nothing", chat, 404, `"error":{`},
		{"engine admin path", "/sleep", chat, 404, ""},
	} {
		status, body, h := post(t, s.data+tc.path, tc.body)
		if status != tc.status || !strings.Contains(body, tc.want) {
			t.Errorf("%s: %d %s, want %d with %s", tc.name, status, body, tc.status, tc.want)
		}
		if h.Get("X-Prefixring-Error") == "" {
			t.Errorf("%s: no X-Prefixring-Error", tc.name)
		}
		if status == 503 && h.Get("Retry-After") == "" {
			t.Errorf("%s: no Retry-After", tc.name)
		}
	}
}

func TestServeEndToEnd(t *testing.T) {
	e, err := fakeengine.New(fakeengine.Options{Model: "m1", Preset: "instant", ReportCached: true})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	url, err := e.Start("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	cfg := write(t, "limits: {drain_delay: 1ms}\npools:\n  - engines: [{name: e1, url: '"+url+"'}]\n")
	s := serveT(t, "--config", cfg)
	deadline := time.Now().Add(10 * time.Second)
	for ready := false; !ready; {
		if time.Now().After(deadline) {
			t.Fatal("not ready in 10 s")
		}
		if resp, err := http.Get(s.admin + "/readyz"); err == nil {
			ready = resp.StatusCode == 200
			resp.Body.Close()
		}
	}
	status, body, _ := post(t, s.data+"/v1/chat/completions", `{"model":"m1","max_tokens":4,"messages":[{"role":"user","content":"hi"}]}`)
	if status != 200 || !strings.Contains(body, "chat.completion") {
		t.Errorf("%d %s", status, body)
	}
	if code, out, errs := invoke(t, "status", "--router", s.admin); code != 0 || !strings.Contains(out, "e1") {
		t.Errorf("status: %d %s %s", code, out, errs)
	}
	for page, want := range map[string]string{
		s.admin + "/metrics":  `prefixring_requests_total{protocol="chat"`,
		s.data + "/v1/models": `"m1"`,
	} {
		resp, err := http.Get(page)
		if err != nil {
			t.Fatal(err)
		}
		b, _ := io.ReadAll(resp.Body)
		resp.Body.Close()
		if !strings.Contains(string(b), want) {
			t.Errorf("%s lacks %s:\n%.2000s", page, want, b)
		}
	}
}
