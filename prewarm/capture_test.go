package prewarm

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/prefixring/prefixring/internal/dialect"
)

// real is a customer's request with everything that a warm one must and must not keep.
func real(system, extra, turn string) string {
	return `{"model":"shop","messages":[{"role":"system","content":` + system + `},{"role":"user","content":"` + turn + `"}],` + extra +
		`"stream":true,"stream_options":{"include_usage":true},"n":2,"logprobs":true,"user":"customer-77","metadata":{"who":"customer-77"},"max_tokens":900,"temperature":0.7,"x_future_field":{"a":[1,null]}}`
}

// Field case B58: the warm request must fill the cache entry that the real one reads.
func TestB58WarmRequestMeetsTheRealOne(t *testing.T) {
	text := policy("rule", 700)
	system, err := json.Marshal(text)
	if err != nil {
		t.Fatal(err)
	}
	parts := `[{"type":"text","text":` + string(system) + `}]`
	const tools = `"tools":[{"type":"function","function":{"name":"refund","parameters":{"zeta":1,"alpha":2}}} , {"type":"function"}],`
	cases := []struct{ name, system, extra string }{
		{"plain", string(system), ""},
		{"tools", string(system), tools},
		{"thinking on", string(system), `"chat_template_kwargs":{"enable_thinking":true},`},
		{"thinking off", string(system), `"chat_template_kwargs":{"enable_thinking":false},`},
		{"tools and thinking", string(system), tools + `"chat_template_kwargs": {"enable_thinking" : true},`},
		{"adapter", string(system), `"lora_path":"adapter-a",`},
		{"salt", string(system), `"cache_salt":"tenant salt",`},
		{"system as parts", parts, tools},
	}
	e := &toy{block: 16}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			got, err := Capture([]byte(real(c.system, c.extra, "my order 123 is late")), CaptureOptions{Name: "shop"})
			if err != nil {
				t.Fatal(err)
			}
			a := renderBody(t, e, []byte(real(c.system, c.extra, "my order 123 is late")))
			b := renderBody(t, e, []byte(real(c.system, c.extra, "other question")))
			static := common(a, b)
			warm := renderBody(t, e, got.Body)
			if static < 700 || common(warm, a) < static-16 {
				t.Errorf("the warm request shares %d of %d static tokens", common(warm, a), static)
			}
			checkKept(t, got.Body, real(c.system, c.extra, "x"))
		})
	}
}

func renderBody(t *testing.T, e *toy, body []byte) []int32 {
	t.Helper()
	var m map[string]json.RawMessage
	if err := json.Unmarshal(body, &m); err != nil {
		t.Fatal(err)
	}
	return e.render("chat", m)
}

// checkKept compares the values byte for byte.
func checkKept(t *testing.T, warm []byte, original string) {
	t.Helper()
	w, err := members(warm)
	if err != nil {
		t.Fatal(err)
	}
	o, err := members([]byte(original))
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	for _, f := range w {
		got[f.name] = string(f.raw)
	}
	for _, f := range o {
		switch f.name {
		case "tools", "chat_template_kwargs", "lora_path", "cache_salt", "x_future_field", "model":
			if got[f.name] != string(f.raw) {
				t.Errorf("%s is %s, was %s", f.name, got[f.name], f.raw)
			}
		}
	}
	for name, want := range map[string]string{"max_tokens": "1", "stream": "false", "temperature": "0"} {
		if got[name] != want {
			t.Errorf("%s is %s", name, got[name])
		}
	}
	for _, gone := range []string{"n", "logprobs", "user", "metadata", "stream_options"} {
		if _, ok := got[gone]; ok {
			t.Errorf("%s is still there", gone)
		}
	}
}

func TestCaptureKeepsNothingOfTheCustomer(t *testing.T) {
	got, err := Capture([]byte(real(`"the rules"`, "", "secret order 123")), CaptureOptions{Name: "shop floor/1"})
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range []string{"secret", "customer-77"} {
		if strings.Contains(string(got.Body)+got.YAML, s) {
			t.Errorf("%q is kept", s)
		}
	}
	if strings.Contains(got.YAML, "rules") {
		t.Error("the manifest entry holds prompt text")
	}
	if got.BodyFile != "shop-floor-1.json" {
		t.Errorf("file %q", got.BodyFile)
	}
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, got.BodyFile), got.Body, 0o600); err != nil {
		t.Fatal(err)
	}
	m, err := ParseManifest([]byte("prefixes:\n"+got.YAML), dir)
	if err != nil {
		t.Fatal(err)
	}
	again, err := Capture(got.Body, CaptureOptions{Name: "shop floor/1", Protocol: dialect.Chat})
	if err != nil || string(again.Body) != string(got.Body) {
		t.Errorf("capturing a capture changes it: %v", err)
	}
	if m.Prefixes[0].Wire() != dialect.Chat {
		t.Errorf("protocol %v", m.Prefixes[0].Wire())
	}
}

func TestCaptureOfEachProtocol(t *testing.T) {
	cases := []struct {
		name, body string
		static     int
		protocol   dialect.Protocol
		want       string // the field with the turn
	}{
		{"completions", `{"model":"m","prompt":"rules and more then the customer","max_tokens":5}`, 14, dialect.Completions, `"prompt":"rules and morehi"`},
		{"responses", `{"model":"m","instructions":"rules","input":"customer"}`, 0, dialect.Responses, `"instructions":"rules","input":[{"role":"user","content":"hi"}]`},
		{"responses with a developer item", `{"model":"m","input":[{"role":"developer","content":"rules"},{"role":"user","content":"customer"}]}`, 0, dialect.Responses, `"input":[{"role":"developer","content":"rules"},{"role":"user","content":"hi"}]`},
		{"messages", `{"model":"m","system":[{"type":"text","text":"rules","cache_control":{"type":"ephemeral"}}],"messages":[{"role":"user","content":"customer"}],"max_tokens":9}`, 0, dialect.Messages, `"system":[{"type":"text","text":"rules","cache_control":{"type":"ephemeral"}}],"messages":[{"role":"user","content":"hi"}]`},
		{"messages with a billing block", `{"model":"m","system":[{"type":"text","text":"x-anthropic-billing-header: cc_version=1; cch=ab12;"},{"type":"text","text":"rules"}],"messages":[{"role":"user","content":"customer"}],"max_tokens":9}`, 0, dialect.Messages, `"system":[{"type":"text","text":"rules"}]`},
		{"messages with a tail", `{"model":"m","system":"rules at 12:07","messages":[{"role":"user","content":"customer"}],"max_tokens":9}`, 9, dialect.Messages, `"messages":[{"role":"user","content":"hi"}],"system":"rules at hi"`},
		{"chat with a tail", `{"model":"m","messages":[{"role":"developer","content":"rules at 12:07"},{"role":"user","content":"customer"}]}`, 9, dialect.Chat, `"messages":[{"role":"developer","content":"rules at hi"},{"role":"user","content":"hi"}]`},
		{"chat with two system messages", `{"model":"m","messages":[{"role":"system","content":"rules","name":"a"},{"role":"system","content":"more"},{"role":"user","content":"customer"},{"role":"system","content":"late"}]}`, 0, dialect.Chat, `"messages":[{"role":"system","content":"rules","name":"a"},{"role":"system","content":"more"},{"role":"user","content":"hi"}]`},
		{"tools only", `{"model":"m","tools":[{"input_schema":{}}],"messages":[{"role":"user","content":"customer"}]}`, 0, dialect.Messages, `"tools":[{"input_schema":{}}],"messages":[{"role":"user","content":"hi"}]`},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			got, err := Capture([]byte(c.body), CaptureOptions{Name: "x", StaticBytes: c.static})
			if err != nil {
				t.Fatal(err)
			}
			if !strings.Contains(got.YAML, "protocol: "+c.protocol.String()) {
				t.Errorf("entry %s", got.YAML)
			}
			if !strings.Contains(string(got.Body), c.want) || strings.Contains(string(got.Body), "customer") || !json.Valid(got.Body) {
				t.Errorf("body %s", got.Body)
			}
		})
	}
}

func TestCaptureRefuses(t *testing.T) {
	for body, want := range map[string]string{
		`{"model":"m","messages":[{"role":"user","content":"x"}]}`:                     "neither a system text nor tools",
		`{"model":"m","input":"x","instructions":"r","previous_response_id":"resp_1"}`: "continues a stored response",
		`{"model":"m","prompt":"x"}`:                                                   "has no system part",
		`{"model":"m","prompt":[1,2,3]}`:                                               "is not one text",
		`{"model":"m","prompt":"x","model":"n"}`:                                       "a field twice",
		`{"model":"m"}`:                                                                "cannot be told",
		`["model"]`:                                                                    "no JSON object",
		`{"model":"m","messages":[]} trailing`:                                         "no JSON object",
		`{"messages":[{"role":"system","content":"r"}]}`:                               "names no model",
	} {
		_, err := Capture([]byte(body), CaptureOptions{Name: "x"})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", body, err)
		}
		if remedyOf(err) == "" {
			t.Errorf("%s: no remedy", body)
		}
	}
}

func FuzzCapture(f *testing.F) {
	f.Add([]byte(real(`"rules"`, "", "x")), 0)
	f.Add([]byte(`{"model":"m","prompt":"h\u00e9llo","max_tokens":5}`), 3)
	f.Add([]byte(`{"model":"m","input":[{"role":"developer","content":"r"}]}`), 0)
	f.Fuzz(func(t *testing.T, body []byte, static int) {
		got, err := Capture(body, CaptureOptions{Name: "x", StaticBytes: static})
		if err != nil {
			return
		}
		if !json.Valid(got.Body) {
			t.Fatalf("made invalid JSON of %q: %q", body, got.Body)
		}
		p := guessOf(t, got.Body)
		again, err := Capture(got.Body, CaptureOptions{Name: "x", Protocol: p, StaticBytes: static})
		if err != nil || string(again.Body) != string(got.Body) {
			t.Fatalf("not stable: %v\n%q\n%q", err, got.Body, again.Body)
		}
	})
}

func guessOf(t *testing.T, body []byte) dialect.Protocol {
	t.Helper()
	all, err := members(body)
	if err != nil {
		t.Fatal(err)
	}
	return guess(all)
}
