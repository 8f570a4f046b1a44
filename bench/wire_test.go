package bench

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/valyala/fasthttp"

	"github.com/prefixring/prefixring/internal/dialect"
)

// play feeds one captured response through the client's reader. Captures that were
// saved without chunk framing get a length instead.
func play(t *testing.T, raw []byte, p dialect.Protocol, keep bool, read func(io.Reader) io.Reader) (*answer, error) {
	t.Helper()
	head, rest, ok := bytes.Cut(raw, []byte("\n\n"))
	if i := bytes.Index(raw, []byte("\r\n\r\n")); i >= 0 {
		head, rest, ok = raw[:i], raw[i+4:], true
	}
	if !ok {
		t.Fatal("the capture has no header")
	}
	chunked := bytes.Contains(head, []byte("chunked")) && !bytes.HasPrefix(rest, []byte("data:")) && !bytes.HasPrefix(rest, []byte("{"))
	var b bytes.Buffer
	for _, line := range strings.Split(strings.ReplaceAll(string(head), "\r", ""), "\n") {
		if l := strings.ToLower(line); chunked || (!strings.HasPrefix(l, "transfer-encoding") && !strings.HasPrefix(l, "content-length")) {
			fmt.Fprintf(&b, "%s\r\n", line)
		}
	}
	if !chunked {
		fmt.Fprintf(&b, "Content-Length: %d\r\n", len(rest))
	}
	b.WriteString("\r\n")
	b.Write(rest)
	k := &call{}
	k.answer.reset(p, keep)
	br := bufio.NewReaderSize(read(&b), 16<<10)
	if err := k.header.Read(br); err != nil {
		t.Fatal(err)
	}
	k.body.start(br, &k.header)
	err := k.readBody(k.header.StatusCode())
	return &k.answer, err
}

func TestRealAnswersAreUnderstoodInAnySplit(t *testing.T) {
	for _, c := range []struct {
		file                   string
		proto                  dialect.Protocol
		tokens                 int
		prompt, cached, output int64
		text                   string
	}{
		{"vllm_chat_stream.http", dialect.Chat, 7, 3658, 3584, 8, "00numelval"},
		{"vllm_completions_stream.http", dialect.Completions, 3, 3631, 0, 4, "weight endifte"},
		{"vllm_responses_stream.http", dialect.Responses, 2, 3652, 3584, 4, `\b}}al`},
		{"vllm_messages_stream.http", dialect.Messages, 4, 3652, 3584, 4, "gesspaceembeddingsto"},
		{"vllm_chat_warm.http", dialect.Chat, 1, 3652, 3584, 8, ""},
		{"vllm_messages.http", dialect.Messages, 1, 3652, 3584, 4, ""},
		{"vllm_responses.http", dialect.Responses, 1, 3652, 3584, 4, ""},
	} {
		raw, err := os.ReadFile("testdata/" + c.file)
		if err != nil {
			t.Fatal(err)
		}
		for name, read := range map[string]func(io.Reader) io.Reader{
			"whole": func(r io.Reader) io.Reader { return r }, "byte by byte": iotest.OneByteReader, "halves": iotest.HalfReader,
		} {
			a, err := play(t, raw, c.proto, true, read)
			if err != nil {
				t.Fatalf("%s, %s: %v", c.file, name, err)
			}
			if a.tokens != c.tokens || !a.done || a.failed {
				t.Errorf("%s, %s: %d token events (want %d), done %v, failed %v", c.file, name, a.tokens, c.tokens, a.done, a.failed)
			}
			if u := a.usage; u.Prompt != c.prompt || u.Cached != c.cached || u.Output != c.output {
				t.Errorf("%s, %s: usage %+v, want %d, %d, %d", c.file, name, u, c.prompt, c.cached, c.output)
			}
			if !strings.HasPrefix(string(a.text), c.text) {
				t.Errorf("%s, %s: text %q, want %q", c.file, name, a.text, c.text)
			}
		}
	}
}

func TestCutBodiesAreNeverTakenForWhole(t *testing.T) {
	raw, err := os.ReadFile("testdata/vllm_messages_stream.http")
	if err != nil {
		t.Fatal(err)
	}
	start := bytes.Index(raw, []byte("\r\n\r\n")) + 4
	for n := start; n < len(raw)-1; n += 7 {
		if _, err := play(t, raw[:n], dialect.Messages, false, func(r io.Reader) io.Reader { return r }); !errors.Is(err, errCut) {
			t.Fatalf("a body cut at %d of %d gave %v", n, len(raw), err)
		}
	}
}

func TestChunkFraming(t *testing.T) {
	for _, c := range []struct {
		name, in, want string
		err            bool
	}{
		{"two chunks", "5\r\nhello\r\n6\r\n world\r\n0\r\n\r\n", "hello world", false},
		{"extension and trailer", "5;x=1\r\nhello\r\n0\r\nA: b\r\n\r\n", "hello", false},
		{"capital digits", "A\r\n0123456789\r\n0\r\n\r\n", "0123456789", false},
		{"no end", "5\r\nhello\r\n", "hello", true},
		{"no size", "\r\nhello", "", true},
		{"not hexadecimal", "5x\r\nhello\r\n0\r\n\r\n", "", true},
		{"huge size", "fffffffffffffffff\r\n", "", true},
		{"missing line end", "5\r\nhelloXX0\r\n\r\n", "hello", true},
		{"trailer cut", "0\r\nA: b\r\n", "", true},
	} {
		var h fasthttp.ResponseHeader
		h.SetContentLength(-1)
		var b body
		b.start(bufio.NewReader(iotest.HalfReader(strings.NewReader(c.in))), &h)
		var got []byte
		var err error
		for {
			var p []byte
			if p, err = b.next(); err != nil {
				break
			}
			got = append(got, p...)
		}
		if string(got) != c.want || (err != io.EOF) != c.err || (c.err && !errors.Is(err, errCut)) {
			t.Errorf("%s: %q and %v", c.name, got, err)
		}
	}
}

func FuzzEventStream(f *testing.F) {
	f.Add([]byte(roleChunk+textChunk+stopChunk+doneEvent), 3)
	f.Add([]byte("data: a\ndata: b\r\n\r\n: ping\n\n\n\ndata:[DONE]\n\n"), 1)
	f.Add([]byte(`data: {"choices":[{"delta":{"content":"\"content\":\""}}]}`+"\n\n"), 5)
	f.Fuzz(func(t *testing.T, b []byte, size int) {
		// Any split gives what the whole gives.
		for _, p := range []dialect.Protocol{dialect.Chat, dialect.Completions, dialect.Responses, dialect.Messages} {
			var one, many answer
			now := time.Unix(1, 0)
			one.reset(p, true)
			one.feed(b, now)
			many.reset(p, true)
			n := max(1, min(size, 64))
			for rest := b; len(rest) > 0; rest = rest[min(n, len(rest)):] {
				many.feed(rest[:min(n, len(rest))], now)
			}
			if one.events != many.events || one.tokens != many.tokens || one.done != many.done || one.failed != many.failed ||
				one.usage != many.usage || !bytes.Equal(one.text, many.text) {
				t.Fatalf("%v: a split of %d changes the reading of %q", p, n, b)
			}
		}
	})
}
