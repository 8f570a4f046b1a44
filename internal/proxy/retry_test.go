package proxy

import (
	"bufio"
	"io"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prefixring/prefixring/internal/dialect"
)

// deadURL is an address that refuses connections.
func deadURL(t testing.TB) string {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	return "http://" + ln.Addr().String()
}

func answer(x *engineCall) { x.json(200, okJSON) }

// owner returns which of the router's engines is asked first for body.
func (r *router) owner(t *testing.T, body string) int {
	t.Helper()
	c := &call{p: r.Proxy}
	c.table = r.Table()
	c.body = []byte(body)
	c.protocol = dialect.Chat
	c.scan = newScan()
	if f := c.understand([]byte("application/json")); f != nil {
		t.Fatal(f.code)
	}
	o := r.pool.Ring.Owners(c.key, 1, nil)
	return int(o[0].Name()[len(o[0].Name())-1] - '0')
}

// pair is a router with two engines: first owns chatBody.
func pair(t *testing.T, s setup, first, second func(*engineCall)) (r *router, a, b *scripted) {
	t.Helper()
	a, b = newEngine(t, first), newEngine(t, second)
	r = newRouter(t, s, a.url(), b.url())
	if r.owner(t, chatBody) == 1 {
		a.script, b.script = second, first
		a, b = b, a
	}
	return r, a, b
}

// B48: a pooled connection that the engine closed without a word is replaced once,
// on the same node, and the request runs once.
func TestB48StaleConnectionRetriedOnSameNode(t *testing.T) {
	var closing atomic.Bool
	e := newEngine(t, func(x *engineCall) {
		if closing.Load() && x.n > 0 {
			panic(errHangUp)
		}
		x.json(200, okJSON)
	})
	other := newEngine(t, answer)
	r := newRouter(t, setup{}, e.url(), other.url())
	if r.owner(t, chatBody) == 1 {
		e.script, other.script = other.script, e.script
		e, other = other, e
	}
	if got := r.chat(t, chatBody); got.status != 200 {
		t.Fatal(got.status)
	}
	closing.Store(true)
	got := r.chat(t, chatBody)
	if got.status != 200 || string(got.body) != okJSON {
		t.Fatalf("got %d %q", got.status, got.body)
	}
	if e.opened.Load() != 2 || other.calls.Load() != 0 {
		t.Fatalf("connections to the node %d, calls to the other %d", e.opened.Load(), other.calls.Load())
	}
	rec := r.records.wait(t, 2)[1]
	if rec.Tries != 2 || rec.Verdict != dialect.Success {
		t.Fatalf("record %+v", rec)
	}
}

// B48: an idle connection that the engine has closed is seen before it is used.
func TestB48ClosedIdleConnectionIsSeen(t *testing.T) {
	e := newEngine(t, func(x *engineCall) { x.json(200, okJSON); panic(errHangUp) })
	r := newRouter(t, setup{}, e.url())
	for range 5 {
		if got := r.chat(t, chatBody); got.status != 200 {
			t.Fatal(got.status)
		}
		eventually(t, func() bool { return e.open.Load() == 0 }, "engine closes")
		<-time.After(probeAfter + 10*time.Millisecond)
	}
	if e.calls.Load() != 5 {
		t.Fatalf("engine got %d requests", e.calls.Load())
	}
	for _, rec := range r.records.wait(t, 5) {
		if rec.Tries != 1 {
			t.Fatalf("record %+v", rec)
		}
	}
}

// An engine that takes the request on a new connection and dies goes to the next
// node, not to the same one again.
func TestDeathBeforeFirstEventGoesToNextNode(t *testing.T) {
	for name, die := range map[string]func(*engineCall){
		"without a word":   func(*engineCall) { panic(errHangUp) },
		"in the head":      func(x *engineCall) { x.write("HTTP/1.1 200 OK\r\ncontent-ty"); panic(errHangUp) },
		"after the head":   func(x *engineCall) { x.write(sseHead); panic(errHangUp) },
		"in the 1st event": func(x *engineCall) { x.write(sseHead); x.chunk("data: {\"cho"); panic(errHangUp) },
		"in a JSON body": func(x *engineCall) {
			x.write("HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 100\r\n\r\n{\"id\"")
			panic(errHangUp)
		},
	} {
		t.Run(name, func(t *testing.T) {
			r, a, b := pair(t, setup{}, die, answer)
			got := r.chat(t, chatBody)
			if got.status != 200 || string(got.body) != okJSON || got.bodyErr != nil {
				t.Fatalf("got %d %q %v", got.status, got.body, got.bodyErr)
			}
			if a.calls.Load() != 1 || b.calls.Load() != 1 {
				t.Fatalf("calls %d and %d", a.calls.Load(), b.calls.Load())
			}
			if rec := r.records.wait(t, 1)[0]; rec.Tries != 2 || rec.Reason != "overflow" {
				t.Fatalf("record %+v", rec)
			}
		})
	}
}

// B46: a node that refuses connections costs one attempt, is skipped after three, and
// is probed by one request after its cool-down.
func TestB46DeadOwner(t *testing.T) {
	clock := newClock()
	e := newEngine(t, answer)
	dead := deadURL(t)
	r := newRouter(t, setup{opts: Options{Now: clock.now}}, dead, e.url())
	body := ownedBy(t, r, 0)
	for i := range 24 {
		if got := r.chat(t, body); got.status != 200 {
			t.Fatalf("request %d: %d %s", i, got.status, got.body)
		}
	}
	tries := 0
	for _, rec := range r.records.wait(t, 24) {
		tries += rec.Tries - 1
	}
	if tries != breakerLimit {
		t.Fatalf("the dead node was dialled %d times, want %d", tries, breakerLimit)
	}
	clock.advance(breakerCoolDown + time.Millisecond)
	for range 10 {
		r.chat(t, body)
	}
	tries = 0
	for _, rec := range r.records.wait(t, 34)[24:] {
		tries += rec.Tries - 1
	}
	if tries != 1 {
		t.Fatalf("after the cool-down the dead node was dialled %d times, want 1", tries)
	}
}

// A probe that ends without an answer does not keep the node closed for ever.
func TestBreakerProbeIsGivenBack(t *testing.T) {
	clock := newClock()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := ln.Addr().String()
	ln.Close()
	r := newRouter(t, setup{opts: Options{Now: clock.now}}, "http://"+addr)
	for range breakerLimit + 1 {
		r.chat(t, chatBody)
	}
	n := r.pool.Ring.Nodes()[0]
	up := r.ups[0]
	if ok, _ := up.breaker.allow(clock.now()); ok {
		t.Fatal("the breaker is closed")
	}
	// The engine is back, but mute; the probing client leaves.
	if ln, err = net.Listen("tcp", addr); err != nil {
		t.Fatal(err)
	}
	e := engineOn(t, ln, func(x *engineCall) { x.gone(10 * time.Second); panic(errHangUp) })
	clock.advance(time.Minute)
	c := r.dial(t)
	io.WriteString(c, rawRequest("/v1/chat/completions", chatBody))
	eventually(t, func() bool { return e.calls.Load() == 1 }, "the probe is sent")
	c.Close()
	eventually(t, func() bool { return n.InFlight() == 0 }, "the probe ends")
	if ok, _ := up.breaker.allow(clock.now()); !ok {
		t.Fatal("the node stays closed")
	}
}

// ownedBy finds a chat body whose first owner is engine i.
func ownedBy(t *testing.T, r *router, i int) string {
	t.Helper()
	for n := range 64 {
		body := strings.Replace(chatBody, `"content":"s"`, `"content":"s`+strings.Repeat("x", n)+`"`, 1)
		if r.owner(t, body) == i {
			return body
		}
	}
	t.Fatal("no body found")
	return ""
}

const busyBody = `{"object":"error","message":"The request queue is full.","type":"ServiceUnavailableError","param":null,"code":503}`

func busy(x *engineCall) {
	x.write("HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\nretry-after: 2\r\ncontent-length: " + itoa(len(busyBody)) + "\r\n\r\n" + busyBody)
}

const queueFullEvent = `data: {"error": {"object":"error","message":"The request queue is full.","type":"Service Unavailable","param":null,"code":503}}` + "\n\n"

// A refusal is somebody else's turn, whether it is a 503 or rides on a 200.
func TestBusyEngineFailsOver(t *testing.T) {
	for name, refuse := range map[string]func(*engineCall){
		"503":               busy,
		"queue full as 200": func(x *engineCall) { x.sse(queueFullEvent, doneEvent) },
	} {
		t.Run(name, func(t *testing.T) {
			r, a, b := pair(t, setup{}, refuse, answer)
			got := r.chat(t, chatBody)
			if got.status != 200 || string(got.body) != okJSON {
				t.Fatalf("got %d %q", got.status, got.body)
			}
			if a.calls.Load() != 1 || b.calls.Load() != 1 {
				t.Fatalf("calls %d and %d", a.calls.Load(), b.calls.Load())
			}
			// The node asked to be left alone: the next request goes elsewhere at once.
			r.chat(t, chatBody)
			if a.calls.Load() != 1 {
				t.Fatal("the busy node was asked again at once")
			}
		})
	}
}

// When nobody does better, the client gets what the engine said, with the status it
// should have had and a Retry-After.
func TestBusyEverywhere(t *testing.T) {
	t.Run("503", func(t *testing.T) {
		r, _, _ := pair(t, setup{}, busy, busy)
		got := r.chat(t, chatBody)
		if got.status != 503 || string(got.body) != busyBody || got.header.Get("Retry-After") != "2" {
			t.Fatalf("got %d %q %v", got.status, got.body, got.header)
		}
		if got.header.Get("X-Prefixring-Error") != "" {
			t.Fatal("an engine's own error is marked as the router's")
		}
		if rec := r.records.wait(t, 1)[0]; rec.Status != 503 || rec.Verdict != dialect.Failed || rec.Tries != 2 {
			t.Fatalf("record %+v", rec)
		}
	})
	t.Run("queue full as 200", func(t *testing.T) {
		full := func(x *engineCall) { x.sse(queueFullEvent, doneEvent) }
		r, _, _ := pair(t, setup{}, full, full)
		got := r.chat(t, strings.Replace(chatBody, `"model"`, `"stream":true,"model"`, 1))
		if got.status != 503 || string(got.body) != queueFullEvent+doneEvent || got.header.Get("Retry-After") == "" {
			t.Fatalf("got %d %q %v", got.status, got.body, got.header)
		}
	})
	t.Run("one engine", func(t *testing.T) {
		e := newEngine(t, busy)
		r := newRouter(t, setup{}, e.url())
		for range 3 {
			got := r.chat(t, chatBody)
			if got.status != 503 || string(got.body) != busyBody {
				t.Fatalf("got %d %q", got.status, got.body)
			}
		}
		if e.calls.Load() != 3 {
			t.Fatalf("engine got %d calls", e.calls.Load())
		}
	})
}

// B44: four overloaded engines get at most a tenth more requests than clients sent.
func TestB44RetryBudgetHoldsUnderOverload(t *testing.T) {
	var urls []string
	var engines []*scripted
	for range 4 {
		e := newEngine(t, busy)
		engines, urls = append(engines, e), append(urls, e.url())
	}
	r := newRouter(t, setup{}, urls...)
	const n = 1000
	conn := r.dial(t)
	br := bufio.NewReader(conn)
	slowest := time.Duration(0)
	for range n {
		began := time.Now()
		got := exchangeOn(t, conn, br, rawRequest("/v1/chat/completions", chatBody))
		slowest = max(slowest, time.Since(began))
		if got.status != 503 || got.header.Get("Retry-After") == "" {
			t.Fatalf("got %d %v", got.status, got.header)
		}
	}
	total := int64(0)
	for _, e := range engines {
		total += e.calls.Load()
	}
	if total > n*11/10 {
		t.Fatalf("%d client requests became %d", n, total)
	}
	if slowest > time.Second {
		t.Fatalf("a refusal took %v", slowest)
	}
	r.records.wait(t, n)
}

// B52: a client's own mistakes pass unchanged, are not retried and do not count
// against the engine.
func TestB52ClientErrorsPass(t *testing.T) {
	for _, status := range []int{400, 401, 404, 422, 429} {
		body := `{"error":{"message":"context too long","code":` + itoa(status) + `}}`
		var reports atomic.Int64
		e := newEngine(t, func(x *engineCall) {
			x.write("HTTP/1.1 " + itoa(status) + " X\r\ncontent-type: application/problem+json\r\nretry-after: 7\r\ncontent-length: " + itoa(len(body)) + "\r\n\r\n" + body)
		})
		r := newRouter(t, setup{opts: Options{Report: func(_ string, o Outcome) {
			if o != OutcomeOK && o != OutcomeAuth {
				reports.Add(1)
			}
		}}}, e.url(), deadURL(t))
		b := ownedBy(t, r, 0)
		for range 50 {
			got := r.chat(t, b)
			if got.status != status || string(got.body) != body || got.header.Get("Retry-After") != "7" ||
				got.header.Get("Content-Type") != "application/problem+json" {
				t.Fatalf("got %d %q %v", got.status, got.body, got.header)
			}
		}
		if e.calls.Load() != 50 || reports.Load() != 0 {
			t.Fatalf("status %d: calls %d, reports %d", status, e.calls.Load(), reports.Load())
		}
	}
}

// B54: an engine's own error is the client's to see; the router's own say what they
// are.
func TestB54ErrorsKeepTheirShape(t *testing.T) {
	t.Run("engine 500", func(t *testing.T) {
		e := newEngine(t, func(x *engineCall) { x.json(500, `{"detail":"boom"}`) })
		r := newRouter(t, setup{}, e.url())
		if got := r.chat(t, chatBody); got.status != 500 || string(got.body) != `{"detail":"boom"}` {
			t.Fatalf("got %d %q", got.status, got.body)
		}
	})
	t.Run("connect refused everywhere", func(t *testing.T) {
		r := newRouter(t, setup{}, deadURL(t), deadURL(t))
		got := r.chat(t, chatBody)
		if got.status != 502 || got.header.Get("X-Prefixring-Error") != "connect_failed" || !strings.HasPrefix(string(got.body), `{"error":{"message":`) {
			t.Fatalf("got %d %q %v", got.status, got.body, got.header)
		}
	})
	t.Run("no pod", func(t *testing.T) {
		r := newRouter(t, setup{})
		got := r.chat(t, chatBody)
		if got.status != 503 || got.header.Get("X-Prefixring-Error") != "no_engine" || got.header.Get("Retry-After") != "1" {
			t.Fatalf("got %d %q %v", got.status, got.body, got.header)
		}
	})
	t.Run("nonsense", func(t *testing.T) {
		e := newEngine(t, func(x *engineCall) { x.write("SSH-2.0-OpenSSH\r\n\r\n"); panic(errHangUp) })
		r := newRouter(t, setup{}, e.url())
		got := r.chat(t, chatBody)
		if got.status != 502 || got.header.Get("X-Prefixring-Error") != "bad_engine_response" {
			t.Fatalf("got %d %q %v", got.status, got.body, got.header)
		}
	})
}

// B08: a stream's error status is not hidden behind a 200.
func TestB08ErrorOfAStreamingRequest(t *testing.T) {
	t.Run("400 as JSON", func(t *testing.T) {
		body := `{"error":{"message":"bad","code":400}}`
		e := newEngine(t, func(x *engineCall) { x.json(400, body) })
		r := newRouter(t, setup{}, e.url())
		if got := r.chat(t, streamBody); got.status != 400 || string(got.body) != body {
			t.Fatalf("got %d %q", got.status, got.body)
		}
	})
	t.Run("400 as the first event of a 200", func(t *testing.T) {
		ev := `data: {"error":{"message":"bad","type":"BadRequestError","code":400}}` + "\n\n"
		e := newEngine(t, func(x *engineCall) { x.sse(ev, doneEvent) })
		r := newRouter(t, setup{}, e.url())
		got := r.chat(t, streamBody)
		if got.status != 400 || string(got.body) != ev+doneEvent {
			t.Fatalf("got %d %q", got.status, got.body)
		}
		if rec := r.records.wait(t, 1)[0]; rec.Verdict != dialect.Failed {
			t.Fatalf("record %+v", rec)
		}
	})
	t.Run("in mid-stream", func(t *testing.T) {
		ev := `data: {"error":{"message":"late","code":500}}` + "\n\n"
		e := newEngine(t, func(x *engineCall) { x.sse(delta("a"), ev, doneEvent) })
		r := newRouter(t, setup{}, e.url())
		got := r.chat(t, streamBody)
		if got.status != 200 || string(got.body) != delta("a")+ev+doneEvent {
			t.Fatalf("got %d %q", got.status, got.body)
		}
		if rec := r.records.wait(t, 1)[0]; rec.Verdict != dialect.Failed {
			t.Fatalf("record %+v", rec)
		}
	})
}

// An engine that is shutting down answers new work with an abort: somebody else's
// turn, as nothing of it has reached the client.
func TestAbortedAnswerFailsOver(t *testing.T) {
	aborted := strings.Replace(okJSON, `"finish_reason":"stop"}],"usage":{"prompt_tokens":5,"completion_tokens":1`, `"finish_reason":"abort"}],"usage":{"prompt_tokens":5,"completion_tokens":0`, 1)
	r, a, b := pair(t, setup{}, func(x *engineCall) { x.json(200, aborted) }, answer)
	got := r.chat(t, chatBody)
	if got.status != 200 || string(got.body) != okJSON || a.calls.Load() != 1 || b.calls.Load() != 1 {
		t.Fatalf("got %d %q after %d and %d calls", got.status, got.body, a.calls.Load(), b.calls.Load())
	}
}

// Once an event has reached the client nothing is retried, whatever happens.
func TestNoRetryAfterFirstEvent(t *testing.T) {
	r, _, b := pair(t, setup{}, func(x *engineCall) {
		x.write(sseHead)
		x.chunk(delta("a"))
		panic(errHangUp)
	}, answer)
	got := r.chat(t, chatBody)
	if got.status != 200 || got.bodyErr == nil || !strings.HasPrefix(string(got.body), delta("a")) {
		t.Fatalf("got %d %q %v", got.status, got.body, got.bodyErr)
	}
	if b.calls.Load() != 0 {
		t.Fatal("a second engine was asked")
	}
	tail := strings.TrimPrefix(string(got.body), delta("a"))
	if !strings.HasPrefix(tail, `data: {"error":`) || !strings.Contains(tail, `"code":"engine_closed"`) || strings.Contains(tail, "[DONE]") {
		t.Fatalf("the stream ends with %q", tail)
	}
	if rec := r.records.wait(t, 1)[0]; rec.Verdict != dialect.Failed || rec.ErrorCode != "engine_closed" {
		t.Fatalf("record %+v", rec)
	}
}
