package fingerprint

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/prefixring/prefixring/internal/dialect"
)

func prefixOf(t *testing.T, p dialect.Protocol, body string) uint64 {
	t.Helper()
	return scan(t, p, body).Prefix
}

func same(t *testing.T, p dialect.Protocol, why, a, b string) {
	t.Helper()
	if prefixOf(t, p, a) != prefixOf(t, p, b) {
		t.Errorf("%s: %s and %s differ", why, a, b)
	}
}

func differ(t *testing.T, p dialect.Protocol, why, a, b string) {
	t.Helper()
	if prefixOf(t, p, a) == prefixOf(t, p, b) {
		t.Errorf("%s: %s and %s are the same", why, a, b)
	}
}

func TestB16EscapesDoNotChangeFingerprint(t *testing.T) {
	body := func(system string) string {
		return `{"model":"m","messages":[{"role":"system","content":"` + system + `"},{"role":"user","content":"q"}]}`
	}
	plain := body("<rules>a & b</rules> é 跨 🚀/")
	for _, other := range []string{
		body(`\u003crules\u003ea \u0026 b\u003c/rules\u003e é 跨 🚀/`),
		body(`<rules>a & b</rules> \u00e9 \u8de8 \ud83d\uDE80\/`),
		body(`\u003C\u0072ules>a & b<\/rules> \u00E9 跨 🚀\u002f`),
		strings.ReplaceAll(plain, `"content":`, "\n\t\"content\" :  "),
		strings.ReplaceAll(plain, `"role"`, `"r\u006fle"`),
	} {
		same(t, dialect.Chat, "spelling", plain, other)
	}
	differ(t, dialect.Chat, "one more space", plain, body("<rules>a &  b</rules> é 跨 🚀/"))
	same(t, dialect.Chat, "control characters", body(`a\n\t\"\\`), body(`a\u000a\u0009\u0022\u005c`))
	differ(t, dialect.Chat, "an escaped backslash", body(`\\n`), body(`\n`))
	differ(t, dialect.Chat, "a lone surrogate is not U+FFFD", body(`\ud800`), body("\ufffd"))
}

func TestB17OrderInsideToolsIsPartOfTheFingerprint(t *testing.T) {
	body := func(tools string) string {
		return `{"tools":` + tools + `,"messages":[{"role":"system","content":"s"}]}`
	}
	ab := body("[" + toolA + "," + toolB + "]")
	differ(t, dialect.Chat, "tool order", ab, body("["+toolB+","+toolA+"]"))
	differ(t, dialect.Chat, "member order", ab, strings.Replace(ab, `"type":"function","function":{"name":"a"`, `"function":{"name":"a"`, 1))
	differ(t, dialect.Chat, "property order", ab, strings.Replace(ab, `"x":{"type":"string"},"y":{"type":"number"}`, `"y":{"type":"number"},"x":{"type":"string"}`, 1))
	differ(t, dialect.Chat, "number spelling", body(`[{"n":1}]`), body(`[{"n":1.0}]`))
	same(t, dialect.Chat, "white space", ab, body("[ "+strings.ReplaceAll(toolA, ":", " : ")+" ,\n "+toolB+" ]"))
	same(t, dialect.Chat, "escapes", ab, strings.ReplaceAll(ab, `"name":"a"`, `"n\u0061me":"\u0061"`))
	same(t, dialect.Chat, "field order", ab, `{"messages":[{"content":"s","role":"system"}],"tools":[`+toolA+","+toolB+`]}`)
	for _, marked := range []string{`{"cache_control":{"type":"ephemeral"},`, `{"c\u0061che_control": null ,`} {
		same(t, dialect.Chat, "cache_control", ab, body("["+marked+toolA[1:]+","+toolB[:len(toolB)-1]+` , "cache_control":{"type":"ephemeral"}}]`))
	}
	differ(t, dialect.Chat, "a property that is called cache_control", ab, strings.Replace(ab, `"x":{`, `"cache_control":{`, 1))
	for _, none := range []string{"null", "[]", "[ ]"} {
		same(t, dialect.Chat, "no tools", body(none), `{"messages":[{"role":"system","content":"s"}]}`)
	}
}

func TestB23SystemTextAsParts(t *testing.T) {
	message := func(content string) string {
		return `{"messages":[{"role":"system","content":` + content + `},{"role":"user","content":"q"}]}`
	}
	a, b := message(`"one two"`), message(`[{"type":"text","text":"one two"}]`)
	c, d := message(`[{"type":"text","text":"one "},{"type":"text","text":"two"}]`), `{"messages":[{"role":"system","content":"one "},{"role":"system","content":"two"}]}`
	same(t, dialect.Chat, "one text part is rendered like a string", a, b)
	same(t, dialect.Chat, "type and text in any order, a cache mark", b, message(`[{"cache_control":{"type":"ephemeral"},"text":"one two","type":"text"}]`))
	same(t, dialect.Chat, "Responses calls it input_text", b, message(`[{"type":"input_text","text":"one two"}]`))
	differ(t, dialect.Chat, "two parts are joined in engine-dependent ways", a, c)
	differ(t, dialect.Chat, "two messages", a, d)
	differ(t, dialect.Chat, "two parts and two messages", c, d)
	differ(t, dialect.Chat, "where the parts end", c, message(`[{"type":"text","text":"one"},{"type":"text","text":" two"}]`))
	unknown := `[{"type":"text","text":"one two"},{"type":"hologram","data":"x"}]`
	differ(t, dialect.Chat, "an unknown part is not skipped", b, message(unknown))
	differ(t, dialect.Chat, "an unknown part counts by its bytes", message(unknown), message(strings.Replace(unknown, `"x"`, `"y"`, 1)))
	differ(t, dialect.Chat, "text that looks like a mark", message(`"a\u001eb"`), message(`[{"type":"text","text":"a"},{"type":"text","text":"b"}]`))
	for _, body := range []string{a, b, c, d, message(unknown)} {
		other := strings.Replace(body, `"q"`, `"another question"`, 1)
		same(t, dialect.Chat, "the user's text is not in it", body, other)
		if r := scan(t, dialect.Chat, body); r.Kind != KindPrefix || r.StaticBytes == 0 {
			t.Errorf("%s: kind %s, %d static bytes", body, r.Kind, r.StaticBytes)
		}
	}
}

func TestB25OddRolesAndContentsPass(t *testing.T) {
	for _, messages := range []string{
		`[{"role":"developer","content":"d"},{"role":"user","content":"q"}]`, `[{"role":"","content":"x"}]`, `[{"role":null}]`, `[{"role":7,"content":{}}]`,
		`[{"role":"assistant","content":null,"tool_calls":[{"id":"1","function":{"name":"f","arguments":"{}"}}]}]`,
		`[{"role":"user","content":""}]`, `[]`, `null`, `"text"`, `{}`, `[null,1,"x",[]]`, `[{"role":"system","content":"only"}]`, `[{"role":"tool","content":"first"}]`,
		`[` + strings.Repeat(`{"role":"user","content":"x"},`, 1999) + `{"role":"user","content":"x"}]`,
	} {
		r := scan(t, dialect.Chat, `{"messages":`+messages+`}`)
		if want := strings.Count(messages, `{"role":"user"`); want > 1000 && (r.Turns != want || len(r.Boundaries) != DefaultMaxBoundaries) {
			t.Errorf("%d messages gave %d turns, %d boundaries", want, r.Turns, len(r.Boundaries))
		}
	}
	scan(t, dialect.Chat, `{"model":"m"}`)
	body := func(role string) string { return `{"messages":[{"role":"` + role + `","content":"same text"}]}` }
	differ(t, dialect.Chat, "developer is not system", body("system"), body("developer"))
	if r := scan(t, dialect.Chat, body("developer")); r.SystemBytes != 9 || r.Turns != 0 {
		t.Errorf("a leading developer message: %+v", visible(r))
	}
	contents := []string{`"content":""`, `"content":null`, `"content":[]`, `"content":{}`, `"x":1`, `"content":[{"type":"text","text":""},{}]`, `"content":0`}
	for i, a := range contents {
		for _, b := range contents[i+1:] {
			differ(t, dialect.Chat, "kinds of nothing", `{"messages":[{"role":"system",`+a+`}]}`, `{"messages":[{"role":"system",`+b+`}]}`)
		}
	}
}

func TestB27TheKeyIsTheWholeStaticPrefixAndNothingElse(t *testing.T) {
	s := newScanner(t, Options{})
	keys := map[uint64]bool{}
	for i := range 200 {
		var r Result
		body := encode(chat{Messages: []map[string]any{say("system", fatText), say("user", uuid(i))}})
		if err := s.Scan(dialect.Chat, body, &r); err != nil {
			t.Fatal(err)
		}
		keys[r.Fingerprint("m", "", "")] = true
	}
	if len(keys) != 1 {
		t.Errorf("200 users of one prompt have %d keys", len(keys))
	}
	clear(keys)
	for i := range 50 {
		keys[chatWith(t, s, fatText[:2000]+fmt.Sprint("tenant ", i)+fatText).Fingerprint("m", "", "")] = true
	}
	if len(keys) != 50 {
		t.Errorf("50 tenants with one preamble have %d keys", len(keys))
	}
	differ(t, dialect.Chat, "other tools, same system", toolsText(toolA), toolsText(toolB))
}

func toolsText(tool string) string { return string(toolsBody("[" + tool + "]")) }

func TestB29EveryKnownRouteIsKeyed(t *testing.T) {
	fat := strings.Repeat("one two three ", 600)
	ids := strings.TrimSuffix(strings.Repeat("101, 2054,30000,", 900), ",")
	for _, c := range []struct {
		p    dialect.Protocol
		body string
		want Kind
	}{
		{dialect.Chat, `{"messages":[{"role":"system","content":"s"},{"role":"user","content":"q"}]}`, KindPrefix},
		{dialect.Chat, `{"messages":[{"role":"user","content":"q"}],"tools":[{}]}`, KindPrefix},
		{dialect.Chat, `{"messages":[{"role":"user","content":"q"}]}`, KindSession},
		{dialect.Chat, `{"messages":[],"prompt_cache_key":"k"}`, KindSession},
		{dialect.Chat, `{"messages":[]}`, KindNone},
		{dialect.Completions, `{"prompt":"` + fat + `"}`, KindLead},
		{dialect.Completions, `{"prompt":"short"}`, KindLead},
		{dialect.Completions, `{"prompt":["` + fat + `","other"]}`, KindLead},
		{dialect.Completions, `{"prompt":[` + ids + `]}`, KindLead},
		{dialect.Completions, `{"prompt":[[` + ids + `],[1,2]]}`, KindLead},
		{dialect.Responses, `{"instructions":"s","input":"q"}`, KindPrefix},
		{dialect.Responses, `{"input":[{"type":"message","role":"developer","content":[{"type":"input_text","text":"s"}]},{"role":"user","content":"q"}]}`, KindPrefix},
		{dialect.Responses, `{"input":"q","previous_response_id":"r"}`, KindSession},
		{dialect.Messages, `{"system":"s","messages":[{"role":"user","content":"q"}]}`, KindPrefix},
		{dialect.Messages, `{"system":[{"type":"text","text":"s","cache_control":{"type":"ephemeral"}}],"messages":[]}`, KindPrefix},
		{dialect.Messages, `{"messages":[{"role":"user","content":[{"type":"text","text":"q"}]}]}`, KindSession},
		{dialect.Opaque, `{"input":["a","b"],"model":"e"}`, KindNone},
	} {
		r := scan(t, c.p, c.body)
		if r.Kind != c.want {
			t.Errorf("%s %.80s: key kind %s, want %s", c.p, c.body, r.Kind, c.want)
		}
		if c.p != dialect.Opaque && c.want != KindNone && r.PromptBytes == 0 && c.want != KindSession {
			t.Errorf("%s %.80s: no prompt bytes", c.p, c.body)
		}
	}
}

func TestB30ModelAdapterAndSaltAreInTheKey(t *testing.T) {
	r := scan(t, dialect.Chat, `{"model":"alias","messages":[{"role":"system","content":"s"}]}`)
	seen := map[uint64]string{}
	for _, m := range [][3]string{{"base", "", ""}, {"lora-a", "", ""}, {"lora-b", "", ""}, {"base", "lora-a", ""}, {"base", "", "lora-a"}, {"basel", "ora-a", ""},
		{"org/Model:7B-跨", "", ""}, {"org/model:7b-跨", "", ""}, {"", "", ""}} {
		k := r.Fingerprint(m[0], m[1], m[2])
		if other, dup := seen[k]; dup {
			t.Errorf("%q and %s share a key", m, other)
		}
		seen[k] = fmt.Sprint(m)
		if again := r.Fingerprint(m[0], m[1], m[2]); again != k {
			t.Errorf("%q is not stable", m)
		}
	}
	// The model in the body is an alias until it is resolved: it has no part in Prefix.
	same(t, dialect.Chat, "alias", `{"model":"chat-prod","messages":[{"role":"system","content":"s"}]}`, `{"model":"lora-a","messages":[{"role":"system","content":"s"}]}`)
	differ(t, dialect.Chat, "SGLang's lora_path", `{"messages":[{"role":"system","content":"s"}]}`, `{"lora_path":"a","messages":[{"role":"system","content":"s"}]}`)
	body := []byte(`{"model":"org\/Model:7B-\u8de8"}`)
	var x Result
	if err := newScanner(t, Options{}).Scan(dialect.Chat, body, &x); err != nil || string(Text(body, x.Model, nil)) != "org/Model:7B-跨" {
		t.Errorf("model %q, %v", Text(body, x.Model, nil), err)
	}
}

func TestOneTextThroughThreeProtocols(t *testing.T) {
	chat := scan(t, dialect.Chat, `{"messages":[{"role":"system","content":"You help."},{"role":"user","content":"q"}]}`)
	for p, bodies := range map[dialect.Protocol][]string{
		dialect.Responses: {`{"instructions":"You help.","input":"q"}`, `{"input":[{"role":"user","content":"q"}],"instructions":"You\u0020help."}`,
			`{"input":[{"type":"message","role":"system","content":"You help."},{"role":"user","content":"q"}]}`},
		dialect.Messages: {`{"system":"You help.","messages":[{"role":"user","content":"q"}]}`, `{"messages":[{"role":"user","content":"q"}],"system":[{"type":"text","text":"You help."}]}`},
	} {
		for _, body := range bodies {
			r := scan(t, p, body)
			if r.Prefix != chat.Prefix || r.Key != chat.Key || r.StaticBytes != 9 || r.PromptBytes != 10 || r.Root != chat.Root {
				t.Errorf("%s %s: %+v, want %+v", p, body, visible(r), visible(chat))
			}
		}
	}
	two := scan(t, dialect.Chat, `{"messages":[{"role":"system","content":"A"},{"role":"developer","content":"B"}]}`).Prefix
	for _, body := range []string{`{"instructions":"A","input":[{"role":"developer","content":"B"}]}`, `{"input":[{"role":"developer","content":"B"}],"instructions":"A"}`} {
		if prefixOf(t, dialect.Responses, body) != two {
			t.Errorf("%s is not system A, developer B", body)
		}
	}
}

func TestTemplateArguments(t *testing.T) {
	with := func(extra string) string { return `{` + extra + `"messages":[{"role":"system","content":"s"}]}` }
	bare := with("")
	for _, extra := range []string{`"chat_template":"{{x}}",`, `"chat_template_kwargs":{"enable_thinking":false},`, `"documents":[{"text":"d"}],`, `"reasoning_effort":"high",`,
		`"add_generation_prompt":false,`, `"continue_final_message":true,`, `"tool_choice":"none",`, `"tool_choice":{"type":"function","function":{"name":"f"}},`,
		`"cache_salt":"x",`, `"extra_key":"x",`, `"lora_path":"x",`, `"thinking":{"type":"enabled"},`, `"add_special_tokens":true,`,
		`"truncate_prompt_tokens":8,`, `"mm_processor_kwargs":{"fps":2},`, `"functions":[{"name":"f"}],`} {
		differ(t, dialect.Chat, "argument", bare, with(extra))
		name := extra[:strings.IndexByte(extra, ':')]
		same(t, dialect.Chat, "null", bare, with(name+":null,"))
	}
	for _, extra := range []string{`"chat_template_kwargs":{},`, `"documents":[],`, `"add_generation_prompt":true,`, `"continue_final_message":false,`, `"tool_choice":"auto",`,
		`"tool_choice":"required",`, `"tool_choice":{"type":"auto"},`, `"temperature":0,`, `"max_tokens":9,`, `"stream":true,`, `"user":"u",`, `"prompt_cache_key":"k",`,
		`"response_format":{"type":"json_object"},`, `"seed":1,`, `"reasoning":{"effort":"high"},`, `"metadata":{"a":"b"},`} {
		same(t, dialect.Chat, "not an argument", bare, with(extra))
	}
	same(t, dialect.Chat, "kwargs are named", with(`"chat_template_kwargs":{"a":1,"b":[1,2]},`), with(`"chat_template_kwargs":{ "b":[1, 2],"a":1},`))
	differ(t, dialect.Chat, "kwargs", with(`"chat_template_kwargs":{"a":1,"b":2},`), with(`"chat_template_kwargs":{"a":2,"b":1},`))
	effort := prefixOf(t, dialect.Responses, `{"instructions":"s","reasoning":{"summary":"auto","effort":"high"}}`)
	if effort != prefixOf(t, dialect.Chat, with(`"reasoning_effort":"high",`)) {
		t.Error("the Responses effort is not the chat effort")
	}
}

func TestBillingBlockIsLeftOutAndCanBeCut(t *testing.T) {
	bill := `{"type":"text","text":"x-anthropic-billing-header: cc_version=2; cch=1f2e3;"}`
	text := `{"type":"text","text":"You help."}`
	body := func(system string) string {
		return `{"system":` + system + `,"messages":[{"role":"user","content":"q"}]}`
	}
	for _, with := range []string{`[` + bill + `,` + text + `]`, `[` + text + ` , ` + bill + `]`, `[ ` + bill + ` , ` + bill + `,` + text + `]`, `[` + bill + `,` + text + `,` + bill + `]`} {
		r := scan(t, dialect.Messages, body(with))
		if r.Prefix != prefixOf(t, dialect.Messages, body(`[`+text+`]`)) || r.SystemBytes != 9 || len(r.Strip) != strings.Count(with, "billing") {
			t.Errorf("%s: %+v", with, visible(r))
		}
		checkStrip(t, dialect.Messages, []byte(body(with)), r)
	}
	only := scan(t, dialect.Messages, body(`[`+bill+`]`))
	if only.Kind != KindSession || len(only.Strip) != 1 {
		t.Errorf("nothing but billing: %+v", visible(only))
	}
	differ(t, dialect.Chat, "in other protocols it is text", `{"messages":[{"role":"system","content":[`+bill+`,`+text+`]}]}`, `{"messages":[{"role":"system","content":[`+text+`]}]}`)
}

func TestPicturesCountByReferenceAndWeighAFixedAmount(t *testing.T) {
	body := func(url string) string {
		return `{"messages":[{"role":"system","content":[{"type":"image_url","image_url":{"url":"` + url + `"}},{"type":"text","text":"look"}]},{"role":"user","content":"q"}]}`
	}
	differ(t, dialect.Chat, "picture", body("http://a/1.png"), body("http://a/2.png"))
	differ(t, dialect.Chat, "picture data", body("data:image/png;base64,AAAA"), body("data:image/png;base64,AAAB"))
	big := scan(t, dialect.Chat, body("data:image/png;base64,"+strings.Repeat("A", 1<<20)))
	if big.PromptBytes != pictureBytes+len("look")+len("q") {
		t.Errorf("a megabyte of picture weighs %d bytes of prompt", big.PromptBytes)
	}
}

func TestSessionFieldsAndBoundaries(t *testing.T) {
	turn := func(messages string) *Result { return scan(t, dialect.Chat, `{"messages":[`+messages+`]}`) }
	sys, u1, a1, u2 := `{"role":"system","content":"s"},`, `{"role":"user","content":"one"}`, `{"role":"assistant","content":"answer"}`, `{"role":"user","content":"two"}`
	first, second := turn(sys+u1), turn(sys+u1+","+a1+","+u2)
	last, _ := first.Last()
	if answered, ok := second.Answered(); !ok || answered != last {
		t.Errorf("the second turn does not find the first: %x, %x", answered, last)
	}
	if _, ok := first.Answered(); ok {
		t.Error("a first turn has been answered")
	}
	clock := turn(`{"role":"system","content":"s 00:01"},` + u1)
	if h, _ := clock.Last(); h != last || clock.Root != first.Root {
		t.Error("a clock in the system message changes the conversation")
	}
	tools := turn(sys + u1 + `,{"role":"assistant","content":null,"tool_calls":[{"id":"c"}]},{"role":"tool","content":"r"}`)
	if h, ok := tools.Answered(); !ok || h != last {
		t.Error("a tool turn does not find the first")
	}
	marked := turn(sys + `{"role":"user","content":[{"type":"text","text":"one","cache_control":{"type":"ephemeral"}}]}`)
	if h, _ := marked.Last(); h != last {
		t.Error("a moving cache mark changes the conversation")
	}
	r := scan(t, dialect.Responses, `{"conversation":{"id":"conv"},"prompt_cache_key":null,"user":"u","session_id":"s","input":"q","max_output_tokens":5,"stream":"true","stream_options":{"include_usage":false}}`)
	body := `{"conversation":{"id":"conv"},"prompt_cache_key":null,"user":"u","session_id":"s","input":"q","max_output_tokens":5,"stream":"true","stream_options":{"include_usage":false}}`
	text := func(s Span) string { return string(Text([]byte(body), s, nil)) }
	if text(r.Conversation) != "conv" || r.PromptCacheKey.Present() || text(r.User) != "u" || text(r.Explicit()) != "conv" || !r.StreamOn || r.IncludeUsage != False || body[r.MaxTokens.Start:r.MaxTokens.End] != "5" {
		t.Errorf("%+v", visible(r))
	}
}

func TestRefusals(t *testing.T) {
	deep := func(n int) string { return `{"a":` + strings.Repeat("[", n) + strings.Repeat("]", n) + `}` }
	for _, c := range []struct{ body, reason, field string }{
		{"", ReasonEmpty, ""}, {" \n", ReasonEmpty, ""}, {"[]", ReasonObject, ""}, {"nul", ReasonObject, ""}, {"\xef\xbb\xbf{}", ReasonBOM, ""},
		{"{", ReasonEnd, ""}, {`{"model":"m`, ReasonEnd, "model"}, {`{"model":"m\`, ReasonEnd, "model"}, {`{"messages":[{"role":"system","content":"abc`, ReasonEnd, "messages"},
		{`{"a":1}x`, ReasonTrailing, ""}, {`{"a":1}{}`, ReasonTrailing, ""}, {`{"model":"cheap","model":"dear"}`, ReasonDuplicate, ""}, {`{"model":"a","mod\u0065l":"b"}`, ReasonDuplicate, ""},
		{`{"a":NaN}`, ReasonLiteral, ""}, {`{"n":-Infinity}`, ReasonNumber, "n"}, {`{"a":01}`, ReasonNumber, ""}, {`{"a":1.}`, ReasonNumber, ""}, {`{"a":+1}`, ReasonLiteral, ""},
		{`{"a":tru}`, ReasonLiteral, ""}, {`{"a":trueee}`, ReasonComma, ""}, {`{"a":1,}`, ReasonKey, ""}, {`{a:1}`, ReasonKey, ""}, {`{"a" 1}`, ReasonColon, ""}, {`{"a":[1 2]}`, ReasonComma, ""},
		{"{\"model\":\"a\nb\"}", ReasonControl, "model"}, {`{"model":"\x"}`, ReasonEscape, "model"}, {`{"model":"\u12g4"}`, ReasonEscape, "model"},
		{"{\"model\":\"\xff\"}", ReasonUTF8, "model"}, {"{\"model\":\"\xed\xa0\x80\"}", ReasonUTF8, "model"}, {"{\"\xc3\":1}", ReasonUTF8, ""},
		{deep(DefaultMaxDepth), ReasonDepth, ""}, {`{"tools":[{"cache_control":1,}]}`, ReasonKey, "tools"}, {`{"tools":[{"cache_control":1 "a":2}]}`, ReasonComma, "tools"},
	} {
		var r Result
		err := newScanner(t, Options{}).Scan(dialect.Chat, []byte(c.body), &r)
		var se *SyntaxError
		if !errors.As(err, &se) || se.Reason != c.reason || se.Field != c.field || se.Offset > len(c.body) {
			t.Errorf("%.60q: %v, want %q in %q", c.body, err, c.reason, c.field)
		}
		isJSON := strings.HasPrefix(strings.TrimLeft(c.body, " \n"), "{")
		if err := newScanner(t, Options{}).Scan(dialect.Opaque, []byte(c.body), &r); (err != nil) != isJSON {
			t.Errorf("opaque %.60q: %v", c.body, err)
		}
	}
	scan(t, dialect.Chat, deep(DefaultMaxDepth-1))
	scan(t, dialect.Chat, " {\"a\" : 1 , \"b\":\"\\ud800\"}\r\n\t ")
	if r := scan(t, dialect.Opaque, "--boundary\r\nContent-Disposition: form-data; name=\"model\"\r\n\r\nw\xff\x00"); r.JSON || r.Kind != KindNone {
		t.Error("a form was read as JSON")
	}
}

func TestErrorsCarryNoText(t *testing.T) {
	var r Result
	err := newScanner(t, Options{}).Scan(dialect.Chat, []byte(`{"sk-secret-name":"sk-secret","messages":[{"role":"system","content":"sk-secret`+"\x01"), &r)
	if err == nil || strings.Contains(err.Error(), "secret") {
		t.Errorf("%v", err)
	}
}

func TestManyTopLevelFieldsCostNoSquare(t *testing.T) {
	var b bytes.Buffer
	b.WriteByte('{')
	for i := range 200_000 {
		fmt.Fprintf(&b, `"k%d":0,`, i)
	}
	good := b.String() + `"end":0}`
	scan(t, dialect.Chat, good)
	var r Result
	if err := newScanner(t, Options{}).Scan(dialect.Chat, []byte(b.String()+`"k77777":0}`), &r); err == nil {
		t.Error("a duplicate among 200,000 names was missed")
	}
	if err := newScanner(t, Options{}).Scan(dialect.Chat, []byte(`{"`+strings.Repeat(`\u0061`, 100_000)+`":1}`), &r); err != nil {
		t.Fatal(err)
	}
	if p := r.p; p.b != nil || p.content.first != nil || p.aux.first != nil || cap(p.names) > 1<<10 || cap(p.table) > 1<<14 || cap(p.key) > 4<<10 {
		t.Error("a Result holds on to an extreme body")
	}
}

func TestScanDoesNotAllocate(t *testing.T) {
	s := newScanner(t, Options{Named: registered32(lines(fat/2, 100, ""))})
	bodies := benchBodies()
	bodies["escapes in all names"] = []byte(strings.NewReplacer(`"role"`, `"r\u006fle"`, `"content"`, `"c\u006fntent"`).Replace(string(bodies["Messages200"])))
	for name, body := range bodies {
		for _, p := range protocols {
			var r Result
			f := func() {
				if err := s.Scan(p, body, &r); err != nil {
					t.Fatal(err)
				}
				r.Fingerprint("model", "adapter", "salt")
			}
			f()
			if n := testing.AllocsPerRun(5, f); n != 0 {
				t.Errorf("%s as %s: %v allocations", name, p, n)
			}
		}
	}
}

func TestRealBodies(t *testing.T) {
	raw, err := os.ReadFile("testdata/request_chat.json")
	if err != nil {
		t.Fatal(err)
	}
	stream, err := os.ReadFile("testdata/request_chat_stream.json")
	if err != nil {
		t.Fatal(err)
	}
	var r, q Result
	s := newScanner(t, Options{})
	if err := s.Scan(dialect.Chat, raw, &r); err != nil {
		t.Fatal(err)
	}
	if err := s.Scan(dialect.Chat, stream, &q); err != nil {
		t.Fatal(err)
	}
	if r.Prefix != q.Prefix || r.StreamOn || !q.StreamOn || string(Text(raw, r.Model, nil)) != "tiny" {
		t.Errorf("%+v\n%+v", visible(&r), visible(&q))
	}
	var decoded struct {
		Messages []struct{ Role, Content string }
	}
	if err := json.Unmarshal(raw, &decoded); err != nil || len(decoded.Messages) < 2 {
		t.Fatal(err, len(decoded.Messages))
	}
	if r.SystemBytes != len(decoded.Messages[0].Content) {
		t.Errorf("%d system bytes, the decoder has %d", r.SystemBytes, len(decoded.Messages[0].Content))
	}
}
