package proxy

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/prefixring/prefixring/internal/dialect"
)

// B01: every event reaches the client when the engine writes it, also behind one that
// is larger than any buffer, and proxies further out are told not to collect.
func TestB01EventsArriveAsWritten(t *testing.T) {
	step := make(chan struct{})
	events := []string{}
	for i := range 10 {
		size := 20
		if i == 5 {
			size = 40 << 10
		}
		events = append(events, delta(fmt.Sprintf("%d%s", i, strings.Repeat("x", size))))
	}
	e := newEngine(t, func(x *engineCall) {
		x.write(sseHead)
		for _, ev := range events {
			<-step
			x.chunk(ev)
		}
		<-step
		x.write("0\r\n\r\n")
	})
	r := newRouter(t, setup{}, e.url())
	conn := r.dial(t)
	io.WriteString(conn, rawRequest("/v1/chat/completions", streamBody))
	step <- struct{}{}
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	h := resp.Header
	if !strings.HasPrefix(h.Get("Content-Type"), "text/event-stream") || h.Get("Cache-Control") != "no-cache" || h.Get("X-Accel-Buffering") != "no" {
		t.Fatalf("headers %v", h)
	}
	for i, ev := range events {
		if i > 0 {
			step <- struct{}{}
		}
		// The engine writes nothing more until this event has arrived in full.
		got := make([]byte, len(ev))
		if _, err := io.ReadFull(resp.Body, got); err != nil || string(got) != ev {
			t.Fatalf("event %d: %v", i, err)
		}
	}
	step <- struct{}{}
	if rest, err := io.ReadAll(resp.Body); err != nil || len(rest) != 0 {
		t.Fatalf("rest %q, %v", rest, err)
	}
}

// B02: octets pass whatever the cuts between them.
func TestB02AnySplitOfTheStream(t *testing.T) {
	body := delta("渐 안녕 🚀 ö") + delta(strings.Repeat("é", 3000)) + stopEvent + doneEvent
	for _, size := range []int{1, 7, 64 << 10} {
		for _, framing := range []string{"chunked", "length", "close"} {
			t.Run(fmt.Sprint(framing, size), func(t *testing.T) {
				e := newEngine(t, func(x *engineCall) {
					wire := ""
					switch framing {
					case "chunked":
						wire = sseHead + fmt.Sprintf("%x;ext=1\r\n%s\r\n", 11, body[:11]) + fmt.Sprintf("%X\r\n%s\r\n0\r\n\r\n", len(body)-11, body[11:])
					case "length":
						wire = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: " + itoa(len(body)) + "\r\n\r\n" + body
					case "close":
						wire = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n" + body
					}
					for len(wire) > 0 {
						n := min(size, len(wire))
						x.write(wire[:n])
						wire = wire[n:]
					}
					if framing == "close" {
						panic(errHangUp)
					}
				})
				r := newRouter(t, setup{}, e.url())
				got := r.chat(t, streamBody)
				if got.status != 200 || string(got.body) != body || got.bodyErr != nil {
					t.Fatalf("got %d, %d octets of %d, %v", got.status, len(got.body), len(body), got.bodyErr)
				}
				if rec := r.records.wait(t, 1)[0]; rec.Verdict != dialect.Success {
					t.Fatalf("record %+v", rec)
				}
			})
		}
	}
}

// B04: a stream without the literal end marker is complete and gets nothing added.
func TestB04NoDoneMarker(t *testing.T) {
	for path, body := range map[string]string{
		"/v1/chat/completions": delta("a") + stopEvent,
		"/v1/responses": "event: response.created\ndata: {\"type\":\"response.created\",\"response\":{\"id\":\"r\",\"status\":\"in_progress\"}}\n\n" +
			"event: response.completed\ndata: {\"type\":\"response.completed\",\"response\":{\"id\":\"r\",\"status\":\"completed\",\"usage\":{\"input_tokens\":3,\"output_tokens\":1}}}\n\n",
	} {
		e := newEngine(t, func(x *engineCall) { x.sse(body) })
		r := newRouter(t, setup{}, e.url())
		req := map[string]string{"/v1/chat/completions": streamBody, "/v1/responses": `{"model":"m","stream":true,"input":"u"}`}[path]
		got := r.do(t, rawRequest(path, req))
		if got.status != 200 || string(got.body) != body || got.bodyErr != nil {
			t.Fatalf("%s: got %d %q %v", path, got.status, got.body, got.bodyErr)
		}
		if rec := r.records.wait(t, 1)[0]; rec.Verdict != dialect.Success {
			t.Fatalf("%s: record %+v", path, rec)
		}
	}
}

// B06: who asked for usage gets it; who did not never sees what the router asked for.
func TestB06UsageChunk(t *testing.T) {
	engine := func(x *engineCall) {
		evs := []string{delta("a"), stopEvent}
		if strings.Contains(string(x.body), `"include_usage":true`) {
			evs = append(evs, usageEvent)
		}
		x.sse(append(evs, doneEvent)...)
	}
	with := delta("a") + stopEvent + usageEvent + doneEvent
	without := delta("a") + stopEvent + doneEvent
	for name, c := range map[string]struct {
		inject       bool
		options      string
		want         string
		usage        int64
		engineWanted string
	}{
		"asked":                       {true, `,"stream_options":{"include_usage":true}`, with, 7, ""},
		"not asked, injected":         {true, ``, without, 7, `{"stream_options":{"include_usage":true},`},
		"empty options, injected":     {true, `,"stream_options":{ }`, without, 7, `"stream_options":{"include_usage":true }`},
		"other option, injected":      {true, `,"stream_options":{"x":1}`, without, 7, `"stream_options":{"include_usage":true,"x":1}`},
		"said no":                     {true, `,"stream_options":{"include_usage":false}`, without, dialect.Unknown, ""},
		"not asked, injection is off": {false, ``, without, dialect.Unknown, ""},
	} {
		t.Run(name, func(t *testing.T) {
			e := newEngine(t, engine)
			r := newRouter(t, setup{opts: Options{InjectUsage: c.inject}}, e.url())
			body := strings.Replace(streamBody, `"stream":true`, `"stream":true`+c.options, 1)
			got := r.chat(t, body)
			if got.status != 200 || string(got.body) != c.want || got.bodyErr != nil {
				t.Fatalf("got %d %q %v", got.status, got.body, got.bodyErr)
			}
			if rec := r.records.wait(t, 1)[0]; rec.Usage.Prompt != c.usage || rec.Verdict != dialect.Success {
				t.Fatalf("record %+v", rec)
			}
			sent := string(e.lastBody())
			if c.engineWanted == "" && sent != body {
				t.Fatalf("engine got %s", sent)
			}
			if !strings.Contains(sent, c.engineWanted) || (len(sent)-len(body) != 0) != (c.engineWanted != "") {
				t.Fatalf("engine got %s", sent)
			}
		})
	}
}

// B22: framing is the router's own, labels of the content are the engine's.
func TestB22FramingAndContentLabels(t *testing.T) {
	var zipped bytes.Buffer
	zw := gzip.NewWriter(&zipped)
	io.WriteString(zw, okJSON)
	zw.Close()
	hop := "Connection: close, X-Hop\r\nKeep-Alive: timeout=5\r\nX-Hop: 1\r\nTE: trailers\r\nUpgrade: h2c\r\nProxy-Connection: x\r\nProxy-Authenticate: x\r\nx-request-id: engine-id\r\n"
	for name, c := range map[string]struct {
		wire string
		body string
		enc  string
		hang bool
	}{
		"gzip":      {"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Encoding: gzip\r\nContent-Length: " + itoa(zipped.Len()) + "\r\n" + hop + "\r\n" + zipped.String(), zipped.String(), "gzip", true},
		"close":     {"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n" + hop + "\r\n" + delta("a"), delta("a"), "", true},
		"chunked":   {"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n" + hop + "\r\n4\r\n: a\n\r\n1\r\n\n\r\n0\r\n\r\n", ": a\n\n", "", true},
		"length":    {"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: " + itoa(len(okJSON)) + "\r\n" + hop + "\r\n" + okJSON, okJSON, "", true},
		"both":      {"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n" + hop + "\r\n2\r\n{}\r\n0\r\n\r\n", "{}", "", true},
		"http/1.0":  {"HTTP/1.0 200 OK\r\nContent-Type: application/json\r\n" + hop + "\r\n" + okJSON, okJSON, "", true},
		"empty":     {"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n" + hop + "\r\n", "", "", false},
		"interim":   {"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n" + hop + "\r\n{}", "{}", "", false},
		"big heads": {"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nX-Big: " + strings.Repeat("b", 30<<10) + "\r\n" + hop + "\r\n{}", "{}", "", false},
	} {
		t.Run(name, func(t *testing.T) {
			e := newEngine(t, func(x *engineCall) {
				x.write(c.wire)
				if c.hang {
					panic(errHangUp)
				}
			})
			r := newRouter(t, setup{}, e.url())
			conn := r.dial(t)
			br := bufio.NewReader(conn)
			req := rawRequest("/v1/chat/completions", chatBody)
			got := exchangeOn(t, conn, br, req)
			if got.status != 200 || string(got.body) != c.body || got.bodyErr != nil {
				t.Fatalf("got %d %q %v", got.status, got.body, got.bodyErr)
			}
			h := got.header
			for _, name := range []string{"Keep-Alive", "X-Hop", "Te", "Upgrade", "Proxy-Connection", "Proxy-Authenticate", "Connection"} {
				if h.Get(name) != "" {
					t.Errorf("%s: %q reached the client", name, h.Get(name))
				}
			}
			if h.Get("Content-Encoding") != c.enc || h.Get("X-Request-Id") != "engine-id" {
				t.Errorf("headers %v", h)
			}
			if h.Get("Content-Length") != "" && h.Get("Transfer-Encoding") != "" {
				t.Errorf("both framings: %v", h)
			}
			// The client's connection outlives the engine's.
			if got := exchangeOn(t, conn, br, req); got.status != 200 {
				t.Errorf("second request on the same connection: %d", got.status)
			}
		})
	}
}

// Broken framing never looks whole.
func TestBrokenRepliesAreNotForwarded(t *testing.T) {
	for name, wire := range map[string]string{
		"two lengths":      "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\n{}x",
		"signed length":    "HTTP/1.1 200 OK\r\nContent-Length: +2\r\n\r\n{}",
		"unknown coding":   "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
		"folded":           "HTTP/1.1 200 OK\r\nX: a\r\n b\r\nContent-Length: 2\r\n\r\n{}",
		"space in name":    "HTTP/1.1 200 OK\r\nContent-Length : 2\r\n\r\n{}",
		"bare LF":          "HTTP/1.1 200 OK\nContent-Length: 2\n\n{}",
		"coding on 1.0":    "HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
		"switch":           "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\n\r\n",
		"bad chunk size":   "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n-2\r\n{}\r\n0\r\n\r\n",
		"LF after a size":  "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\n{}\r\n0\r\n\r\n",
		"endless head":     "HTTP/1.1 200 OK\r\nX: " + strings.Repeat("a", 70<<10),
		"endless interims": strings.Repeat("HTTP/1.1 100 Continue\r\n\r\n", 20),
	} {
		t.Run(name, func(t *testing.T) {
			e := newEngine(t, func(x *engineCall) { x.write(wire); panic(errHangUp) })
			r := newRouter(t, setup{}, e.url())
			got := r.chat(t, chatBody)
			if got.status != 502 || got.header.Get("X-Prefixring-Error") != "bad_engine_response" {
				t.Fatalf("got %d %q %v", got.status, got.body, got.header)
			}
			if e.calls.Load() != 1 {
				t.Fatalf("the engine was asked %d times", e.calls.Load())
			}
		})
	}
}

// A body that is cut reaches the client cut, never complete.
func TestCutBodyStaysCut(t *testing.T) {
	big := strings.Repeat("x", 100<<10)
	for name, wire := range map[string]string{
		"length":         "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 200000\r\n\r\n" + big,
		"chunked":        "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n30000\r\n" + big,
		"no last chunk":  sseHead + fmt.Sprintf("%x\r\n%s\r\n", len(stopEvent), stopEvent),
		"broken framing": sseHead + fmt.Sprintf("%x\r\n%s\r\n", len(stopEvent), stopEvent) + "zz\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			e := newEngine(t, func(x *engineCall) { x.write(wire); panic(errHangUp) })
			r := newRouter(t, setup{}, e.url())
			got := r.chat(t, chatBody)
			if got.status != 200 || got.bodyErr == nil {
				t.Fatalf("got %d, %d octets, %v", got.status, len(got.body), got.bodyErr)
			}
			if rec := r.records.wait(t, 1)[0]; rec.ErrorCode != "engine_closed" {
				t.Fatalf("record %+v", rec)
			}
		})
	}
}

// Trailer fields are neither lost nor invented.
func TestTrailersPass(t *testing.T) {
	e := newEngine(t, func(x *engineCall) {
		x.write("HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\nTrailer: X-Digest\r\n\r\n")
		x.chunk(delta("a"))
		x.write("0\r\nX-Digest: abc\r\nX-Unannounced: 1\r\n\r\n")
	})
	r := newRouter(t, setup{}, e.url())
	got := r.chat(t, streamBody)
	if got.bodyErr != nil || got.trailer.Get("X-Digest") != "abc" {
		t.Fatalf("trailer %v, %v", got.trailer, got.bodyErr)
	}
}

// HEAD, and statuses without a body.
func TestBodylessReplies(t *testing.T) {
	for _, status := range []int{204, 304} {
		e := newEngine(t, func(x *engineCall) { x.write(fmt.Sprintf("HTTP/1.1 %d X\r\nETag: x\r\n\r\n", status)) })
		r := newRouter(t, setup{}, e.url())
		conn := r.dial(t)
		br := bufio.NewReader(conn)
		for range 2 {
			got := exchangeOn(t, conn, br, rawRequest("/v1/embeddings", `{"model":"m","input":"x"}`))
			if got.status != status || len(got.body) != 0 || got.header.Get("Etag") != "x" {
				t.Fatalf("got %d %q %v", got.status, got.body, got.header)
			}
		}
		for _, rec := range r.records.wait(t, 2) {
			if rec.ErrorCode != "" {
				t.Fatalf("record %+v", rec)
			}
		}
	}
}

// B05: with heartbeats off, comments of the engine pass as they come, before any
// event.
func TestB05EngineCommentsPassAtOnce(t *testing.T) {
	step := make(chan struct{})
	e := newEngine(t, func(x *engineCall) {
		x.write(sseHead)
		x.chunk(": keep-alive\n\n")
		<-step
		x.chunk(delta("a"))
		x.write("0\r\n\r\n")
	})
	r := newRouter(t, setup{}, e.url())
	conn := r.dial(t)
	io.WriteString(conn, rawRequest("/v1/chat/completions", streamBody))
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	got := make([]byte, len(": keep-alive\n\n"))
	if _, err := io.ReadFull(resp.Body, got); err != nil || string(got) != ": keep-alive\n\n" {
		t.Fatalf("%q %v", got, err)
	}
	close(step)
	if rest, err := io.ReadAll(resp.Body); err != nil || string(rest) != delta("a") {
		t.Fatalf("%q %v", rest, err)
	}
}
