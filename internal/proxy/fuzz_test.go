package proxy

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/prefixring/prefixring/internal/fingerprint"
)

// pieces hands out a stream in reads of the given sizes.
type piecesReader struct {
	b     []byte
	sizes []byte
	i     int
}

func (r *piecesReader) Read(p []byte) (int, error) {
	if len(r.b) == 0 {
		return 0, io.EOF
	}
	n := len(r.b)
	if len(r.sizes) > 0 {
		n = int(r.sizes[r.i%len(r.sizes)]) + 1
		r.i++
	}
	n = copy(p[:min(n, len(p))], r.b)
	r.b = r.b[n:]
	return n, nil
}

// readWire reads one response the way an exchange does.
func readWire(wire, sizes []byte) (h replyHead, body []byte, clean bool, err error) {
	var b reply
	b.reset(&piecesReader{b: wire, sizes: sizes})
	defer b.release()
	if err := b.readHead(&h); err != nil {
		return h, nil, false, err
	}
	b.begin(&h, false)
	for {
		body = append(body, b.pending()...)
		b.take()
		if err := b.more(); err == io.EOF {
			return h, body, b.clean(), nil
		} else if err != nil {
			return h, body, false, err
		}
	}
}

// FuzzReplyFraming: any split of the octets gives one result, and whatever is
// accepted is read the same way by net/http.
func FuzzReplyFraming(f *testing.F) {
	for _, s := range []string{
		"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabc",
		"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3;x=y\r\nabc\r\n0\r\nT: 1\r\n\r\n",
		"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 503 Busy\r\nRetry-After: 2\r\nContent-Length: 0\r\n\r\n",
		"HTTP/1.0 200 OK\r\n\r\nto the end", "HTTP/1.1 204 No Content\r\n\r\n",
		"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + strings.Repeat("1\r\na\r\n", 50) + "0\r\n\r\n",
		"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 5\r\n\r\nabcde", sseHead + "5\r\ndata:\r\n",
	} {
		f.Add([]byte(s), []byte{0})
		f.Add([]byte(s), []byte{2, 7, 1})
	}
	f.Fuzz(func(t *testing.T, wire, sizes []byte) {
		h, body, clean, err := readWire(wire, nil)
		h2, body2, clean2, err2 := readWire(wire, sizes)
		// Octets behind the body are seen only when they come with it: smaller reads may
		// find a connection clean that a large one finds dirty, and never the reverse.
		if (err == nil) != (err2 == nil) || (err == nil && (h.status != h2.status || !bytes.Equal(body, body2) || clean && !clean2)) {
			t.Fatalf("split %v: %d %q %v %v, whole: %d %q %v %v", sizes, h2.status, body2, clean2, err2, h.status, body, clean, err)
		}
		if errors.Is(err, errBufferFull) {
			t.Fatal("buffer full though everything was taken")
		}
		if err != nil || bytes.HasPrefix(wire, []byte("HTTP/1.1 1")) || bytes.HasPrefix(wire, []byte("HTTP/1.0 1")) {
			return
		}
		resp, herr := http.ReadResponse(bufio.NewReader(bytes.NewReader(wire)), &http.Request{Method: "POST"})
		if herr != nil {
			if strings.Contains(herr.Error(), "malformed MIME header") || strings.Contains(herr.Error(), "malformed HTTP") {
				return // net/http knows rules for single fields that do not matter for framing
			}
			t.Fatalf("accepted what net/http refuses: %v", herr)
		}
		theirs, herr := io.ReadAll(resp.Body)
		if herr == nil && (resp.StatusCode != h.status || !bytes.Equal(theirs, body)) {
			t.Fatalf("net/http reads %d %q, this %d %q", resp.StatusCode, theirs, h.status, body)
		}
	})
}

// FuzzSplices: planned edits give the body that plain replacement gives, without
// touching the body.
func FuzzSplices(f *testing.F) {
	f.Add([]byte("0123456789"), []byte{1, 2, 3, 5, 5, 0, 8, 10, 4})
	f.Add([]byte(""), []byte{0, 0, 1})
	f.Fuzz(func(t *testing.T, body, plan []byte) {
		var s splices
		keep := bytes.Clone(body)
		want := bytes.Clone(body)
		at := len(body)
		// Edits from the back, so that the oracle can apply them one by one.
		for i := 0; i+2 < len(plan) && at >= 0; i += 3 {
			end := at - int(plan[i])%(at+1)
			start := end - int(plan[i+1])%(end+1)
			text := bytes.Repeat([]byte{'x'}, int(plan[i+2])%9)
			s.replace(fingerprint.Span{Start: start, End: end}, func(b []byte) []byte { return append(b, text...) })
			want = append(want[:start:start], append(bytes.Clone(text), want[end:]...)...)
			at = start - 1
		}
		got, total := s.pieces(body, nil)
		if joined := bytes.Join(got, nil); !bytes.Equal(joined, want) || total != len(want) {
			t.Fatalf("got %q (%d), want %q", joined, total, want)
		}
		if !bytes.Equal(body, keep) {
			t.Fatal("the body was written to")
		}
	})
}

// FuzzHeadInsert: a new first field keeps a JSON object valid and its other fields
// as they are.
func FuzzHeadInsert(f *testing.F) {
	for _, s := range []string{`{}`, ` { } `, `{"a":1}`, "\n{\t\"a\" : {\"b\":[]}}", `[]`, ``, `{"stream_options":null}`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		var before map[string]json.RawMessage
		if json.Unmarshal(body, &before) != nil || before == nil {
			return
		}
		at, comma, ok := headInsert(body)
		if !ok {
			t.Fatalf("no place in %q", body)
		}
		var s splices
		s.replace(at, func(b []byte) []byte {
			b = append(b, `"zz-new":1`...)
			if comma {
				b = append(b, ',')
			}
			return b
		})
		got, _ := s.pieces(body, nil)
		var after map[string]json.RawMessage
		if err := json.Unmarshal(bytes.Join(got, nil), &after); err != nil {
			t.Fatalf("%q: %v", bytes.Join(got, nil), err)
		}
		before["zz-new"] = json.RawMessage("1")
		if len(after) != len(before) {
			t.Fatalf("%q", bytes.Join(got, nil))
		}
	})
}

// FuzzRequestHead: whatever fasthttp accepts as a request head, the head built from it
// parses, has one framing and none of the fields that must not pass.
func FuzzRequestHeaders(f *testing.F) {
	for _, s := range []string{"X: 1\r\n", "Connection: close, X-A\r\nX-A: 1\r\n", "Authorization: Bearer x\r\nExpect: 100-continue\r\n", "Transfer-Encoding: chunked\r\n",
		"X-Api-Key: k\r\nTE: trailers\r\nFoo :1\r\n", "A:\r\n b\r\n"} {
		f.Add([]byte(s))
	}
	p, err := New(Options{})
	if err != nil {
		f.Fatal(err)
	}
	up, err := NewUpstream(UpstreamOptions{Name: "n", URL: "http://engine:8000", Rank: -1})
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, fields []byte) {
		ctx := newCtx()
		wire := "POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\n" + string(fields) + "\r\n"
		if ctx.Request.Header.Read(bufio.NewReaderSize(strings.NewReader(wire), 64<<10)) != nil || checkHeaders(&ctx.Request.Header) != nil {
			return
		}
		c := &call{p: p, ctx: ctx, id: []byte("id")}
		head := c.appendRequestHead(nil, up, 7)
		req, err := http.ReadRequest(bufio.NewReader(bytes.NewReader(append(head, "0123456"...))))
		if err != nil {
			if strings.Contains(err.Error(), "malformed MIME header") {
				return
			}
			t.Fatalf("%q: %v", head, err)
		}
		if req.ContentLength != 7 || len(req.TransferEncoding) != 0 || req.Host != "engine:8000" {
			t.Fatalf("%q: length %d, coding %v, host %q", head, req.ContentLength, req.TransferEncoding, req.Host)
		}
		for _, name := range []string{"Authorization", "X-Api-Key", "Te", "Upgrade", "Keep-Alive", "Expect", "Proxy-Authorization", "X-Vllm-Priority", "Connection"} {
			if len(req.Header.Values(name)) > 0 {
				t.Fatalf("%s passed: %q", name, head)
			}
		}
	})
}
