package main

import (
	"encoding/json"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/prefixring/prefixring/internal/fakeengine"
	"github.com/prefixring/prefixring/prewarm"
)

// saleText is a system text of some 900 tokens.
func saleText(word string) string { return strings.Repeat(word+" must not be told to anybody. ", 120) }

func saleManifest(t *testing.T) string {
	t.Helper()
	return write(t, "prefixes:\n  - {name: sale, model: m1, where: broadcast, text: '"+saleText("the price")+"'}\n"+
		"  - {name: help, model: m1, text: '"+saleText("the rule")+"'}\n")
}

// Prewarm proves what it warms, by the engines' own counts; a restart of an engine is
// found by verify, which says what is cold.
func TestPrewarmRunThenVerify(t *testing.T) {
	e1, url1 := instant(t)
	e2, url2 := instant(t)
	flags := []string{"--manifest", saleManifest(t), "--engine", url1 + ",name=e1", "--engine", url2 + ",name=e2"}
	prewarmed := func(command string, more ...string) (int, string, string) {
		t.Helper()
		return invoke(t, append(append([]string{"prewarm", command}, flags...), more...)...)
	}
	if code, out, errs := prewarmed("plan"); code != 0 || !strings.Contains(out, "3 prefills") || e1.Counters().ColdPrefills+e2.Counters().ColdPrefills != 0 {
		t.Errorf("plan: exit %d: %s%s", code, out, errs)
	}
	state := filepath.Join(t.TempDir(), "state")
	code, out, errs := prewarmed("run", "--json", "--state", state)
	if code != 0 {
		t.Fatalf("run: exit %d: %s%s", code, out, errs)
	}
	lines := strings.Split(strings.TrimSpace(out), "\n")
	var report struct {
		Event   string
		Warm    int
		NotWarm int `json:"not_warm"`
		Items   []prewarm.Result
	}
	if err := json.Unmarshal([]byte(lines[len(lines)-1]), &report); err != nil || report.Event != "report" || report.Warm != 3 || report.NotWarm != 0 || len(report.Items) != 3 {
		t.Fatalf("report %+v, %v: %s", report, err, out)
	}
	for _, line := range lines {
		if !json.Valid([]byte(line)) || strings.Contains(line, "must not be told") {
			t.Errorf("event %s", line)
		}
	}
	if b, err := os.ReadFile(state); err != nil || strings.Contains(string(b), "must not be told") {
		t.Errorf("state %s, %v", b, err)
	}
	if code, out, errs := prewarmed("verify"); code != 0 || !strings.Contains(out, "3 of 3 places are proven warm") {
		t.Errorf("verify: exit %d: %s%s", code, out, errs)
	}
	if err := e1.Restart(); err != nil {
		t.Fatal(err)
	}
	code, out, errs = prewarmed("verify")
	if code != exitNo || !strings.Contains(out, "NOT WARM  sale on e1") || strings.Contains(out, "on e2") || !strings.Contains(errs, "not warm") {
		t.Errorf("verify after a restart: exit %d: %s%s", code, out, errs)
	}
}

// A plan that no engine can hold is refused with the figures, and nothing is sent.
func TestPrewarmPlanRefusesWhatDoesNotFit(t *testing.T) {
	e, url := fakeengine.StartT(t, fakeengine.Options{Model: "m1", Preset: "instant", ReportCached: true, KVTokens: 512})
	for _, command := range []string{"plan", "run"} {
		code, _, errs := invoke(t, "prewarm", command, "--manifest", saleManifest(t), "--engine", url)
		if code != exitNo || !strings.Contains(errs, "tokens") || e.Counters().ColdPrefills != 0 {
			t.Errorf("%s: exit %d, %d cold prefills: %s", command, code, e.Counters().ColdPrefills, errs)
		}
	}
}

func TestPrewarmBadInput(t *testing.T) {
	_, url := instant(t)
	good := saleManifest(t)
	bad := write(t, "prefixes:\n  - name: a\n    modle: m\n")
	other := write(t, "prefixes:\n  - {name: a, model: m9, text: '"+saleText("x")+"'}\n")
	for name, tc := range map[string]struct {
		args []string
		code int
		want string
	}{
		"no manifest":    {[]string{"plan", "--engine", url}, exitUsage, "--manifest"},
		"no engines":     {[]string{"run", "--manifest", good}, exitUsage, "--engine"},
		"no such file":   {[]string{"run", "--manifest", "nowhere.yaml", "--engine", url}, exitUsage, "nowhere.yaml"},
		"unknown field":  {[]string{"verify", "--manifest", bad, "--engine", url}, exitUsage, "modle"},
		"unknown flag":   {[]string{"run", "--manifets", good}, exitUsage, "manifets"},
		"argument":       {[]string{"run", good}, exitUsage, "argument"},
		"unknown entry":  {[]string{"plan", "--manifest", good, "--engine", url, "--only", "spring"}, exitNo, "spring"},
		"unknown model":  {[]string{"plan", "--manifest", other, "--engine", url}, exitNo, "m9"},
		"unreachable":    {[]string{"run", "--manifest", good, "--engine", "http://127.0.0.1:1", "--timeout", "300ms"}, exitUnreachable, "no engine answers"},
		"no router":      {[]string{"watch", "--router", "http://127.0.0.1:1"}, exitUnreachable, "cannot reach"},
		"capture, name":  {[]string{"capture", "--body", good}, exitUsage, "name"},
		"capture, body":  {[]string{"capture", "--body", "nowhere.json", "--name", "a"}, exitUnreachable, "nowhere.json"},
		"capture, YAML":  {[]string{"capture", "--body", good, "--name", "a"}, exitUsage, "cannot capture"},
		"capture, proto": {[]string{"capture", "--body", good, "--name", "a", "--protocol", "smtp"}, exitUsage, "smtp"},
	} {
		t.Run(name, func(t *testing.T) {
			code, _, errs := invoke(t, append([]string{"prewarm"}, tc.args...)...)
			if code != tc.code || !strings.Contains(errs, tc.want) {
				t.Errorf("exit %d, %q; want %d with %q", code, errs, tc.code, tc.want)
			}
		})
	}
}

// A captured entry holds nothing of the customer, works as a manifest, and its body is
// never written over.
func TestPrewarmCapture(t *testing.T) {
	_, url := instant(t)
	dir := t.TempDir()
	body := filepath.Join(dir, "request.json")
	if err := os.WriteFile(body, []byte(`{"model":"m1","user":"customer-7","messages":[{"role":"system","content":"`+saleText("the offer")+`"},{"role":"user","content":"my card is 4711"}]}`), 0o600); err != nil {
		t.Fatal(err)
	}
	code, out, errs := invoke(t, "prewarm", "capture", "--body", body, "--name", "winter", "--dir", dir)
	if code != 0 {
		t.Fatalf("exit %d: %s", code, errs)
	}
	kept, err := os.ReadFile(filepath.Join(dir, "winter.json"))
	if err != nil || strings.Contains(string(kept)+out+errs, "4711") || strings.Contains(string(kept)+out, "customer-7") {
		t.Errorf("%v: %s%s", err, kept, out)
	}
	manifest := filepath.Join(dir, "sale.yaml")
	if err := os.WriteFile(manifest, []byte("prefixes:\n"+out), 0o600); err != nil {
		t.Fatal(err)
	}
	if code, out, errs := invoke(t, "prewarm", "run", "--manifest", manifest, "--engine", url); code != 0 || !strings.Contains(out, "1 of 1 places") {
		t.Errorf("run: exit %d: %s%s", code, out, errs)
	}
	if code, _, errs := invoke(t, "prewarm", "capture", "--body", body, "--name", "winter", "--dir", dir); code != exitNo || !strings.Contains(errs, "winter.json") {
		t.Errorf("written over: exit %d: %s", code, errs)
	}
}

// serve with a manifest warms it by itself: traffic behind it finds the prefix in cache,
// its record has the prefix's name, and watch shows it. A restart is made good.
func TestServeKeepsTheManifestWarm(t *testing.T) {
	e, url := instant(t)
	cfg := write(t, "limits: {drain_delay: 1ms}\nprewarm: {manifest: '"+saleManifest(t)+"'}\npools:\n  - engines: [{name: e1, url: '"+url+"'}]\n")
	s := serveT(t, "--config", cfg)
	until := func(what string, ok func() bool) {
		t.Helper()
		tick := time.NewTicker(20 * time.Millisecond)
		defer tick.Stop()
		for deadline := time.Now().Add(20 * time.Second); !ok(); <-tick.C {
			if time.Now().After(deadline) {
				t.Fatal(what, "not in 20 s")
			}
		}
	}
	warm := func() bool {
		code, out, _ := invoke(t, "prewarm", "watch", "--once", "--json", "--router", s.admin)
		return code == 0 && strings.Count(out, `"state":"warm"`) == 2
	}
	until("warm", warm)
	chat := `{"model":"m1","max_tokens":1,"messages":[{"role":"system","content":"` + saleText("the price") + `"},{"role":"user","content":"hi"}]}`
	status, body, _ := post(t, s.data+"/v1/chat/completions", chat)
	var answer struct {
		Usage struct {
			Details struct {
				Cached int `json:"cached_tokens"`
			} `json:"prompt_tokens_details"`
		}
	}
	if err := json.Unmarshal([]byte(body), &answer); status != http.StatusOK || err != nil || answer.Usage.Details.Cached < 500 {
		t.Errorf("%d, %v: %s", status, err, body)
	}
	if code, out, errs := invoke(t, "prewarm", "watch", "--once", "--router", s.admin); code != 0 || !strings.Contains(out, "sale") || !strings.Contains(out, "warm") {
		t.Errorf("watch: exit %d: %s%s", code, out, errs)
	}
	if err := e.Restart(); err != nil {
		t.Fatal(err)
	}
	cold := e.Counters().ColdPrefills
	until("warm again after a restart", func() bool { return e.Counters().ColdPrefills >= cold+2 && warm() })
}
