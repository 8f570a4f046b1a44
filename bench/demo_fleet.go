package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/prefixring/prefixring/internal/dialect"
	"github.com/prefixring/prefixring/internal/fakeengine"
)

// demoFleet is the demo's engines: every other one speaks SGLang's dialect.
type demoFleet struct {
	engines  []*fakeengine.Engine
	addr     []EngineAddr
	kvTokens int
}

func startDemoFleet(o *DemoOptions) (*demoFleet, error) {
	f := &demoFleet{kvTokens: o.KVTokens}
	for i := range o.Engines {
		a := EngineAddr{Name: fmt.Sprintf("engine-%d", i), Dialect: dialect.Engine(i % 2), Model: demoModel}
		e, err := fakeengine.New(fakeengine.Options{
			Name: a.Name, Model: demoModel, Dialect: a.Dialect, Preset: demoPreset, KVTokens: o.KVTokens, Speed: o.Speed,
			ReportCached: true, DevMode: true, AnswerTokens: 1 << 10, Seed: seedOf(o.Seed, uint64(i)),
		})
		if err != nil {
			f.close()
			return nil, fmt.Errorf("cannot make %s: %w", a.Name, err)
		}
		f.engines = append(f.engines, e)
		if a.URL, err = e.Start("127.0.0.1:0"); err != nil {
			f.close()
			return nil, fmt.Errorf("cannot start %s: %w", a.Name, err)
		}
		f.addr = append(f.addr, a)
	}
	return f, nil
}

func (f *demoFleet) close() {
	for _, e := range f.engines {
		_ = e.Close() // the demo is over; what a simulated engine has to say about its end helps nobody
	}
}

func (f *demoFleet) addrs() []EngineAddr { return append([]EngineAddr(nil), f.addr...) }

func (f *demoFleet) urls() []string {
	var u []string
	for _, a := range f.addr {
		u = append(u, a.URL)
	}
	return u
}

// counters are the engines' own true counts.
func (f *demoFleet) counters() []EngineCounters {
	var out []EngineCounters
	for i, e := range f.engines {
		c := e.Counters()
		out = append(out, EngineCounters{Name: f.addr[i].Name, Requests: c.Requests, PromptTokens: c.PromptTokens, CachedTokens: c.CachedTokens,
			GenerationTokens: c.GeneratedTokens, ColdPrefills: c.ColdPrefills, BusySeconds: c.BusySeconds, Preemptions: -1})
	}
	return out
}

var errFlush = errors.New("the engine keeps its cache")

// flush empties every cache between the arms, the way an operator would: by the
// engines' own endpoints.
func (f *demoFleet) flush(ctx context.Context) error {
	client := &http.Client{Timeout: 10 * time.Second}
	defer client.CloseIdleConnections()
	for _, a := range f.addr {
		path := "/reset_prefix_cache"
		if a.Dialect == dialect.SGLang {
			path = "/flush_cache"
		}
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, a.URL+path, nil)
		if err != nil {
			return fmt.Errorf("cannot flush %s: %w", a.Name, err)
		}
		resp, err := client.Do(req)
		if err != nil {
			return fmt.Errorf("cannot flush %s: %w", a.Name, err)
		}
		_, _ = io.Copy(io.Discard, resp.Body) // only the status counts
		resp.Body.Close()
		if resp.StatusCode != http.StatusOK {
			return fmt.Errorf("cannot flush %s: %w: status %d", a.Name, errFlush, resp.StatusCode)
		}
	}
	return nil
}
