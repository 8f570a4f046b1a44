package proxy

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"
)

// Drain lets open streams finish, refuses new requests, and closes idle connections.
func TestDrainLetsStreamsFinish(t *testing.T) {
	step := make(chan struct{})
	e := newEngine(t, func(x *engineCall) {
		x.write(sseHead)
		x.chunk(delta("a"))
		<-step
		x.chunk(stopEvent)
		x.write("0\r\n\r\n")
	})
	r := newRouter(t, setup{}, e.url())
	idle := r.dial(t)
	idleReader := bufio.NewReader(idle)
	if got := exchangeOn(t, idle, idleReader, "GET /v1/models HTTP/1.1\r\nHost: a\r\n\r\n"); got.status != 200 {
		t.Fatal(got.status)
	}
	conn := r.dial(t)
	io.WriteString(conn, rawRequest("/v1/chat/completions", streamBody))
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	go func() { done <- r.Drain(ctx) }()
	if _, err := idleReader.ReadByte(); err != io.EOF {
		t.Fatalf("idle connection: %v", err)
	}
	eventually(t, r.Retiring, "retiring")
	close(step)
	body, err := io.ReadAll(resp.Body)
	if err != nil || string(body) != delta("a")+stopEvent {
		t.Fatalf("%q %v", body, err)
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	r.records.wait(t, 2)
}

// When the time is up, what still runs ends with an event that says so.
func TestDrainCutsAtItsLimit(t *testing.T) {
	for path, req := range map[string]string{
		"/v1/chat/completions": streamBody,
		"/v1/messages":         `{"model":"m","stream":true,"max_tokens":1,"messages":[{"role":"user","content":"u"}]}`,
		"/v1/responses":        `{"model":"m","stream":true,"input":"u"}`,
	} {
		t.Run(path, func(t *testing.T) {
			e := newEngine(t, func(x *engineCall) {
				x.write(sseHead)
				x.chunk(delta("a"))
				x.gone(10 * time.Second)
				panic(errHangUp)
			})
			r := newRouter(t, setup{}, e.url())
			conn := r.dial(t)
			io.WriteString(conn, rawRequest(path, req))
			resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
			if err != nil {
				t.Fatal(err)
			}
			if err := closeNow(t, r.Proxy, 50*time.Millisecond); !errors.Is(err, context.DeadlineExceeded) {
				t.Fatalf("drain: %v", err)
			}
			body, err := io.ReadAll(resp.Body)
			tail := strings.TrimPrefix(string(body), delta("a"))
			if err == nil || !strings.Contains(tail, "data: {") || !strings.Contains(tail, "shutting down") {
				t.Fatalf("%q %v", body, err)
			}
			rec := r.records.wait(t, 1)[0]
			if rec.ErrorCode != "draining" {
				t.Fatalf("record %+v", rec)
			}
		})
	}
}

// A request that waits for its first event when the time is up gets a 503.
func TestDrainAnswersWaitingRequests(t *testing.T) {
	e := newEngine(t, func(x *engineCall) { x.gone(10 * time.Second); panic(errHangUp) })
	r := newRouter(t, setup{}, e.url())
	conn := r.dial(t)
	io.WriteString(conn, rawRequest("/v1/chat/completions", chatBody))
	r.inPhase(t, phaseWaiting)
	closeNow(t, r.Proxy, 20*time.Millisecond)
	got := readReply(t, bufio.NewReader(conn), "POST")
	if got.status != 503 || got.header.Get("X-Prefixring-Error") != "draining" {
		t.Fatalf("got %d %v", got.status, got.header)
	}
}

// A second Drain or Close is harmless.
func TestCloseTwice(t *testing.T) {
	r := newRouter(t, setup{}, newEngine(t, answer).url())
	r.chat(t, chatBody)
	for range 2 {
		if err := r.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// A panic of ours costs one request and nothing else.
func TestPanicIsContained(t *testing.T) {
	e := newEngine(t, answer)
	r := newRouter(t, setup{pool: func(p *Pool) {
		n := 0
		p.Owners = func(uint64, int64) int {
			if n++; n == 2 {
				panic("owners")
			}
			return 1
		}
	}}, e.url())
	for i, want := range []int{200, 500, 200} {
		got := r.chat(t, chatBody)
		if got.status != want {
			t.Fatalf("request %d: %d %s", i, got.status, got.body)
		}
	}
	if rec := r.records.wait(t, 3)[1]; rec.ErrorCode != "internal_error" {
		t.Fatalf("record %+v", rec)
	}
	if r.Stats().Panics != 1 {
		t.Fatal("the panic was not counted")
	}
}
