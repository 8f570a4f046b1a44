package dialect

import (
	"strings"
	"testing"
)

// Text must not wait for the end of its event: the bytes go out as soon as the
// event shows a choice.
func TestStripperHoldsNoText(t *testing.T) {
	var s UsageStripper
	out := s.Filter(nil, []byte(": ping\n"))
	if string(out) != ": ping\n" {
		t.Fatalf("a comment is held: %q", out)
	}
	out = s.Filter(out[:0], []byte(`data: {"id":"c1","choices":[`))
	if len(out) != 0 || s.Held() != 28 {
		t.Fatalf("undecided: %q out, %d held", out, s.Held())
	}
	out = s.Filter(out[:0], []byte(`{"delta":{"content":"hel`))
	if string(out) != `data: {"id":"c1","choices":[{"delta":{"content":"hel` || s.Held() != 0 {
		t.Fatalf("decided: %q out, %d held", out, s.Held())
	}
}

func TestStripperBoundsWhatItHolds(t *testing.T) {
	pad := strings.Repeat("x", 4096)
	event := func(n int) string {
		return `data: {"pad":"` + strings.Repeat(pad, n) + `","choices":[],"usage":{"prompt_tokens":1}}` + "\n\n"
	}
	for n, want := range map[int]int{1: 1, 15: 1, 16: 0, 40: 0} {
		for _, piece := range []int{1, 1000, 1 << 20} {
			var s UsageStripper
			var out []byte
			in := event(n)
			for b := in; b != ""; {
				k := min(piece, len(b))
				out = s.Filter(out, []byte(b[:k]))
				b = b[k:]
				if s.Held() > MaxHold {
					t.Fatalf("%d bytes held", s.Held())
				}
			}
			out = s.Flush(out)
			if s.Stripped() != want || want == 0 && string(out) != in || want == 1 && len(out) != 0 {
				t.Errorf("event of %d bytes in pieces of %d: %d stripped, %d out", len(in), piece, s.Stripped(), len(out))
			}
		}
	}
}

func TestStripperKeepsWhatIsNoUsageChunk(t *testing.T) {
	for _, in := range []string{
		data(`{"choices":[],"usage":null}`),
		data(`{"choices":[]}`),
		data(`{"usage":{"prompt_tokens":1}}`),
		data(`{"choices":null,"usage":{"prompt_tokens":1}}`),
		data(`{"choices":[{"index":0,"delta":{}}],"usage":{"prompt_tokens":1}}`),
		data(`{"choices":[],"usage":{},"error":{"code":500}}`),
		data(`{"choices":[],"usage":{},"sglext":{"cached_tokens_details":{"device":1}}}`),
		data(`{"x":{"choices":[],"usage":{}}}`),
		data(`{"choices":[],"usage":{}`, "[DONE]", "not json"),
		"event: x\r\nid: 1\r\n\r\n\r\ndata: [DONE]\r\n\r\n",
		`data: {"choices":[],"usage":{"prompt_to`,
		"\n\n: c\n\n",
	} {
		for _, cuts := range [][]byte{{0}, {255, 255}} {
			if got := stripped(in, cuts); got != in {
				t.Errorf("%q became %q", in, got)
			}
		}
	}
}

func TestStripperOnRealStreams(t *testing.T) {
	for _, name := range []string{"vllm_chat_stream", "vllm_completions_stream", "vllm_cont_usage"} {
		body := string(loadCapture(t, name).body)
		at := strings.LastIndex(body, `data: {"id"`) // the usage chunk is the last one
		end := at + strings.Index(body[at:], "\n\n") + 2
		want := body[:at] + body[end:]
		for _, cuts := range [][]byte{{0}, {3}, {255, 255, 255}} {
			if got := stripped(body, cuts); got != want || !strings.Contains(body[at:end], `"choices":[]`) {
				t.Errorf("%s: %d bytes, want %d", name, len(got), len(want))
			}
		}
	}
}

func BenchmarkStripper(b *testing.B) {
	event := []byte(`data: {"id":"chatcmpl-b5ea28409f0d5e07","object":"chat.completion.chunk","created":1795995927,"model":"tiny","choices":[{"index":0,"delta":{"content":"numel"},"logprobs":null,"finish_reason":null,"token_ids":null}]}` + "\n\n")
	var s UsageStripper
	var out []byte
	b.ReportAllocs()
	for b.Loop() {
		out = s.Filter(out[:0], event)
	}
}
