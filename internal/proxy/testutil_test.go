package proxy

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prefixring/prefixring/internal/fingerprint"
	"github.com/prefixring/prefixring/internal/telemetry"
	"github.com/prefixring/prefixring/ring"
)

// engineCall is one request that a scripted engine received.
type engineCall struct {
	e    *scripted
	conn net.Conn
	n    int // requests on this connection before this one
	head string
	body []byte
}

func (x *engineCall) header(name string) string {
	for line := range strings.SplitSeq(x.head, "\r\n") {
		if k, v, ok := strings.Cut(line, ":"); ok && strings.EqualFold(k, name) {
			return strings.TrimSpace(v)
		}
	}
	return ""
}

// write sends raw octets. Errors show as a client that left, which scripts ask for.
func (x *engineCall) write(s string) error {
	_, err := io.WriteString(x.conn, s)
	return err
}

// chunk sends one HTTP chunk.
func (x *engineCall) chunk(s string) error {
	return x.write(fmt.Sprintf("%x\r\n%s\r\n", len(s), s))
}

// json answers with a body of known length.
func (x *engineCall) json(status int, body string) {
	x.write(fmt.Sprintf("HTTP/1.1 %d X\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%s",
		status, len(body), body))
}

const sseHead = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"

// sse answers with a whole stream, one chunk per event.
func (x *engineCall) sse(events ...string) {
	x.write(sseHead)
	for _, ev := range events {
		x.chunk(ev)
	}
	x.write("0\r\n\r\n")
}

// gone waits until the router has closed the connection.
func (x *engineCall) gone(within time.Duration) bool {
	x.conn.SetReadDeadline(time.Now().Add(within))
	_, err := x.conn.Read(make([]byte, 1))
	return err != nil && !errors.Is(err, os.ErrDeadlineExceeded)
}

// scripted is an engine that does exactly what its script says, down to the octet.
type scripted struct {
	ln     net.Listener
	script func(*engineCall)

	calls  atomic.Int64 // requests received
	opened atomic.Int64 // connections accepted
	open   atomic.Int64
	wg     sync.WaitGroup

	mu    sync.Mutex // guards the following
	conns map[net.Conn]bool
	body  []byte // of the last request
	head  string
}

func newEngine(t testing.TB, script func(*engineCall)) *scripted {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return engineOn(t, ln, script)
}

func engineOn(t testing.TB, ln net.Listener, script func(*engineCall)) *scripted {
	e := &scripted{ln: ln, script: script, conns: map[net.Conn]bool{}}
	e.wg.Add(1)
	go e.accept()
	t.Cleanup(func() { e.close(t) })
	return e
}

func (e *scripted) url() string { return "http://" + e.ln.Addr().String() }

// close ends the engine. A script that waits for a test that has failed already must not
// keep that failure from being told: after a while it is reported and left behind.
func (e *scripted) close(t testing.TB) {
	e.ln.Close()
	e.mu.Lock()
	for c := range e.conns {
		c.Close()
	}
	e.mu.Unlock()
	ended := make(chan struct{})
	go func() { e.wg.Wait(); close(ended) }()
	select {
	case <-ended:
	case <-time.After(10 * time.Second):
		t.Error("a script of the engine still waits at the end of its test")
	}
}

func (e *scripted) accept() {
	defer e.wg.Done()
	for {
		c, err := e.ln.Accept()
		if err != nil {
			return
		}
		e.opened.Add(1)
		e.open.Add(1)
		e.mu.Lock()
		e.conns[c] = true
		e.mu.Unlock()
		e.wg.Add(1)
		go func() {
			defer e.wg.Done()
			e.serve(c)
			c.Close()
			e.open.Add(-1)
			e.mu.Lock()
			delete(e.conns, c)
			e.mu.Unlock()
		}()
	}
}

var errHangUp = errors.New("script hung up")

func (e *scripted) serve(c net.Conn) {
	defer func() {
		if r := recover(); r != nil && r != errHangUp {
			panic(r)
		}
	}()
	br := bufio.NewReader(c)
	for n := 0; ; n++ {
		x := &engineCall{e: e, conn: c, n: n}
		for {
			line, err := br.ReadString('\n')
			if err != nil {
				return
			}
			if line == "\r\n" {
				break
			}
			x.head += line
		}
		var length int
		fmt.Sscanf(x.header("content-length"), "%d", &length)
		x.body = make([]byte, length)
		if _, err := io.ReadFull(br, x.body); err != nil {
			return
		}
		e.calls.Add(1)
		e.mu.Lock()
		e.body, e.head = x.body, x.head
		e.mu.Unlock()
		e.script(x)
	}
}

// lastHead and lastBody are what the engine received last.
func (e *scripted) lastHead() string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.head
}

func (e *scripted) lastBody() []byte {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.body
}

// records collects what the proxy settles.
type records struct {
	mu  sync.Mutex
	all []telemetry.Record
}

func (r *records) Settle(rec *telemetry.Record) {
	r.mu.Lock()
	kept := *rec
	kept.ID = strings.Clone(rec.ID)
	r.all = append(r.all, kept)
	r.mu.Unlock()
}

// wait returns the records once there are n.
func (r *records) wait(t testing.TB, n int) []telemetry.Record {
	t.Helper()
	var got []telemetry.Record
	eventually(t, func() bool {
		r.mu.Lock()
		defer r.mu.Unlock()
		got = append(got[:0], r.all...)
		return len(got) >= n
	}, "%d settled requests", n)
	if len(got) > n {
		t.Fatalf("settled %d requests, want %d", len(got), n)
	}
	return got
}

// eventually polls until ok, for sockets and goroutines that no clock can drive.
func eventually(t testing.TB, ok func() bool, what string, args ...any) {
	t.Helper()
	deadline := time.Now().Add(5 * time.Second)
	for !ok() {
		if time.Now().After(deadline) {
			t.Fatalf("did not happen within 5 s: "+what, args...)
		}
		<-time.After(2 * time.Millisecond)
	}
}

// router is a proxy on a real listener with scripted engines behind it.
type router struct {
	*Proxy
	addr    string
	pool    *Pool
	ups     []*Upstream
	records *records
}

type setup struct {
	opts     Options
	pool     func(*Pool)
	upstream func(*UpstreamOptions)
	pools    func(first *Pool) []*Pool
}

func newRouter(t testing.TB, s setup, engines ...string) *router {
	t.Helper()
	r := &router{records: &records{}}
	if s.opts.Sink == nil {
		s.opts.Sink = r.records
	}
	p, err := New(s.opts)
	if err != nil {
		t.Fatal(err)
	}
	r.Proxy = p
	r.pool, r.ups = newPool(t, "pool", s, engines...)
	pools := []*Pool{r.pool}
	if s.pools != nil {
		pools = s.pools(r.pool)
	}
	table, err := NewTable(pools)
	if err != nil {
		t.Fatal(err)
	}
	p.SetTable(table)
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r.addr = ln.Addr().String()
	done := make(chan error, 1)
	go func() { done <- p.Serve(ln) }()
	t.Cleanup(func() {
		p.Close()
		if err := <-done; err != nil {
			t.Errorf("serve: %v", err)
		}
		for _, up := range r.ups {
			up.Close()
			if n := up.pool.open.Load(); n != 0 {
				t.Errorf("engine connections left open: %d", n)
			}
		}
		for _, n := range r.pool.Ring.Nodes() {
			if n.InFlight() != 0 || n.Load() != 0 {
				t.Errorf("node %s: %d slots out, load %d", n.Name(), n.InFlight(), n.Load())
			}
		}
	})
	return r
}

func newPool(t testing.TB, name string, s setup, engines ...string) (*Pool, []*Upstream) {
	t.Helper()
	rg, err := ring.New(ring.Options{})
	if err != nil {
		t.Fatal(err)
	}
	var members []ring.Member
	var ups []*Upstream
	for i, url := range engines {
		o := UpstreamOptions{Name: fmt.Sprintf("%s-%d", name, i), URL: url, Rank: -1, Now: s.opts.Now}
		if s.upstream != nil {
			s.upstream(&o)
		}
		up, err := NewUpstream(o)
		if err != nil {
			t.Fatal(err)
		}
		ups = append(ups, up)
		members = append(members, ring.Member{Name: o.Name, Value: up})
	}
	if err := rg.Apply(members); err != nil {
		t.Fatal(err)
	}
	for _, n := range rg.Nodes() {
		n.SetLevel(ring.Open)
	}
	scanner, err := fingerprint.NewScanner(fingerprint.Options{})
	if err != nil {
		t.Fatal(err)
	}
	p := &Pool{Name: name, Models: []string{"m"}, Ring: rg, Scanner: scanner}
	if s.pool != nil {
		s.pool(p)
	}
	return p, ups
}

// reply is a response as a client read it.
type clientReply struct {
	status  int
	header  http.Header
	body    []byte
	bodyErr error
	trailer http.Header
}

// rawRequest builds a POST.
func rawRequest(path, body string, headers ...string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "POST %s HTTP/1.1\r\nHost: router\r\nContent-Type: application/json\r\nContent-Length: %d\r\n", path, len(body))
	for _, h := range headers {
		b.WriteString(h + "\r\n")
	}
	b.WriteString("\r\n" + body)
	return b.String()
}

// dial opens a client connection that dies with the test.
func (r *router) dial(t testing.TB) net.Conn {
	t.Helper()
	c, err := net.Dial("tcp", r.addr)
	if err != nil {
		t.Fatal(err)
	}
	c.SetDeadline(time.Now().Add(20 * time.Second))
	t.Cleanup(func() { c.Close() })
	return c
}

// do sends a raw request on its own connection and reads the whole response.
func (r *router) do(t testing.TB, raw string) clientReply {
	t.Helper()
	c := r.dial(t)
	defer c.Close()
	return exchangeOn(t, c, bufio.NewReader(c), raw)
}

func exchangeOn(t testing.TB, c net.Conn, br *bufio.Reader, raw string) clientReply {
	t.Helper()
	if _, err := io.WriteString(c, raw); err != nil {
		t.Fatalf("cannot send request: %v", err)
	}
	return readReply(t, br, raw)
}

func readReply(t testing.TB, br *bufio.Reader, raw string) clientReply {
	t.Helper()
	method, _, _ := strings.Cut(raw, " ")
	resp, err := http.ReadResponse(br, &http.Request{Method: method})
	if err != nil {
		t.Fatalf("cannot read response: %v", err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	return clientReply{resp.StatusCode, resp.Header, body, err, resp.Trailer}
}

func (r *router) chat(t testing.TB, body string, headers ...string) clientReply {
	t.Helper()
	return r.do(t, rawRequest("/v1/chat/completions", body, headers...))
}

const (
	chatBody   = `{"model":"m","messages":[{"role":"system","content":"s"},{"role":"user","content":"u"}]}`
	streamBody = `{"model":"m","stream":true,"messages":[{"role":"system","content":"s"},{"role":"user","content":"u"}]}`
	okJSON     = `{"id":"x","object":"chat.completion","choices":[{"index":0,"message":{"role":"assistant","content":"hi"},"finish_reason":"stop"}],"usage":{"prompt_tokens":5,"completion_tokens":1,"total_tokens":6}}`
)

func delta(text string) string {
	return `data: {"id":"x","object":"chat.completion.chunk","choices":[{"index":0,"delta":{"content":"` + text + `"},"finish_reason":null}]}` + "\n\n"
}

const (
	stopEvent  = `data: {"id":"x","object":"chat.completion.chunk","choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}` + "\n\n"
	usageEvent = `data: {"id":"x","object":"chat.completion.chunk","choices":[],"usage":{"prompt_tokens":7,"total_tokens":9,"completion_tokens":2,"prompt_tokens_details":{"cached_tokens":4}}}` + "\n\n"
	doneEvent  = "data: [DONE]\n\n"
)

func closeNow(t testing.TB, p *Proxy, grace time.Duration) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), grace)
	defer cancel()
	return p.Drain(ctx)
}
