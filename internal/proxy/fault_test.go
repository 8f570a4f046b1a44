package proxy

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prefixring/prefixring/internal/dialect"
)

// The fault matrix: an engine is killed, reset, cut, mute, slow or talks nonsense, at
// every phase, for every protocol, streaming and not, beside a healthy one. A ledger
// holds what each client got: never an octet that no engine wrote for it, never one
// twice; each request is settled once; slots, connections and goroutines come back.

// shape is one protocol's request and answer.
type shape struct {
	path    string
	request func(id string, stream bool) string
	plain   func(id string) string
	events  func(id string) []string
}

var shapes = map[dialect.Protocol]shape{
	dialect.Chat: {
		"/v1/chat/completions",
		func(id string, stream bool) string {
			return fmt.Sprintf(`{"model":"m","stream":%v,"messages":[{"role":"system","content":"s"},{"role":"user","content":"%s"}]}`, stream, id)
		},
		func(id string) string {
			return `{"id":"` + id + `","choices":[{"index":0,"message":{"role":"assistant","content":"hi"},"finish_reason":"stop"}]}`
		},
		func(id string) []string { return []string{delta(id), delta("b"), stopEvent, doneEvent} },
	},
	dialect.Completions: {
		"/v1/completions",
		func(id string, stream bool) string {
			return fmt.Sprintf(`{"model":"m","stream":%v,"prompt":"%s"}`, stream, id)
		},
		func(id string) string {
			return `{"id":"` + id + `","choices":[{"index":0,"text":"hi","finish_reason":"stop"}]}`
		},
		func(id string) []string {
			return []string{`data: {"id":"` + id + `","choices":[{"index":0,"text":"a","finish_reason":null}]}` + "\n\n",
				`data: {"id":"x","choices":[{"index":0,"text":"","finish_reason":"stop"}]}` + "\n\n", doneEvent}
		},
	},
	dialect.Responses: {
		"/v1/responses",
		func(id string, stream bool) string {
			return fmt.Sprintf(`{"model":"m","stream":%v,"instructions":"s","input":"%s"}`, stream, id)
		},
		func(id string) string {
			return `{"id":"` + id + `","object":"response","status":"completed","output":[]}`
		},
		func(id string) []string {
			return []string{"event: response.created\ndata: {\"type\":\"response.created\",\"response\":{\"id\":\"" + id + "\",\"status\":\"in_progress\"}}\n\n",
				"event: response.output_text.delta\ndata: {\"type\":\"response.output_text.delta\",\"delta\":\"a\"}\n\n",
				"event: response.completed\ndata: {\"type\":\"response.completed\",\"response\":{\"id\":\"" + id + "\",\"status\":\"completed\"}}\n\n"}
		},
	},
	dialect.Messages: {
		"/v1/messages",
		func(id string, stream bool) string {
			return fmt.Sprintf(`{"model":"m","stream":%v,"max_tokens":5,"system":"s","messages":[{"role":"user","content":"%s"}]}`, stream, id)
		},
		func(id string) string {
			return `{"id":"` + id + `","type":"message","role":"assistant","content":[],"stop_reason":"end_turn"}`
		},
		func(id string) []string {
			return []string{"event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"id\":\"" + id + "\"}}\n\n",
				"event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"index\":0,\"delta\":{\"type\":\"text_delta\",\"text\":\"a\"}}\n\n",
				"event: message_delta\ndata: {\"type\":\"message_delta\",\"delta\":{\"stop_reason\":\"end_turn\"}}\n\n",
				"event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n"}
		},
	},
}

// idOf finds the client's id in what an engine received.
func idOf(body []byte) string {
	i := strings.Index(string(body), "client-")
	j := strings.IndexByte(string(body[i:]), '"')
	return string(body[i : i+j])
}

// wireOf is the whole answer to a request, as octets.
func wireOf(s shape, body []byte) string {
	id := idOf(body)
	if !strings.Contains(string(body), `"stream":true`) {
		p := s.plain(id)
		return fmt.Sprintf("HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", len(p), p)
	}
	wire := sseHead
	for _, ev := range s.events(id) {
		wire += fmt.Sprintf("%x\r\n%s\r\n", len(ev), ev)
	}
	return wire + "0\r\n\r\n"
}

// reset closes with RST instead of FIN.
func reset(c net.Conn) {
	c.(*net.TCPConn).SetLinger(0)
	c.Close()
}

// fault is something that can go wrong with an engine. at is how much of the answer
// has been sent when it happens: 0..1, in parts of the whole.
type fault struct {
	name string
	do   func(x *engineCall, rest string)
}

var faults = []fault{
	{"closes", func(*engineCall, string) { panic(errHangUp) }},
	{"resets", func(x *engineCall, _ string) { reset(x.conn); panic(errHangUp) }},
	{"goes mute", func(x *engineCall, _ string) { x.gone(5 * time.Second); panic(errHangUp) }},
	{"talks nonsense", func(x *engineCall, _ string) { x.write("\x00nonsense\r\n\r\n\xff"); panic(errHangUp) }},
	{"is slow", func(x *engineCall, rest string) {
		for i := range len(rest) {
			x.write(rest[i : i+1])
		}
	}},
}

// entry is one line of the ledger.
type entry struct {
	id    string
	reply clientReply
	err   error
}

func TestFaultMatrix(t *testing.T) {
	for proto, s := range shapes {
		for _, stream := range []bool{false, true} {
			for _, f := range faults {
				// Phases: nothing sent, in the head, at the end of the head, in the
				// first event, in the middle, before the last octet.
				for phase, part := range map[string]float64{"at once": 0, "in the head": 0.1, "early": 0.45, "middle": 0.7, "late": 0.99} {
					if part > 0.3 && f.name == "talks nonsense" {
						continue // inside a body there is no telling it from sense
					}
					name := fmt.Sprintf("%v/stream=%v/%s %s", proto, stream, f.name, phase)
					t.Run(name, func(t *testing.T) { runFault(t, s, stream, f, part) })
				}
			}
		}
	}
	eventually(t, func() bool { return serving() == 0 }, "no goroutine serves any more")
}

// serving counts the goroutines that are inside a call of the proxy. The server's own
// idle workers are not: it keeps them for 10 s.
func serving() int {
	buf := make([]byte, 8<<20)
	n := 0
	for g := range strings.SplitSeq(string(buf[:runtime.Stack(buf, true)]), "\n\n") {
		if strings.Contains(g, "proxy.(*call)") || strings.Contains(g, "proxy.(*exchange)") {
			n++
		}
	}
	return n
}

func runFault(t *testing.T, s shape, stream bool, f fault, part float64) {
	healthy := newEngine(t, func(x *engineCall) { x.write(wireOf(s, x.body)) })
	sick := newEngine(t, func(x *engineCall) {
		wire := wireOf(s, x.body)
		n := int(part * float64(len(wire)))
		x.write(wire[:n])
		f.do(x, wire[n:])
	})
	r := newRouter(t, setup{opts: Options{
		Timeouts: Timeouts{FirstByte: 150 * time.Millisecond, BetweenEvents: 150 * time.Millisecond},
		Retry:    Retry{Burst: 100},
	}}, sick.url(), healthy.url())
	const clients = 4
	ledger := make([]entry, clients)
	var wg sync.WaitGroup
	for i := range clients {
		wg.Go(func() {
			id := fmt.Sprintf("client-%d-%d", i, time.Now().UnixNano())
			ledger[i] = ask(r, s, id, stream)
		})
	}
	wg.Wait()
	for _, e := range ledger {
		checkEntry(t, s, stream, e)
	}
	r.records.wait(t, clients)
}

// ask is one client.
func ask(r *router, s shape, id string, stream bool) entry {
	c, err := net.Dial("tcp", r.addr)
	if err != nil {
		return entry{id: id, err: err}
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(10 * time.Second))
	io.WriteString(c, rawRequest(s.path, s.request(id, stream)))
	resp, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		return entry{id: id, err: err}
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	return entry{id: id, reply: clientReply{status: resp.StatusCode, header: resp.Header, body: body, bodyErr: err}}
}

// checkEntry complains about what breaks the law.
func checkEntry(t *testing.T, s shape, stream bool, e entry) {
	t.Helper()
	if e.err != nil {
		t.Errorf("%s: no response at all: %v", e.id, e.err)
	} else if !lawful(s, stream, e) {
		t.Errorf("%s: status %d, error %v, body %q", e.id, e.reply.status, e.reply.bodyErr, e.reply.body)
	}
}

// lawful is the law: the whole right answer, or an engine's or the router's valid
// error, or the beginning of the right answer that is visibly cut.
func lawful(s shape, stream bool, e entry) bool {
	want := s.plain(e.id)
	if stream {
		want = strings.Join(s.events(e.id), "")
	}
	got := string(e.reply.body)
	switch {
	case e.reply.status == 200 && e.reply.bodyErr == nil:
		return got == want
	case e.reply.status >= 500 && e.reply.bodyErr == nil:
		own := e.reply.header.Get("X-Prefixring-Error") != "" && json.Valid(e.reply.body)
		return own || got == busyBody || got == queueFullEvent+doneEvent
	case e.reply.status == 200:
		for _, mark := range []string{"data: {\"error\":", "event: error\n"} {
			if i := strings.LastIndex(got, mark); i >= 0 {
				got = got[:i]
			}
		}
		return strings.HasPrefix(want, got)
	}
	return false
}

// Engines that come and go under load: no client sees an octet that is not its own,
// and those whose request could have been saved are.
func TestFaultsUnderLoad(t *testing.T) {
	s := shapes[dialect.Chat]
	n := 0
	var mu sync.Mutex
	moody := func(x *engineCall) {
		mu.Lock()
		n++
		turn := n
		mu.Unlock()
		wire := wireOf(s, x.body)
		switch turn % 7 {
		case 1:
			panic(errHangUp)
		case 3:
			x.write(wire[:20])
			reset(x.conn)
			panic(errHangUp)
		case 5:
			busy(x)
		default:
			x.write(wire)
		}
	}
	calm := func(x *engineCall) { x.write(wireOf(s, x.body)) }
	r := newRouter(t, setup{opts: Options{Retry: Retry{Burst: 1e6, Ratio: 1}}},
		newEngine(t, moody).url(), newEngine(t, calm).url(), newEngine(t, calm).url())
	const workers, each = 16, 40
	var wg sync.WaitGroup
	for w := range workers {
		wg.Go(func() {
			for i := range each {
				id := fmt.Sprintf("client-%d-%d", w, i)
				e := ask(r, s, id, i%2 == 0)
				checkEntry(t, s, i%2 == 0, e)
				if e.reply.status != 200 {
					t.Errorf("%s: %d %s", id, e.reply.status, e.reply.body)
				}
			}
		})
	}
	wg.Wait()
	r.records.wait(t, workers*each)
}

// B50: streams that are cancelled while they are read leave nothing behind.
func TestB50CancelledStreamsLeaveNothing(t *testing.T) {
	e := newEngine(t, func(x *engineCall) {
		x.write(sseHead)
		x.chunk(delta("a"))
		x.chunk(delta("b"))
		x.gone(10 * time.Second)
		panic(errHangUp)
	})
	r := newRouter(t, setup{}, e.url())
	const n = 200
	var wg sync.WaitGroup
	for range n {
		wg.Go(func() {
			c, err := net.Dial("tcp", r.addr)
			if err != nil {
				t.Error(err)
				return
			}
			io.WriteString(c, rawRequest("/v1/chat/completions", streamBody))
			io.ReadFull(c, make([]byte, 200))
			c.Close()
		})
	}
	wg.Wait()
	r.records.wait(t, n)
	eventually(t, func() bool { return e.open.Load() == 0 }, "engine connections closed")
	eventually(t, func() bool { return r.conns.open.Load() == 0 }, "client connections closed")
	eventually(t, func() bool { return serving() == 0 }, "no goroutine serves any more")
}

// B35: every path counts as load.
func TestB35EveryPathCounts(t *testing.T) {
	hold := make(chan struct{})
	e := newEngine(t, func(x *engineCall) { <-hold; x.json(200, `{}`) })
	other := newEngine(t, func(x *engineCall) { <-hold; x.json(200, `{}`) })
	r := newRouter(t, setup{}, e.url(), other.url())
	const n = 40
	for i := range n {
		path := []string{"/inference/v1/generate", "/v1/completions"}[i%2]
		io.WriteString(r.dial(t), rawRequest(path, `{"model":"m","prompt":"same","token_ids":[1,2]}`))
	}
	eventually(t, func() bool { return e.calls.Load()+other.calls.Load() == n }, "all requests run")
	for _, node := range r.pool.Ring.Nodes() {
		if node.InFlight() > n*5/8+1 {
			t.Errorf("%s has %d of %d requests", node.Name(), node.InFlight(), n)
		}
	}
	close(hold)
	r.records.wait(t, n)
}
