package fingerprint

import (
	"fmt"
	"strings"
	"testing"

	"github.com/prefixring/prefixring/internal/dialect"
)

func named(t testing.TB) func(Named, error) Named {
	return func(n Named, err error) Named {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
}

func scanWith(t testing.TB, s *Scanner, p dialect.Protocol, body string) *Result {
	t.Helper()
	var r Result
	if err := s.Scan(p, []byte(body), &r); err != nil {
		t.Fatalf("scan of %s: %v", body, err)
	}
	return &r
}

func system(text string) string {
	return string(encode(map[string]any{"messages": []any{say("system", text), say("user", "q")}}))
}

func TestNamedPrefixSurvivesADynamicTail(t *testing.T) {
	text := lines(160<<10, 100, `a "quoted" \ 跨 `)
	n := named(t)(NewNamedText("sale", "m", text))
	s := newScanner(t, Options{Named: []Named{n}})
	for i, body := range []string{
		system(text), system(text + "Now: 12:00"), system(text + "\nShop 7"),
		strings.ReplaceAll(system(text+"x"), `\n`, `\u000a`),
		string(encode(map[string]any{"instructions": text + "tail", "input": "q"})),
		string(encode(map[string]any{"system": text + "tail", "messages": []any{}})),
		string(encode(map[string]any{"system": []any{map[string]any{"type": "text", "text": text}, map[string]any{"type": "text", "text": "tail"}}, "messages": []any{}})),
		string(encode(map[string]any{"messages": []any{say("system", text), say("system", "Now: 12:00"), say("user", "q")}})),
	} {
		p := dialect.Chat
		if i >= 4 && i < 7 {
			p = []dialect.Protocol{dialect.Responses, dialect.Messages, dialect.Messages}[i-4]
		}
		r := scanWith(t, s, p, body)
		if r.Kind != KindNamed || r.Named != 0 || r.Key != n.Key() || r.StaticBytes != len(text) {
			t.Errorf("body %d: kind %s, named %d, key %x of %x, %d static bytes of %d", i, r.Kind, r.Named, r.Key, n.Key(), r.StaticBytes, len(text))
		}
	}
	for i, body := range []string{
		system(text[:len(text)-1]), system("x" + text), system(strings.Replace(text, "Refunds", "refunds", 1)),
		string(encode(map[string]any{"messages": []any{say("developer", text), say("user", "q")}})),
		string(encode(map[string]any{"messages": []any{say("user", text)}})),
		string(encode(map[string]any{"messages": []any{say("system", "first"), say("system", text)}})),
		string(encode(map[string]any{"messages": []any{say("system", text)}, "tools": []any{tool(1)}})),
		string(encode(map[string]any{"messages": []any{say("system", text)}, "cache_salt": "s"})),
		string(encode(map[string]any{"messages": []any{say("system", text)}, "chat_template_kwargs": map[string]any{"x": 1}})),
		string(encode(map[string]any{"messages": []any{map[string]any{"role": "system", "content": text, "name": "bob"}}})),
	} {
		if r := scanWith(t, s, dialect.Chat, body); r.Kind == KindNamed || r.Named != -1 {
			t.Errorf("body %d matched", i)
		}
	}
}

func TestTheLongestNamedPrefixWins(t *testing.T) {
	text := lines(100<<10, 100, "")
	var all []Named
	for i := range 40 { // in no order
		cut := 1000 + i*17%40*2000
		all = append(all, named(t)(NewNamedText(fmt.Sprint(cut), "", text[:cut])))
	}
	s := newScanner(t, Options{Named: all})
	for i := range 40 {
		cut := 1000 + i*2000
		r := scanWith(t, s, dialect.Chat, system(text[:cut+1999]))
		if r.Named < 0 || s.Named(r.Named).Name != fmt.Sprint(cut) || r.StaticBytes != cut {
			t.Fatalf("text of %d bytes matched %d", cut+1999, r.Named)
		}
	}
	if r := scanWith(t, s, dialect.Chat, system(text[:999])); r.Named != -1 {
		t.Error("a text shorter than all matched")
	}
}

func TestNamedFromARealBody(t *testing.T) {
	body := func(tail, question string) string {
		return string(encode(map[string]any{"model": "m", "tools": []any{tool(1), tool(2)}, "cache_salt": "s", "messages": []any{
			say("system", "You serve the sale. "), say("developer", "Rules é 跨\n"+tail), say("user", question)}}))
	}
	const head = len("Rules é 跨\n")
	whole := named(t)(NewNamed("whole", dialect.Chat, []byte(body("", "warm")), 0))
	cut := named(t)(NewNamed("cut", dialect.Chat, []byte(body("Now: 12:00", "warm")), head))
	if whole.Key() != cut.Key() || whole.Length != cut.Length || whole.Bytes != cut.Bytes || whole.Model != "m" {
		t.Errorf("cut to the same text: %+v and %+v", whole, cut)
	}
	s := newScanner(t, Options{Named: []Named{cut}})
	if r := scanWith(t, s, dialect.Chat, body("Now: 13:37", "hello")); r.Named != 0 || r.Key != whole.Key() {
		t.Errorf("%+v", visible(r))
	}
	if r := scanWith(t, s, dialect.Chat, strings.Replace(body("", ""), "lookup_order_2", "lookup_order_3", 1)); r.Named != -1 {
		t.Error("other tools matched")
	}
	tools := named(t)(NewNamed("tools", dialect.Chat, []byte(`{"tools":[{"a":1}],"messages":[]}`), 0))
	s = newScanner(t, Options{Named: []Named{tools}})
	if r := scanWith(t, s, dialect.Chat, `{"messages":[{"role":"system","content":"any"}],"tools":[{ "a":1}]}`); r.Named != 0 || r.Key != tools.Key() {
		t.Errorf("tools alone: %+v", visible(r))
	}
}

func TestNamedPromptsOfCompletions(t *testing.T) {
	head := lines(9000, 100, "")
	n := named(t)(NewNamedPrompt("doc", "m", head))
	ids := strings.TrimSuffix(strings.Repeat("101,2054,", 300), ",")
	nid := named(t)(NewNamed("ids", dialect.Completions, []byte(`{"prompt":[`+ids+`]}`), 4*600))
	s := newScanner(t, Options{Named: []Named{n, nid}})
	text := string(encode(head + "Question: why?"))
	for _, prompt := range []string{text, `[` + text + `]`, `[` + text + `,"another"]`} {
		r := scanWith(t, s, dialect.Completions, `{"prompt":`+prompt+`}`)
		if r.Named != 0 || r.Kind != KindNamed || r.StaticBytes != len(head) {
			t.Errorf("%.40s...: %+v", prompt, visible(r))
		}
	}
	for _, prompt := range []string{`[` + ids + `,7,8]`, `[[` + strings.ReplaceAll(ids, ",", " , ") + `,9],[1]]`} {
		if r := scanWith(t, s, dialect.Completions, `{"prompt":`+prompt+`}`); r.Named != 1 {
			t.Errorf("%.40s...: %+v", prompt, visible(r))
		}
	}
	if r := scanWith(t, s, dialect.Completions, string(encode(map[string]any{"prompt": ids + "," + head}))); r.Named != -1 {
		t.Error("text of digits matched token ids")
	}
	if r := scanWith(t, s, dialect.Chat, system(head)); r.Named != -1 {
		t.Error("a chat matched a completion's prefix")
	}
}

func TestCompletionsWithoutANameUseTheLead(t *testing.T) {
	s := newScanner(t, Options{CompletionsLead: 1000})
	long := lines(5000, 100, "")
	key := func(text string) uint64 {
		r := scanWith(t, s, dialect.Completions, string(encode(map[string]any{"prompt": text})))
		if r.Kind != KindLead {
			t.Fatalf("kind %s", r.Kind)
		}
		return r.Key
	}
	// Line breaks are two canonical bytes: the lead ends before the 1000th letter.
	if key(long+"a") != key(long+"b") || key(long[:1500]) != key(long) {
		t.Error("the lead is not all of the key")
	}
	if key("x"+long) == key(long) || key("a") == key("b") {
		t.Error("the lead is not in the key")
	}
}

func TestNamedPrefersTheModelThatIsAsked(t *testing.T) {
	a, b := named(t)(NewNamedText("a", "m1", "text")), named(t)(NewNamedText("b", "m2", "text"))
	s := newScanner(t, Options{Named: []Named{a, b}})
	for model, want := range map[string]int{"m1": 0, "m2": 1, "alias": 0} {
		r := scanWith(t, s, dialect.Chat, `{"model":"`+model+`","messages":[{"role":"system","content":"text and more"}]}`)
		if r.Named != want || r.Key != a.Key() {
			t.Errorf("model %s: %+v", model, visible(r))
		}
	}
}

func TestNamedRefusals(t *testing.T) {
	for why, f := range map[string]func() (Named, error){
		"bad body":        func() (Named, error) { return NewNamed("x", dialect.Chat, []byte(`{`), 0) },
		"no prefix":       func() (Named, error) { return NewNamed("x", dialect.Chat, []byte(`{"messages":[]}`), 0) },
		"empty text":      func() (Named, error) { return NewNamedText("x", "", "") },
		"head too long":   func() (Named, error) { return NewNamed("x", dialect.Chat, []byte(system("abc")), 4) },
		"inside a rune":   func() (Named, error) { return NewNamed("x", dialect.Chat, []byte(system("跨")), 2) },
		"completion":      func() (Named, error) { return NewNamed("x", dialect.Completions, []byte(`{"prompt":"abc"}`), 0) },
		"head of no text": func() (Named, error) { return NewNamed("x", dialect.Chat, []byte(`{"tools":[1]}`), 5) },
		"cut parts": func() (Named, error) {
			return NewNamed("x", dialect.Chat, []byte(`{"messages":[{"role":"system","content":[{"type":"text","text":"ab"},{"type":"text","text":"cd"}]}]}`), 3)
		},
		"invalid encoding": func() (Named, error) { return NewNamedText("x", "", "\xff") },
		"negative":         func() (Named, error) { return NewNamed("x", dialect.Chat, []byte(system("abc")), -1) },
	} {
		if n, err := f(); err == nil || !strings.HasPrefix(err.Error(), `cannot make named prefix "x": `) {
			t.Errorf("%s: %+v, %v", why, n, err)
		}
	}
	for _, o := range []Options{{MaxDepth: 7}, {MaxDepth: 2000}, {MaxBoundaries: 1}, {CompletionsLead: -1}, {Named: []Named{{Name: "hand-made"}}}} {
		if _, err := NewScanner(o); err == nil {
			t.Errorf("%+v was accepted", o)
		}
	}
}

func TestBlocksAreNestedAndComparable(t *testing.T) {
	s := newScanner(t, Options{Named: []Named{named(t)(NewNamedText("x", "", fatText[:5000]))}})
	blocks := func(text string) []Block { return chatWith(t, s, text).Blocks(nil) }
	a, b := blocks(fatText), blocks(fatText[:50_000]+"~"+fatText[50_001:])
	if len(a) != len(b) || len(a) < 40 {
		t.Fatalf("%d and %d blocks", len(a), len(b))
	}
	for i := range a {
		// Every line break before the change is two canonical bytes.
		if same := a[i].Hash == b[i].Hash; same != (a[i].Pos <= 50_000+strings.Count(fatText[:50_000], "\n")) {
			t.Errorf("block at %d: same=%v", a[i].Pos, same)
		}
		if i > 0 && a[i].Pos <= a[i-1].Pos {
			t.Errorf("block %d at %d follows one at %d", i, a[i].Pos, a[i-1].Pos)
		}
	}
	if r := chatWith(t, s, fatText); a[len(a)-1].Hash != r.Prefix {
		t.Error("the last block is not the prefix")
	}
}

// One scanner serves pools with different leads: Lead gives the key that a scanner with that
// lead alone would have given.
func TestLeadAfterTheScan(t *testing.T) {
	leads := []int{100, 256, 5_000, 20_000}
	shared := newScanner(t, Options{CompletionsLead: 5_000, OtherLeads: leads})
	for _, size := range []int{0, 50, 100, 101, 6_000, 50_000} {
		body := encode(map[string]any{"model": "m", "prompt": fatText[:size]})
		for _, lead := range leads {
			var want, got Result
			if err := newScanner(t, Options{CompletionsLead: lead}).Scan(dialect.Completions, body, &want); err != nil {
				t.Fatal(err)
			}
			if err := shared.Scan(dialect.Completions, body, &got); err != nil {
				t.Fatal(err)
			}
			first := got.Key
			if !shared.Lead(&got, 100) || !shared.Lead(&got, 0) || got.Key != first {
				t.Errorf("%d bytes: the first lead does not come back", size)
			}
			if ok := shared.Lead(&got, lead); !ok || got.Key != want.Key || got.Kind != want.Kind || got.StaticBytes != want.StaticBytes {
				t.Errorf("%d bytes, lead %d: %v %v %d, want %v %d", size, lead, ok, got.Kind, got.StaticBytes, want.Kind, want.StaticBytes)
			}
		}
		var r Result
		if err := shared.Scan(dialect.Completions, body, &r); err != nil {
			t.Fatal(err)
		}
		if key := r.Key; r.Kind == KindLead && (shared.Lead(&r, 77) || r.Key != key) {
			t.Errorf("%d bytes: a lead that was not registered is taken", size)
		}
	}
	if _, err := NewScanner(Options{OtherLeads: []int{0}}); err == nil {
		t.Error("a lead of 0 is taken")
	}
}
