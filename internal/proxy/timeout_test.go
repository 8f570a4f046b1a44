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

// steered is a router whose clock and janitor the test drives.
func steered(t *testing.T, o Options, engines ...string) (*router, *clock) {
	t.Helper()
	c := newClock()
	o.Now = c.now
	return newRouter(t, setup{opts: o}, engines...), c
}

// pass moves the clock in steps and lets the janitor look at each.
func (r *router) pass(c *clock, d time.Duration) {
	c.advance(d)
	r.sweep(c.now())
}

// inPhase waits until the only running call is in the phase.
func (r *router) inPhase(t *testing.T, ph phase) {
	t.Helper()
	eventually(t, func() bool {
		found := false
		r.conns.each(func(c *clientConn) {
			if cl := c.cur.Load(); cl != nil && phase(cl.phase.Load()) == ph {
				found = true
			}
		})
		return found
	}, "a call in phase %d", ph)
}

// B47: by default nothing ends a prefill of ten minutes, an answer of an hour, or a
// stream that is slow but alive.
func TestB47DefaultsLetSlowAnswersFinish(t *testing.T) {
	step := make(chan struct{})
	e := newEngine(t, func(x *engineCall) {
		<-step
		x.write(sseHead)
		for range 5 {
			x.chunk(delta("x"))
			<-step
		}
		x.chunk(stopEvent)
		x.write("0\r\n\r\n")
	})
	r, clock := steered(t, Options{}, e.url())
	conn := r.dial(t)
	io.WriteString(conn, rawRequest("/v1/chat/completions", streamBody))
	r.inPhase(t, phaseWaiting)
	r.pass(clock, 25*time.Minute)
	step <- struct{}{}
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	for range 5 {
		if _, err := io.ReadFull(resp.Body, make([]byte, len(delta("x")))); err != nil {
			t.Fatal(err)
		}
		r.inPhase(t, phaseBody)
		r.pass(clock, 14*time.Minute)
		step <- struct{}{}
	}
	if rest, err := io.ReadAll(resp.Body); err != nil || string(rest) != stopEvent {
		t.Fatalf("%q %v", rest, err)
	}
	if rec := r.records.wait(t, 1)[0]; rec.Verdict != dialect.Success {
		t.Fatalf("record %+v", rec)
	}
}

// B47, B54: each limit ends what it is for, with its own code, closes the engine's
// connection, and 0 and negative values mean what they say.
func TestB47EachLimit(t *testing.T) {
	hang := func(say string) func(*engineCall) {
		return func(x *engineCall) { x.write(say); x.gone(10 * time.Second); panic(errHangUp) }
	}
	mid := sseHead + itoaHex(len(delta("a"))) + "\r\n" + delta("a") + "\r\n"
	for name, c := range map[string]struct {
		limits Timeouts
		say    string
		phase  phase
		code   string
		status int
	}{
		"first byte, no head":   {Timeouts{FirstByte: time.Minute}, "", phaseWaiting, "first_byte_timeout", 504},
		"first byte, only head": {Timeouts{FirstByte: time.Minute}, sseHead, phaseWaiting, "first_byte_timeout", 504},
		"between events":        {Timeouts{BetweenEvents: time.Minute}, mid, phaseBody, "idle_timeout", 200},
		"total, waiting":        {Timeouts{Total: time.Minute}, "", phaseWaiting, "total_timeout", 504},
		"total, streaming":      {Timeouts{Total: time.Minute}, mid, phaseBody, "total_timeout", 200},
	} {
		t.Run(name, func(t *testing.T) {
			e := newEngine(t, hang(c.say))
			r, clock := steered(t, Options{Timeouts: c.limits}, e.url())
			conn := r.dial(t)
			io.WriteString(conn, rawRequest("/v1/chat/completions", streamBody))
			r.inPhase(t, c.phase)
			r.pass(clock, 59*time.Second)
			r.pass(clock, 59*time.Second) // two looks: the phase's clock is as coarse as the janitor's
			r.pass(clock, 59*time.Second)
			got := readReply(t, bufio.NewReader(conn), "POST")
			if got.status != c.status {
				t.Fatalf("got %d %s", got.status, got.body)
			}
			if c.status == 200 {
				tail := strings.TrimPrefix(string(got.body), delta("a"))
				if got.bodyErr == nil || !strings.Contains(tail, `"code":"`+c.code+`"`) || !strings.HasPrefix(tail, "data: ") {
					t.Fatalf("the stream ends with %q, %v", tail, got.bodyErr)
				}
			} else if got.header.Get("X-Prefixring-Error") != c.code {
				t.Fatalf("headers %v", got.header)
			}
			eventually(t, func() bool { return e.open.Load() == 0 }, "engine connection closed")
			if rec := r.records.wait(t, 1)[0]; rec.ErrorCode != c.code || rec.Verdict != dialect.Failed {
				t.Fatalf("record %+v", rec)
			}
		})
		t.Run(name+", off", func(t *testing.T) {
			e := newEngine(t, hang(c.say))
			r, clock := steered(t, Options{Timeouts: Timeouts{FirstByte: -1, BetweenEvents: -1, Total: -1}}, e.url())
			conn := r.dial(t)
			io.WriteString(conn, rawRequest("/v1/chat/completions", streamBody))
			r.inPhase(t, c.phase)
			r.pass(clock, 1000*time.Hour)
			r.inPhase(t, c.phase)
			conn.Close()
			r.records.wait(t, 1)
		})
	}
}

func itoaHex(n int) string {
	const hex = "0123456789abcdef"
	s := ""
	for ; n > 0; n >>= 4 {
		s = string(hex[n&15]) + s
	}
	return s
}

// The connect limit has its own code, and goes on to the next node.
func TestConnectTimeout(t *testing.T) {
	e := newEngine(t, answer)
	r := newRouter(t, setup{upstream: func(o *UpstreamOptions) { o.Timeouts.Connect = 50 * time.Millisecond }}, blackhole(t), e.url())
	if got := r.chat(t, ownedBy(t, r, 0)); got.status != 200 {
		t.Fatalf("got %d %s", got.status, got.body)
	}
	alone := newRouter(t, setup{upstream: func(o *UpstreamOptions) { o.Timeouts.Connect = 50 * time.Millisecond }}, blackhole(t))
	if got := alone.chat(t, chatBody); got.status != 504 || got.header.Get("X-Prefixring-Error") != "connect_timeout" {
		t.Fatalf("got %d %v", got.status, got.header)
	}
}

// A first-byte timeout is not retried: the engine may be working on it. Unless so
// configured.
func TestFirstByteTimeoutRetriesOnlyWhenTold(t *testing.T) {
	for _, retry := range []bool{false, true} {
		var slow, fast *scripted
		hang := func(x *engineCall) { x.gone(10 * time.Second); panic(errHangUp) }
		slow, fast = newEngine(t, hang), newEngine(t, answer)
		r, clock := steered(t, Options{Timeouts: Timeouts{FirstByte: time.Minute}, Retry: Retry{OnTimeout: retry}}, slow.url(), fast.url())
		conn := r.dial(t)
		io.WriteString(conn, rawRequest("/v1/chat/completions", ownedBy(t, r, 0)))
		r.inPhase(t, phaseWaiting)
		r.pass(clock, 59*time.Second)
		r.pass(clock, 59*time.Second)
		got := readReply(t, bufio.NewReader(conn), "POST")
		want := 504
		if retry {
			want = 200
		}
		if got.status != want || fast.calls.Load() == 1 != retry {
			t.Fatalf("retry=%v: got %d, %d calls to the other", retry, got.status, fast.calls.Load())
		}
	}
}

// A client that stops reading is cut, and its engine with it.
func TestStalledClientIsCut(t *testing.T) {
	e := newEngine(t, func(x *engineCall) {
		x.write(sseHead)
		for x.chunk(delta(strings.Repeat("x", 60000))) == nil {
		}
		panic(errHangUp)
	})
	r, clock := steered(t, Options{Timeouts: Timeouts{ClientStall: time.Minute}}, e.url())
	conn := r.dial(t)
	conn.(*net.TCPConn).SetReadBuffer(4096)
	io.WriteString(conn, rawRequest("/v1/chat/completions", streamBody))
	stuck := func() bool {
		found := false
		r.conns.each(func(c *clientConn) { found = found || c.writing.Load() != 0 })
		return found
	}
	// Stuck means still stuck after a while.
	eventually(t, func() bool {
		if !stuck() {
			return false
		}
		<-time.After(50 * time.Millisecond)
		return stuck()
	}, "a write to the client blocks")
	eventually(t, func() bool {
		r.pass(clock, 40*time.Second)
		return r.records.len() == 1
	}, "the client is cut")
	rec := r.records.wait(t, 1)[0]
	if rec.ErrorCode != "client_closed" || rec.Verdict != dialect.Cancelled {
		t.Fatalf("record %+v", rec)
	}
	eventually(t, func() bool { return e.open.Load() == 0 }, "engine connection closed")
}

// Idle client connections are closed after their limit.
func TestIdleClientIsClosed(t *testing.T) {
	e := newEngine(t, answer)
	r, clock := steered(t, Options{}, e.url())
	conn := r.dial(t)
	br := bufio.NewReader(conn)
	exchangeOn(t, conn, br, rawRequest("/v1/chat/completions", chatBody))
	r.records.wait(t, 1)
	r.pass(clock, 74*time.Second)
	exchangeOn(t, conn, br, rawRequest("/v1/chat/completions", chatBody))
	r.records.wait(t, 2)
	eventually(t, func() bool {
		r.pass(clock, 76*time.Second)
		return r.conns.open.Load() == 0
	}, "idle connection closed")
	if _, err := br.ReadByte(); err != io.EOF {
		t.Fatalf("read %v", err)
	}
}
