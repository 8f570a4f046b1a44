package fingerprint

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"

	"github.com/prefixring/prefixring/internal/dialect"
)

var protocols = []dialect.Protocol{dialect.Opaque, dialect.Chat, dialect.Completions, dialect.Responses, dialect.Messages}

func newScanner(t testing.TB, o Options) *Scanner {
	t.Helper()
	s, err := NewScanner(o)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func scan(t testing.TB, p dialect.Protocol, body string) *Result {
	t.Helper()
	var r Result
	if err := newScanner(t, Options{}).Scan(p, []byte(body), &r); err != nil {
		t.Fatalf("scan of %s: %v", body, err)
	}
	return &r
}

// visible is a Result without its storage, for comparison.
func visible(r *Result) Result {
	v := *r
	v.p, v.Strip = nil, nil
	v.Boundaries = append([]Boundary(nil), r.Boundaries...)
	return v
}

// agree holds the scanner against the oracle.
func agree(t *testing.T, s *Scanner, r *Result, p dialect.Protocol, body []byte) {
	t.Helper()
	err := s.Scan(p, body, r)
	want, ok := reference(p, body, s.maxDepth)
	if (err == nil) != ok {
		t.Fatalf("%s %q: scan says %v, oracle says valid=%v", p, body, err, ok)
	}
	if err != nil {
		return
	}
	want.Boundaries = want.Boundaries[max(0, len(want.Boundaries)-s.maxBoundaries):]
	got := visible(r)
	if len(want.Boundaries) == 0 {
		want.Boundaries = nil
	}
	if !reflect.DeepEqual(got, want) {
		t.Fatalf("%s %q:\n got %+v\nwant %+v", p, body, got, want)
	}
	checkStrip(t, p, body, r)
}

// checkStrip cuts what is to be cut: the rest must be valid, and the same prefix.
func checkStrip(t *testing.T, p dialect.Protocol, body []byte, r *Result) {
	t.Helper()
	if len(r.Strip) == 0 {
		return
	}
	cut, at := []byte(nil), 0
	for _, s := range r.Strip {
		cut = append(cut, body[at:s.Start]...)
		at = s.End
	}
	cut = append(cut, body[at:]...)
	var again Result
	if err := newScanner(t, Options{}).Scan(p, cut, &again); err != nil {
		t.Fatalf("stripped %q to %q: %v", body, cut, err)
	}
	if again.Prefix != r.Prefix || again.PromptBytes != r.PromptBytes || len(again.Strip) != 0 {
		t.Fatalf("stripped %q to %q: prefix %x became %x", body, cut, r.Prefix, again.Prefix)
	}
}

// writer makes random request bodies out of the words that matter.
type writer struct {
	rng *rand.Rand
	b   strings.Builder
	bad bool // also break the grammar now and then
}

func (w *writer) pick(words ...string) string { return words[w.rng.IntN(len(words))] }

func (w *writer) put(s string) {
	if w.bad && w.rng.IntN(400) == 0 {
		s = w.pick("", ",", "}", "]", "\\", "\"", "\x01", "\xff", "{", "nul", "01", "-", "1.", "NaN", s[:len(s)/2])
	}
	w.b.WriteString(s)
	if w.rng.IntN(6) == 0 {
		w.b.WriteString(w.pick(" ", "\n", "\t ", "\r\n  "))
	}
}

func (w *writer) str() {
	var s strings.Builder
	for range w.rng.IntN(4) {
		s.WriteString(w.pick("a", "hello ", `\n`, `\"`, `\\`, `\/`, `\u00e9`, "é", `\u8de8`, "跨", `\ud83d\ude80`, "🚀", `\ud800`,
			`\udc00x`, `\ud800\ud83d\ude80`, `\u003c`, `\u000a`, `\u0001`, `\b\f\r\t`, `x-anthropic-billing-header: 1`, strings.Repeat("long text ", 12),
			strings.Repeat(`line \"q\"\n`, 9), "\u007f", `\u0022`, `\u005C`))
	}
	w.put(`"` + s.String() + `"`)
}

func (w *writer) value(depth int) {
	switch n := w.rng.IntN(10); {
	case n < 3 || depth > 4 && n < 5:
		w.str()
	case n < 4:
		w.put(w.pick("0", "-1.5e+3", "12", "1.0", "4096"))
	case n < 5:
		w.put(w.pick("true", "false", "null"))
	case n < 6:
		w.put(w.pick("{}", "[]", `"text"`, `"auto"`, `"none"`))
	case n < 8:
		w.list('[', ']', w.rng.IntN(4), func() { w.value(depth + 1) })
	default:
		w.list('{', '}', w.rng.IntN(4), func() {
			w.name(w.pick("type", "text", "id", "cache_control", "b", "name", "a b", ""))
			w.value(depth + 1)
		})
	}
}

func (w *writer) list(open, shut byte, n int, item func()) {
	w.put(string(open))
	for i := range n {
		if i > 0 {
			w.put(",")
		}
		item()
	}
	w.put(string(shut))
}

// name writes a member name, sometimes with an escape in it.
func (w *writer) name(s string) {
	if len(s) > 0 && w.rng.IntN(12) == 0 {
		i := w.rng.IntN(len(s))
		s = fmt.Sprintf(`%s\u%04x%s`, s[:i], s[i], s[i+1:])
	}
	w.put(`"` + s + `"`)
	w.put(":")
}

func (w *writer) content() {
	switch w.rng.IntN(6) {
	case 0, 1, 2:
		w.str()
	case 3, 4:
		w.list('[', ']', w.rng.IntN(4), w.part)
	default:
		w.value(2)
	}
}

func (w *writer) part() {
	if w.rng.IntN(10) == 0 {
		w.value(3)
		return
	}
	w.list('{', '}', 1+w.rng.IntN(3), func() {
		switch w.rng.IntN(5) {
		case 0, 1:
			w.name("type")
			w.put(w.pick(`"text"`, `"input_text"`, `"image_url"`, `"tool_use"`, "null", "3"))
		case 2, 3:
			w.name("text")
			w.str()
		default:
			w.name(w.pick("cache_control", "image_url", "input", "text", "annotations"))
			w.value(2)
		}
	})
}

func (w *writer) message() {
	if w.rng.IntN(15) == 0 {
		w.value(2)
		return
	}
	w.list('{', '}', w.rng.IntN(4), func() {
		switch w.rng.IntN(6) {
		case 0, 1:
			w.name("role")
			w.put(w.pick(`"system"`, `"system"`, `"user"`, `"assistant"`, `"developer"`, `"tool"`, `""`, "null", `"us\u0065r"`, "[]"))
		case 2, 3, 4:
			w.name("content")
			w.content()
		default:
			w.name(w.pick("name", "type", "tool_calls", "cache_control", "arguments"))
			w.value(2)
		}
	})
}

var fields = []string{"model", "cache_salt", "lora_path", "stream", "stream_options", "messages", "messages", "input", "instructions", "system",
	"prompt", "tools", "chat_template", "chat_template_kwargs", "documents", "reasoning_effort", "reasoning", "add_generation_prompt",
	"continue_final_message", "tool_choice", "extra_key", "thinking", "functions", "user", "prompt_cache_key", "previous_response_id",
	"session_id", "conversation", "session_params", "metadata", "priority", "n", "max_tokens", "max_output_tokens",
	"max_completion_tokens", "x_future", "temperature"}

func (w *writer) body() string {
	w.b.Reset()
	order := w.rng.Perm(len(fields))[:1+w.rng.IntN(8)]
	w.put("{")
	for i, f := range order {
		if i > 0 {
			w.put(",")
		}
		name := fields[f]
		w.name(name)
		switch name {
		case "messages", "input":
			w.list('[', ']', w.rng.IntN(7), w.message)
		case "instructions", "system":
			w.content()
		case "prompt":
			switch w.rng.IntN(4) {
			case 0:
				w.list('[', ']', w.rng.IntN(5), func() { w.put(w.pick("1", "22", "333", "0", "-1", "\"s\"", "1e2")) })
			case 1:
				w.list('[', ']', w.rng.IntN(3), func() {
					w.list('[', ']', w.rng.IntN(4), func() { w.put(w.pick("1", "22", "333")) })
				})
			case 2:
				w.put(`"` + strings.Repeat(w.pick("prompt ", `line\n`, `\u00e9`), w.rng.IntN(1500)) + `"`)
			default:
				w.value(1)
			}
		case "stream":
			w.put(w.pick("true", "false", "null", "1", `"true"`, `"on"`, "[]"))
		case "reasoning", "conversation", "session_params", "metadata", "stream_options", "tool_choice":
			w.list('{', '}', w.rng.IntN(3), func() {
				w.name(w.pick("effort", "id", "user_id", "include_usage", "type"))
				w.value(3)
			})
		default:
			w.value(0)
		}
	}
	w.put("}")
	return w.b.String()
}

func TestScanAgreesWithTheOracle(t *testing.T) {
	s := newScanner(t, Options{})
	var r Result
	for seed := range uint64(8_000) {
		w := &writer{rng: rand.New(rand.NewPCG(seed, 4)), bad: seed%3 == 0}
		body := []byte(w.body())
		agree(t, s, &r, protocols[seed%5], body)
	}
}

func FuzzScan(f *testing.F) {
	for seed := range uint64(200) {
		w := &writer{rng: rand.New(rand.NewPCG(seed, 5)), bad: seed%4 == 0}
		f.Add([]byte(w.body()), uint8(seed))
	}
	for _, b := range []string{"", "{}", "[]", " {\"a\":1} x", "\xef\xbb\xbf{}", `{"a":1,"a":2}`, `{"messages":[{"role":"system","content":"s"}]}`} {
		f.Add([]byte(b), uint8(1))
	}
	s := newScanner(f, Options{MaxDepth: 64, MaxBoundaries: 4})
	f.Fuzz(func(t *testing.T, body []byte, proto uint8) {
		var r Result
		agree(t, s, &r, protocols[proto%5], body)
	})
}
