package dialect

import (
	"bufio"
	"bytes"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"testing"
)

// capture is one recorded answer of a real engine.
type capture struct {
	status      int
	contentType string
	body        []byte
}

func loadCapture(t testing.TB, name string) capture {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join("testdata", name+".http"))
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.ReadResponse(bufio.NewReader(bytes.NewReader(raw)), nil)
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	c := capture{status: resp.StatusCode, contentType: resp.Header.Get("Content-Type")}
	if c.body, err = io.ReadAll(resp.Body); err != nil {
		// Recorded by a client that had already removed the chunk framing.
		_, c.body, _ = bytes.Cut(raw, []byte("\r\n\r\n"))
	}
	if len(c.body) == 0 {
		t.Fatalf("%s: empty body", name)
	}
	return c
}

// observe runs a body through a fresh Tap in pieces of the given size, 0 = whole.
func observe(p Protocol, c capture, piece int, eof bool) (Outcome, TapState) {
	var tap Tap
	tap.Reset(p, c.status, c.contentType)
	if piece == 0 {
		tap.Write(c.body)
	} else {
		for b := c.body; len(b) > 0; {
			n := min(piece, len(b))
			tap.Write(b[:n])
			b = b[n:]
		}
	}
	s := tap.State()
	return tap.End(eof), s
}

func TestCapturesOfRealEngines(t *testing.T) {
	u := func(prompt, cached, write, output, reasoning int64) Usage {
		return Usage{Prompt: prompt, Cached: cached, CacheWrite: write, Write1h: Unknown, Output: output, Reasoning: reasoning}
	}
	const un = Unknown
	cases := []struct {
		name     string
		protocol Protocol
		want     Outcome
		token    bool
	}{
		{"vllm_chat_cold", Chat, Outcome{Incomplete, u(3652, 0, 3584, 8, un), "length", 1}, false},
		{"vllm_chat_warm", Chat, Outcome{Incomplete, u(3652, 3584, 0, 8, un), "length", 1}, false},
		{"vllm_chat_no_details", Chat, Outcome{Incomplete, u(3652, un, un, 8, un), "length", 1}, false},
		{"vllm_chat_no_details_warm", Chat, Outcome{Incomplete, u(3652, un, un, 8, un), "length", 1}, false},
		{"vllm_chat_stream", Chat, Outcome{Incomplete, u(3658, 3584, 0, 8, un), "length", 10}, true},
		{"vllm_cont_usage", Chat, Outcome{Incomplete, u(13, 0, 0, 2, un), "length", 4}, true},
		{"vllm_completions_stream", Completions, Outcome{Incomplete, u(3631, 0, un, 4, un), "length", 5}, true},
		{"vllm_messages", Messages, Outcome{Incomplete, u(3652, 3584, 0, 4, un), "max_tokens", 1}, false},
		{"vllm_messages_no_details", Messages, Outcome{Incomplete, u(3650, un, un, 2, un), "max_tokens", 1}, false},
		{"vllm_messages_stream", Messages, Outcome{Incomplete, u(3652, 3584, 0, 4, un), "max_tokens", 9}, true},
		{"vllm_responses", Responses, Outcome{Incomplete, u(3652, 3584, 0, 4, 0), "max_output_tokens", 1}, false},
		{"vllm_responses_stream", Responses, Outcome{Incomplete, u(3652, 3584, 0, 4, 0), "max_output_tokens", 10}, true},
		{"vllm_batch", Opaque, Outcome{Incomplete, u(26, un, un, 2, un), "length", 1}, false},
		{"vllm_reqid", Chat, Outcome{Incomplete, u(13, 0, 0, 1, un), "length", 1}, false},
		{"vllm_salt", Chat, Outcome{Incomplete, u(3652, 0, 3584, 1, un), "length", 1}, false},
		{"vllm_401", Chat, Outcome{Failed, NoUsage, "", 1}, false},
		{"vllm_messages_xapikey", Messages, Outcome{Failed, NoUsage, "", 1}, false},
		{"vllm_err_badjson", Chat, Outcome{Failed, NoUsage, "", 1}, false},
		{"vllm_err_model", Chat, Outcome{Failed, NoUsage, "", 1}, false},
		{"vllm_err_nomsg", Chat, Outcome{Failed, NoUsage, "", 1}, false},
		{"vllm_err_path", Chat, Outcome{Failed, NoUsage, "", 1}, false},
		{"vllm_err_toolong", Chat, Outcome{Failed, NoUsage, "", 1}, false},
		{"vllm_maxtok0", Chat, Outcome{Failed, NoUsage, "", 1}, false},
	}
	files, err := filepath.Glob(filepath.Join("testdata", "*.http"))
	if err != nil || len(files) != len(cases) {
		t.Fatalf("%d captures, %d cases, %v: every capture needs a case", len(files), len(cases), err)
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			capt := loadCapture(t, c.name)
			for _, piece := range []int{0, 1, 2, 7, 64, 4096} {
				got, state := observe(c.protocol, capt, piece, true)
				if got != c.want {
					t.Errorf("pieces of %d:\n got %+v\nwant %+v", piece, got, c.want)
				}
				if state.FirstToken != c.token || !state.FirstEvent {
					t.Errorf("pieces of %d: state %+v", piece, state)
				}
			}
		})
	}
}

// A stream that is cut anywhere before its terminal evidence proves nothing, and
// never proves success.
func TestCutStreamsAreNeverBelieved(t *testing.T) {
	for name, p := range map[string]Protocol{
		"vllm_chat_stream": Chat, "vllm_completions_stream": Completions,
		"vllm_messages_stream": Messages, "vllm_responses_stream": Responses,
	} {
		c := loadCapture(t, name)
		terminal := map[Protocol]string{Chat: `"length"`, Completions: `"length"`,
			Messages: `{"type":"message_stop"}`, Responses: `"type":"response.completed"}`}[p]
		evidence := bytes.LastIndex(c.body, []byte(terminal))
		if evidence < 0 {
			t.Fatalf("%s: no %s", name, terminal)
		}
		for cut := 0; cut < len(c.body); cut += 1 + cut/97 {
			part := c
			part.body = c.body[:cut]
			got, _ := observe(p, part, 0, false)
			if cut <= evidence && got.Verdict != Unproven || got.Verdict == Success {
				t.Fatalf("%s cut at %d of %d: verdict %v", name, cut, len(c.body), got.Verdict)
			}
		}
	}
}
