package cost

import (
	"bufio"
	"bytes"
	"io"
	"net/http"
	"os"
	"testing"

	"github.com/prefixring/prefixring/internal/dialect"
)

func usage(prompt, cached, output int64) dialect.Usage {
	u := dialect.NoUsage
	u.Prompt, u.Cached, u.Output = prompt, cached, output
	return u
}

// From the bytes of a real engine to buckets, for each wire shape.
func TestBucketsOfRealAnswers(t *testing.T) {
	cases := []struct {
		name     string
		protocol dialect.Protocol
		want     Tokens
		known    bool
	}{
		{"vllm_chat_cold", dialect.Chat, Tokens{Input: 68, Write5m: 3584, Output: 8}, true},
		{"vllm_chat_warm", dialect.Chat, Tokens{Input: 68, CacheRead: 3584, Output: 8}, true},
		{"vllm_chat_stream", dialect.Chat, Tokens{Input: 74, CacheRead: 3584, Output: 8}, true},
		{"vllm_cont_usage", dialect.Chat, Tokens{Input: 13, Output: 2}, true},
		{"vllm_completions_stream", dialect.Completions, Tokens{Input: 3631, Output: 4}, true},
		{"vllm_responses", dialect.Responses, Tokens{Input: 68, CacheRead: 3584, Output: 4}, true},
		{"vllm_responses_stream", dialect.Responses, Tokens{Input: 68, CacheRead: 3584, Output: 4}, true},
		{"vllm_messages", dialect.Messages, Tokens{Input: 68, CacheRead: 3584, Output: 4}, true},
		{"vllm_messages_stream", dialect.Messages, Tokens{Input: 68, CacheRead: 3584, Output: 4}, true},
		{"vllm_messages_no_details", dialect.Messages, Tokens{}, false},
		{"vllm_chat_no_details_warm", dialect.Chat, Tokens{}, false},
		{"vllm_401", dialect.Chat, Tokens{}, false},
	}
	for _, c := range cases {
		got, ok := Split(tapped(t, c.name, c.protocol))
		if got != c.want || ok != c.known {
			t.Errorf("%s: %+v %v, want %+v", c.name, got, ok, c.want)
		}
	}
}

func tapped(t *testing.T, name string, p dialect.Protocol) dialect.Usage {
	t.Helper()
	raw, err := os.ReadFile("../dialect/testdata/" + name + ".http")
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.ReadResponse(bufio.NewReader(bytes.NewReader(raw)), nil)
	if err != nil {
		t.Fatal(err)
	}
	body, err := io.ReadAll(resp.Body)
	if err != nil { // recorded without its chunk framing
		_, body, _ = bytes.Cut(raw, []byte("\r\n\r\n"))
	}
	var tap dialect.Tap
	tap.Reset(p, resp.StatusCode, resp.Header.Get("Content-Type"))
	tap.Write(body)
	return tap.End(true).Usage
}

// The shape of a hosted Anthropic account: input_tokens leaves out both the cached
// and the written ones, and writes are told apart by how long they are kept.
func TestBucketsOfAHostedAnswer(t *testing.T) {
	var tap dialect.Tap
	tap.Reset(dialect.Messages, 200, "application/json")
	tap.Write([]byte(`{"type":"message","stop_reason":"end_turn","usage":{"input_tokens":1,"cache_read_input_tokens":25648,` +
		`"cache_creation_input_tokens":321,"cache_creation":{"ephemeral_5m_input_tokens":21,"ephemeral_1h_input_tokens":300},"output_tokens":146}}`))
	got, ok := Split(tap.End(true).Usage)
	want := Tokens{Input: 1, CacheRead: 25648, Write5m: 21, Write1h: 300, Output: 146}
	if got != want || !ok || got.Prompt() != 25970 {
		t.Errorf("%+v %v", got, ok)
	}
}

func TestB67UnknownIsNeverZero(t *testing.T) {
	for name, u := range map[string]dialect.Usage{
		"cached not reported": usage(100, dialect.Unknown, 5),
		"prompt not reported": usage(dialect.Unknown, 0, 5),
		"output not reported": usage(100, 0, dialect.Unknown),
		"nothing":             dialect.NoUsage,
		"more cached than is": usage(100, 101, 5),
		"more written":        {Prompt: 100, Cached: 60, CacheWrite: 41, Write1h: dialect.Unknown, Output: 5, Reasoning: dialect.Unknown},
		"more for an hour":    {Prompt: 100, Cached: 0, CacheWrite: 10, Write1h: 11, Output: 5, Reasoning: dialect.Unknown},
		"absurd":              {Prompt: 100, Cached: 1 << 62, CacheWrite: 1 << 62, Write1h: 1 << 62, Output: 5, Reasoning: dialect.Unknown},
	} {
		if got, ok := Split(u); ok || got != (Tokens{}) {
			t.Errorf("%s: %+v %v", name, got, ok)
		}
	}
	if got, ok := Split(usage(100, 0, 5)); !ok || got != (Tokens{Input: 100, Output: 5}) {
		t.Errorf("zero is a count: %+v %v", got, ok)
	}
}
