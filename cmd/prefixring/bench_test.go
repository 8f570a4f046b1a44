package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/prefixring/prefixring/internal/fakeengine"
)

// instant starts a simulated engine that takes no time.
func instant(t *testing.T) (*fakeengine.Engine, string) {
	t.Helper()
	return fakeengine.StartT(t, fakeengine.Options{Model: "m1", Preset: "instant", ReportCached: true, DevMode: true})
}

// bench run --json prints every key that scripts rely on, with the counts of the engine,
// and the page is written beside it.
func TestBenchRunPrintsResult(t *testing.T) {
	e, url := instant(t)
	page := filepath.Join(t.TempDir(), "run.html")
	code, out, errs := invoke(t, "bench", "run", "--url", url, "--model", "m1", "--rate", "40", "--duration", "500ms", "--arrivals", "constant",
		"--prefixes", "2", "--prefix-tokens", "400", "--user-tokens", "20", "--output-tokens", "4", "--engines", url, "--seed", "3", "--report", page, "--json")
	if code != 0 {
		t.Fatalf("exit %d: %s", code, errs)
	}
	var got map[string]json.RawMessage
	if err := json.Unmarshal([]byte(out), &got); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	for _, key := range []string{"planned", "sent", "succeeded", "errors", "achieved_rate", "max_send_lag_ms", "valid", "ttft_ms",
		"first_byte_ms", "tpot_ms", "e2e_ms", "output_tokens", "cached_tokens", "hit_rate"} {
		if got[key] == nil {
			t.Errorf("no %q in %s", key, out)
		}
	}
	var q map[string]float64
	if err := json.Unmarshal(got["ttft_ms"], &q); err != nil || q["p50"] <= 0 || q["p90"] < q["p50"] || q["p99"] < q["p90"] || q["max"] < 0.99*q["p99"] {
		t.Errorf("ttft_ms %s: %v", got["ttft_ms"], err)
	}
	if string(got["planned"]) != "20" || string(got["succeeded"]) != "20" || e.Counters().Requests != 20 {
		t.Errorf("planned %s, succeeded %s, the engine counted %d; want 20", got["planned"], got["succeeded"], e.Counters().Requests)
	}
	if html, err := os.ReadFile(page); err != nil || !strings.Contains(string(html), "<html") {
		t.Errorf("report: %v", err)
	}
	if !strings.Contains(errs, "req/s") {
		t.Errorf("no progress on standard error: %q", errs)
	}
	// What run printed, report reads.
	result, again := filepath.Join(t.TempDir(), "a.json"), filepath.Join(t.TempDir(), "a.html")
	if err := os.WriteFile(result, []byte(out), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{{"--out", again, result}, {"--diff", "--out", again, result, result}} {
		if code, _, errs := invoke(t, append([]string{"bench", "report"}, args...)...); code != 0 || !strings.Contains(errs, again) {
			t.Errorf("report %v: exit %d, %s", args, code, errs)
		}
	}
}

// Without --json a table is printed, also of a closed loop, in each protocol.
func TestBenchRunTable(t *testing.T) {
	_, url := instant(t)
	for _, protocol := range []string{"chat", "completions", "responses", "messages"} {
		code, out, errs := invoke(t, "bench", "run", "--url", url, "--model", "m1", "--protocol", protocol, "--closed", "2", "--requests", "6",
			"--prefix-tokens", "200", "--output-tokens", "3")
		for _, want := range []string{"6 succeeded", "closed", "time to first token", "tokens"} {
			if code != 0 || !strings.Contains(out, want) {
				t.Errorf("%s: exit %d, no %q in %s%s", protocol, code, want, out, errs)
			}
		}
	}
}

func TestBenchReplayPlaysATrace(t *testing.T) {
	e, url := instant(t)
	trace := filepath.Join(t.TempDir(), "trace.jsonl")
	lines := `{"timestamp":0,"input_length":1100,"output_length":3,"hash_ids":[1,2,3]}
{"timestamp":100,"input_length":1500,"output_length":3,"hash_ids":[1,2,4]}
`
	if err := os.WriteFile(trace, []byte(lines), 0o600); err != nil {
		t.Fatal(err)
	}
	code, out, errs := invoke(t, "bench", "replay", "--url", url, "--model", "m1", "--json", trace)
	if code != 0 || !strings.Contains(out, `"succeeded": 2`) || e.Counters().CachedTokens == 0 {
		t.Errorf("exit %d, %d cached: %s%s", code, e.Counters().CachedTokens, out, errs)
	}
	if err := os.WriteFile(trace, []byte(lines+"{\"timestamp\":"), 0o600); err != nil {
		t.Fatal(err)
	}
	if code, _, errs := invoke(t, "bench", "replay", "--url", url, "--model", "m1", trace); code != exitUsage || !strings.Contains(errs, "line 3") {
		t.Errorf("broken line: exit %d, %s", code, errs)
	}
}

// The simulation plays the same trace; equal seeds give equal figures.
func TestBenchSimPlaysATrace(t *testing.T) {
	trace := filepath.Join(t.TempDir(), "trace.jsonl")
	if err := os.WriteFile(trace, []byte(`{"timestamp":0,"input_length":1100,"output_length":3,"hash_ids":[1,2,3]}
{"timestamp":60000,"input_length":1500,"output_length":3,"hash_ids":[1,2,4]}
`), 0o600); err != nil {
		t.Fatal(err)
	}
	code, out, errs := invoke(t, "bench", "sim", "--engines", "2", "--policies", "round-robin,ring", "--json", trace)
	var got struct {
		Policies []struct {
			Policy  string
			Results []struct {
				Requests int64   `json:"requests"`
				HitRate  float64 `json:"hit_rate"`
			}
		}
	}
	if err := json.Unmarshal([]byte(out), &got); code != 0 || err != nil || len(got.Policies) != 2 {
		t.Fatalf("exit %d, %v: %s%s", code, err, out, errs)
	}
	for _, p := range got.Policies {
		if len(p.Results) != 1 || p.Results[0].Requests != 2 || (p.Results[0].HitRate > 0) != (p.Policy == "ring") {
			t.Errorf("%+v; want a hit with ring alone", p)
		}
	}
}

func TestBenchBadInput(t *testing.T) {
	_, url := instant(t)
	run := func(args ...string) []string {
		return append([]string{"bench", "run", "--url", url, "--model", "m1", "--duration", "100ms"}, args...)
	}
	for name, tc := range map[string]struct {
		args []string
		code int
		want string
	}{
		"no url":         {[]string{"bench", "run", "--model", "m1"}, exitUsage, "url"},
		"bad url":        {[]string{"bench", "run", "--url", "ftp://a", "--model", "m1"}, exitUsage, "ftp://a"},
		"no model":       {[]string{"bench", "run", "--url", url}, exitUsage, "no model"},
		"arrivals":       {run("--arrivals", "never"), exitUsage, "never"},
		"rate":           {run("--rate", "0"), exitUsage, "rate"},
		"rate, text":     {run("--rate", "many"), exitUsage, "many"},
		"workload":       {run("--workload", "thin"), exitUsage, "thin"},
		"negative":       {run("--prefixes", "-1"), exitUsage, "negative"},
		"protocol":       {run("--protocol", "smtp"), exitUsage, "smtp"},
		"header":         {run("--header", "x"), exitUsage, "NAME:VALUE"},
		"argument":       {run("now"), exitUsage, "now"},
		"no key file":    {run("--api-key-file", "nowhere"), exitUsage, "nowhere"},
		"no requests":    {run("--requests-file", "nowhere"), exitUsage, "nowhere"},
		"unreachable":    {[]string{"bench", "run", "--url", "http://127.0.0.1:1", "--model", "m1"}, exitUnreachable, "127.0.0.1:1"},
		"wrong model":    {[]string{"bench", "run", "--url", url, "--model", "m9"}, exitUnreachable, "m9"},
		"no trace":       {[]string{"bench", "replay", "--url", url, "--model", "m1"}, exitUsage, "trace"},
		"trace format":   {[]string{"bench", "replay", "--url", url, "--model", "m1", "--format", "x", "bench_test.go"}, exitUsage, "--format"},
		"no scenario":    {[]string{"bench", "sim"}, exitUsage, "--scenario"},
		"which scenario": {[]string{"bench", "sim", "--scenario", "x"}, exitUsage, `"x"`},
		"policy":         {[]string{"bench", "sim", "--scenario", "s4-chat", "--policies", "x"}, exitUsage, `"x"`},
		"no result":      {[]string{"bench", "report"}, exitUsage, "results"},
		"not a result":   {[]string{"bench", "report", "laws_test.go"}, exitUsage, "laws_test.go"},
	} {
		t.Run(name, func(t *testing.T) {
			code, _, errs := invoke(t, tc.args...)
			if code != tc.code || !strings.Contains(errs, tc.want) {
				t.Errorf("exit %d, %q; want %d with %q", code, errs, tc.code, tc.want)
			}
		})
	}
}
