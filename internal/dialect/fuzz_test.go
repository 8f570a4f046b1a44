package dialect

import (
	"fmt"
	"strings"
	"testing"
)

// tape turns fuzz bytes into decisions; at its end every decision is the first.
type tape struct{ b []byte }

func (t *tape) pick(n int) int {
	if len(t.b) == 0 {
		return 0
	}
	v := int(t.b[0])
	t.b = t.b[1:]
	return v % n
}

func (t *tape) of(options ...string) string { return options[t.pick(len(options))] }

// object renders members in an order and with white space that the tape chooses.
// An empty member is left out.
func (t *tape) object(members ...string) string {
	var some []string
	for _, m := range members {
		if m != "" {
			some = append(some, m)
		}
	}
	for i := len(some) - 1; i > 0; i-- {
		j := i - t.pick(i+1)
		some[i], some[j] = some[j], some[i]
	}
	space := t.of("", "", " ", "\t")
	return "{" + space + strings.Join(some, ","+space) + space + "}"
}

func member(key, value string) string { return `"` + key + `":` + value }

var texts = []string{`""`, `"x"`, `"\""`, `"\\"`, `"\\\\\""`, `"渐 안녕 🚀 ö"`, `"\u0000}]"`, `"a \"finish_reason\":\"stop\" b"`,
	`"` + strings.Repeat("long text ", 40) + `"`, `null`, `"data: [DONE]"`, `"\n\n"`}

var figures = []string{"0", "1", "3584", "60000", "null", "-1", "1.5", "1e3", "9007199254740993999", `"7"`, "{}"}

func (t *tape) text() string { return texts[t.pick(len(texts))] }

func (t *tape) junk() string {
	return t.of("", member("id", `"chatcmpl-1"`), member("logprobs", `{"content":[{"token":"a","top":[]}]}`),
		member("created", "1795995927"), member("model", `"a\"b"`), member("x", `[{"error":{"code":500}},[[]],true,-1.5e-7]`),
		member("instructions", t.text()))
}

func (t *tape) figure(key string) string {
	if t.pick(3) == 0 {
		return ""
	}
	return member(key, figures[t.pick(len(figures))])
}

func (t *tape) usage() string {
	if t.pick(3) == 0 {
		return t.of("", member("usage", "null"))
	}
	details := func(keys ...string) string {
		name := keys[0]
		switch t.pick(3) {
		case 0:
			return ""
		case 1:
			return member(name, "null")
		}
		var m []string
		for _, k := range keys[1:] {
			m = append(m, t.figure(k))
		}
		return member(name, t.object(m...))
	}
	if t.pick(2) == 0 {
		return member("usage", t.object(t.figure("prompt_tokens"), t.figure("completion_tokens"), t.junk(),
			details("prompt_tokens_details", "cached_tokens", "created_cache_tokens"), details("completion_tokens_details", "reasoning_tokens")))
	}
	return member("usage", t.object(t.figure("input_tokens"), t.figure("output_tokens"), t.figure("cache_read_input_tokens"),
		t.figure("cache_creation_input_tokens"), details("cache_creation", "ephemeral_1h_input_tokens"),
		details("input_tokens_details", "cached_tokens", "cache_write_tokens"), details("output_tokens_details", "reasoning_tokens")))
}

func (t *tape) finish(key string) string {
	return t.of("", member(key, "null"), member(key, `"stop"`), member(key, `"length"`), member(key, `"tool_calls"`),
		member(key, `"abort"`), member(key, `"error"`), member(key, `"end_turn"`), member(key, `"max_output_tokens"`), member(key, `"something_else"`),
		member(key, `"`+strings.Repeat("z", 60)+`"`), member(key, `""`))
}

func (t *tape) fault() string {
	if t.pick(6) != 1 {
		return t.of("", member("error", "null"), "", "")
	}
	return member("error", t.of(`"Unauthorized"`, `{"message":"full","code":503}`, `{"code":"429","type":"x"}`,
		`{"type":"overloaded_error","code":null}`, `""`, `true`, `false`, `[]`, `7`, `{"code":"x","type":"server_error"}`))
}

func (t *tape) chat() string {
	var list []string
	for range t.pick(4) {
		delta := t.of("", member("delta", "{}"), member("delta", t.object(member("role", `"assistant"`), member("content", t.text()))),
			member("delta", t.object(member("tool_calls", t.of("[]", `[{"index":0}]`, "null", "[ ]")))),
			member("delta", t.object(member("reasoning_content", t.text()), member("function_call", t.of("null", `{"name":"f"}`)))),
			member("delta", `"odd"`))
		list = append(list, t.object(t.of("", member("index", "0"), member("index", "1"), member("index", "77")), delta,
			t.finish("finish_reason"), t.of("", member("text", t.text())), t.junk()))
	}
	choices := t.of(member("choices", "["+t.of("", " ")+strings.Join(list, ",")+"]"), "", member("choices", "null"), member("choices", "{}"))
	if len(list) > 0 {
		choices = member("choices", "["+strings.Join(list, ",")+"]")
	}
	if t.pick(3) == 1 { // as on the wire: the same bytes before the choices in each chunk
		return `{"id":"c","object":"chat.completion.chunk","model":"m","choices":[` + strings.Join(list, ",") + `],` + member("rest", "1") + "}"
	}
	return t.object(choices, t.usage(), t.fault(), t.junk(), t.of("", "", "", member("object", `"error"`), member("object", `"chat.completion.chunk"`)),
		t.of("", "", member("code", "404")), t.of("", "", "", member("sglext", `{"cached":1}`)))
}

func (t *tape) response() string {
	return t.object(t.of("", member("status", `"completed"`), member("status", `"incomplete"`), member("status", `"failed"`),
		member("status", `"in_progress"`), member("status", `"cancelled"`)), t.usage(), t.fault(), t.junk(),
		t.of("", member("incomplete_details", "null"), member("incomplete_details", t.object(t.finish("reason")))),
		t.of("", member("output", `[{"status":"completed","type":"message","usage":{"input_tokens":9}}]`)))
}

func (t *tape) responsesEvent() string {
	kind := t.of("response.created", "response.completed", "response.incomplete", "response.failed", "response.cancelled",
		"response.output_text.delta", "response.function_call_arguments.delta", "error", "response.output_text.done", ".delta", "")
	response, fault := t.of("", member("response", t.response()), member("response", "null")), t.fault()
	if strings.Contains(response, `"error"`) { // one error in an event, as on the wire
		fault = ""
	}
	return t.object(member("type", `"`+kind+`"`), response, t.of("", member("delta", t.text())), fault, t.junk(),
		t.of("", member("code", `"429"`)))
}

func (t *tape) messagesEvent() string {
	kind := t.of("message_start", "content_block_delta", "message_delta", "message_stop", "error", "ping", "message", "content_block_start")
	usage, inner := t.usage(), "" // one usage object in an event, as on the wire
	if t.pick(2) == 1 {
		usage, inner = "", usage
	}
	stop, root := t.finish("stop_reason"), "" // and one stop reason
	if t.pick(4) == 1 {
		stop, root = "", stop
	}
	return t.object(member("type", `"`+kind+`"`), t.of("", member("message", t.object(inner, t.finish("stop_reason")))), usage, root,
		t.of("", member("delta", t.object(t.of("", member("text", t.text()), member("partial_json", t.text()), member("thinking", t.text())), stop))),
		t.of("", member("content_block", t.object(member("type", t.of(`"text"`, `"tool_use"`)), t.of("", member("text", t.text()))))),
		t.fault(), t.junk())
}

func (t *tape) value(p Protocol, stream bool) string {
	switch {
	case p == Responses && stream:
		return t.responsesEvent()
	case p == Responses:
		return t.response()
	case p == Messages:
		return t.messagesEvent()
	}
	return t.chat()
}

// generate writes a well-formed event stream: all line ends, comments, several
// data lines, names, [DONE], a missing last empty line.
func (t *tape) generate(p Protocol) string {
	var b strings.Builder
	end := t.of("\n", "\n", "\r\n", "\r")
	b.WriteString(t.of("", "", "", "\xEF\xBB\xBF"))
	for range 1 + t.pick(6) {
		b.WriteString(t.of("", "", ": keep-alive"+end, ": x"+end+end, end, "id: 7"+end))
		b.WriteString(t.of("", "", "event: message_stop"+end, "event: error"+end, "event:response.completed"+end,
			"event: "+strings.Repeat("n", 60)+end, "retry: 5"+end, "eventually: x"+end, "data"+end))
		value := t.value(p, true)
		switch t.pick(12) {
		case 1:
			value = t.of("[DONE]", "[DONE] ", "[]", "[1]", "7", `"s"`, "true", "")
		case 2:
			value = strings.Replace(value, ",", ","+end+"data:", 1)
		}
		fmt.Fprintf(&b, "data:%s%s%s", t.of(" ", "", " "), value, end)
		b.WriteString(t.of("", "", "", ": inside"+end))
		b.WriteString(end)
	}
	s := b.String()
	if t.pick(8) == 1 {
		s = strings.TrimSuffix(s, end)
	}
	return s
}

// pieces cuts a body as the cuts say and hands each piece to f.
func pieces(body string, cuts []byte, f func([]byte)) {
	b := []byte(body)
	for i := 0; len(b) > 0; i++ {
		n := 1
		if len(cuts) > 0 {
			n += int(cuts[i%len(cuts)]) * int(cuts[i%len(cuts)]) / 16
		}
		n = min(n, len(b))
		f(b[:n:n])
		b = b[n:]
	}
}

func FuzzTapOracle(f *testing.F) {
	for i := range 64 {
		seed := make([]byte, 64+i)
		for j := range seed {
			seed[j] = byte((i + 3) * (j + 7) * 31 >> 2)
		}
		f.Add(byte(i), seed, []byte{byte(i), 3}, i%2 == 0)
	}
	f.Fuzz(func(t *testing.T, p byte, decisions, cuts []byte, eof bool) {
		protocol := Protocol(p % 5)
		stream := p&64 == 0
		tp := &tape{decisions}
		contentType, body := "text/event-stream", ""
		if stream {
			body = tp.generate(protocol)
		} else {
			contentType, body = "application/json", tp.of("", " \n")+tp.value(protocol, false)+tp.of("", "\n", " x", ",")
		}
		want, state := judge(protocol, stream, strings.TrimPrefix(body, "\xEF\xBB\xBF"), eof)
		var tap Tap
		tap.Reset(protocol, 200, contentType)
		pieces(body, cuts, tap.Write)
		got := tap.End(eof)
		seen := tap.State()
		if !stream && want.Events == 0 {
			// Trailing garbage: the body was observed before its end made it no JSON.
			if got.Verdict != Unproven && got.Verdict != Failed {
				t.Fatalf("%q: %v", body, got)
			}
			return
		}
		if got != want || seen.FirstToken != state.FirstToken || seen.ErrorEvent != state.ErrorEvent || seen.ErrorCode != state.ErrorCode {
			t.Fatalf("%v stream=%v eof=%v cuts=%v\n%q\n got %+v %+v\nwant %+v %+v", protocol, stream, eof, cuts, body, got, seen, want, state)
		}
	})
}

// FuzzTapSplit: any bytes, any split, one outcome; and no split can break the Tap.
func FuzzTapSplit(f *testing.F) {
	for name, p := range map[string]Protocol{"vllm_chat_stream": Chat, "vllm_messages_stream": Messages, "vllm_responses": Responses, "vllm_cont_usage": Completions} {
		c := loadCapture(f, name)
		for at := 0; at < 1200; at += 400 { // short seeds: long ones spend the time on minimisation
			f.Add(byte(p), c.contentType, c.body[len(c.body)-min(at+400, len(c.body)):], []byte{1})
		}
	}
	f.Add(byte(1), "text/event-stream", []byte("data: [DONE]\r\n\r\ndata:\\\"{\r"), []byte{0, 2})
	f.Add(byte(1), "application/json", []byte(`{"choices":[{"finish_reason":"st\`), []byte{0, 2})
	f.Fuzz(func(t *testing.T, p byte, contentType string, body, cuts []byte) {
		var whole, cut Tap
		whole.Reset(Protocol(p%5), 200, contentType)
		cut.Reset(Protocol(p%5), 200, contentType)
		whole.Write(body)
		pieces(string(body), cuts, cut.Write)
		if a, b := whole.State(), cut.State(); a != b {
			t.Fatalf("%q cut by %v:\nwhole %+v\n  cut %+v", body, cuts, a, b)
		}
		if a, b := whole.End(true), cut.End(true); a != b {
			t.Fatalf("%q cut by %v:\nwhole %+v\n  cut %+v", body, cuts, a, b)
		}
	})
}

// FuzzStripper: on well-formed streams the output is the reference's, and on any
// bytes every split gives the same output.
func FuzzStripper(f *testing.F) {
	for i := range 64 {
		seed := make([]byte, 64+i)
		for j := range seed {
			seed[j] = byte((i + 5) * (j + 3) * 29 >> 2)
		}
		f.Add(seed, []byte{byte(i), 1}, []byte("data: {}\r\n\r\ndata: {\"choices\":[],\"usage\":{}}\n\n"))
	}
	f.Fuzz(func(t *testing.T, decisions, cuts, raw []byte) {
		body := (&tape{decisions}).generate(Chat)
		bom := strings.HasPrefix(body, "\xEF\xBB\xBF")
		want := strip(strings.TrimPrefix(body, "\xEF\xBB\xBF"))
		if bom {
			want = "\xEF\xBB\xBF" + want
		}
		if got := stripped(body, cuts); got != want {
			t.Fatalf("cuts %v\n   in %q\n  got %q\n want %q", cuts, body, got, want)
		}
		if a, b := stripped(string(raw), cuts), stripped(string(raw), []byte{255}); a != b {
			t.Fatalf("cuts %v of %q:\n%q\n%q", cuts, raw, a, b)
		}
	})
}

func stripped(body string, cuts []byte) string {
	var s UsageStripper
	var out []byte
	pieces(body, cuts, func(b []byte) { out = s.Filter(out, b) })
	return string(s.Flush(out))
}
