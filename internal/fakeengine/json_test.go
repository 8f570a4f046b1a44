package fakeengine

import (
	"encoding/json"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"
)

var jsonSeeds = []string{
	`{"a":1,"b":[true,false,null,-0.5e+10,"x\u00e9\ud83d\ude80\n"],"c":{"d":{}}}`, `[]`, `{}`, `""`, ` { "a" : [ 1 , 2 ] } `,
	`{"a":}`, `{"a" 1}`, `{a:1}`, `[1,]`, `[1 2]`, `"\x"`, `"\u12g4"`, `01`, `-`, `1.`, `1e`, `tru`, `{"a":1}x`, "\"\x01\"", `"`, `{"`, `[[[[`,
	`"\ud800"`, `"\ud800\u0041"`, `{"a":"\\\"","b":"]}"}`, `"\\"`, `{"a\u0062":1}`, `-0`, `1E5`, `{"x":"` + strings.Repeat("ab\\n", 50) + `"}`,
}

func FuzzJSON(f *testing.F) {
	for _, s := range jsonSeeds {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if !utf8.Valid(b) || strings.Count(string(b), "[")+strings.Count(string(b), "{") > maxDepth {
			return
		}
		err := validate(b)
		if valid := json.Valid(b); valid != (err == nil) {
			t.Fatalf("%q: valid is %t, validate says %v", b, valid, err)
		}
		if err != nil {
			return
		}
		v := value(b[space(b, 0):])
		v = v[:skip(v, 0)]
		var want any
		d := json.NewDecoder(strings.NewReader(string(v)))
		d.UseNumber()
		if err := d.Decode(&want); err != nil {
			t.Fatal(err)
		}
		same(t, v, want)
		var back any
		d = json.NewDecoder(strings.NewReader(string(v.appendCanonical(nil))))
		d.UseNumber()
		if err := d.Decode(&back); err != nil {
			t.Fatalf("%q: its canonical form %q is not JSON: %v", v, v.appendCanonical(nil), err)
		}
		same(t, v, back)
	})
}

// same compares a raw value with what encoding/json read.
func same(t *testing.T, v value, want any) {
	t.Helper()
	switch w := want.(type) {
	case string:
		if got := v.text(); got != w {
			t.Fatalf("%q reads as %q, want %q", v, got, w)
		}
		if back, err := strconv.Unquote(string(v)); err == nil && back != w && !strings.Contains(w, "\ufffd") {
			t.Fatalf("%q: encoding/json and strconv disagree", v)
		}
	case map[string]any:
		seen := map[string]value{}
		v.each(func(k, val value) { seen[k.text()] = val })
		if len(seen) != len(w) {
			t.Fatalf("%q has %d names, want %d", v, len(seen), len(w))
		}
		for k, x := range w {
			same(t, seen[k], x)
			same(t, v.get(k), x)
		}
	case []any:
		all := v.list()
		if len(all) != len(w) {
			t.Fatalf("%q has %d elements, want %d", v, len(all), len(w))
		}
		for i := range w {
			same(t, all[i], w[i])
		}
	case json.Number:
		if string(v) != w.String() {
			t.Fatalf("%q is not the number %s", v, w)
		}
		if n, err := strconv.ParseInt(w.String(), 10, 64); err == nil && len(v) < 18 && w.String() != "-0" {
			if got, ok := v.integer(); !ok || got != n {
				t.Fatalf("%q reads as %d", v, got)
			}
		}
	case bool:
		if v.yes() != w {
			t.Fatalf("%q is not %t", v, w)
		}
	case nil:
		if !v.null() {
			t.Fatalf("%q is not null", v)
		}
	}
}

func TestQuoteIsReadBackByEncodingJSON(t *testing.T) {
	for _, s := range []string{"", "a\"b\\c\nd\re\tf\x01\x1f", "é渐🚀", "</script>&"} {
		var back string
		if err := json.Unmarshal(quote(nil, s), &back); err != nil || back != s {
			t.Errorf("%q comes back as %q (%v)", s, back, err)
		}
	}
}

func TestNestingIsBounded(t *testing.T) {
	if err := validate([]byte(strings.Repeat("[", 1_000_000))); err == nil || err.reason != errDepth {
		t.Errorf("a million open brackets give %v", err)
	}
}

func BenchmarkRead240KB(b *testing.B) {
	body := []byte(chatBody(policy(60_000), "what is the refund policy?", `,"max_tokens":100,"stream":true`))
	b.SetBytes(int64(len(body)))
	b.ReportAllocs()
	var t Template
	e := &Engine{blockSize: 16, maxModelLen: 131072, opts: Options{AnswerTokens: 64}}
	for b.Loop() {
		if validate(body) != nil {
			b.Fatal("not valid")
		}
		conv, err := e.conversationOf(body)
		if err != nil {
			b.Fatal(err)
		}
		text, static := t.render(make([]byte, 0, len(body)+1024), &conv)
		e.plan(&generation{n: 1, body: body}, text, static, limits{}, 0)
	}
}
