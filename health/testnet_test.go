package health

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prefixring/prefixring/internal/dialect"
)

// memNet is a network in memory, so that whole fleets run on synctest's clock.
type memNet struct {
	mu    sync.Mutex
	open  map[string]*memListener
	dials int
}

type memListener struct {
	conns chan net.Conn
	done  chan struct{}
	once  sync.Once
}

func (l *memListener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.done:
		return nil, net.ErrClosed
	}
}
func (l *memListener) Close() error   { l.once.Do(func() { close(l.done) }); return nil }
func (l *memListener) Addr() net.Addr { return &net.TCPAddr{} }

func (n *memNet) dial(ctx context.Context, _, addr string) (net.Conn, error) {
	n.mu.Lock()
	n.dials++
	l := n.open[addr]
	n.mu.Unlock()
	if l == nil {
		return nil, &net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED}
	}
	ours, theirs := net.Pipe()
	select {
	case l.conns <- theirs:
		return ours, nil
	case <-l.done:
		return nil, &net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED}
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// engine is a scripted engine: what it answers is set by the test, what it was asked is
// counted.
type engine struct {
	net  *memNet
	addr string
	srv  *http.Server

	mu         sync.Mutex
	health     int           // status
	healthWait time.Duration // before the answer
	models     []string
	metrics    string
	sleeping   string // body of /is_sleeping, "" = 404
	key        string // required everywhere
	frozen     bool   // POST never answers
	asked      map[string]int
	auth       map[string]bool // Authorization values seen
	rank       string
}

func (e *engine) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	e.mu.Lock()
	e.asked[r.URL.Path]++
	e.auth[r.Header.Get("Authorization")] = true
	health, wait, models, metrics, sleeping, key, frozen := e.health, e.healthWait, e.models, e.metrics, e.sleeping, e.key, e.frozen
	if v := r.Header.Get("X-data-parallel-rank"); v != "" {
		e.rank = v
	}
	e.mu.Unlock()
	if key != "" && r.Header.Get("Authorization") != "Bearer "+key {
		http.Error(w, `{"error":"Unauthorized"}`, http.StatusUnauthorized)
		return
	}
	switch r.URL.Path {
	case "/health":
		select {
		case <-time.After(wait):
		case <-r.Context().Done():
		}
		w.WriteHeader(health)
	case "/v1/models":
		type model struct {
			ID string `json:"id"`
		}
		list := []model{}
		for _, m := range models {
			list = append(list, model{m})
		}
		_ = json.NewEncoder(w).Encode(map[string]any{"object": "list", "data": list})
	case "/metrics":
		if metrics == "" {
			http.NotFound(w, r)
			return
		}
		_, _ = io.WriteString(w, metrics)
	case "/version", "/server_info":
		_, _ = io.WriteString(w, `{"version":"0.32.0"}`)
	case "/is_sleeping":
		if sleeping == "" {
			http.NotFound(w, r)
			return
		}
		_, _ = io.WriteString(w, sleeping)
	case "/v1/completions":
		_, _ = io.ReadAll(r.Body)
		if frozen {
			<-r.Context().Done()
			return
		}
		_, _ = io.WriteString(w, `{"choices":[{"finish_reason":"length","text":"a"}]}`)
	default:
		http.NotFound(w, r)
	}
}

func (e *engine) set(f func(*engine)) { e.mu.Lock(); defer e.mu.Unlock(); f(e) }

func (e *engine) count(path string) int { e.mu.Lock(); defer e.mu.Unlock(); return e.asked[path] }

// up starts to listen; down closes everything.
func (e *engine) up() {
	l := &memListener{conns: make(chan net.Conn), done: make(chan struct{})}
	e.net.mu.Lock()
	e.net.open[e.addr] = l
	e.net.mu.Unlock()
	e.srv = &http.Server{Handler: e, ErrorLog: slog.NewLogLogger(slog.DiscardHandler, 0)}
	go func(s *http.Server) { _ = s.Serve(l) }(e.srv)
}

func (e *engine) down() {
	e.net.mu.Lock()
	delete(e.net.open, e.addr)
	e.net.mu.Unlock()
	_ = e.srv.Close()
}

// fleet is a manager over scripted engines within a synctest bubble.
type fleet struct {
	t       *testing.T
	m       *Manager
	net     *memNet
	engines []*engine
	log     *strings.Builder
	mu      sync.Mutex
	changes []change
}

// run calls f in a bubble with a running manager over n engines that are up.
func run(t *testing.T, n int, o Options, f func(*fleet)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		fl := &fleet{t: t, net: &memNet{open: map[string]*memListener{}}, log: &strings.Builder{}}
		for i := range n {
			e := &engine{net: fl.net, addr: fmt.Sprintf("e%d:8000", i), health: 200, models: []string{"m1"},
				metrics: busyPage(0, 0, 0, 0), asked: map[string]int{}, auth: map[string]bool{}}
			e.up()
			fl.engines = append(fl.engines, e)
		}
		o.Dial = fl.net.dial
		if o.Logger == nil {
			o.Logger = slog.New(slog.NewTextHandler(lockedWriter{&fl.mu, fl.log}, nil))
		}
		hook := o.OnChange
		o.OnChange = func(old, new Status) {
			fl.mu.Lock()
			fl.changes = append(fl.changes, change{old, new})
			fl.mu.Unlock()
			if hook != nil {
				hook(old, new)
			}
		}
		m, err := New(o)
		if err != nil {
			t.Fatal(err)
		}
		fl.m = m
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- m.Run(ctx) }()
		defer func() {
			cancel()
			if err := <-done; err != nil {
				t.Errorf("Run: %v", err)
			}
			for _, e := range fl.engines {
				e.down()
			}
		}()
		f(fl)
	})
}

type lockedWriter struct {
	mu *sync.Mutex
	w  io.Writer
}

func (l lockedWriter) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.w.Write(b)
}

func (f *fleet) targets() []Target {
	var out []Target
	for i, e := range f.engines {
		out = append(out, Target{Name: fmt.Sprintf("n%d", i), URL: "http://" + e.addr, Pool: "p", Models: []string{"m1"}})
	}
	return out
}

func (f *fleet) apply(targets ...Target) {
	f.t.Helper()
	if err := f.m.Apply(targets); err != nil {
		f.t.Fatal(err)
	}
}

// wait lets the bubble's clock run.
func (f *fleet) wait(d time.Duration) { time.Sleep(d); synctest.Wait() }

func (f *fleet) status(name string) Status {
	f.t.Helper()
	for _, s := range f.m.Snapshot() {
		if s.Name == name {
			return s
		}
	}
	f.t.Fatalf("no node %q", name)
	return Status{}
}

func (f *fleet) is(name string, state State) Status {
	f.t.Helper()
	s := f.status(name)
	if s.State != state {
		f.t.Fatalf("%s is %v (%s), want %v", name, s.State, s.Reason, state)
	}
	return s
}

func (f *fleet) logged() string { f.mu.Lock(); defer f.mu.Unlock(); return f.log.String() }

func (f *fleet) told() []change {
	f.mu.Lock()
	defer f.mu.Unlock()
	return append([]change(nil), f.changes...)
}

// busyPage is a metrics page with the numbers that matter.
func busyPage(running, waiting int, kv float64, steps int) string {
	return fmt.Sprintf(`vllm:num_requests_running{engine="0"} %d
vllm:num_requests_waiting{engine="0"} %d
vllm:kv_cache_usage_perc{engine="0"} %v
vllm:iteration_tokens_total_count{engine="0"} %d
vllm:engine_sleep_state{engine="0",sleep_state="awake"} 1
process_start_time_seconds 1e9
`, running, waiting, kv, steps)
}

func sglangTarget(t Target) Target { t.Engine = dialect.SGLang; return t }
