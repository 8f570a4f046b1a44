package proxy

import (
	"strings"
	"testing"
	"time"

	"github.com/prefixring/prefixring/internal/dialect"
)

// B05: with heartbeats on, comment lines come before the first event, never inside
// one, and the engine's own octets are unchanged.
func TestB05Heartbeats(t *testing.T) {
	beat := 20 * time.Millisecond
	events := delta("a") + stopEvent + doneEvent
	e := newEngine(t, func(x *engineCall) {
		<-time.After(10 * beat)
		x.write(sseHead)
		<-time.After(5 * beat)
		x.chunk(events)
		x.write("0\r\n\r\n")
	})
	r := newRouter(t, setup{opts: Options{Heartbeat: beat}}, e.url())
	got := r.chat(t, streamBody)
	if got.status != 200 || got.bodyErr != nil || !strings.HasSuffix(string(got.body), events) {
		t.Fatalf("got %d %q %v", got.status, got.body, got.bodyErr)
	}
	beats := strings.TrimSuffix(string(got.body), events)
	if n := strings.Count(beats, ": keep-alive\n\n"); n < 4 || len(beats) != n*len(heartbeat) {
		t.Fatalf("heartbeats %q", beats)
	}
	if rec := r.records.wait(t, 1)[0]; rec.Verdict != dialect.Success || rec.Status != 200 {
		t.Fatalf("record %+v", rec)
	}
	// A request that is no stream gets none, and a fast stream neither.
	if got := newRouter(t, setup{opts: Options{Heartbeat: time.Minute}}, newEngine(t, answer).url()).chat(t, chatBody); string(got.body) != okJSON {
		t.Fatalf("got %q", got.body)
	}
}

// B05: an error that comes after a heartbeat becomes an event.
func TestB05ErrorAfterHeartbeat(t *testing.T) {
	for name, c := range map[string]struct {
		path, body string
		say        func(*engineCall)
		want       string
	}{
		"chat 400": {"/v1/chat/completions", streamBody, func(x *engineCall) { x.json(400, "{\"error\":{\n\"message\":\"m\"}}\n") },
			"data: {\"error\":{\"message\":\"m\"}}\n\n"},
		"messages 400": {"/v1/messages", `{"model":"m","stream":true,"max_tokens":1,"messages":[{"role":"user","content":"u"}]}`,
			func(x *engineCall) { x.json(400, `{"type":"error"}`) }, "event: error\ndata: {\"type\":\"error\"}\n\n"},
		"text 500":    {"/v1/chat/completions", streamBody, func(x *engineCall) { x.write("HTTP/1.1 500 X\r\nContent-Length: 4\r\n\r\nboom") }, `"code":"engine_error"`},
		"engine dies": {"/v1/chat/completions", streamBody, func(x *engineCall) { panic(errHangUp) }, `"code":"engine_closed"`},
	} {
		t.Run(name, func(t *testing.T) {
			e := newEngine(t, func(x *engineCall) { <-time.After(100 * time.Millisecond); c.say(x) })
			r := newRouter(t, setup{opts: Options{Heartbeat: 20 * time.Millisecond}}, e.url())
			got := r.do(t, rawRequest(c.path, c.body))
			if got.status != 200 || !strings.HasPrefix(string(got.body), ": keep-alive\n\n") || !strings.Contains(string(got.body), c.want) {
				t.Fatalf("got %d %q %v", got.status, got.body, got.bodyErr)
			}
			if rec := r.records.wait(t, 1)[0]; rec.Verdict != dialect.Failed || rec.ErrorCode == "" {
				t.Fatalf("record %+v", rec)
			}
		})
	}
}

// A retry goes on behind the heartbeats.
func TestHeartbeatsDuringRetry(t *testing.T) {
	r, a, b := pair(t, setup{opts: Options{Heartbeat: 20 * time.Millisecond}},
		func(x *engineCall) { <-time.After(100 * time.Millisecond); panic(errHangUp) },
		func(x *engineCall) { <-time.After(100 * time.Millisecond); x.sse(delta("a"), stopEvent) })
	got := r.chat(t, strings.Replace(chatBody, `{"model"`, `{"stream":true,"model"`, 1))
	if got.status != 200 || !strings.HasSuffix(string(got.body), delta("a")+stopEvent) || a.calls.Load() != 1 || b.calls.Load() != 1 {
		t.Fatalf("got %d %q", got.status, got.body)
	}
}

// Hedging: the first to answer wins, the other engine is stopped, and nothing of it
// reaches the client.
func TestHedge(t *testing.T) {
	stopped := make(chan bool, 1)
	slow := func(x *engineCall) { stopped <- x.gone(5 * time.Second); panic(errHangUp) }
	r, a, b := pair(t, setup{opts: Options{Hedge: 30 * time.Millisecond}}, slow, answer)
	got := r.chat(t, chatBody)
	if got.status != 200 || string(got.body) != okJSON {
		t.Fatalf("got %d %q", got.status, got.body)
	}
	if !<-stopped || a.calls.Load() != 1 || b.calls.Load() != 1 {
		t.Fatalf("calls %d %d", a.calls.Load(), b.calls.Load())
	}
	rec := r.records.wait(t, 1)[0]
	if rec.Node != b.nameIn(r) || rec.Tries != 2 {
		t.Fatalf("record %+v", rec)
	}
}

func TestHedgeFirstStillWins(t *testing.T) {
	second := make(chan struct{}, 1)
	stopped := make(chan bool, 1)
	r, _, _ := pair(t, setup{opts: Options{Hedge: 30 * time.Millisecond}},
		func(x *engineCall) { <-second; x.sse(delta("first"), stopEvent) },
		func(x *engineCall) { second <- struct{}{}; stopped <- x.gone(5 * time.Second); panic(errHangUp) })
	got := r.chat(t, chatBody)
	if got.status != 200 || string(got.body) != delta("first")+stopEvent || !<-stopped {
		t.Fatalf("got %d %q", got.status, got.body)
	}
	r.records.wait(t, 1)
}

// One side of a hedge that fails leaves the other.
func TestHedgeOneSideFails(t *testing.T) {
	second := make(chan struct{}, 1)
	r, _, _ := pair(t, setup{opts: Options{Hedge: 30 * time.Millisecond}},
		func(x *engineCall) { <-second; <-time.After(30 * time.Millisecond); x.json(200, okJSON) },
		func(x *engineCall) { second <- struct{}{}; panic(errHangUp) })
	if got := r.chat(t, chatBody); got.status != 200 || string(got.body) != okJSON {
		t.Fatalf("got %d %q", got.status, got.body)
	}
	r.records.wait(t, 1)
}

// nameIn is the node name of a scripted engine.
func (e *scripted) nameIn(r *router) string {
	for i, up := range r.ups {
		if "http://"+up.host == e.url() {
			return r.ups[i].name
		}
	}
	return "?"
}

// HTTP/1.0 clients get no chunks.
func TestHTTP10Client(t *testing.T) {
	e := newEngine(t, func(x *engineCall) {
		if strings.Contains(string(x.body), `"stream":true`) {
			x.sse(delta("a"), stopEvent, doneEvent)
		} else {
			x.json(200, okJSON)
		}
	})
	r := newRouter(t, setup{}, e.url())
	for body, want := range map[string]string{chatBody: okJSON, streamBody: delta("a") + stopEvent + doneEvent} {
		raw := strings.Replace(rawRequest("/v1/chat/completions", body), "HTTP/1.1", "HTTP/1.0", 1)
		got := r.do(t, raw)
		if got.status != 200 || string(got.body) != want || got.bodyErr != nil || got.header.Get("Transfer-Encoding") != "" {
			t.Fatalf("got %d %q %v %v", got.status, got.body, got.header, got.bodyErr)
		}
	}
	for _, rec := range r.records.wait(t, 2) {
		if rec.Verdict != dialect.Success {
			t.Fatalf("record %+v", rec)
		}
	}
}
