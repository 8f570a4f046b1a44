package proxy

import (
	"bufio"
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/prefixring/prefixring/internal/dialect"
	"github.com/prefixring/prefixring/internal/residency"
)

// announcing is a protocol whose streams begin with announcements.
type announcing struct {
	path, request string
	announce      []string // events that say nothing of the answer
	answer        string   // the rest of a whole stream
	fails         string   // an error event
	status        int      // that the error should have been
}

var announcers = map[string]announcing{
	"responses": {
		"/v1/responses", `{"model":"m","stream":true,"instructions":"s","input":"u"}`,
		[]string{
			"event: response.created\ndata: {\"response\":{\"id\":\"resp_1\",\"status\":\"in_progress\",\"error\":null},\"sequence_number\":0,\"type\":\"response.created\"}\n\n",
			"event: response.in_progress\ndata: {\"response\":{\"id\":\"resp_1\",\"status\":\"in_progress\",\"error\":null},\"sequence_number\":1,\"type\":\"response.in_progress\"}\n\n",
		},
		"event: response.output_text.delta\ndata: {\"type\":\"response.output_text.delta\",\"delta\":\"a\"}\n\n" +
			"event: response.completed\ndata: {\"type\":\"response.completed\",\"response\":{\"id\":\"resp_1\",\"status\":\"completed\"}}\n\n",
		"event: error\ndata: {\"type\":\"error\",\"error\":{\"message\":\"m\",\"code\":500}}\n\n", 500,
	},
	"messages": {
		"/v1/messages", `{"model":"m","stream":true,"max_tokens":5,"system":"s","messages":[{"role":"user","content":"u"}]}`,
		[]string{
			"event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"id\":\"msg_1\",\"usage\":{\"input_tokens\":3}}}\n\n",
			"event: ping\ndata: {\"type\":\"ping\"}\n\n",
		},
		"event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"index\":0,\"delta\":{\"type\":\"text_delta\",\"text\":\"a\"}}\n\n" +
			"event: message_delta\ndata: {\"type\":\"message_delta\",\"delta\":{\"stop_reason\":\"end_turn\"}}\n\n" +
			"event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n",
		"event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"invalid_request_error\",\"message\":\"m\"}}\n\n", 400,
	},
}

// start announces.
func (a *announcing) start(x *engineCall) {
	x.write(sseHead)
	for _, ev := range a.announce {
		x.chunk(ev)
	}
}

// whole is a whole stream.
func (a *announcing) whole(x *engineCall) {
	a.start(x)
	x.chunk(a.answer)
	x.write("0\r\n\r\n")
}

func (a *announcing) stream() string { return strings.Join(a.announce, "") + a.answer }

// twoEngines is a router with two engines of which the one that is asked first runs
// first.
func twoEngines(t *testing.T, o Options, raw string, first, second func(*engineCall)) (r *router, a, b *scripted) {
	t.Helper()
	a, b = newEngine(t, answer), newEngine(t, answer)
	r = newRouter(t, setup{opts: o}, a.url(), b.url())
	r.do(t, raw)
	if b.calls.Load() == 1 {
		a, b = b, a
	}
	a.script, b.script = first, second
	r.records.wait(t, 1)
	return r, a, b
}

// An engine that fails behind its announcements has told the client nothing: another
// one takes over, and the client gets one whole stream.
func TestFailureBehindAnnouncementsFailsOver(t *testing.T) {
	for proto, a := range announcers {
		for name, fail := range map[string]func(*engineCall){
			"closes":          func(x *engineCall) { a.start(x); panic(errHangUp) },
			"resets":          func(x *engineCall) { a.start(x); reset(x.conn); panic(errHangUp) },
			"in the next one": func(x *engineCall) { a.start(x); x.chunk("event: resp"); panic(errHangUp) },
			"is busy": func(x *engineCall) {
				a.start(x)
				x.chunk("event: error\ndata: {\"type\":\"error\",\"error\":{\"message\":\"full\",\"code\":503}}\n\n")
				x.write("0\r\n\r\n")
			},
		} {
			t.Run(proto+" "+name, func(t *testing.T) {
				raw := rawRequest(a.path, a.request)
				r, first, second := twoEngines(t, Options{}, raw, fail, a.whole)
				got := r.do(t, raw)
				if got.status != 200 || string(got.body) != a.stream() || got.bodyErr != nil {
					t.Fatalf("got %d %q %v", got.status, got.body, got.bodyErr)
				}
				if first.calls.Load() != 2 || second.calls.Load() != 1 {
					t.Fatalf("calls %d and %d", first.calls.Load(), second.calls.Load())
				}
				if rec := r.records.wait(t, 2)[1]; rec.Tries != 2 || rec.Verdict != dialect.Success {
					t.Fatalf("record %+v", rec)
				}
			})
		}
	}
}

// An error behind announcements gets the status that it should have had.
func TestErrorBehindAnnouncementsGetsItsStatus(t *testing.T) {
	for proto, a := range announcers {
		t.Run(proto, func(t *testing.T) {
			e := newEngine(t, func(x *engineCall) { a.start(x); x.chunk(a.fails); x.write("0\r\n\r\n") })
			r := newRouter(t, setup{}, e.url())
			got := r.do(t, rawRequest(a.path, a.request))
			if got.status != a.status || string(got.body) != strings.Join(a.announce, "")+a.fails {
				t.Fatalf("got %d %q", got.status, got.body)
			}
			if rec := r.records.wait(t, 1)[0]; rec.Verdict != dialect.Failed {
				t.Fatalf("record %+v", rec)
			}
		})
	}
}

// When nobody takes over, the client gets an error and no half of a stream.
func TestAnnouncementsOfADeadEngineAreNotSent(t *testing.T) {
	for proto, a := range announcers {
		t.Run(proto, func(t *testing.T) {
			e := newEngine(t, func(x *engineCall) { a.start(x); panic(errHangUp) })
			r := newRouter(t, setup{}, e.url())
			got := r.do(t, rawRequest(a.path, a.request))
			if got.status != 502 || got.header.Get("X-Prefixring-Error") != "engine_closed" || !json.Valid(got.body) {
				t.Fatalf("got %d %q", got.status, got.body)
			}
		})
	}
}

// open sends a streaming request and returns the response once its head has come.
func (r *router) open(t *testing.T, raw string) *http.Response {
	t.Helper()
	conn := r.dial(t)
	io.WriteString(conn, raw)
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	return resp
}

// expect reads exactly want.
func expect(t *testing.T, from io.Reader, want string) {
	t.Helper()
	got := make([]byte, len(want))
	if n, err := io.ReadFull(from, got); err != nil || string(got) != want {
		t.Fatalf("got %q, %v; want %q", got[:n], err, want)
	}
}

// Whatever ends the holding before the answer begins passes the announcements on and
// changes nothing of what follows.
func TestHoldingEnds(t *testing.T) {
	const big = 3 * maxHeld / 4
	for proto, a := range announcers {
		padded := strings.Replace(a.announce[1], `"type":`, `"pad":"`+strings.Repeat("x", big)+`","type":`, 1)
		for name, c := range map[string]struct {
			opts Options
			more string // behind the announcements
			want string // that passes while nothing of the answer has come
		}{
			"after its time": {Options{Timeouts: Timeouts{Announce: 30 * time.Millisecond}}, "", ""},
			"when it is off": {Options{Timeouts: Timeouts{Announce: -1}}, "", ""},
			"at a comment":   {Options{}, ": alive\n\n", ": alive\n\n"},
			"at its size":    {Options{}, padded + padded, padded},
		} {
			t.Run(proto+" "+name, func(t *testing.T) {
				next := make(chan struct{})
				e := newEngine(t, func(x *engineCall) {
					a.start(x)
					if c.more != "" {
						x.chunk(c.more)
					}
					<-next
					x.chunk(a.answer)
					x.write("0\r\n\r\n")
				})
				r := newRouter(t, setup{opts: c.opts}, e.url())
				resp := r.open(t, rawRequest(a.path, a.request))
				expect(t, resp.Body, strings.Join(a.announce, "")+c.want)
				close(next)
				expect(t, resp.Body, strings.TrimPrefix(c.more, c.want)+a.answer)
				if rest, err := io.ReadAll(resp.Body); err != nil || len(rest) != 0 {
					t.Fatalf("rest %q, %v", rest, err)
				}
				rec := r.records.wait(t, 1)[0]
				if rec.Verdict != dialect.Success || rec.FirstByte == 0 {
					t.Fatalf("record %+v", rec)
				}
			})
		}
	}
}

// Announcements that repeat a fat prompt are held as well, and the large buffer goes
// back with them.
func TestFatAnnouncementsAreHeld(t *testing.T) {
	a := announcers["responses"]
	fat := strings.Replace(a.announce[0], `"status"`, `"instructions":"`+strings.Repeat("static text ", 20000)+`","status"`, 1)
	next := make(chan struct{})
	r, _, _ := twoEngines(t, Options{}, rawRequest(a.path, a.request),
		func(x *engineCall) { x.write(sseHead); x.chunk(fat); x.chunk(fat); panic(errHangUp) },
		func(x *engineCall) {
			x.write(sseHead)
			x.chunk(fat)
			x.chunk(fat)
			x.chunk(a.answer)
			<-next
			x.write("0\r\n\r\n")
		})
	resp := r.open(t, rawRequest(a.path, a.request))
	expect(t, resp.Body, fat+fat+a.answer)
	eventually(t, func() bool {
		ok := false
		r.conns.each(func(c *clientConn) {
			cl := c.cur.Load()
			ok = ok || cl != nil && phase(cl.phase.Load()) == phaseBody && len(cl.ex.reply.buf) == replyBuffer
		})
		return ok
	}, "the large buffer is given back")
	close(next)
	if rest, err := io.ReadAll(resp.Body); err != nil || len(rest) != 0 {
		t.Fatalf("rest %q, %v", rest, err)
	}
}

// With heartbeats the client sees that it is not forgotten, so announcements are held
// without a limit in time, and an engine can be replaced behind the first heartbeats.
func TestHeartbeatsKeepAnnouncementsBack(t *testing.T) {
	for proto, a := range announcers {
		t.Run(proto, func(t *testing.T) {
			die := make(chan struct{})
			raw := rawRequest(a.path, a.request)
			o := Options{Heartbeat: 20 * time.Millisecond, Timeouts: Timeouts{Announce: time.Millisecond}}
			r, _, _ := twoEngines(t, o, raw, func(x *engineCall) { a.start(x); <-die; panic(errHangUp) }, a.whole)
			resp := r.open(t, raw)
			expect(t, resp.Body, strings.Repeat(string(heartbeat), 3))
			close(die)
			rest, err := io.ReadAll(resp.Body)
			if body := strings.ReplaceAll(string(rest), string(heartbeat), ""); err != nil || body != a.stream() {
				t.Fatalf("%q %v", rest, err)
			}
			if rec := r.records.wait(t, 2)[1]; rec.Tries != 2 || rec.Verdict != dialect.Success {
				t.Fatalf("record %+v", rec)
			}
		})
	}
}

// A hedge is about the answer, not about its announcement.
func TestHedgeBehindAnnouncements(t *testing.T) {
	for proto, a := range announcers {
		t.Run(proto, func(t *testing.T) {
			stopped := make(chan bool, 1)
			raw := rawRequest(a.path, a.request)
			r, first, second := twoEngines(t, Options{Hedge: 30 * time.Millisecond}, raw,
				func(x *engineCall) { a.start(x); stopped <- x.gone(5 * time.Second); panic(errHangUp) }, a.whole)
			got := r.do(t, raw)
			if got.status != 200 || string(got.body) != a.stream() || !<-stopped {
				t.Fatalf("got %d %q", got.status, got.body)
			}
			if first.calls.Load() != 2 || second.calls.Load() != 1 {
				t.Fatalf("calls %d and %d", first.calls.Load(), second.calls.Load())
			}
			r.records.wait(t, 2)
		})
	}
}

// B09: a client that leaves while announcements are held is noticed like any other.
func TestB09ClientGoneBehindAnnouncements(t *testing.T) {
	for proto, a := range announcers {
		t.Run(proto, func(t *testing.T) {
			e, reached, closed := silentEngine(t, a.start)
			r := newRouter(t, setup{}, e.url())
			conn := r.dial(t)
			io.WriteString(conn, rawRequest(a.path, a.request))
			<-reached
			left := time.Now()
			conn.Close()
			if !<-closed {
				t.Fatal("the engine's connection stayed open")
			}
			if took := time.Since(left); took > noticed {
				t.Fatalf("the engine noticed after %v", took)
			}
			if rec := r.records.wait(t, 1)[0]; rec.Status != 499 || rec.Verdict != dialect.Cancelled {
				t.Fatalf("record %+v", rec)
			}
		})
	}
}

// B60: vLLM announces a response before it has computed one token of the prompt:
// followers of a cold prefix wait for the answer, not for the announcement.
func TestB60AnnouncementIsNoPrefill(t *testing.T) {
	a := announcers["responses"]
	request := func(user string) string {
		return rawRequest(a.path, `{"model":"m","stream":true,"instructions":"`+strings.Repeat("static text ", 2000)+`","input":"`+user+`"}`)
	}
	for name, hold := range map[string]time.Duration{"held": 0, "passed on": -1} {
		t.Run(name, func(t *testing.T) {
			step := make(chan struct{})
			e := newEngine(t, func(x *engineCall) {
				a.start(x)
				<-step
				x.chunk(a.answer)
				x.write("0\r\n\r\n")
			})
			r := newRouter(t, setup{
				opts: Options{Timeouts: Timeouts{Announce: hold}, Queue: Queue{Gate: time.Minute}},
				pool: func(p *Pool) { p.Residency = residency.New(residency.Options{}) },
			}, e.url())
			leader := r.dial(t)
			io.WriteString(leader, request("1"))
			leads := phaseWaiting
			if hold < 0 {
				leads = phaseBody
			}
			r.inPhase(t, leads)
			follower := r.dial(t)
			io.WriteString(follower, request("2"))
			eventually(t, func() bool { return r.pool.queue.waiting.Load() == 1 }, "the follower waits")
			step <- struct{}{}
			eventually(t, func() bool { return e.calls.Load() == 2 }, "the follower is sent")
			step <- struct{}{}
			for _, c := range []io.Reader{leader, follower} {
				if got := readReply(t, bufio.NewReader(c), "POST"); got.status != 200 || string(got.body) != a.stream() {
					t.Fatalf("got %d %q", got.status, got.body)
				}
			}
			r.records.wait(t, 2)
		})
	}
}
