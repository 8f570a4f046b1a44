package sim

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net"
	"net/http"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prefixring/prefixring/bench"
	"github.com/prefixring/prefixring/internal/fakeengine"
)

// pipes is a listener whose connections are pipes, so that engines and load client run
// on the clock of a synctest bubble.
type pipes struct {
	conns chan net.Conn
	done  chan struct{}
	once  sync.Once
}

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.done:
		return nil, net.ErrClosed
	}
}

func (p *pipes) Close() error {
	p.once.Do(func() { close(p.done) })
	return nil
}

func (p *pipes) Addr() net.Addr { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 1} }

func (p *pipes) dial(ctx context.Context) (net.Conn, error) {
	a, b := net.Pipe()
	select {
	case p.conns <- b:
		return a, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// The simulator and the simulated engine over HTTP must tell the same story of the same
// traffic: hit rate, first tokens and whole answers within 5 %. The load client, the
// HTTP and the engines are the real ones; only the clock is the bubble's, so a busy
// machine changes nothing.
func TestSimulatorAndEngineOverHTTPAgree(t *testing.T) {
	w := bench.Workload{Prefixes: 4, Prefix: bench.Exactly(20000), Zipf: 1, User: bench.Exactly(100), Output: bench.Exactly(50)}
	a := bench.Arrivals{Kind: "poisson", Rate: 2, Duration: 30 * time.Second}
	src, _ := FromWorkload(w, a, 1, 16)
	sim := run(t, Options{Policy: "round-robin", Engines: 2, Engine: engineOf("70b-tp4"), Source: src, Seed: 1})

	synctest.Test(t, func(t *testing.T) {
		hosts := map[string]*pipes{}
		var urls []string
		var engines []*fakeengine.Engine
		var served sync.WaitGroup
		for i := range 2 {
			e, err := fakeengine.New(fakeengine.Options{Name: fmt.Sprint(i), Model: "m", Preset: "70b-tp4", ReportCached: true, AnswerTokens: 1000})
			if err != nil {
				t.Fatal(err)
			}
			host := fmt.Sprintf("engine-%d.test", i)
			p := &pipes{conns: make(chan net.Conn), done: make(chan struct{})}
			hosts[host+":80"] = p
			served.Go(func() {
				if err := e.Serve(p); !errors.Is(err, http.ErrServerClosed) {
					t.Error(err)
				}
			})
			engines, urls = append(engines, e), append(urls, "http://"+host)
		}
		res, err := bench.Run(t.Context(), bench.Options{Targets: urls, Model: "m", Arrivals: a, Workload: w, Seed: 1, SkipPreflight: true,
			Dial: func(ctx context.Context, _, addr string) (net.Conn, error) { return hosts[addr].dial(ctx) }})
		if err != nil {
			t.Fatal(err)
		}
		var prompt, cached int64
		for _, e := range engines {
			c := e.Counters()
			prompt, cached = prompt+c.PromptTokens, cached+c.CachedTokens
			if err := e.Close(); err != nil {
				t.Error(err)
			}
		}
		served.Wait()
		if res.Succeeded != sim.Finished || res.Succeeded < 50 {
			t.Fatalf("%d requests over HTTP, %d simulated: %v", res.Succeeded, sim.Finished, res.Errors)
		}
		for _, c := range []struct {
			name      string
			http, sim float64
		}{
			{"hit rate", float64(cached) / float64(prompt), sim.HitRate},
			{"mean time to first token", res.TTFT.Mean, sim.TTFT.Mean},
			{"mean time of an answer", res.E2E.Mean, sim.E2E.Mean},
			{"mean time per token", res.TPOT.Mean, sim.TPOT.Mean},
		} {
			off := c.http/c.sim - 1
			t.Logf("%s: %.4f over HTTP, %.4f simulated (%+.2f %%)", c.name, c.http, c.sim, 100*off)
			if math.Abs(off) > 0.05 {
				t.Errorf("%s differs by %+.1f %%", c.name, 100*off)
			}
		}
	})
}
