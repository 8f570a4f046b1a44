package proxy

import (
	"bufio"
	"fmt"
	"io"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prefixring/prefixring/internal/residency"
	"github.com/prefixring/prefixring/ring"
)

// fatBody has a static prefix that the warm gate guards.
func fatBody(prefix, user string) string {
	return `{"model":"m","messages":[{"role":"system","content":"` + prefix + strings.Repeat(" static text", 2000) + `"},{"role":"user","content":"` + user + `"}]}`
}

// B60: a burst of one cold fat prefix is prefilled once, not everywhere: followers
// wait for the leader's first byte and then use its node.
func TestB60BurstOfColdPrefix(t *testing.T) {
	const engines, burst = 8, 60
	var prefills, running atomic.Int64
	prefill := make(chan struct{})
	var urls []string
	for range engines {
		warm := false
		var mu sync.Mutex
		e := newEngine(t, func(x *engineCall) {
			running.Add(1)
			defer running.Add(-1)
			mu.Lock()
			cold := !warm
			mu.Unlock()
			if cold {
				prefills.Add(1)
				<-prefill
				mu.Lock()
				warm = true
				mu.Unlock()
			}
			x.json(200, okJSON)
		})
		urls = append(urls, e.url())
	}
	r := newRouter(t, setup{
		opts: Options{Queue: Queue{Gate: time.Minute}},
		pool: func(p *Pool) { p.Residency = residency.New(residency.Options{}) },
	}, urls...)
	var wg sync.WaitGroup
	var ok atomic.Int64
	for i := range burst {
		wg.Go(func() {
			if r.chat(t, fatBody("burst", fmt.Sprint(i))).status == 200 {
				ok.Add(1)
			}
		})
	}
	eventually(t, func() bool { return r.pool.queue.waiting.Load() == burst-1 && running.Load() == 1 }, "all but the leader wait")
	close(prefill)
	wg.Wait()
	if ok.Load() != burst {
		t.Fatalf("%d of %d answered", ok.Load(), burst)
	}
	// While the leader was at work there was one prefill. Then its node was warm, and
	// what is above its bound may warm one node at a time.
	if bound := int64(ring.DefaultFloor+ring.DefaultMargin) / ring.Unit; prefills.Load() > (burst+bound-1)/bound {
		t.Fatalf("%d prefills", prefills.Load())
	}
	for _, rec := range r.records.wait(t, burst) {
		if rec.Tries != 1 {
			t.Fatalf("record %+v", rec)
		}
	}
}

// A leader that dies frees its followers: one of them leads next.
func TestGateLeaderDies(t *testing.T) {
	var calls atomic.Int64
	die := make(chan struct{})
	e := newEngine(t, func(x *engineCall) {
		if calls.Add(1) == 1 {
			<-die
			panic(errHangUp)
		}
		x.json(200, okJSON)
	})
	r := newRouter(t, setup{
		opts: Options{Retry: Retry{Max: -1}},
		pool: func(p *Pool) { p.Residency = residency.New(residency.Options{}) },
	}, e.url())
	c := r.dial(t)
	io.WriteString(c, rawRequest("/v1/chat/completions", fatBody("die", "1")))
	eventually(t, func() bool { return calls.Load() == 1 }, "leader runs")
	c2 := r.dial(t)
	io.WriteString(c2, rawRequest("/v1/chat/completions", fatBody("die", "2")))
	eventually(t, func() bool { return r.pool.queue.waiting.Load() == 1 }, "follower waits")
	close(die)
	if got := readReply(t, bufio.NewReader(c), "POST"); got.status != 502 {
		t.Fatalf("leader got %d", got.status)
	}
	if got := readReply(t, bufio.NewReader(c2), "POST"); got.status != 200 {
		t.Fatalf("follower got %d", got.status)
	}
	r.records.wait(t, 2)
}

// After the limit the gate lets go: waiting longer would help nobody.
func TestGateLimit(t *testing.T) {
	hold := make(chan struct{})
	var calls atomic.Int64
	e := newEngine(t, func(x *engineCall) {
		if calls.Add(1) == 1 {
			<-hold
		}
		x.json(200, okJSON)
	})
	r := newRouter(t, setup{
		opts: Options{Queue: Queue{Gate: 50 * time.Millisecond, Wait: time.Millisecond}},
		pool: func(p *Pool) { p.Residency = residency.New(residency.Options{}) },
	}, e.url())
	c := r.dial(t)
	io.WriteString(c, rawRequest("/v1/chat/completions", fatBody("x", "1")))
	eventually(t, func() bool { return calls.Load() == 1 }, "leader runs")
	if got := r.chat(t, fatBody("x", "2")); got.status != 200 {
		t.Fatalf("follower got %d", got.status)
	}
	close(hold)
	readReply(t, bufio.NewReader(c), "POST")
	recs := r.records.wait(t, 2)
	if recs[0].Reason != "wait" || recs[0].Queue < 50*time.Millisecond {
		t.Fatalf("record %+v", recs[0])
	}
}

// Thin prefixes never wait for each other.
func TestGateIgnoresThinPrefixes(t *testing.T) {
	hold := make(chan struct{})
	var calls atomic.Int64
	e := newEngine(t, func(x *engineCall) { calls.Add(1); <-hold; x.json(200, okJSON) })
	r := newRouter(t, setup{pool: func(p *Pool) { p.Residency = residency.New(residency.Options{}) }}, e.url())
	var conns []*bufio.Reader
	for range 5 {
		c := r.dial(t)
		io.WriteString(c, rawRequest("/v1/chat/completions", chatBody))
		conns = append(conns, bufio.NewReader(c))
	}
	eventually(t, func() bool { return calls.Load() == 5 }, "all run at once")
	close(hold)
	for _, br := range conns {
		readReply(t, br, "POST")
	}
}

// The queue sheds in its own name: full, and too late.
func TestQueueLimits(t *testing.T) {
	hold := make(chan struct{})
	var calls atomic.Int64
	e := newEngine(t, func(x *engineCall) { calls.Add(1); <-hold; x.json(200, okJSON) })
	r := newRouter(t, setup{
		opts: Options{Queue: Queue{Wait: 300 * time.Millisecond, Depth: 1}},
		pool: func(p *Pool) { p.MaxInFlight = 1 },
	}, e.url())
	first, second := r.dial(t), r.dial(t)
	io.WriteString(first, rawRequest("/v1/chat/completions", chatBody))
	eventually(t, func() bool { return calls.Load() == 1 }, "first runs")
	io.WriteString(second, rawRequest("/v1/chat/completions", chatBody))
	eventually(t, func() bool { return r.pool.queue.waiting.Load() == 1 }, "second waits")
	if got := r.chat(t, chatBody); got.status != 503 || got.header.Get("X-Prefixring-Error") != "queue_full" || got.header.Get("Retry-After") == "" {
		t.Fatalf("third got %d %v", got.status, got.header)
	}
	if got := readReply(t, bufio.NewReader(second), "POST"); got.status != 503 || got.header.Get("X-Prefixring-Error") != "queue_timeout" {
		t.Fatalf("second got %d %v", got.status, got.header)
	}
	third := r.dial(t)
	io.WriteString(third, rawRequest("/v1/chat/completions", chatBody))
	eventually(t, func() bool { return r.pool.queue.waiting.Load() == 1 }, "third waits")
	close(hold)
	if got := readReply(t, bufio.NewReader(third), "POST"); got.status != 200 {
		t.Fatalf("third got %d", got.status)
	}
	readReply(t, bufio.NewReader(first), "POST")
	r.records.wait(t, 4)
}

// A pool that is closed for now, but working, is waited for; one that is down is not.
func TestClosedPool(t *testing.T) {
	hold := make(chan struct{})
	var calls atomic.Int64
	e := newEngine(t, func(x *engineCall) {
		if calls.Add(1) == 1 {
			<-hold
		}
		x.json(200, okJSON)
	})
	r := newRouter(t, setup{opts: Options{Queue: Queue{Wait: 10 * time.Second}}}, e.url())
	n := r.pool.Ring.Nodes()[0]
	n.SetLevel(ring.Closed)
	if got := r.chat(t, chatBody); got.status != 503 || got.header.Get("X-Prefixring-Error") != "no_engine" {
		t.Fatalf("a pool that is down: %d %v", got.status, got.header)
	}
	n.SetLevel(ring.Open)
	c := r.dial(t)
	io.WriteString(c, rawRequest("/v1/chat/completions", chatBody))
	eventually(t, func() bool { return calls.Load() == 1 }, "first runs")
	n.SetLevel(ring.Closed)
	c2 := r.dial(t)
	io.WriteString(c2, rawRequest("/v1/chat/completions", chatBody))
	eventually(t, func() bool { return r.pool.queue.waiting.Load() == 1 }, "second waits")
	n.SetLevel(ring.Open) // the janitor's next look wakes the queue
	if got := readReply(t, bufio.NewReader(c2), "POST"); got.status != 200 {
		t.Fatalf("second got %d", got.status)
	}
	close(hold)
	readReply(t, bufio.NewReader(c), "POST")
}

// Tenants share the queue: one tenant's burst does not delay another's one request,
// and a higher class goes first.
func TestQueueIsFair(t *testing.T) {
	var q waitQueue
	mk := func(scope uint64, class int) *waiter {
		w := &waiter{ready: make(chan struct{}, 1), scope: scope, class: class}
		if !q.join(w, 100) {
			t.Fatal("not joined")
		}
		return w
	}
	var order []string
	names := map[*waiter]string{}
	for i := range 4 {
		names[mk(1, 0)] = fmt.Sprint("a", i)
	}
	names[mk(2, 0)] = "b0"
	names[mk(3, 0)] = "c0"
	names[mk(2, 0)] = "b1"
	names[mk(4, 1)] = "vip"
	for range len(names) {
		q.wake()
		for w, name := range names {
			select {
			case <-w.ready:
				order = append(order, name)
				q.leave(w, true)
			default:
			}
		}
	}
	if got := strings.Join(order, " "); got != "vip a0 b0 c0 a1 b1 a2 a3" {
		t.Fatalf("served %s", got)
	}
	if q.waiting.Load() != 0 || len(q.lines) != 0 {
		t.Fatal("queue not empty")
	}
}

// A waiter that cannot use what became free passes it on, and everybody is asked once.
func TestQueuePassesOn(t *testing.T) {
	var q waitQueue
	var ws []*waiter
	for i := range 5 {
		w := &waiter{ready: make(chan struct{}, 1), scope: uint64(i % 2)}
		q.join(w, 100)
		ws = append(ws, w)
	}
	q.wake()
	asked := map[*waiter]int{}
	for range 10 {
		for _, w := range ws {
			select {
			case <-w.ready:
				asked[w]++
				q.pass()
			default:
			}
		}
	}
	if len(asked) != 5 {
		t.Fatalf("%d of 5 were asked", len(asked))
	}
	for _, n := range asked {
		if n != 1 {
			t.Fatal("somebody was asked twice in one round")
		}
	}
	// One that leaves after it was woken must not swallow the wake.
	q.wake()
	for i, w := range ws {
		if len(w.ready) == 1 {
			q.leave(w, false)
			ws = append(ws[:i:i], ws[i+1:]...)
			break
		}
	}
	woken := 0
	for _, w := range ws {
		woken += len(w.ready)
	}
	if len(ws) != 4 || woken != 1 {
		t.Fatalf("%d waiters left, %d woken", len(ws), woken)
	}
}
