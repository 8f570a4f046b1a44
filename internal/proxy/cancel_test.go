package proxy

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/prefixring/prefixring/internal/dialect"
)

// noticed is how soon an engine must see that its client is gone.
const noticed = 500 * time.Millisecond

// silentEngine answers with what say writes and then waits for its connection to be
// closed; when that happened is told on closed.
func silentEngine(t *testing.T, say func(*engineCall)) (e *scripted, reached chan struct{}, closed chan bool) {
	reached, closed = make(chan struct{}, 1), make(chan bool, 1)
	e = newEngine(t, func(x *engineCall) {
		say(x)
		reached <- struct{}{}
		closed <- x.gone(10 * time.Second)
		panic(errHangUp)
	})
	return e, reached, closed
}

// B09: a client that goes away is noticed in every phase, and the engine with it.
func TestB09ClientGoneClosesEngine(t *testing.T) {
	twoEvents := func(x *engineCall) {
		x.write(sseHead)
		x.chunk(delta("a"))
		x.chunk(delta("b"))
	}
	halfJSON := func(x *engineCall) {
		x.write("HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 100000\r\n\r\n{")
	}
	for name, c := range map[string]struct {
		body   string
		say    func(*engineCall)
		events int // octets the client waits for before it leaves
		status int
	}{
		"before the head":             {chatBody, func(*engineCall) {}, 0, 499},
		"before the head, streaming":  {streamBody, func(*engineCall) {}, 0, 499},
		"after the head, no event":    {streamBody, func(x *engineCall) { x.write(sseHead) }, 0, 499},
		"mid-stream while silent":     {streamBody, twoEvents, 1, 200},
		"in the middle of a big body": {chatBody, halfJSON, 1, 200},
	} {
		t.Run(name, func(t *testing.T) {
			e, reached, closed := silentEngine(t, c.say)
			r := newRouter(t, setup{}, e.url())
			conn := r.dial(t)
			io.WriteString(conn, rawRequest("/v1/chat/completions", c.body))
			<-reached
			if c.events > 0 {
				if _, err := io.ReadFull(conn, make([]byte, 10)); err != nil {
					t.Fatal(err)
				}
			}
			if r.pool.Ring.Nodes()[0].InFlight() != 1 {
				t.Fatal("the slot is not held")
			}
			left := time.Now()
			conn.Close()
			if !<-closed {
				t.Fatal("the engine's connection stayed open")
			}
			if took := time.Since(left); took > noticed {
				t.Fatalf("the engine noticed after %v", took)
			}
			rec := r.records.wait(t, 1)[0]
			if rec.Verdict != dialect.Cancelled || rec.Status != c.status || rec.ErrorCode != "client_closed" {
				t.Fatalf("record %+v", rec)
			}
			eventually(t, func() bool { return r.pool.Ring.Nodes()[0].InFlight() == 0 }, "slot given back")
		})
	}
}

// Over TLS the end of the client's side is hidden behind an alert record; the socket
// still shows it.
func TestB09ClientGoneOverTLS(t *testing.T) {
	e, reached, closed := silentEngine(t, func(*engineCall) {})
	r := newRouter(t, setup{opts: Options{TLS: testCert(t).server}}, e.url())
	conn := r.dialTLS(t)
	io.WriteString(conn, rawRequest("/v1/chat/completions", chatBody))
	<-reached
	left := time.Now()
	conn.Close()
	if !<-closed {
		t.Fatal("the engine's connection stayed open")
	}
	if took := time.Since(left); took > noticed {
		t.Fatalf("the engine noticed after %v", took)
	}
	r.records.wait(t, 1)
}

// A client that leaves while its request waits for a node leaves the queue.
func TestB09ClientGoneInQueue(t *testing.T) {
	release := make(chan struct{})
	e := newEngine(t, func(x *engineCall) { <-release; x.json(200, okJSON) })
	r := newRouter(t, setup{
		opts: Options{Queue: Queue{Wait: time.Minute}},
		pool: func(p *Pool) { p.MaxInFlight = 1 },
	}, e.url())
	first := r.dial(t)
	io.WriteString(first, rawRequest("/v1/chat/completions", chatBody))
	eventually(t, func() bool { return e.calls.Load() == 1 }, "first request runs")
	conn := r.dial(t)
	io.WriteString(conn, rawRequest("/v1/chat/completions", chatBody))
	eventually(t, func() bool { return r.pool.queue.waiting.Load() == 1 }, "request waits")
	left := time.Now()
	conn.Close()
	eventually(t, func() bool { return r.pool.queue.waiting.Load() == 0 }, "queue left")
	if took := time.Since(left); took > noticed {
		t.Fatalf("noticed after %v", took)
	}
	close(release)
	if got := readReply(t, bufio.NewReader(first), "POST"); got.status != 200 {
		t.Fatalf("the running request got %d", got.status)
	}
	r.records.wait(t, 2)
}

// A client that leaves while the connection to the engine is being made ends that.
func TestB09ClientGoneWhileConnecting(t *testing.T) {
	r := newRouter(t, setup{upstream: func(o *UpstreamOptions) { o.Timeouts.Connect = time.Minute }}, blackhole(t))
	conn := r.dial(t)
	io.WriteString(conn, rawRequest("/v1/chat/completions", chatBody))
	n := r.pool.Ring.Nodes()[0]
	eventually(t, func() bool { return n.InFlight() == 1 }, "attempt begins")
	left := time.Now()
	conn.Close()
	eventually(t, func() bool { return n.InFlight() == 0 }, "attempt ends")
	if took := time.Since(left); took > noticed {
		t.Fatalf("noticed after %v", took)
	}
	if rec := r.records.wait(t, 1)[0]; rec.Status != 499 {
		t.Fatalf("record %+v", rec)
	}
}

// blackhole is an address whose handshake never ends: a listener with a full backlog.
func blackhole(t *testing.T) string {
	t.Helper()
	return "http://" + fullBacklog(t)
}

// Pipelined octets are no sign of leaving, and are answered in their turn.
func TestPipelinedRequestIsNoDisconnect(t *testing.T) {
	first := make(chan struct{})
	e := newEngine(t, func(x *engineCall) {
		if x.n == 0 {
			<-first
		}
		x.json(200, okJSON)
	})
	r := newRouter(t, setup{}, e.url())
	conn := r.dial(t)
	one := rawRequest("/v1/chat/completions", chatBody)
	io.WriteString(conn, one+one)
	eventually(t, func() bool { return e.calls.Load() == 1 }, "first request reaches the engine")
	// Longer than the watch needs: had the second request been taken for a sign of
	// leaving, the first would be cancelled by now.
	<-time.After(200 * time.Millisecond)
	close(first)
	br := bufio.NewReader(conn)
	for i := range 2 {
		if got := readReply(t, br, one); got.status != 200 || string(got.body) != okJSON {
			t.Fatalf("reply %d: %d %q", i, got.status, got.body)
		}
	}
	r.records.wait(t, 2)
}

// A client that closes only its sending side has left, unless configured otherwise.
func TestHalfClosedClient(t *testing.T) {
	for _, keep := range []bool{false, true} {
		release := make(chan struct{})
		e := newEngine(t, func(x *engineCall) {
			select {
			case <-release:
				x.json(200, okJSON)
			case <-time.After(5 * time.Second):
				panic(errHangUp)
			}
		})
		r := newRouter(t, setup{opts: Options{KeepHalfClosed: keep}}, e.url())
		conn := r.dial(t)
		raw := rawRequest("/v1/chat/completions", chatBody)
		io.WriteString(conn, raw)
		eventually(t, func() bool { return e.calls.Load() == 1 }, "request reaches the engine")
		conn.(*net.TCPConn).CloseWrite()
		if keep {
			<-time.After(200 * time.Millisecond) // what must not happen would have happened by now
			close(release)
			resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
			if err != nil || resp.StatusCode != 200 {
				t.Fatalf("half-closed client was not served: %v", err)
			}
			resp.Body.Close()
		} else {
			rec := r.records.wait(t, 1)[0]
			if rec.Status != 499 {
				t.Fatalf("record %+v", rec)
			}
			close(release)
		}
	}
}

// B11: the slot is held for the whole body, not only until the head.
func TestB11SlotHeldUntilBodyEnds(t *testing.T) {
	// A round is a channel of its own, closed for all: with one that is received from, a
	// quick stream could take two turns of a round and end before the others.
	var rounds [3]chan struct{}
	for i := range rounds {
		rounds[i] = make(chan struct{})
	}
	e := newEngine(t, func(x *engineCall) {
		x.write(sseHead)
		for _, round := range rounds {
			x.chunk(delta("x"))
			<-round
		}
		x.chunk(stopEvent)
		x.write("0\r\n\r\n")
	})
	r := newRouter(t, setup{}, e.url())
	const n = 10
	var readers []*bufio.Reader
	for range n {
		c := r.dial(t)
		io.WriteString(c, rawRequest("/v1/chat/completions", streamBody))
		readers = append(readers, bufio.NewReader(c))
	}
	node := r.pool.Ring.Nodes()[0]
	for _, round := range rounds {
		for _, br := range readers {
			for {
				line, err := br.ReadString('\n')
				if err != nil {
					t.Fatal(err)
				}
				if strings.HasPrefix(line, "data:") {
					break
				}
			}
		}
		if got := node.InFlight(); got != n {
			t.Fatalf("in flight %d in mid-stream, want %d", got, n)
		}
		close(round)
	}
	eventually(t, func() bool { return node.InFlight() == 0 }, "slots given back")
	r.records.wait(t, n)
}
