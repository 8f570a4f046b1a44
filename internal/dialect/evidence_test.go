package dialect

import (
	"strings"
	"testing"
)

// run observes one event stream whole and one byte at a time; both must agree.
func run(t *testing.T, p Protocol, body string, eof bool) (Outcome, TapState) {
	t.Helper()
	c := capture{200, "text/event-stream; charset=utf-8", []byte(body)}
	o, s := observe(p, c, 0, eof)
	o1, s1 := observe(p, c, 1, eof)
	if o != o1 || s != s1 {
		t.Fatalf("split changes the outcome:\n%+v %+v\n%+v %+v", o, s, o1, s1)
	}
	return o, s
}

func data(events ...string) string {
	var b strings.Builder
	for _, e := range events {
		b.WriteString("data: " + e + "\n\n")
	}
	return b.String()
}

const (
	roleChunk  = `{"choices":[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}]}`
	textChunk  = `{"choices":[{"index":0,"delta":{"content":"hi"},"finish_reason":null}]}`
	stopChunk  = `{"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}`
	usageChunk = `{"choices":[],"usage":{"prompt_tokens":60200,"completion_tokens":500,"prompt_tokens_details":{"cached_tokens":59904}}}`
)

func TestB04FinishWithoutDoneIsSuccess(t *testing.T) {
	o, _ := run(t, Chat, data(roleChunk, textChunk, stopChunk), true)
	if o.Verdict != Success || o.Finish != "stop" {
		t.Errorf("%+v", o)
	}
	if o, _ := run(t, Chat, data(roleChunk, textChunk, stopChunk), false); o.Verdict != Unproven {
		t.Errorf("a body that broke off without [DONE]: %+v", o)
	}
	if o, _ := run(t, Chat, data(roleChunk, textChunk, stopChunk, "[DONE]"), false); o.Verdict != Success {
		t.Errorf("[DONE] arrived, only the framing broke: %+v", o)
	}
	done := `{"response":{"status":"completed"},"type":"response.completed"}`
	if o, _ := run(t, Responses, data(done), true); o.Verdict != Success {
		t.Errorf("responses: %+v", o)
	}
}

func TestB06UsageInTheLastChunkWithEmptyChoices(t *testing.T) {
	o, s := run(t, Chat, data(roleChunk, textChunk, stopChunk, usageChunk, "[DONE]"), true)
	want := Usage{Prompt: 60200, Cached: 59904, CacheWrite: Unknown, Write1h: Unknown, Output: 500, Reasoning: Unknown}
	if o.Verdict != Success || o.Usage != want || !s.Terminal {
		t.Errorf("%+v %+v", o, s)
	}
	var strip UsageStripper
	in := data(roleChunk, textChunk, stopChunk, usageChunk, "[DONE]")
	out := string(strip.Flush(strip.Filter(nil, []byte(in))))
	if out != data(roleChunk, textChunk, stopChunk, "[DONE]") || strip.Stripped() != 1 {
		t.Errorf("stripped %d:\n%s", strip.Stripped(), out)
	}
}

func TestB08ErrorInsideAGoodStatus(t *testing.T) {
	cases := []struct {
		name  string
		p     Protocol
		body  string
		code  int
		first bool
	}{
		{"SGLang full queue, then [DONE]", Chat, data(`{"error":{"object":"error","message":"The request queue is full.","type":"ServiceUnavailable","param":null,"code":503}}`, "[DONE]"), 503, true},
		{"code as text", Chat, data(`{"error":{"message":"m","code":"429"}}`), 429, true},
		{"named code", Chat, data(`{"error":{"message":"m","code":"rate_limit_exceeded"}}`), 429, true},
		{"error is a string", Chat, data(`{"error":"Unauthorized"}`), 0, true},
		{"flat shape of old vLLM and SGLang", Chat, data(`{"object":"error","message":"m","type":"BadRequestError","param":null,"code":400}`), 400, true},
		{"after text, with usage behind it", Chat, data(roleChunk, textChunk, `{"error":{"code":500}}`, usageChunk, "[DONE]"), 500, false},
		{"after a finish reason", Chat, data(textChunk, stopChunk, `{"error":{"code":500}}`, "[DONE]"), 500, false},
		{"completions", Completions, data(`{"error":{"code":503}}`, "[DONE]"), 503, true},
		{"vLLM Responses: a bare error event", Responses, data(`{"response":{"status":"in_progress"},"type":"response.created"}`, `{"error":{"message":"m","code":500}}`), 500, false},
		{"Responses error event", Responses, "event: error\n" + data(`{"type":"error","code":"server_error","message":"m"}`), 500, true},
		{"SGLang Responses: failed", Responses, data(`{"type":"response.failed","response":{"status":"failed","error":{"code":"server_error"}}}`), 500, true},
		{"SGLang Messages: error, then message_stop", Messages, "event: error\n" + data(`{"type":"error","error":{"type":"overloaded_error","message":"m"}}`) + "event: message_stop\n" + data(`{"type":"message_stop"}`), 529, true},
		{"error named in the framing only", Messages, "event: error\ndata: engine died\n\n", 0, true},
	}
	for _, c := range cases {
		o, s := run(t, c.p, c.body, true)
		if o.Verdict != Failed || !s.ErrorEvent || s.ErrorCode != c.code {
			t.Errorf("%s: %+v %+v", c.name, o, s)
		}
		var tap Tap
		tap.Reset(c.p, 200, "text/event-stream")
		first := strings.Index(c.body, "\n\n") + 2
		tap.Write([]byte(c.body[:first]))
		if s := tap.State(); !s.FirstEvent || s.ErrorEvent != c.first {
			t.Errorf("%s: at the first event %+v", c.name, s)
		}
	}
	if o, _ := run(t, Chat, data(`{"choices":[{"index":0,"delta":{"content":"x"},"finish_reason":"stop"}],"error":null}`), true); o.Verdict != Success {
		t.Errorf("error null is none: %+v", o)
	}
}

func TestB67NullMissingAndZeroStayApart(t *testing.T) {
	for details, want := range map[string]int64{
		``: Unknown, `,"prompt_tokens_details":null`: Unknown, `,"prompt_tokens_details":{"cached_tokens":null}`: Unknown,
		`,"prompt_tokens_details":{}`: Unknown, `,"prompt_tokens_details":{"cached_tokens":0}`: 0,
		`,"prompt_tokens_details":{"cached_tokens":4100}`: 4100, `,"prompt_tokens_details":{"cached_tokens":-4}`: Unknown,
	} {
		o, _ := run(t, Chat, data(stopChunk, `{"choices":[],"usage":{"prompt_tokens":5000,"completion_tokens":1`+details+`}}`), true)
		if o.Usage.Cached != want || o.Usage.Prompt != 5000 {
			t.Errorf("%q: %+v", details, o.Usage)
		}
	}
}

func TestB68FirstTokenIsGeneratedText(t *testing.T) {
	chunk := func(delta string) string { return data(`{"choices":[{"index":0,"delta":` + delta + `}]}`) }
	cases := []struct {
		p    Protocol
		body string
		want bool
	}{
		{Chat, chunk(`{"role":"assistant"}`), false},
		{Chat, chunk(`{"role":"assistant","content":""}`), false},
		{Chat, chunk(`{"content":null,"reasoning_content":null,"tool_calls":null}`), false},
		{Chat, chunk(`{"tool_calls":[]}`), false},
		{Chat, ": ping\n\n", false},
		{Chat, chunk(`{"tool_calls":[{"index":0,"function":{"name":"f","arguments":""}}]}`), true},
		{Chat, chunk(`{"reasoning_content":"hm"}`), true},
		{Chat, chunk(`{"content":"渐"}`), true},
		{Completions, data(`{"choices":[{"index":0,"text":"","finish_reason":null}]}`), false},
		{Completions, data(`{"choices":[{"index":0,"text":" a"}]}`), true},
		{Responses, data(`{"type":"response.created","response":{"status":"in_progress"}}`), false},
		{Responses, data(`{"delta":"","type":"response.output_text.delta"}`), false},
		{Responses, data(`{"delta":"a","type":"response.output_text.delta"}`), true},
		{Responses, data(`{"type":"response.function_call_arguments.delta","delta":"{"}`), true},
		{Responses, data(`{"type":"response.output_text.done","text":"a","delta":"a"}`), false},
		{Messages, data(`{"type":"content_block_start","index":0,"content_block":{"type":"text","text":""}}`), false},
		{Messages, data(`{"type":"content_block_start","index":0,"content_block":{"type":"tool_use","name":"f","input":{}}}`), true},
		{Messages, data(`{"type":"content_block_delta","delta":{"type":"input_json_delta","partial_json":"{"}}`), true},
		{Messages, data(`{"type":"ping"}`), false},
	}
	for _, c := range cases {
		if _, s := run(t, c.p, c.body, true); s.FirstToken != c.want {
			t.Errorf("%v %s: first token %v", c.p, c.body, s.FirstToken)
		}
	}
	if _, s := run(t, Chat, ": ping\n\n", true); s.FirstEvent {
		t.Error("a comment is no event")
	}
}

func TestEveryChoiceMustEnd(t *testing.T) {
	end := func(i, reason string) string {
		return `{"choices":[{"index":` + i + `,"delta":{},"finish_reason":` + reason + `}]}`
	}
	cases := []struct {
		name   string
		expect int
		events []string
		want   Verdict
		finish string
	}{
		{"both", 2, []string{end("0", `"stop"`), end("1", `"stop"`), "[DONE]"}, Success, "stop"},
		{"one of two that were seen", 0, []string{end("0", `"stop"`), end("1", "null"), "[DONE]"}, Unproven, "stop"},
		{"one of two that were asked for", 2, []string{end("0", `"stop"`), "[DONE]"}, Unproven, "stop"},
		{"the worst counts", 2, []string{end("0", `"stop"`), end("1", `"length"`), "[DONE]"}, Incomplete, "length"},
		{"in either order", 2, []string{end("1", `"content_filter"`), end("0", `"stop"`), "[DONE]"}, Incomplete, "content_filter"},
		{"abort", 1, []string{end("0", `"abort"`), "[DONE]"}, Incomplete, "abort"},
		{"error", 1, []string{end("0", `"error"`), "[DONE]"}, Failed, "error"},
		{"a reason nobody knows", 1, []string{end("0", `"because"`), "[DONE]"}, Unproven, "other"},
		{"highest index that fits", 0, []string{end("255", `"stop"`), "[DONE]"}, Success, "stop"},
		{"an index beyond the sets", 0, []string{end("0", `"stop"`), end("256", `"stop"`), "[DONE]"}, Unproven, "stop"},
		{"[DONE] alone", 0, []string{"[DONE]"}, Unproven, ""},
	}
	for _, c := range cases {
		var tap Tap
		tap.Reset(Chat, 200, "text/event-stream")
		tap.Expect(c.expect)
		tap.Write([]byte(data(c.events...)))
		if o := tap.End(true); o.Verdict != c.want || o.Finish != c.finish {
			t.Errorf("%s: %+v", c.name, o)
		}
	}
}

func TestResponsesBelievesTypeAndStatusTogether(t *testing.T) {
	for body, want := range map[string]Verdict{
		`{"type":"response.completed","response":{"status":"completed"}}`:                                                       Success,
		`{"type":"response.completed","response":{"status":"incomplete"}}`:                                                      Incomplete,
		`{"type":"response.completed","response":{"status":"failed"}}`:                                                          Failed,
		`{"type":"response.completed","response":{"status":"in_progress"}}`:                                                     Unproven,
		`{"type":"response.completed"}`:                                                                                         Unproven,
		`{"type":"response.incomplete","response":{"status":"incomplete","incomplete_details":{"reason":"max_output_tokens"}}}`: Incomplete,
		`{"type":"response.in_progress","response":{"status":"completed"}}`:                                                     Unproven,
		`{"type":"response.output_item.done","item":{"status":"completed"}}`:                                                    Unproven,
	} {
		if o, _ := run(t, Responses, data(body), true); o.Verdict != want {
			t.Errorf("%s: %v, want %v", body, o.Verdict, want)
		}
	}
	plain := func(body string) Outcome {
		o, _ := observe(Responses, capture{200, "application/json", []byte(body)}, 3, true)
		return o
	}
	if o := plain(`{"object":"response","status":"completed","error":null}`); o.Verdict != Success {
		t.Errorf("body: %+v", o)
	}
	if o := plain(`{"object":"response","status":"queued"}`); o.Verdict != Unproven {
		t.Errorf("background body: %+v", o)
	}
}

func TestMessagesNeedsStopReasonAndStop(t *testing.T) {
	start := `{"type":"message_start","message":{"usage":{"input_tokens":100,"cache_read_input_tokens":5000,"cache_creation_input_tokens":300,"cache_creation":{"ephemeral_5m_input_tokens":100,"ephemeral_1h_input_tokens":200},"output_tokens":1}}}`
	delta := `{"type":"message_delta","delta":{"stop_reason":"end_turn"},"usage":{"output_tokens":42}}`
	stop := `{"type":"message_stop"}`
	o, _ := run(t, Messages, data(start, delta, stop), true)
	want := Usage{Prompt: 5400, Cached: 5000, CacheWrite: 300, Write1h: 200, Output: 42, Reasoning: Unknown}
	if o.Verdict != Success || o.Usage != want || o.Finish != "end_turn" {
		t.Errorf("hosted shape: %+v", o)
	}
	if o, _ := run(t, Messages, data(start, delta), true); o.Verdict != Unproven {
		t.Errorf("without message_stop: %+v", o)
	}
	if o, _ := run(t, Messages, data(start, stop), true); o.Verdict != Unproven {
		t.Errorf("without stop_reason: %+v", o)
	}
}

// A body far above 1 MiB is judged by its end, in the memory of the Tap alone.
func TestBigBodyIsJudgedByItsEnd(t *testing.T) {
	big := `{"choices":[{"index":0,"message":{"content":"` + strings.Repeat(`\"x\\`, 1<<20) + `"},"finish_reason":"stop"}],"usage":{"prompt_tokens":7,"completion_tokens":3}}`
	c := capture{200, "application/json", []byte(big)}
	if o, _ := observe(Chat, c, 4096, true); o.Verdict != Success || o.Usage.Prompt != 7 {
		t.Errorf("whole: %+v", o)
	}
	c.body = c.body[:len(big)-1]
	if o, _ := observe(Chat, c, 4096, true); o.Verdict != Unproven || o.Usage != NoUsage {
		t.Errorf("cut by one byte: %+v", o)
	}
}

func TestStatusAndContentTypeDecide(t *testing.T) {
	ok := `{"data":[{"embedding":[0.1]}],"usage":{"prompt_tokens":5,"total_tokens":5}}`
	for _, c := range []struct {
		p      Protocol
		status int
		ct     string
		body   string
		want   Verdict
	}{
		{Opaque, 200, "application/json", ok, Success},
		{Opaque, 200, "", ok, Success},
		{Opaque, 200, "application/problem+json", ok, Success},
		{Opaque, 500, "application/json", ok, Failed},
		{Chat, 302, "", "", Failed},
		{Opaque, 200, "audio/mpeg", "\x00\x01", Unproven},
		{Chat, 200, "text/html", "<html>", Unproven},
		{Chat, 200, "application/json", "", Unproven},
		{Chat, 200, "application/json", ok, Unproven},
		{Chat, 200, "application/json", `{"error":{"code":503}}`, Failed},
	} {
		if o, _ := observe(c.p, capture{c.status, c.ct, []byte(c.body)}, 2, true); o.Verdict != c.want {
			t.Errorf("%v %d %q %q: %v, want %v", c.p, c.status, c.ct, c.body, o.Verdict, c.want)
		}
	}
}

// The last event may lack its empty line, and even its line end.
func TestLastEventWithoutItsEnd(t *testing.T) {
	for _, tail := range []string{"", "\n", "\r", "\r\n"} {
		if o, _ := run(t, Chat, data(textChunk)+"data: "+stopChunk+tail, true); o.Verdict != Success || o.Events != 2 {
			t.Errorf("%q: %+v", tail, o)
		}
		if o, _ := run(t, Messages, "event: error\ndata: 7"+tail, true); o.Verdict != Failed || o.Events != 1 {
			t.Errorf("%q: %+v", tail, o)
		}
	}
	if o, _ := run(t, Chat, data(textChunk)+"data: "+stopChunk[:len(stopChunk)-1], true); o.Verdict != Unproven {
		t.Errorf("half an event: %+v", o)
	}
}

func TestTapAllocatesNothing(t *testing.T) {
	body := []byte(data(roleChunk, textChunk, stopChunk, usageChunk, "[DONE]"))
	var tap Tap
	var strip UsageStripper
	out := make([]byte, 0, 4096)
	out = strip.Filter(out, body) // the stripper's one buffer
	if n := testing.AllocsPerRun(100, func() {
		tap.Reset(Chat, 200, "text/event-stream")
		for i := range body {
			tap.Write(body[i : i+1])
		}
		if o := tap.End(true); o.Verdict != Success {
			t.Errorf("%+v", o)
		}
		strip.Reset()
		out = strip.Flush(strip.Filter(out[:0], body))
	}); n != 0 {
		t.Errorf("%v allocations per response", n)
	}
}
