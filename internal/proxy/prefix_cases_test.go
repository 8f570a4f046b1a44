package proxy

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"github.com/prefixring/prefixring/internal/fingerprint"
)

// keyed sends a body and returns its fingerprint and engine. The engine must get the
// client's own octets.
func keyed(t *testing.T, r *router, engines []*scripted, body string) (fp, engine string) {
	t.Helper()
	got := r.chat(t, body, "X-Prefixring-Explain: 1")
	if got.status != 200 {
		t.Fatalf("%.80s: %d %s", body, got.status, got.body)
	}
	engine = got.header.Get("X-Prefixring-Engine")
	if e := engines[engine[len(engine)-1]-'0']; !bytes.Equal(e.lastBody(), []byte(body)) {
		t.Errorf("the engine got %.200q, the client sent %.200q", e.lastBody(), body)
	}
	return got.header.Get("X-Prefixring-Fingerprint"), engine
}

func three(t *testing.T, change func(*Pool)) (*router, []*scripted) {
	t.Helper()
	engines := []*scripted{newEngine(t, answer), newEngine(t, answer), newEngine(t, answer)}
	return newRouter(t, setup{pool: change}, engines[0].url(), engines[1].url(), engines[2].url()), engines
}

// B16: escapes are spelling. One fingerprint, one engine, each client's own bytes; one more
// space is another prompt.
func TestB16EscapesReachOneEngineUnchanged(t *testing.T) {
	r, engines := three(t, learns)
	chat := func(system string) string {
		return `{"model":"m","messages":[{"role":"system","content":"` + system + `"},{"role":"user","content":"u"}]}`
	}
	fp, engine := keyed(t, r, engines, chat(`<rules>a & b</rules> é`))
	for _, spelling := range []string{`\u003crules\u003ea \u0026 b\u003c\/rules\u003e é`, `<rules>a & b</rules> \u00e9`} {
		if f, e := keyed(t, r, engines, chat(spelling)); f != fp || e != engine {
			t.Errorf("%s: %s on %s, want %s on %s", spelling, f, e, fp, engine)
		}
	}
	if f, _ := keyed(t, r, engines, chat(`<rules>a &  b</rules> é`)); f == fp {
		t.Error("one more space, same fingerprint")
	}
}

// B17: order inside tools is the client's. Bytes pass as they came, the two orders are two
// prefixes, and the hint comes once per pair.
func TestB17ToolOrderIsTwoPrefixesAndOneHint(t *testing.T) {
	var hints []string
	r, engines := three(t, func(p *Pool) {
		learns(p)
		p.Churned = func(d *fingerprint.Diagnosis) { hints = append(hints, d.Change.String()) }
	})
	const a = `{"type":"function","function":{"parameters":{"properties":{"z":{"type":"string"},"a":{"type":"number"}},"type":"object"},"name":"a"}}`
	const b = `{"function":{"name":"b"},"type":"function"}`
	chat := func(tools, user string) string {
		return `{"tools":[` + tools + `],"model":"m","messages":[{"role":"system","content":"s"},{"role":"user","content":"` + user + `"}]}`
	}
	var ab, ba string
	for i := range 50 {
		f, _ := keyed(t, r, engines, chat(a+","+b, fmt.Sprint(i)))
		if ab != "" && f != ab {
			t.Fatal("the same tools, another fingerprint")
		}
		ab = f
		ba, _ = keyed(t, r, engines, chat(b+","+a, fmt.Sprint(i)))
	}
	swapped := strings.Replace(a, `"z":{"type":"string"},"a":{"type":"number"}`, `"a":{"type":"number"},"z":{"type":"string"}`, 1)
	keys, _ := keyed(t, r, engines, chat(swapped+","+b, "u"))
	if ab == ba || keys == ab {
		t.Error("other orders, same fingerprint")
	}
	if len(hints) != 2 || hints[0] != "tool-order" || hints[1] != "tool-keys" {
		t.Errorf("hints %v, want one of each pair", hints)
	}
}

// B23: system content as parts or as two messages keeps its engine, and parts that engines
// render like the string share its fingerprint.
func TestB23SystemPartsKeepTheirEngine(t *testing.T) {
	r, engines := three(t, learns)
	half, rest := strings.Repeat("first half. ", 300), strings.Repeat("second half. ", 300)
	part := func(s string) string { return `{"type":"text","text":"` + s + `"}` }
	say := func(content string) string { return `{"role":"system","content":` + content + `}` }
	shapes := []string{
		say(`"` + half + rest + `"`),
		say(`[` + part(half+rest) + `]`),
		say(`[` + part(half) + `,` + part(rest) + `]`),
		say(`"`+half+`"`) + `,` + say(`"`+rest+`"`),
		say(`[` + part(half) + `,{"type":"video_note","ref":"x1"}]`),
		say(`[` + part(half) + `,{"type":"video_note","ref":"x2"}]`),
	}
	fps := make([]string, len(shapes))
	for i, shape := range shapes {
		var engine string
		for n := range 20 {
			f, e := keyed(t, r, engines, `{"model":"m","messages":[`+shape+`,{"role":"user","content":"`+fmt.Sprint(n)+`"}]}`)
			if n > 0 && (f != fps[i] || e != engine) {
				t.Fatalf("shape %d, user text %d: %s on %s, was %s on %s", i, n, f, e, fps[i], engine)
			}
			fps[i], engine = f, e
		}
	}
	if fps[0] != fps[1] {
		t.Error("one text part is rendered like the string, but has another fingerprint")
	}
	for i := 1; i < len(fps); i++ {
		for j := i + 1; j < len(fps); j++ {
			if fps[i] == fps[j] {
				t.Errorf("shapes %d and %d share a fingerprint", i, j)
			}
		}
	}
}
