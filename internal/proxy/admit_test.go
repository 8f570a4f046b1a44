package proxy

import (
	"bufio"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/prefixring/prefixring/internal/dialect"
)

// rawDo sends octets that need not be a request and returns what comes back until the
// router closes or answers.
func (r *router) rawDo(t *testing.T, raw string) (status int, h http.Header, body []byte, closed bool) {
	t.Helper()
	c := r.dial(t)
	io.WriteString(c, raw)
	br := bufio.NewReader(c)
	c.SetReadDeadline(time.Now().Add(5 * time.Second))
	resp, err := http.ReadResponse(br, nil)
	if err != nil {
		return 0, nil, nil, true
	}
	body, _ = io.ReadAll(resp.Body)
	resp.Body.Close()
	c.SetReadDeadline(time.Now().Add(100 * time.Millisecond))
	_, err = br.ReadByte()
	closed = err != nil && !errors.Is(err, os.ErrDeadlineExceeded)
	return resp.StatusCode, resp.Header, body, closed
}

// The smuggling table: whatever two parsers could read differently is refused with
// 400 before any engine sees an octet.
func TestSmugglingTable(t *testing.T) {
	e := newEngine(t, answer)
	r := newRouter(t, setup{opts: Options{Timeouts: Timeouts{ReadRequest: 300 * time.Millisecond}}}, e.url())
	const line = "POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\n"
	for name, raw := range map[string]string{
		"length and coding":   line + "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
		"coding and length":   line + "Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n",
		"two lengths":         line + "Content-Length: 2\r\nContent-Length: 2\r\n\r\n{}",
		"differing lengths":   line + "Content-Length: 2\r\nContent-Length: 3\r\n\r\n{}x",
		"length list":         line + "Content-Length: 2, 2\r\n\r\n{}",
		"signed length":       line + "Content-Length: +2\r\n\r\n{}",
		"negative length":     line + "Content-Length: -2\r\n\r\n{}",
		"hex length":          line + "Content-Length: 0x2\r\n\r\n{}",
		"space before colon":  line + "Content-Length : 2\r\n\r\n{}",
		"tab before colon":    line + "Transfer-Encoding\t: chunked\r\n\r\n0\r\n\r\n",
		"folded coding":       line + "Transfer-Encoding:\r\n chunked\r\n\r\n0\r\n\r\n",
		"folded field":        line + "X: a\r\n b\r\nContent-Length: 2\r\n\r\n{}",
		"identity after":      line + "Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n",
		"two codings":         line + "Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n0\r\n\r\n",
		"unknown coding":      line + "Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
		"coding with a ctl":   line + "Transfer-Encoding: \x0bchunked\r\n\r\n0\r\n\r\n",
		"coding on HTTP/1.0":  "POST /v1/chat/completions HTTP/1.0\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
		"two hosts":           line + "Host: b\r\nContent-Length: 2\r\n\r\n{}",
		"no host":             "POST /v1/chat/completions HTTP/1.1\r\nContent-Length: 2\r\n\r\n{}",
		"NUL in a value":      line + "X: a\x00b\r\nContent-Length: 2\r\n\r\n{}",
		"CR in a value":       line + "X: a\rb\r\nContent-Length: 2\r\n\r\n{}",
		"empty name":          line + ": x\r\nContent-Length: 2\r\n\r\n{}",
		"bad chunk size":      line + "Transfer-Encoding: chunked\r\n\r\nzz\r\n{}\r\n0\r\n\r\n",
		"negative chunk size": line + "Transfer-Encoding: chunked\r\n\r\n-1\r\n{}\r\n0\r\n\r\n",
		"huge chunk size":     line + "Transfer-Encoding: chunked\r\n\r\nffffffffffffffffff\r\n{}\r\n0\r\n\r\n",
		"LF after a size":     line + "Transfer-Encoding: chunked\r\n\r\n2\n{}\r\n0\r\n\r\n",
		"no CRLF after chunk": line + "Transfer-Encoding: chunked\r\n\r\n2\r\n{}xx0\r\n\r\n",
		"LF in an extension":  line + "Transfer-Encoding: chunked\r\n\r\n2;a\nb\r\n{}\r\n0\r\n\r\n",
		"bare LF head":        strings.ReplaceAll(line+"Content-Length: 2\r\n\r\n{}", "\r\n", "\n"),
		"no version":          "POST /v1/chat/completions\r\nHost: a\r\n\r\n",
		"other protocol":      "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
	} {
		t.Run(name, func(t *testing.T) {
			before := e.calls.Load()
			status, h, _, closed := r.rawDo(t, raw)
			if status == 200 || e.calls.Load() != before {
				t.Fatalf("accepted: status %d, engine calls %d", status, e.calls.Load()-before)
			}
			if status != 0 && (status < 400 || status > 499 || h.Get("X-Prefixring-Error") == "") {
				t.Fatalf("status %d %v", status, h)
			}
			if !closed {
				t.Fatal("the connection stays open")
			}
		})
	}
}

// Engine administration is never reachable, and only literal paths match.
func TestRouteAllowList(t *testing.T) {
	e := newEngine(t, answer)
	r := newRouter(t, setup{}, e.url())
	for _, path := range []string{
		"/sleep", "/wake_up", "/reset_prefix_cache", "/collective_rpc", "/v1/load_lora_adapter", "/load_lora_adapter",
		"/flush_cache", "/metrics", "/health", "/server_info", "/abort_request", "/generate", "/", "/v1", "/v1/",
		"//v1/chat/completions", "/v1//chat/completions", "/v1/../sleep", "/v1/./chat/completions", "/v1/%63hat/completions",
		"/v1/chat/completions/", "/V1/chat/completions", "/v1/chat/completions%00", "/v1/chat/completions;x", "http://a/sleep",
	} {
		got := r.do(t, rawRequest(path, chatBody))
		if got.status != 404 || got.header.Get("X-Prefixring-Error") != "unknown_route" {
			t.Errorf("%s: %d %v", path, got.status, got.header)
		}
	}
	if got := r.do(t, "GET /v1/chat/completions HTTP/1.1\r\nHost: a\r\n\r\n"); got.status != 405 || got.header.Get("Allow") != "POST" {
		t.Errorf("GET: %d %v", got.status, got.header)
	}
	if got := r.do(t, strings.Replace(rawRequest("http://a.example/v1/chat/completions?api-version=1", chatBody), "Host: router", "Host: a.example", 1)); got.status != 200 {
		t.Errorf("absolute form: %d %s", got.status, got.body)
	}
	if !strings.HasPrefix(e.lastHead(), "POST /v1/chat/completions?api-version=1 HTTP/1.1\r\n") {
		t.Errorf("engine got %q", e.lastHead())
	}
	if e.calls.Load() != 1 {
		t.Errorf("%d requests reached the engine", e.calls.Load())
	}
}

// What must not reach an engine does not; all else does, as it was spelled.
func TestRequestHeaders(t *testing.T) {
	e := newEngine(t, answer)
	r := newRouter(t, setup{upstream: func(o *UpstreamOptions) { o.Key = func() string { return "engine-key" } }}, e.url())
	got := r.chat(t, chatBody,
		"Connection: keep-alive, X-Hop", "X-Hop: 1", "Keep-Alive: timeout=5", "TE: trailers", "Proxy-Authorization: Basic x",
		"Proxy-Connection: keep-alive", "Authorization: Bearer client-key", "X-API-Key: client-key", "Expect: ",
		"X-Prefixring-Conversation: c1", "X-Prefixring-Explain: 1", "X-Vllm-Priority: -5", "X-data-parallel-rank: 3",
		"X-Forwarded-For: 10.0.0.1", "x-lower-Mixed: kept", "Accept-Encoding: gzip", "traceparent: 00-1-2-01",
		"X-Request-Id: mine-42", "X-Dup: a", "X-Dup: b")
	if got.status != 200 {
		t.Fatal(got.status)
	}
	head := e.lastHead()
	for _, gone := range []string{"x-hop", "keep-alive", "te:", "proxy-", "client-key", "expect", "x-prefixring", "x-vllm", "data-parallel", "user-agent"} {
		if strings.Contains(strings.ToLower(head), gone) {
			t.Errorf("%q reached the engine:\n%s", gone, head)
		}
	}
	for _, kept := range []string{"x-lower-Mixed: kept\r\n", "Accept-Encoding: gzip\r\n", "traceparent: 00-1-2-01\r\n", "X-Dup: a\r\nX-Dup: b\r\n",
		"Authorization: Bearer engine-key\r\n", "X-Forwarded-For: 10.0.0.1\r\n", "X-Forwarded-For: 127.0.0.1\r\n", "X-Request-Id: mine-42-",
		"Content-Type: application/json\r\n", "Host: " + strings.TrimPrefix(e.url(), "http://") + "\r\n"} {
		if !strings.Contains(head, kept) {
			t.Errorf("%q is missing:\n%s", kept, head)
		}
	}
	if strings.Count(strings.ToLower(head), "content-length") != 1 || strings.Count(strings.ToLower(head), "host:") != 1 {
		t.Errorf("framing:\n%s", head)
	}
}

// B19: without an engine key none is sent, and never an empty one; the Anthropic
// form of a client's key becomes the form that engines take.
func TestB19EngineKey(t *testing.T) {
	e := newEngine(t, answer)
	key := ""
	r := newRouter(t, setup{upstream: func(o *UpstreamOptions) { o.Key = func() string { return key } }}, e.url())
	r.chat(t, chatBody, "Authorization: Bearer client")
	if strings.Contains(strings.ToLower(e.lastHead()), "authorization") {
		t.Fatalf("engine got\n%s", e.lastHead())
	}
	for _, key = range []string{"k1", "k2"} {
		for _, path := range []string{"/v1/messages", "/v1/embeddings", "/v1/completions"} {
			r.do(t, rawRequest(path, `{"model":"m","max_tokens":1,"prompt":"x","input":"x","messages":[{"role":"user","content":"x"}]}`, "x-api-key: client"))
			if h := e.lastHead(); !strings.Contains(h, "Authorization: Bearer "+key+"\r\n") || strings.Contains(strings.ToLower(h), "x-api-key") {
				t.Fatalf("%s: engine got\n%s", path, h)
			}
		}
	}
}

func TestPassClientKey(t *testing.T) {
	e := newEngine(t, answer)
	r := newRouter(t, setup{opts: Options{PassClientKey: true}}, e.url())
	r.chat(t, chatBody, "Authorization: Bearer client")
	if !strings.Contains(e.lastHead(), "Authorization: Bearer client\r\n") {
		t.Fatalf("engine got\n%s", e.lastHead())
	}
}

// Request ids are unique, begin with the client's own, and cannot break a header.
func TestRequestID(t *testing.T) {
	e := newEngine(t, answer)
	r := newRouter(t, setup{}, e.url())
	seen := map[string]bool{}
	for _, id := range []string{"", "abc", "abc", strings.Repeat("x", 500), "a b", "ü", `"><script>`} {
		var hs []string
		if id != "" {
			hs = append(hs, "X-Request-Id: "+id)
		}
		got := r.chat(t, chatBody, hs...)
		back := got.header.Get("X-Request-Id")
		if back == "" || len(back) > 140 || seen[back] {
			t.Errorf("id %q became %q", id, back)
		}
		seen[back] = true
		if plain := id == "abc"; plain != strings.HasPrefix(back, "abc-") {
			t.Errorf("id %q became %q", id, back)
		}
		if !strings.Contains(e.lastHead(), "X-Request-Id: "+back+"\r\n") {
			t.Errorf("engine got another id than %q:\n%s", back, e.lastHead())
		}
	}
}

// B12: a body over the limit is refused by name of the limit, before it is uploaded,
// and is seen in the log.
func TestB12BodyLimit(t *testing.T) {
	e := newEngine(t, answer)
	r := newRouter(t, setup{opts: Options{MaxBody: 1 << 20}}, e.url())
	big := 2200 << 10
	for name, raw := range map[string]string{
		"announced": "POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nContent-Length: " + itoa(big) + "\r\n\r\n" + strings.Repeat("x", 1000),
		"expected":  "POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: " + itoa(big) + "\r\n\r\n",
		"chunked":   "POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n" + "200000\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			settled := len(r.records.wait(t, r.records.len()))
			status, h, body, closed := r.rawDo(t, raw)
			if status != 413 || h.Get("X-Prefixring-Error") != "body_too_large" || !strings.Contains(string(body), "1048576") || !closed {
				t.Fatalf("got %d %v %q closed=%v", status, h, body, closed)
			}
			if rec := r.records.wait(t, settled+1)[settled]; rec.Status != 413 || rec.ErrorCode != "body_too_large" {
				t.Fatalf("record %+v", rec)
			}
		})
	}
	ok := `{"model":"m","messages":[{"role":"user","content":"` + strings.Repeat("x", 1<<20-200) + `"}]}`
	if got := r.chat(t, ok); got.status != 200 {
		t.Fatalf("a body below the limit got %d", got.status)
	}
}

func (r *records) len() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.all)
}

// The 100 is sent when the request is welcome, and only then.
func TestExpectContinue(t *testing.T) {
	e := newEngine(t, answer)
	r := newRouter(t, setup{}, e.url())
	c := r.dial(t)
	br := bufio.NewReader(c)
	io.WriteString(c, "POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: "+itoa(len(chatBody))+"\r\n\r\n")
	if line, err := br.ReadString('\n'); err != nil || line != "HTTP/1.1 100 Continue\r\n" {
		t.Fatalf("%q %v", line, err)
	}
	br.ReadString('\n')
	if got := exchangeOn(t, c, br, chatBody); got.status != 200 {
		t.Fatal(got.status)
	}
	if string(e.lastBody()) != chatBody || strings.Contains(strings.ToLower(e.lastHead()), "expect") {
		t.Fatalf("engine got %q %q", e.lastHead(), e.lastBody())
	}
}

// B21: large request heads pass, too large ones are refused in JSON and logged.
func TestB21HeaderLimits(t *testing.T) {
	e := newEngine(t, answer)
	r := newRouter(t, setup{}, e.url())
	var forty []string
	for i := range 40 {
		forty = append(forty, "X-Field-"+itoa(i)+": "+strings.Repeat("v", 700))
	}
	if got := r.chat(t, chatBody, "Authorization: Bearer "+strings.Repeat("a", 12<<10)); got.status != 200 {
		t.Fatalf("12 KB of authorization: %d", got.status)
	}
	if got := r.chat(t, chatBody, forty...); got.status != 200 || strings.Count(e.lastHead(), "X-Field-") != 40 {
		t.Fatalf("40 headers of 700 bytes: %d", got.status)
	}
	n := r.records.len()
	c := r.dial(t)
	go io.WriteString(c, rawRequest("/v1/chat/completions", chatBody, "X: "+strings.Repeat("a", 200<<10)))
	resp, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		t.Fatal(err)
	}
	body, _ := io.ReadAll(resp.Body)
	resp.Body.Close()
	if resp.StatusCode != 431 || !json.Valid(body) || resp.Header.Get("X-Prefixring-Error") != "headers_too_large" {
		t.Fatalf("got %d %q", resp.StatusCode, body)
	}
	if rec := r.records.wait(t, n+1)[n]; rec.Status != 431 {
		t.Fatalf("record %+v", rec)
	}
}

// Slow-loris: a head or body that does not arrive is cut with 408.
func TestSlowRequestIsCut(t *testing.T) {
	clock := newClock()
	e := newEngine(t, answer)
	r := newRouter(t, setup{opts: Options{Now: clock.now, Timeouts: Timeouts{ReadRequest: time.Hour}}}, e.url())
	for name, raw := range map[string]string{
		"head": "POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nX: ",
		"body": "POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\n{",
	} {
		t.Run(name, func(t *testing.T) {
			c := r.dial(t)
			io.WriteString(c, raw)
			eventually(t, r.reading, "the router has begun to read")
			r.pass(clock, 59*time.Minute)
			if !r.reading() {
				t.Fatal("cut before its limit")
			}
			// The limit begins anew with the first octet, so time has to go on.
			stop := make(chan struct{})
			var wg sync.WaitGroup
			wg.Go(func() {
				for {
					select {
					case <-stop:
						return
					case <-time.After(5 * time.Millisecond):
						r.pass(clock, 10*time.Minute)
					}
				}
			})
			resp, err := http.ReadResponse(bufio.NewReader(c), nil)
			close(stop)
			wg.Wait()
			if err != nil {
				t.Fatal(err)
			}
			resp.Body.Close()
			if resp.StatusCode != 408 || resp.Header.Get("X-Prefixring-Error") != "request_timeout" {
				t.Fatalf("got %d %v", resp.StatusCode, resp.Header)
			}
		})
	}
}

// A client that is still uploading when it is refused gets to read why.
func TestRefusedUploadSeesItsAnswer(t *testing.T) {
	r := newRouter(t, setup{opts: Options{MaxBody: 1 << 20}}, newEngine(t, answer).url())
	for range 5 {
		c := r.dial(t)
		wrote := make(chan error, 1)
		go func() {
			_, err := io.WriteString(c, "POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nContent-Length: 9000000\r\n\r\n"+strings.Repeat("x", 9000000))
			wrote <- err
		}()
		<-wrote // all of it is sent before the answer is looked at
		resp, err := http.ReadResponse(bufio.NewReader(c), nil)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != 413 {
			t.Fatal(resp.StatusCode)
		}
		c.Close()
	}
}

// reading reports that a connection waits for the rest of a request.
func (r *router) reading() (yes bool) {
	r.conns.each(func(c *clientConn) {
		c.mu.Lock()
		yes = yes || (c.deadline != 0 && !c.forced)
		c.mu.Unlock()
	})
	return yes
}

// B25: the router is not stricter than the engines.
func TestB25OddMessagesReachTheEngine(t *testing.T) {
	e := newEngine(t, func(x *engineCall) { x.json(422, `{"detail":"engine's opinion"}`) })
	r := newRouter(t, setup{}, e.url())
	many := strings.TrimSuffix(strings.Repeat(`{"role":"user","content":"x"},`, 2000), ",")
	for _, messages := range []string{
		`[{"role":"developer","content":"d"},{"role":"user","content":"u"}]`, `[{"role":"","content":"x"}]`,
		`[{"role":"assistant","content":null,"tool_calls":[{"id":"1"}]}]`, `[{"role":"user","content":""}]`, `[]`,
		`[{"role":"system","content":"s"}]`, `[{"role":"tool","content":"t"}]`, `[` + many + `]`, `"odd"`, `{"a":1}`, `null`,
	} {
		body := `{"model":"m","messages":` + messages + `}`
		got := r.chat(t, body)
		if got.status != 422 || string(got.body) != `{"detail":"engine's opinion"}` || string(e.lastBody()) != body {
			t.Errorf("%.60s: %d %q", messages, got.status, got.body)
		}
	}
	if got := r.chat(t, `{"model":"m"}`); got.status != 422 {
		t.Errorf("no messages: %d %s", got.status, got.body)
	}
}

// Bad bodies are refused before any engine is asked, in the client's protocol.
func TestBadBodies(t *testing.T) {
	e := newEngine(t, answer)
	r := newRouter(t, setup{pools: twoPools(t)}, e.url())
	for _, c := range []struct {
		path, body, code string
		status           int
	}{
		{"/v1/chat/completions", `{"model":"m"`, "bad_json", 400},
		{"/v1/chat/completions", `[]`, "bad_json", 400},
		{"/v1/chat/completions", ``, "bad_json", 400},
		{"/v1/messages", `{"model":"m","model":"n"}`, "duplicate_field", 400},
		{"/v1/chat/completions", `{"messages":[]}`, "missing_model", 400},
		{"/v1/responses", `{"model":"m9"}`, "model_not_found", 404},
		{"/v1/messages", `{"model":"m9"}`, "model_not_found", 404},
	} {
		got := r.do(t, rawRequest(c.path, c.body))
		if got.status != c.status || got.header.Get("X-Prefixring-Error") != c.code {
			t.Errorf("%s %s: %d %v %s", c.path, c.body, got.status, got.header, got.body)
		}
		claude := strings.HasPrefix(string(got.body), `{"type":"error","error":{"type":`)
		if claude != (c.path == "/v1/messages") || !json.Valid(got.body) {
			t.Errorf("%s: body %s", c.path, got.body)
		}
	}
	if e.calls.Load() != 0 {
		t.Errorf("%d requests reached the engine", e.calls.Load())
	}
}

// Every router error is valid in every protocol.
func TestEveryFailureHasItsShape(t *testing.T) {
	for _, f := range []failure{failPath, failMethod, failFraming, failRequest, failHeader, failHeadSize, failBodySize, failSlow,
		failUpgrade, failKey, failRate, failParallel, failTokens, failDraining, failJSON, failTwice, failNoModel, failModel, failStored,
		failNoEngine, failBound, failQueueFull, failQueueWait, failConnect, failConnectTime, failClosed, failReply, failFirstByte,
		failTotal, failIdle, failCut, failEngine, failStop, failClient, failStall, failInternal} {
		for p := dialect.Opaque; p <= dialect.Messages; p++ {
			if !json.Valid(f.body(p)) || !strings.Contains(string(f.body(p)), f.message) {
				t.Errorf("%s in %v: %s", f.code, p, f.body(p))
			}
			if s := string(f.stream(p)); !strings.HasSuffix(s, "\n\n") || !strings.Contains(s, "data: {") {
				t.Errorf("%s in %v: %s", f.code, p, s)
			}
		}
		if f.status == 503 && f.retry == 0 && f.message != failStop.message {
			t.Errorf("%s has no Retry-After", f.code)
		}
	}
}

// shortOnce fails one Accept as a process without free descriptors does.
type shortOnce struct {
	net.Listener
	failed atomic.Bool
}

func (l *shortOnce) Accept() (net.Conn, error) {
	if !l.failed.Swap(true) {
		return nil, &net.OpError{Op: "accept", Err: os.NewSyscallError("accept4", syscall.EMFILE)}
	}
	return l.Listener.Accept()
}

// A shortage of descriptors is waited out.
func TestAcceptSurvivesShortage(t *testing.T) {
	r := newRouter(t, setup{}, newEngine(t, answer).url())
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- r.Serve(&shortOnce{Listener: ln}) }()
	r.addr = ln.Addr().String()
	if got := r.chat(t, chatBody); got.status != 200 {
		t.Fatal(got.status)
	}
	r.Close()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}
