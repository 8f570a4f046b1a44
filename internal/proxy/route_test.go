package proxy

import (
	"fmt"
	"strings"
	"testing"

	"github.com/prefixring/prefixring/internal/dialect"
	tiers "github.com/prefixring/prefixring/internal/route"
	"github.com/prefixring/prefixring/internal/session"
	"github.com/prefixring/prefixring/ring"
)

// tiered is a router with a route "auto" over two tiers of one engine each.
type tiered struct {
	*router
	first, second *scripted
	pools         [2]*Pool
	settled       int
}

func newTiered(t *testing.T, script func(*engineCall), tune func(*Route)) *tiered {
	t.Helper()
	x := &tiered{first: newEngine(t, script), second: newEngine(t, answer)}
	other, ups := newPool(t, "other", setup{}, x.second.url())
	other.Models = []string{"m2"}
	t.Cleanup(func() { ups[0].Close() })
	x.router = newRouter(t, setup{opts: Options{Explain: true}, pools: func(p *Pool) []*Pool { return []*Pool{p, other} }}, x.first.url())
	x.pools = [2]*Pool{x.pool, other}
	memory, err := session.New(session.Options{})
	if err != nil {
		t.Fatal(err)
	}
	r := &Route{Name: "auto", Memory: memory, Members: []RouteMember{
		{Tier: 0, Pool: x.pool, Model: "m"}, {Tier: 1, Pool: other, Model: "m2"},
	}}
	if tune != nil {
		tune(r)
	}
	table, err := NewTable(x.pools[:], r)
	if err != nil {
		t.Fatal(err)
	}
	x.SetTable(table)
	return x
}

func (x *tiered) level(tier int, l ring.Level) { x.pools[tier].Ring.Nodes()[0].SetLevel(l) }

// ask sends a body and says which tier answered, -1 for none.
func (x *tiered) ask(t *testing.T, path, body string) (tier int, got clientReply) {
	t.Helper()
	got = x.do(t, rawRequest(path, body))
	x.settled++
	x.records.wait(t, x.settled)
	switch got.header.Get("X-Prefixring-Engine") {
	case "pool-0":
		return 0, got
	case "other-0":
		return 1, got
	}
	return -1, got
}

const autoBody = `{"model":"auto","messages":[{"role":"system","content":"s"},{"role":"user","content":"u"}]}`

// The model name is spliced for whoever serves it, and nothing else changes.
func TestRouteSplicesTheModelOfEachTier(t *testing.T) {
	x := newTiered(t, answer, nil)
	if tier, got := x.ask(t, "/v1/chat/completions", autoBody); tier != 0 || got.status != 200 {
		t.Fatalf("tier %d, %d", tier, got.status)
	}
	if b := string(x.first.lastBody()); b != strings.Replace(autoBody, "auto", "m", 1) {
		t.Errorf("tier 0 got %s", b)
	}
	x.level(0, ring.Closed)
	if tier, _ := x.ask(t, "/v1/chat/completions", autoBody); tier != 1 {
		t.Fatalf("tier %d", tier)
	}
	if b := string(x.second.lastBody()); b != strings.Replace(autoBody, "auto", "m2", 1) {
		t.Errorf("tier 1 got %s", b)
	}
}

// It falls on saturation, ejection and absence; never on an answer about the request.
func TestRouteFalls(t *testing.T) {
	reply := func(status int) func(*engineCall) {
		return func(x *engineCall) { x.json(status, fmt.Sprintf(`{"said":%d}`, status)) }
	}
	for name, tc := range map[string]struct {
		script func(*engineCall)
		before func(*tiered)
		want   int
		status int
	}{
		"ejected":            {answer, func(x *tiered) { x.level(0, ring.Closed) }, 1, 200},
		"saturated":          {answer, func(x *tiered) { x.level(0, ring.WarmOnly) }, 1, 200},
		"absent":             {answer, func(x *tiered) { x.first.ln.Close() }, 1, 200},
		"refuses":            {reply(503), nil, 1, 200},
		"dies":               {func(x *engineCall) { panic(errHangUp) }, nil, 1, 200},
		"client's error":     {reply(400), nil, 0, 400},
		"no such model":      {reply(404), nil, 0, 404},
		"too many":           {reply(429), nil, 0, 429},
		"engine's own error": {reply(500), nil, 0, 500},
	} {
		t.Run(name, func(t *testing.T) {
			x := newTiered(t, tc.script, nil)
			if tc.before != nil {
				tc.before(x)
			}
			tier, got := x.ask(t, "/v1/chat/completions", autoBody)
			if tier != tc.want || got.status != tc.status {
				t.Errorf("tier %d with %d, want tier %d with %d: %s", tier, got.status, tc.want, tc.status, got.body)
			}
		})
	}
	t.Run("at its cap, without waiting", func(t *testing.T) {
		hold := make(chan struct{})
		x := newTiered(t, func(x *engineCall) { <-hold; answer(x) }, nil)
		x.pools[0].MaxInFlight = 1
		c := x.dial(t)
		if _, err := c.Write([]byte(rawRequest("/v1/chat/completions", autoBody))); err != nil {
			t.Fatal(err)
		}
		eventually(t, func() bool { return x.first.calls.Load() == 1 }, "the first request")
		got := x.chat(t, autoBody)
		close(hold)
		if got.header.Get("X-Prefixring-Engine") != "other-0" {
			t.Errorf("%v", got.header)
		}
	})
	t.Run("nobody is left", func(t *testing.T) {
		x := newTiered(t, reply(503), nil)
		x.level(1, ring.Closed)
		if tier, got := x.ask(t, "/v1/chat/completions", autoBody); tier != 0 || got.status != 503 || string(got.body) != `{"said":503}` {
			t.Errorf("tier %d, %d %s", tier, got.status, got.body)
		}
	})
}

// A tool loop stays in the tier that began it, whether that takes work or not; the next
// question of the user is free again.
func TestRouteNeverCrossesATierInAToolLoop(t *testing.T) {
	for name, tc := range map[string]struct{ path, ask, result, then string }{
		"chat": {"/v1/chat/completions",
			`{"model":"auto","messages":[{"role":"user","content":"u"}]}`,
			`{"model":"auto","messages":[{"role":"user","content":"u"},{"role":"assistant","content":null,"tool_calls":[{"id":"c","type":"function","function":{"name":"f","arguments":"{}"}}]},{"role":"tool","tool_call_id":"c","content":"42"}]}`,
			`{"model":"auto","messages":[{"role":"user","content":"u"},{"role":"assistant","content":"x"},{"role":"user","content":"v"}]}`},
		"messages": {"/v1/messages",
			`{"model":"auto","max_tokens":9,"messages":[{"role":"user","content":"u"}]}`,
			`{"model":"auto","max_tokens":9,"messages":[{"role":"user","content":"u"},{"role":"assistant","content":[{"type":"tool_use","id":"c","name":"f","input":{}}]},{"role":"user","content":[{"type":"tool_result","tool_use_id":"c","content":"42"}]}]}`,
			`{"model":"auto","max_tokens":9,"messages":[{"role":"user","content":"u"},{"role":"assistant","content":"x"},{"role":"user","content":"say \"tool_result\""}]}`},
		"responses": {"/v1/responses",
			`{"model":"auto","input":[{"role":"user","content":"u"}]}`,
			`{"model":"auto","input":[{"role":"user","content":"u"},{"type":"function_call","call_id":"c","name":"f","arguments":"{}"},{"type":"function_call_output","call_id":"c","output":"42"}]}`,
			`{"model":"auto","input":[{"role":"user","content":"u"},{"role":"assistant","content":"x"},{"role":"user","content":"v"}]}`},
		"stored response": {"/v1/responses",
			`{"model":"auto","input":"u"}`, `{"model":"auto","previous_response_id":"resp_1","input":"v"}`, `{"model":"auto","input":"w"}`},
	} {
		t.Run(name, func(t *testing.T) {
			script := func(x *engineCall) { x.json(200, wholeAnswer(tc.path)) }
			x := newTiered(t, script, nil)
			x.second.script = script
			x.level(0, ring.Closed)
			if tier, got := x.ask(t, tc.path, tc.ask); tier != 1 || got.status != 200 {
				t.Fatalf("began in tier %d: %d %s", tier, got.status, got.body)
			}
			x.level(0, ring.Open)
			if tier, _ := x.ask(t, tc.path, tc.result); tier != 1 {
				t.Errorf("the loop that tier 1 began went on in tier %d", tier)
			}
			x.level(1, ring.Closed)
			if tier, got := x.ask(t, tc.path, tc.result); tier != -1 || got.status != 503 {
				t.Errorf("with its tier down it went to tier %d: %d", tier, got.status)
			}
			x.level(1, ring.Open)
			if tier, _ := x.ask(t, tc.path, tc.then); tier != 0 {
				t.Errorf("the user's next question went to tier %d", tier)
			}
		})
	}
}

func wholeAnswer(path string) string {
	switch path {
	case "/v1/messages":
		return `{"id":"m","type":"message","role":"assistant","content":[{"type":"text","text":"x"}],"stop_reason":"end_turn","usage":{"input_tokens":1,"output_tokens":1}}`
	case "/v1/responses":
		return `{"id":"resp_1","object":"response","status":"completed","output":[],"usage":{"input_tokens":1,"output_tokens":1,"total_tokens":2}}`
	}
	return okJSON
}

// What nobody can do is said before anybody is asked.
func TestRouteAbilities(t *testing.T) {
	x := newTiered(t, answer, func(r *Route) {
		r.Members[0].Can = tiers.Can{NoTools: true, Context: 50}
		r.Members[1].Can = tiers.Can{Protocols: []dialect.Protocol{dialect.Chat}, NoImages: true}
	})
	tools := `"tools":[{"type":"function","function":{"name":"f"}}],`
	image := `{"model":"auto",%s"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"data:,"}}]}]}`
	for name, tc := range map[string]struct {
		body string
		want int
		lack string
	}{
		"plain":            {autoBody, 0, ""},
		"tools":            {strings.Replace(autoBody, `"messages"`, tools+`"messages"`, 1), 1, ""},
		"long":             {strings.Replace(autoBody, `"u"`, `"`+strings.Repeat("word ", 80)+`"`, 1), 1, ""},
		"much output":      {strings.Replace(autoBody, `"messages"`, `"max_tokens":500,"messages"`, 1), 1, ""},
		"image with tools": {fmt.Sprintf(image, tools), -1, "images"},
	} {
		before := x.first.calls.Load() + x.second.calls.Load()
		tier, got := x.ask(t, "/v1/chat/completions", tc.body)
		if tier != tc.want {
			t.Errorf("%s: tier %d, want %d (%d %s)", name, tier, tc.want, got.status, got.body)
		}
		if tc.lack != "" && (got.status != 400 || got.header.Get("X-Prefixring-Error") != "not_able" || !strings.Contains(string(got.body), tc.lack) ||
			x.first.calls.Load()+x.second.calls.Load() != before) {
			t.Errorf("%s: %d %s", name, got.status, got.body)
		}
	}
}

func TestRouteIsListedCountedAndExplained(t *testing.T) {
	x := newTiered(t, answer, nil)
	x.ask(t, "/v1/chat/completions", autoBody)
	got := x.do(t, "GET /v1/models HTTP/1.1\r\nHost: a\r\n\r\n")
	if !strings.Contains(string(got.body), `"id":"auto"`) {
		t.Errorf("models: %s", got.body)
	}
	if n := x.Table().Routes(); len(n) != 2 || n[0].Taken != 1 || n[0].Model != "m" || n[1].Taken != 0 || n[1].Tier != 1 {
		t.Errorf("%+v", n)
	}
	e, err := x.Explain("/v1/chat/completions", "", []byte(autoBody))
	if err != nil || e.Pool != "pool" || e.Model != "m" || !e.Alias || x.Table().Routes()[0].Taken != 1 {
		t.Errorf("%+v, %v", e, err)
	}
}

// A route's own switch turns bindings off for what comes by its name.
func TestRouteSwitchesBindingsOff(t *testing.T) {
	for _, off := range []bool{false, true} {
		store, err := session.New(session.Options{})
		if err != nil {
			t.Fatal(err)
		}
		x := newTiered(t, answer, func(r *Route) {
			r.NoBindings = off
			r.Members[0].Pool.Bindings = store
		})
		x.ask(t, "/v1/chat/completions", autoBody)
		if bound := store.Len() > 0; bound == off {
			t.Errorf("off %t: bound %t", off, bound)
		}
	}
}

func TestRoutesAreChecked(t *testing.T) {
	p, ups := newPool(t, "p", setup{}, "http://127.0.0.1:1")
	defer ups[0].Close()
	for name, r := range map[string]*Route{
		"no members":   {Name: "a"},
		"no pool":      {Name: "a", Members: []RouteMember{{Model: "m"}}},
		"a pool's own": {Name: "m", Members: []RouteMember{{Pool: p, Model: "m"}}},
		"no memory":    {Name: "a", Members: []RouteMember{{Pool: p, Model: "m"}, {Tier: 1, Pool: p, Model: "n"}}},
	} {
		if _, err := NewTable([]*Pool{p}, r); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}
