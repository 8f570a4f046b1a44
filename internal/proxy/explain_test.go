package proxy

import (
	"strings"
	"testing"
)

// Explain says the same as a request that is sent, and sends none.
func TestExplainAgreesWithRequests(t *testing.T) {
	a, b, c := newEngine(t, answer), newEngine(t, answer), newEngine(t, answer)
	r := newRouter(t, setup{opts: Options{Explain: true}}, a.url(), b.url(), c.url())
	for i := range 20 {
		body := strings.Replace(chatBody, `"s"`, `"system `+itoa(i)+`"`, 1)
		e, err := r.Explain("/v1/chat/completions", "", []byte(body))
		if err != nil || e.Error != "" {
			t.Fatalf("%+v %v", e, err)
		}
		if a.calls.Load()+b.calls.Load()+c.calls.Load() != int64(i) {
			t.Fatal("explain asked an engine")
		}
		got := r.chat(t, body)
		if got.header.Get("X-Prefixring-Engine") != e.Ring.Node || got.header.Get("X-Prefixring-Fingerprint") == "" || e.Key != "prefix" {
			t.Fatalf("explained %+v, got %v", e, got.header)
		}
	}
	for body, code := range map[string]string{`{`: "bad_json", `{"model":"zz"}`: "model_not_found"} {
		if e, err := r.Explain("/v1/chat/completions", "", []byte(body)); err != nil || e.Error != code {
			t.Errorf("%s: %+v %v", body, e, err)
		}
	}
	if _, err := r.Explain("/sleep", "", nil); err == nil {
		t.Error("explained a path that is not served")
	}
}

// B29: no known route loses its key silently.
func TestB29KeyKindOfEachRoute(t *testing.T) {
	e := newEngine(t, answer)
	r := newRouter(t, setup{opts: Options{Explain: true}}, e.url())
	for _, c := range []struct{ path, body, kind string }{
		{"/v1/chat/completions", chatBody, "prefix"},
		{"/v1/chat/completions", `{"model":"m","messages":[{"role":"user","content":"no system"}]}`, "session"},
		{"/v1/completions", `{"model":"m","prompt":"` + strings.Repeat("text ", 400) + `"}`, "lead"},
		{"/v1/responses", `{"model":"m","instructions":"s","input":"u"}`, "prefix"},
		{"/v1/messages", `{"model":"m","system":"s","max_tokens":1,"messages":[{"role":"user","content":"u"}]}`, "prefix"},
	} {
		got := r.do(t, rawRequest(c.path, c.body))
		if got.status != 200 || got.header.Get("X-Prefixring-Key") != c.kind {
			t.Errorf("%s %.40s: %d, key %q, want %q", c.path, c.body, got.status, got.header.Get("X-Prefixring-Key"), c.kind)
		}
	}
	for _, rec := range r.records.wait(t, 5) {
		if rec.Kind == "none" || rec.Fingerprint == 0 {
			t.Errorf("record %+v", rec)
		}
	}
}
