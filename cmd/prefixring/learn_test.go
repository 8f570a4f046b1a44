package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/prefixring/prefixring/internal/fakeengine"
)

// serveFleet runs serve with three simulated engines and waits until all take work.
func serveFleet(t *testing.T, placement string) running {
	t.Helper()
	conf := "limits: {drain_delay: 1ms}\ntelemetry: {explain: true}\npools:\n  - placement: {" + placement + "}\n    engines:\n"
	for i := range 3 {
		_, url := fakeengine.StartT(t, fakeengine.Options{Model: "m1", Preset: "8b-tp1", Speed: 500, ReportCached: true})
		conf += fmt.Sprintf("      - {name: e%d, url: '%s'}\n", i, url)
	}
	s := serveT(t, "--config", write(t, conf))
	deadline := time.Now().Add(10 * time.Second)
	for {
		var v fleetView
		getJSON(t, s.admin+"/api/v1/fleet", &v)
		open := 0
		for _, n := range v.Nodes {
			if n.Takes == "open" && n.Pool == "m1" {
				open++
			}
		}
		if open == 3 {
			return s
		}
		if time.Now().After(deadline) {
			t.Fatalf("not ready in 10 s: %+v", v.Nodes)
		}
	}
}

func getJSON(t *testing.T, url string, v any) {
	t.Helper()
	if err := json.Unmarshal([]byte(pageText(t, url)), v); err != nil {
		t.Fatal(err)
	}
}

func pageText(t *testing.T, url string) string {
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

// clockBody is a chat with a secret fat system message that ends with a date line.
func clockBody(minute int) string {
	return `{"model":"m1","max_tokens":2,"messages":[{"role":"system","content":"` + strings.Repeat("secret rule; ", 2000) +
		fmt.Sprintf(`Now: 2031-01-01 %02d:%02d`, minute/60, minute%60) + `"},{"role":"user","content":"hi"}]}`
}

// B26 through serve, without a manifest: a date line at the end of the system message makes
// one key and one warm engine, and explain, status, fleet and metrics say so without text.
func TestB26ServeLearnsTheKeyOfAClockedPrefix(t *testing.T) {
	s := serveFleet(t, "owners: 1")
	engines := map[string]bool{}
	n, deadline := 0, time.Now().Add(10*time.Second)
	// Churn looks at ten new prefixes a second: some of these are let pass.
	for ; n < 10 || !strings.Contains(pageText(t, s.admin+"/metrics"), "prefix_churn_total"); n++ {
		minute := n
		if time.Now().After(deadline) {
			t.Fatal("no hint in 10 s")
		}
		status, body, h := post(t, s.data+"/v1/chat/completions", clockBody(minute))
		if status != 200 {
			t.Fatalf("%d %s", status, body)
		}
		engines[h.Get("X-Prefixring-Engine")] = true
	}
	if len(engines) != 1 {
		t.Errorf("%d minutes were on %v", n, engines)
	}
	var v fleetView
	text := pageText(t, s.admin+"/api/v1/fleet")
	if err := json.Unmarshal([]byte(text), &v); err != nil {
		t.Fatal(err)
	}
	if len(v.Pools) != 1 || len(v.Pools[0].Learned) != 1 || v.Pools[0].Learned[0].Depth != "head" || v.Pools[0].Learned[0].Prefixes != n {
		t.Fatalf("fleet: %s", text)
	}
	if c := v.Pools[0].Churn; len(c) == 0 || c[0].Change != "text" || !strings.Contains(c[0].Hint, "inside system message 0 (not shown)") || c[0].From < 26000 {
		t.Errorf("churn: %s", text)
	}
	metrics := pageText(t, s.admin+"/metrics")
	for _, want := range []string{
		fmt.Sprintf(`prefixring_learned_requests_total{pool="m1",depth="head"} %d`, n-1), fmt.Sprintf(`prefixring_learned_prefixes{pool="m1"} %d`, n),
		`prefixring_learned_keys{pool="m1"} 1`, `prefixring_prefix_churn_total{pool="m1",change="text"}`,
	} {
		if !strings.Contains(metrics, want) {
			t.Errorf("no %s in\n%s", want, grep(metrics, "learned|churn"))
		}
	}
	file := filepath.Join(t.TempDir(), "body.json")
	if err := os.WriteFile(file, []byte(clockBody(59)), 0o600); err != nil {
		t.Fatal(err)
	}
	_, human, _ := invoke(t, "explain", "--router", s.admin, "--body", file)
	for _, want := range []string{"depth        head", "churn        differs from the prefix of", "fields       model ["} {
		if !strings.Contains(human, want) {
			t.Errorf("explain lacks %q:\n%s", want, human)
		}
	}
	_, asJSON, _ := invoke(t, "explain", "--json", "--router", s.admin, "--body", file)
	var x explanation
	if err := json.Unmarshal([]byte(asJSON), &x); err != nil || x.Learned == nil || x.Learned.Depth != "head" || x.Churn == nil || x.Churn.Change != "text" || !engines[x.Ring.Node] {
		t.Errorf("explain --json: %s %v", asJSON, err)
	}
	_, status, _ := invoke(t, "status", "--router", s.admin)
	if !strings.Contains(status, fmt.Sprintf("%d prefixes share the key", n)) {
		t.Errorf("status:\n%s", status)
	}
	for name, out := range map[string]string{"fleet": text, "metrics": metrics, "explain": human, "explain --json": asJSON, "status": status} {
		if strings.Contains(out, "secret") || strings.Contains(out, "2031-01-01") {
			t.Errorf("%s shows text:\n%s", name, out)
		}
	}
}

// grep keeps the lines that hold one of the words.
func grep(text, words string) string {
	var out []string
	for _, line := range strings.Split(text, "\n") {
		for _, w := range strings.Split(words, "|") {
			if strings.Contains(line, w) {
				out = append(out, line)
				break
			}
		}
	}
	return strings.Join(out, "\n")
}

// B17 through serve: two orders of the same tools are told as such.
func TestB17ServeTellsOfToolOrder(t *testing.T) {
	s := serveFleet(t, "learn_depth: false")
	const a, b = `{"type":"function","function":{"name":"secret_a"}}`, `{"type":"function","function":{"name":"secret_b"}}`
	const told = `prefixring_prefix_churn_total{pool="m1",change="tool-order"} 1`
	deadline, after := time.Now().Add(10*time.Second), 0
	for i := 0; after < 6; i++ {
		tools := a + "," + b
		if i%2 == 1 {
			tools = b + "," + a
		}
		if time.Now().After(deadline) {
			t.Fatal("not told in 10 s")
		}
		if strings.Contains(pageText(t, s.admin+"/metrics"), told) {
			after++
		}
		if status, body, h := post(t, s.data+"/v1/chat/completions", `{"model":"m1","max_tokens":2,"tools":[`+tools+`],"messages":[{"role":"user","content":"hi"}]}`); status != 200 || h.Get("X-Prefixring-Depth") != "" {
			t.Fatalf("%d %s %v", status, body, h)
		}
	}
	if m := pageText(t, s.admin+"/metrics"); !strings.Contains(m, told) {
		t.Errorf("metrics:\n%s", grep(m, "churn"))
	}
	text := pageText(t, s.admin+"/api/v1/fleet")
	if !strings.Contains(text, "same tools as the prefix of") || strings.Contains(text, "secret") {
		t.Errorf("fleet: %s", text)
	}
}

// Pools with different leads share one scanner, and each keys raw completions by its own.
func TestPoolsWithDifferentLeadsShareAScanner(t *testing.T) {
	conf := "pools:\n"
	for i, lead := range []int{100, 5000} {
		conf += fmt.Sprintf("  - {name: p%d, models: [m%d], placement: {completion_lead: %d}, engines: [{name: e%d, url: 'http://127.0.0.1:1'}]}\n", i, i, lead, i)
	}
	file := write(t, conf)
	key := func(model string, length int) string {
		body := filepath.Join(t.TempDir(), "body.json")
		if err := os.WriteFile(body, []byte(`{"model":"`+model+`","prompt":"`+strings.Repeat("a", length)+strings.Repeat("b", 9000)+`"}`), 0o600); err != nil {
			t.Fatal(err)
		}
		code, out, errs := invoke(t, "explain", "--json", "--path", "/v1/completions", "--config", file, "--body", body)
		var x explanation
		if err := json.Unmarshal([]byte(out), &x); code != 0 || err != nil || x.Key != "lead" {
			t.Fatalf("%d %s %s %v", code, out, errs, err)
		}
		return x.Fingerprint
	}
	if key("m0", 101) != key("m0", 4000) || key("m0", 99) == key("m0", 101) {
		t.Error("p0 does not key by its first 100 bytes")
	}
	if key("m1", 5001) != key("m1", 6000) || key("m1", 4000) == key("m1", 5001) {
		t.Error("p1 does not key by its first 5,000 bytes")
	}
}
