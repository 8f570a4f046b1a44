package fakeengine

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/prefixring/prefixring/internal/dialect"
)

// field reads a number or string by path from a JSON body.
func field(t *testing.T, body string, path ...string) any {
	t.Helper()
	var v any
	if err := json.Unmarshal([]byte(body), &v); err != nil {
		t.Fatalf("%v in %s", err, body)
	}
	for _, p := range path {
		switch x := v.(type) {
		case map[string]any:
			var ok bool
			if v, ok = x[p]; !ok {
				return "absent"
			}
		case []any:
			var i int
			fmt.Sscan(p, &i)
			v = x[i]
		default:
			return "absent"
		}
	}
	return v
}

func cachedOf(t *testing.T, body string) any {
	return field(t, body, "usage", "prompt_tokens_details", "cached_tokens")
}

func TestTheFlagDecidesWhatIsSaidOfTheCache(t *testing.T) {
	body := chatBody(policy(320), "hi", `,"max_tokens":2`)
	for _, row := range []struct {
		opts       Options
		cold, warm any
	}{
		{Options{}, "absent", "absent"}, // prompt_tokens_details is null
		{Options{ReportCached: true}, 0.0, 336.0},
		{Options{Dialect: dialect.SGLang}, "absent", "absent"},
		{Options{Dialect: dialect.SGLang, ReportCached: true}, "absent", 336.0}, // omitted when zero
	} {
		_, c := start(t, row.opts)
		cold := cachedOf(t, c.ok("/v1/chat/completions", body))
		warm := cachedOf(t, c.ok("/v1/chat/completions", body))
		if cold != row.cold || warm != row.warm {
			t.Errorf("%v, reporting %t: cold %v, warm %v; want %v, %v", row.opts.Dialect, row.opts.ReportCached, cold, warm, row.cold, row.warm)
		}
		if field(t, c.ok("/oracle", ""), "cached_tokens") != 336.0 {
			t.Error("the oracle does not tell the truth")
		}
	}
}

func TestOneSystemTextIsOneCacheEntryWhateverTheProtocol(t *testing.T) {
	_, c := start(t, Options{ReportCached: true})
	system := policy(1600)
	c.ok("/v1/chat/completions", chatBody(system, "one", `,"max_tokens":1`))
	got := field(t, c.ok("/v1/responses", `{"model":"tiny","instructions":"`+system+`","input":"two","max_output_tokens":1}`), "usage", "input_tokens_details", "cached_tokens")
	if got.(float64) < 1600 {
		t.Errorf("Responses finds %v cached tokens of a system text of 1,600", got)
	}
	got = field(t, c.ok("/v1/messages", `{"model":"tiny","system":[{"type":"text","text":"`+system+`"}],"messages":[{"role":"user","content":"three"}],"max_tokens":1}`), "usage", "cache_read_input_tokens")
	if got.(float64) < 1600 {
		t.Errorf("Messages finds %v cached tokens", got)
	}
}

func TestASecondTurnFindsTheAnswerOfTheFirst(t *testing.T) {
	_, c := start(t, Options{ReportCached: true})
	first := c.ok("/v1/chat/completions", chatBody(policy(160), "hi", `,"max_tokens":160,"ignore_eos":true`))
	answer := field(t, first, "choices", "0", "message", "content").(string)
	prompt := field(t, first, "usage", "prompt_tokens").(float64)
	second := c.ok("/v1/chat/completions", `{"model":"tiny","messages":[{"role":"system","content":"`+policy(160)+`"},{"role":"user","content":"hi"},{"role":"assistant","content":"`+answer+`"},{"role":"user","content":"and?"}],"max_tokens":1}`)
	if got := cachedOf(t, second).(float64); got < prompt+160-17 {
		t.Errorf("the second turn finds %v tokens of a first one with %v + 160", got, prompt)
	}
}

func TestSaltAndAdapterHaveTheirOwnCache(t *testing.T) {
	for _, row := range []struct {
		d            dialect.Engine
		model, lora  string
		reloadIsCold bool
	}{{dialect.VLLM, "tiny", "lora-a", false}, {dialect.SGLang, "tiny", "tiny:lora-a", true}} {
		e, c := start(t, Options{Dialect: row.d, ReportCached: true, Adapters: []string{"lora-a"}})
		cached := func(model, more string) float64 {
			b := strings.Replace(chatBody(policy(320), "hi", `,"max_tokens":1`+more), `"tiny"`, `"`+model+`"`, 1)
			n, _ := cachedOf(t, c.ok("/v1/chat/completions", b)).(float64)
			return n
		}
		for _, x := range []struct{ model, more string }{{row.model, ""}, {row.lora, ""}, {row.model, `,"cache_salt":"s1"`}, {row.model, `,"cache_salt":"s2"`}} {
			if n := cached(x.model, x.more); n != 0 {
				t.Errorf("%v: the first request of %v finds %v tokens of somebody else", row.d, x, n)
			}
			if n := cached(x.model, x.more); n == 0 {
				t.Errorf("%v: the second request of %v finds nothing", row.d, x)
			}
		}
		e.LoadAdapter("lora-a")
		if n := cached(row.lora, ""); (n == 0) != row.reloadIsCold {
			t.Errorf("%v: after a reload of the adapter %v tokens are cached", row.d, n)
		}
	}
}

func TestHowAnswersEnd(t *testing.T) {
	_, c := start(t, Options{AnswerTokens: 20})
	text := field(t, c.ok("/v1/chat/completions", chatBody("a", "b", `,"max_tokens":100`)), "choices", "0", "message", "content").(string)
	stop := strings.TrimSpace(text[40:44])
	for _, row := range []struct {
		more, finish string
		tokens       float64
		reason       any
	}{
		{`,"max_tokens":100`, "stop", 20, nil},
		{``, "stop", 20, nil},
		{`,"max_tokens":7`, "length", 7, nil},
		{`,"max_tokens":99,"max_completion_tokens":7`, "length", 7, nil},
		{`,"max_tokens":33,"ignore_eos":true`, "length", 33, nil},
		{`,"max_tokens":100,"min_tokens":25`, "stop", 25, nil},
		{`,"stop":["nothing","` + stop + `"]`, "stop", float64(tokensOf(strings.Index(text, stop))), stop},
		{`,"stop":"` + stop + `"`, "stop", float64(tokensOf(strings.Index(text, stop))), stop},
	} {
		body := c.ok("/v1/chat/completions", chatBody("a", "b", row.more))
		if f, n, r := field(t, body, "choices", "0", "finish_reason"), field(t, body, "usage", "completion_tokens"), field(t, body, "choices", "0", "stop_reason"); f != row.finish || n != row.tokens || r != row.reason {
			t.Errorf("%s: ends with %v after %v tokens (%v), want %v after %v (%v)", row.more, f, n, r, row.finish, row.tokens, row.reason)
		}
	}
}

func TestAnswersAreTheSameStreamedOrNotAndDependOnTheSeed(t *testing.T) {
	content := func(o Options, more string) string {
		_, c := start(t, o)
		body := c.ok("/v1/chat/completions", chatBody("a", "b", `,"max_tokens":9`+more))
		if more == "" {
			return field(t, body, "choices", "0", "message", "content").(string)
		}
		var text strings.Builder
		for _, line := range strings.Split(body, "\n") {
			if data, ok := strings.CutPrefix(line, "data: {"); ok {
				s, _ := field(t, "{"+data, "choices", "0", "delta", "content").(string)
				text.WriteString(s)
			}
		}
		return text.String()
	}
	plain := content(Options{Seed: 1}, "")
	if s := content(Options{Seed: 1}, `,"stream":true`); s != plain {
		t.Errorf("streamed %q, plain %q", s, plain)
	}
	if s := content(Options{Seed: 1, TokensPerEvent: 4}, `,"stream":true`); s != plain {
		t.Errorf("four tokens an event: %q, plain %q", s, plain)
	}
	if s := content(Options{Seed: 1, Dialect: dialect.SGLang}, `,"stream":true`); s != plain {
		t.Errorf("sglang streams %q, vllm says %q", s, plain)
	}
	if s := content(Options{Seed: 2}, ""); s == plain {
		t.Error("another seed gives the same answer")
	}
}

func TestB70SeveralTokensPerEvent(t *testing.T) {
	_, c := start(t, Options{TokensPerEvent: 4})
	body := c.ok("/v1/completions", `{"model":"tiny","prompt":"x","max_tokens":400,"ignore_eos":true,"stream":true,"stream_options":{"include_usage":true}}`)
	if n := strings.Count(body, `"text":"`); n != 100 {
		t.Errorf("%d events for 400 tokens, want 100", n)
	}
	if !strings.Contains(body, `"completion_tokens":400`) {
		t.Error("usage does not say 400 tokens")
	}
}

func TestNGivesNChoicesAndCountsThePromptOnce(t *testing.T) {
	_, c := start(t, Options{ReportCached: true})
	body := c.ok("/v1/chat/completions", chatBody("a", "b", `,"max_tokens":5,"n":3`))
	one := c.ok("/v1/chat/completions", chatBody("a", "b", `,"max_tokens":5`))
	if len(field(t, body, "choices").([]any)) != 3 || field(t, body, "usage", "completion_tokens") != 15.0 ||
		field(t, body, "usage", "prompt_tokens") != field(t, one, "usage", "prompt_tokens") {
		t.Errorf("n=3 answers %s", body)
	}
	stream := c.ok("/v1/chat/completions", chatBody("a", "b", `,"max_tokens":5,"n":3,"stream":true`))
	for i := range 3 {
		if n := strings.Count(stream, fmt.Sprintf(`"choices":[{"index":%d,`, i)); n != 6 {
			t.Errorf("choice %d has %d events, want the role and five tokens", i, n)
		}
	}
	lists := c.ok("/v1/completions", `{"model":"tiny","prompt":["one two","three",[1,2,3]],"max_tokens":2}`)
	if lists == "" || len(field(t, c.ok("/v1/completions", `{"model":"tiny","prompt":["one two","three"],"max_tokens":2,"n":2}`), "choices").([]any)) != 4 {
		t.Error("a list of prompts does not give an answer for each")
	}
}

const toolList = `[{"type":"function","function":{"name":"find_order","description":"d","parameters":{"type":"object"}}},{"type":"function","function":{"name":"other","parameters":{}}}]`

func TestToolCallsWhenAsked(t *testing.T) {
	for _, d := range []dialect.Engine{dialect.VLLM, dialect.SGLang} {
		_, c := start(t, Options{Dialect: d})
		for _, row := range []struct{ user, more, want string }{
			{"hi", `,"tools":` + toolList, ""},
			{"please use tool", `,"tools":` + toolList, "find_order"},
			{"please use tool", `,"tool_choice":"none","tools":` + toolList, ""},
			{"hi", `,"tool_choice":"required","tools":` + toolList, "find_order"},
			{"hi", `,"tool_choice":{"type":"function","function":{"name":"other"}},"tools":` + toolList, "other"},
			{"please use tool", "", ""},
		} {
			body := c.ok("/v1/chat/completions", chatBody("a", row.user, row.more))
			name := field(t, body, "choices", "0", "message", "tool_calls", "0", "function", "name")
			if row.want == "" {
				if field(t, body, "choices", "0", "finish_reason") != "stop" {
					t.Errorf("%v %+v: %s", d, row, body)
				}
				continue
			}
			if name != row.want || field(t, body, "choices", "0", "finish_reason") != "tool_calls" {
				t.Errorf("%v %+v: %s", d, row, body)
			}
			args := field(t, body, "choices", "0", "message", "tool_calls", "0", "function", "arguments").(string)
			if !json.Valid([]byte(args)) {
				t.Errorf("arguments %q are not JSON", args)
			}
			stream := c.ok("/v1/chat/completions", chatBody("a", row.user, row.more+`,"stream":true`))
			if !strings.Contains(stream, `"finish_reason":"tool_calls"`) || !strings.Contains(stream, `"name":"`+row.want+`"`) {
				t.Errorf("streamed: %s", stream)
			}
		}
	}
	_, c := start(t, Options{})
	body := c.ok("/v1/messages", `{"model":"tiny","max_tokens":50,"tools":[{"name":"get","input_schema":{}}],"messages":[{"role":"user","content":"use tool"}]}`)
	if field(t, body, "stop_reason") != "tool_use" || field(t, body, "content", "0", "name") != "get" || field(t, body, "content", "0", "input", "query") == "absent" {
		t.Errorf("Messages: %s", body)
	}
	body = c.ok("/v1/responses", `{"model":"tiny","input":"use tool","tools":[{"type":"function","name":"get","parameters":{}}]}`)
	if field(t, body, "output", "0", "type") != "function_call" || field(t, body, "status") != "completed" {
		t.Errorf("Responses: %s", body)
	}
	body = c.ok("/v1/responses", `{"model":"tiny","stream":true,"input":"use tool","tools":[{"type":"function","name":"get","parameters":{}}]}`)
	if !strings.Contains(body, "event: response.function_call_arguments.done") {
		t.Errorf("Responses stream: %s", body)
	}
}

func TestRequestIDs(t *testing.T) {
	_, v := start(t, Options{RequestIDHeaders: true})
	resp, body := v.do("/v1/chat/completions", chatBody("a", "b", ""), "X-Request-Id", "abc-123")
	if field(t, body, "id") != "chatcmpl-abc-123" || resp.Header.Get("X-Request-Id") != "abc-123" {
		t.Errorf("vllm: %s %v", body, resp.Header)
	}
	if id := field(t, v.ok("/v1/completions", `{"model":"tiny","prompt":"x","request_id":"q"}`), "id"); id != "cmpl-q" {
		t.Errorf("completions id %v", id)
	}
	_, s := start(t, Options{Dialect: dialect.SGLang})
	_, body = s.do("/v1/chat/completions", chatBody("a", "b", `,"rid":"r1"`), "X-Request-Id", "abc-123")
	if field(t, body, "id") != "r1" {
		t.Errorf("sglang reads rid and not the header: %s", body)
	}
}

func TestRefusalsInTheDialect(t *testing.T) {
	_, v := start(t, Options{})
	_, s := start(t, Options{Dialect: dialect.SGLang, MaxModelLen: 1000})
	for _, row := range []struct {
		c          *client
		path, body string
		status     int
		want       string
	}{
		{v, "/v1/chat/completions", `{"model":"tiny","messages":[],"stream_options":{"include_usage":true}}`, 400, "Stream options"},
		{v, "/v1/chat/completions", chatBody("a", "b", `,"cache_salt":""`), 400, "cache_salt"},
		{v, "/v1/chat/completions", chatBody("a", "b", `,"n":0`), 400, `"param":"n"`},
		{v, "/v1/chat/completions", chatBody("a", "b", `,"max_tokens":200000`), 400, "is too large"},
		{v, "/v1/chat/completions", `[1]`, 400, "model_attributes_type"},
		{v, "/v1/chat/completions", "{\"a\":\"\xff\"}", 400, "json_invalid"},
		{v, "/v1/completions", `{"model":"tiny"}`, 400, "body.prompt"},
		{v, "/v1/completions", `{"model":"tiny","prompt":""}`, 400, "non-empty"},
		{v, "/v1/responses", `{"model":"tiny"}`, 400, "body.input"},
		{v, "/v1/responses", `{"model":"tiny","input":"x","previous_response_id":"resp_none"}`, 404, "not found"},
		{v, "/v1/messages", `{"model":"tiny","messages":[]}`, 400, "body.max_tokens"},
		{v, "/v1/messages", `{"model":"nope","messages":[],"max_tokens":1}`, 404, `{"type":"error","error":{"type":"NotFoundError"`},
		{s, "/v1/chat/completions", `{"model":"tiny","messages":[`, 400, `{"object":"error","message":"[{'type': 'json_invalid'`},
		{s, "/v1/chat/completions", `{"model":"tiny"}`, 400, `"type":"Bad Request","param":null,"code":400}`},
		{s, "/v1/chat/completions", chatBody(policy(2000), "b", ""), 400, "longer than the model's context length"},
		{s, "/v1/chat/completions", `{"model":"tiny:nope","messages":[]}`, 400, "never been loaded"},
		{s, "/v1/messages", `{"model":"tiny","messages":[],"max_tokens":0}`, 400, `"type":"invalid_request_error"`},
	} {
		resp, body := row.c.do(row.path, row.body)
		if resp.StatusCode != row.status || !strings.Contains(body, row.want) {
			t.Errorf("%s %.60s: %d %s, want %d with %s", row.path, row.body, resp.StatusCode, body, row.status, row.want)
		}
	}
	resp, _ := v.do("/v1/chat/completions", chatBody("a", "b", ""), "Content-Type", "text/plain")
	if resp.StatusCode != 400 {
		t.Errorf("a body that is not called JSON gets %d", resp.StatusCode)
	}
	resp, _ = v.do("/v1/chat/completions", "")
	if resp.StatusCode != http.StatusMethodNotAllowed {
		t.Errorf("GET gets %d", resp.StatusCode)
	}
}

func TestStoredResponsesNeedTheirEngine(t *testing.T) {
	_, c := start(t, Options{StoreResponses: true})
	_, other := start(t, Options{StoreResponses: true, Seed: 9})
	body := c.ok("/v1/responses", `{"model":"tiny","input":"hi"}`)
	id := field(t, body, "id").(string)
	next := c.ok("/v1/responses", `{"model":"tiny","input":"more","previous_response_id":"`+id+`"}`)
	if a, b := field(t, body, "usage", "input_tokens").(float64), field(t, next, "usage", "input_tokens").(float64); b < a+60 {
		t.Errorf("the second turn has %v input tokens after %v: the first is not in it", b, a)
	}
	if got := c.ok("/v1/responses/"+id, ""); got != body {
		t.Errorf("the stored response is %s", got)
	}
	if resp, _ := other.do("/v1/responses", `{"model":"tiny","input":"more","previous_response_id":"`+id+`"}`); resp.StatusCode != 404 {
		t.Errorf("another engine answers %d", resp.StatusCode)
	}
	_, off := start(t, Options{})
	id = field(t, off.ok("/v1/responses", `{"model":"tiny","input":"hi"}`), "id").(string)
	if resp, _ := off.do("/v1/responses/"+id, ""); resp.StatusCode != 404 {
		t.Errorf("without the store it answers %d", resp.StatusCode)
	}
}

func TestAuthGuardsWhatTheDialectGuards(t *testing.T) {
	_, v := start(t, Options{APIKey: "k1"})
	_, s := start(t, Options{APIKey: "k1", Dialect: dialect.SGLang, Preset: "instant", HealthDelay: -1})
	e, all := start(t, Options{APIKey: "k1", GuardAll: true})
	for _, row := range []struct {
		c      *client
		path   string
		status int
	}{
		{v, "/v1/models", 401}, {v, "/health", 200}, {v, "/metrics", 200}, {v, "/version", 200}, {v, "/load", 200},
		{s, "/v1/models", 401}, {s, "/health", 200}, {s, "/metrics", 200}, {s, "/server_info", 401},
		{all, "/v1/models", 401}, {all, "/health", 401}, {all, "/metrics", 401},
	} {
		if resp, _ := row.c.do(row.path, ""); resp.StatusCode != row.status {
			t.Errorf("%s without a key: %d, want %d", row.path, resp.StatusCode, row.status)
		}
		if resp, _ := row.c.do(row.path, "", "Authorization", "Bearer k1"); resp.StatusCode != 200 {
			t.Errorf("%s with the key: %d", row.path, resp.StatusCode)
		}
	}
	e.SetAPIKey("k2")
	if resp, _ := all.do("/health", "", "Authorization", "Bearer k1"); resp.StatusCode != 401 {
		t.Error("the old key still works")
	}
}

func TestB58ToyTemplate(t *testing.T) {
	real := func(more string) string { return chatBody(policy(320), "what about my order?", more) }
	for _, tpl := range []Template{{}, {ToolsLast: true}, {DateLine: true}, {ThinkingLast: true}} {
		_, c := start(t, Options{Template: tpl})
		tokens := func(body string) []any { return field(t, c.ok("/tokenize", body), "tokens").([]any) }
		common := func(a, b []any) int {
			n := 0
			for n < min(len(a), len(b)) && a[n] == b[n] {
				n++
			}
			return n
		}
		base := tokens(real(`,"tools":` + toolList))
		for name, row := range map[string]struct {
			body  string
			whole bool // the static head survives the change
		}{
			"another user text": {strings.Replace(real(`,"tools":`+toolList), "what about", "and what of", 1), true},
			"without tools":     {real(""), tpl.ToolsLast},
			"thinking on":       {real(`,"chat_template_kwargs":{"enable_thinking":true},"tools":` + toolList), tpl.ThinkingLast},
			"system as parts":   {strings.Replace(real(`,"tools":`+toolList), `"content":"`+policy(320)+`"`, `"content":[{"type":"text","text":"`+policy(320)+`"}]`, 1), true},
		} {
			if got := common(base, tokens(row.body)); (got >= 320) != row.whole {
				t.Errorf("template %+v, %s: %d common tokens", tpl, name, got)
			}
		}
	}
}

func TestDetokenizeInvertsTokenize(t *testing.T) {
	for d, name := range map[dialect.Engine]string{dialect.VLLM: "prompt", dialect.SGLang: "text"} {
		_, c := start(t, Options{Dialect: d})
		ids, _ := json.Marshal(field(t, c.ok("/tokenize", `{"prompt":"héllo, 渐 🚀!"}`), "tokens"))
		if got := field(t, c.ok("/detokenize", `{"tokens":`+string(ids)+`}`), name); got != "héllo, 渐 🚀!" {
			t.Errorf("%v: %v", d, got)
		}
	}
}

func TestBillingHeaderPoisonsThePrefixOnSGLangOnly(t *testing.T) {
	body := func(n string) string {
		return `{"model":"tiny","max_tokens":1,"system":[{"type":"text","text":"x-anthropic-billing-header: ` + n + `"},{"type":"text","text":"` + policy(320) + `"}],"messages":[{"role":"user","content":"x"}]}`
	}
	for _, d := range []dialect.Engine{dialect.VLLM, dialect.SGLang} {
		e, c := start(t, Options{Dialect: d})
		c.ok("/v1/messages", body("aaaaaaaa"))
		c.ok("/v1/messages", body("bbbbbbbb"))
		if got := e.Counters().ColdPrefills; got != map[dialect.Engine]int64{dialect.VLLM: 1, dialect.SGLang: 2}[d] {
			t.Errorf("%v: %d cold prefills", d, got)
		}
	}
}

func TestPriorityHasTheDialectsSign(t *testing.T) {
	for d, order := range map[dialect.Engine][]int64{dialect.VLLM: {-7, 7, 9}, dialect.SGLang: {7, -7, 7}} {
		e, err := New(Options{Dialect: d, Preset: "instant"})
		if err != nil {
			t.Fatal(err)
		}
		var got []int64
		for _, h := range []struct{ body, header string }{{`{"priority":-7}`, ""}, {`{"priority":7}`, ""}, {`{"priority":-7}`, "9"}} {
			r, _ := http.NewRequest(http.MethodPost, "/", nil)
			r.Header.Set("X-Vllm-Priority", h.header)
			g := &generation{body: value(h.body)}
			e.resolvePriority(r, g)
			got = append(got, g.priority)
		}
		if !slices.Equal(got, order) {
			t.Errorf("%v: the scheduler sees %v, want %v", d, got, order)
		}
		if err := e.Close(); err != nil {
			t.Fatal(err)
		}
	}
}
