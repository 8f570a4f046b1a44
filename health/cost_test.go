package health

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// serveEnv makes the test binary a server of engines, so that their cost is not taken
// for the poller's.
const serveEnv = "PREFIXRING_TEST_ENGINES"

func TestMain(m *testing.M) {
	if os.Getenv(serveEnv) != "" {
		serveEngines()
		return
	}
	goleak.VerifyTestMain(m)
}

// serveEngines answers like an engine on every base path until stdin ends.
func serveEngines() {
	page, err := os.ReadFile("testdata/vllm_metrics.txt")
	if err != nil {
		panic(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		panic(err)
	}
	fmt.Println(l.Addr())
	go func() {
		_ = http.Serve(l, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			switch {
			case strings.HasSuffix(r.URL.Path, "/metrics"):
				w.Header().Set("Content-Length", fmt.Sprint(len(page)))
				_, _ = w.Write(page)
			case strings.HasSuffix(r.URL.Path, "/v1/models"):
				_, _ = io.WriteString(w, `{"object":"list","data":[{"id":"tiny","object":"model","parent":null,"max_model_len":32768}]}`)
			case strings.HasSuffix(r.URL.Path, "/version"):
				_, _ = io.WriteString(w, `{"version":"0.32.0"}`)
			}
		}))
	}()
	_, _ = io.Copy(io.Discard, os.Stdin)
}

// hundred are the loops of 100 engines that another process serves, warmed up.
type hundred struct {
	m        *Manager
	scrapers []*scraper
	checkers []*checker
}

// hundredTargets are 100 engines that another process serves until the test ends.
func hundredTargets(tb testing.TB) (targets []Target) {
	tb.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), serveEnv+"=1")
	stdin, err := cmd.StdinPipe()
	if err != nil {
		tb.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		tb.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { stdin.Close(); _ = cmd.Wait() })
	addr, err := bufio.NewReader(stdout).ReadString('\n')
	if err != nil {
		tb.Fatal(err)
	}
	for i := range 100 {
		targets = append(targets, Target{Name: fmt.Sprint("n", i), Pool: "p", Models: []string{"tiny"},
			URL: fmt.Sprintf("http://%s/e%d", strings.TrimSpace(addr), i)})
	}
	return targets
}

func newHundred(tb testing.TB) *hundred {
	tb.Helper()
	targets := hundredTargets(tb)
	m, err := New(Options{Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		tb.Fatal(err)
	}
	if err := m.Apply(targets); err != nil {
		tb.Fatal(err)
	}
	h := &hundred{m: m}
	for _, ep := range m.endpoints {
		h.scrapers = append(h.scrapers, &scraper{m: m, ep: ep, c: m.client(ep)})
		h.checkers = append(h.checkers, &checker{m: m, ep: ep, c: m.client(ep), infoPath: "/version"})
	}
	tb.Cleanup(func() {
		for i := range h.scrapers {
			h.scrapers[i].c.close()
			h.checkers[i].c.close()
		}
	})
	for range 5 {
		h.round(tb.Context())
	}
	for _, s := range m.Snapshot() {
		if s.State != Ready {
			tb.Fatalf("%s is %v (%s)", s.Name, s.State, s.Reason)
		}
	}
	return h
}

// round is what a second costs: every metrics page, a fifth of the other rounds, four
// ticks.
func (h *hundred) round(ctx context.Context) {
	for i, s := range h.scrapers {
		s.round(ctx)
		if i%5 == 0 {
			if i < 40 { // 8 of 100 are due for a list of models
				h.checkers[i].models = time.Time{}
			}
			h.checkers[i].round(ctx)
		}
	}
	for range 4 {
		h.m.onTick()
	}
	h.checkers = append(h.checkers[1:], h.checkers[0])
	h.scrapers = append(h.scrapers[1:], h.scrapers[0])
}

func cpuTime() time.Duration {
	var u syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u)
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

func allocated() uint64 {
	var s runtime.MemStats
	runtime.ReadMemStats(&s)
	return s.TotalAlloc
}

func TestPollingAHundredEnginesLeavesLittleGarbage(t *testing.T) {
	h := newHundred(t)
	before := allocated()
	const rounds = 15
	for range rounds {
		h.round(t.Context())
	}
	if per := (allocated() - before) / rounds; per > 100<<10 {
		t.Errorf("%d bytes of garbage per round of 100 engines, budget %d", per, 100<<10)
	} else {
		t.Logf("%d bytes of garbage per round", per)
	}
}

// BenchmarkPoll100Engines measures one second's work for 100 engines with 52 KB pages.
// The budget of 0.02 core is 20 ms of CPU time per round.
func BenchmarkPoll100Engines(b *testing.B) {
	h := newHundred(b)
	cpu, bytes, n := cpuTime(), allocated(), 0
	for b.Loop() {
		h.round(b.Context())
		n++
	}
	b.ReportMetric(float64((cpuTime()-cpu).Microseconds())/float64(n)/1000, "cpu-ms/round")
	b.ReportMetric(float64(allocated()-bytes)/float64(n), "garbage-B/round")
}

// BenchmarkRun100Engines is the real thing: the manager's own goroutines, timers and
// sleeps over 10 seconds of wall clock. The budget is 0.02 core and 100 KB of garbage a
// second; the tight loop above leaves out what waking up costs.
func BenchmarkRun100Engines(b *testing.B) {
	const length = 10 * time.Second
	targets := hundredTargets(b)
	m, err := New(Options{Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		b.Fatal(err)
	}
	if err := m.Apply(targets); err != nil {
		b.Fatal(err)
	}
	ctx, cancel := context.WithCancel(b.Context())
	done := make(chan struct{})
	go func() { defer close(done); _ = m.Run(ctx) }()
	defer func() { cancel(); <-done }()
	<-time.After(4 * time.Second) // connections stand, buffers have grown, models are known
	cpu, bytes, wall := cpuTime(), allocated(), time.Duration(0)
	for b.Loop() {
		start := time.Now()
		<-time.After(length)
		wall += time.Since(start)
	}
	cpu = cpuTime() - cpu
	b.ReportMetric(cpu.Seconds()/wall.Seconds(), "cores")
	b.ReportMetric(float64(allocated()-bytes)/wall.Seconds(), "garbage-B/s")
	for _, s := range m.Snapshot() {
		if s.State != Ready {
			b.Fatalf("%s is %v (%s)", s.Name, s.State, s.Reason)
		}
	}
}
