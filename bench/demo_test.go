package bench

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// affinity is the smallest front door that keeps a prefix on one engine. It stands in
// for the router, which this package must not import.
type affinity struct {
	proxies []*httputil.ReverseProxy
	srv     *http.Server
	ended   chan error
	seen    atomic.Int64
}

func (a *affinity) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		http.Error(w, err.Error(), 400)
		return
	}
	a.seen.Add(1)
	r.Body = io.NopCloser(bytes.NewReader(body))
	a.proxies[owner(body, len(a.proxies))].ServeHTTP(w, r)
}

// owner spreads the prefixes by their number, which stands behind the word "prefix".
func owner(body []byte, n int) int {
	var i int
	if at := bytes.Index(body, []byte("prefix ")); at >= 0 {
		fmt.Sscanf(string(body[at:at+12]), "prefix %d", &i)
	}
	return i % n
}

func startAffinity(engines []EngineAddr) (*affinity, string, error) {
	a := &affinity{ended: make(chan error, 1)}
	for _, e := range engines {
		u, err := url.Parse(e.URL)
		if err != nil {
			return nil, "", err
		}
		p := httputil.NewSingleHostReverseProxy(u)
		p.FlushInterval = -1
		p.Transport = &http.Transport{MaxIdleConnsPerHost: 100, IdleConnTimeout: 3 * time.Second}
		a.proxies = append(a.proxies, p)
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, "", err
	}
	a.srv = &http.Server{Handler: a}
	go func() { a.ended <- a.srv.Serve(ln) }()
	return a, "http://" + ln.Addr().String(), nil
}

func (a *affinity) stop() {
	a.srv.Close()
	<-a.ended
	for _, p := range a.proxies {
		p.Transport.(*http.Transport).CloseIdleConnections()
	}
}

// warm sends each prefix once to its engine.
func (a *affinity) warm(ctx context.Context, front string, model string, prefixes []NamedText) error {
	c := &http.Client{}
	defer c.CloseIdleConnections()
	for _, p := range prefixes {
		b, err := json.Marshal(map[string]any{"model": model, "max_tokens": 1, "messages": []map[string]string{
			{"role": "system", "content": p.System}, {"role": "user", "content": "hello"}}})
		if err != nil {
			return err
		}
		req, err := http.NewRequestWithContext(ctx, "POST", front+"/v1/chat/completions", bytes.NewReader(b))
		if err != nil {
			return err
		}
		req.Header.Set("Content-Type", "application/json")
		resp, err := c.Do(req)
		if err != nil {
			return err
		}
		io.Copy(io.Discard, resp.Body)
		resp.Body.Close()
		if resp.StatusCode != 200 {
			return fmt.Errorf("status %d", resp.StatusCode)
		}
	}
	return nil
}

func smallDemo() DemoOptions {
	return DemoOptions{Engines: 4, Prefixes: 8, PrefixTokens: 8000, KVTokens: 40000, Rate: 6, Duration: 60 * time.Second, Speed: 20, Seed: 1}
}

func TestDemoComparesTwoDoorsOnTheSameBytes(t *testing.T) {
	var door *affinity
	var out strings.Builder
	o := smallDemo()
	o.Out = &out
	o.StartFrontDoor = func(_ context.Context, engines []EngineAddr, prefixes []NamedText) (FrontDoor, error) {
		if len(engines) != 4 || engines[0].Dialect == engines[1].Dialect || len(prefixes) != 8 || prefixes[0].Share <= prefixes[7].Share {
			t.Errorf("the front door was told of %d engines and %d prefixes", len(engines), len(prefixes))
		}
		var front string
		var err error
		if door, front, err = startAffinity(engines); err != nil {
			return FrontDoor{}, err
		}
		warm := func(ctx context.Context) error { return door.warm(ctx, front, engines[0].Model, prefixes) }
		return FrontDoor{URL: front, Prewarm: warm, Stop: door.stop}, nil
	}
	res, err := Demo(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	a, b := res.RoundRobin, res.Prefixring
	if a.Requests == 0 || a.Requests != b.Requests || a.Errors != 0 || b.Errors != 0 {
		t.Fatalf("%d and %d requests with errors %v and %v\n%s", a.Requests, b.Requests, a.ErrorKinds, b.ErrorKinds, out.String())
	}
	// The same bytes have the same tokens, whatever door they took.
	if a.PromptTokens != b.PromptTokens || a.OutputTokens != b.OutputTokens {
		t.Errorf("round robin sent %d and %d tokens, the front door %d and %d", a.PromptTokens, a.OutputTokens, b.PromptTokens, b.OutputTokens)
	}
	if b.HitRate < 0.95 || b.ColdPrefills != 0 || a.ColdPrefills < 16 || a.HitRate > 0.9 {
		t.Errorf("hit rates %.3f and %.3f, cold prefills %d and %d", a.HitRate, b.HitRate, a.ColdPrefills, b.ColdPrefills)
	}
	if want := float64(b.CachedTokens) / float64(b.PromptTokens); b.HitRate != want || b.PrewarmTokens < 8*8000 {
		t.Errorf("hit rate %v is not the engines' %v, or prewarm of %d tokens was not counted", b.HitRate, want, b.PrewarmTokens)
	}
	var keys map[string]struct {
		Requests int64 `json:"requests"`
		TTFT     struct {
			P50 float64 `json:"p50"`
		} `json:"ttft_ms"`
	}
	raw, err := json.Marshal(map[string]any{"round_robin": a, "prefixring": b})
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(raw, &keys); err != nil || keys["prefixring"].TTFT.P50 <= 0 {
		t.Errorf("JSON: %v %+v", err, keys)
	}
	for _, word := range []string{"hit rate", "estimated cost", "p99", "example prices", "wall time x 20"} {
		if !strings.Contains(out.String(), word) {
			t.Errorf("the output does not speak of %q:\n%s", word, out.String())
		}
	}
}

func TestDemoSaysWhyItCannotRun(t *testing.T) {
	if _, err := Demo(t.Context(), DemoOptions{}); !errors.Is(err, ErrUsage) {
		t.Errorf("a demo without a front door gave %v", err)
	}
	o := smallDemo()
	o.Duration = 20 * time.Second
	broken := errors.New("no port left")
	o.StartFrontDoor = func(context.Context, []EngineAddr, []NamedText) (FrontDoor, error) { return FrontDoor{}, broken }
	if _, err := Demo(t.Context(), o); !errors.Is(err, broken) {
		t.Errorf("a front door that does not start gave %v", err)
	}
}

func TestCostIsExact(t *testing.T) {
	var o DemoOptions
	o.defaults()
	// 20,000,000 requests of 60,200 prompt and 500 output tokens: the sale day of the
	// cost command, without cache and with 95 % of the prefix from it.
	n := int64(20_000_000)
	without := o.Prices.estimate(EngineCounters{PromptTokens: 60200 * n, GenerationTokens: 500 * n})
	with := o.Prices.estimate(EngineCounters{PromptTokens: 60200 * n, CachedTokens: 57000 * n, GenerationTokens: 500 * n})
	if without.String() != "2468000" || with.String() != "416000" {
		t.Errorf("%s without and %s with cache, want 2,468,000 and 416,000", without, with)
	}
}
