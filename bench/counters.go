package bench

import (
	"context"
	"fmt"
	"io"
	"math"
	"net/http"
	"time"

	"github.com/prefixring/prefixring/health"
	"github.com/prefixring/prefixring/internal/dialect"
)

// maxMetricsPage bounds what is read of one metrics page; vLLM's has 52 KB.
const maxMetricsPage = 8 << 20

// ScrapeCounters returns a function for Options.Counters that reads /metrics of the
// given engines, vLLM or SGLang. It asks the engines themselves, so the result holds
// what they counted whatever the router in front of them says. An engine counts all of
// its traffic: run nothing else beside.
func ScrapeCounters(engines []string) func(ctx context.Context) ([]EngineCounters, error) {
	return func(ctx context.Context) ([]EngineCounters, error) {
		client := &http.Client{Timeout: 10 * time.Second}
		defer client.CloseIdleConnections()
		var out []EngineCounters
		for _, u := range engines {
			c, err := scrape(ctx, client, u)
			if err != nil {
				return nil, fmt.Errorf("engine %s: %w", u, err)
			}
			out = append(out, c)
		}
		return out, nil
	}
}

func scrape(ctx context.Context, client *http.Client, base string) (EngineCounters, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, base+"/metrics", nil)
	if err != nil {
		return EngineCounters{}, err
	}
	resp, err := client.Do(req)
	if err != nil {
		return EngineCounters{}, err
	}
	defer resp.Body.Close()
	page, err := io.ReadAll(io.LimitReader(resp.Body, maxMetricsPage))
	if err != nil {
		return EngineCounters{}, err
	}
	if resp.StatusCode != http.StatusOK {
		return EngineCounters{}, fmt.Errorf("/metrics answers %d", resp.StatusCode)
	}
	var s health.Signals
	for _, d := range []dialect.Engine{dialect.VLLM, dialect.SGLang} {
		if err := health.ParseMetrics(page, d, &s); err != nil {
			return EngineCounters{}, err
		}
		if s.Samples > 0 {
			return EngineCounters{Name: base, Requests: whole(s.Finished), PromptTokens: whole(s.PrefixQueries), CachedTokens: whole(s.PrefixHits),
				GenerationTokens: whole(s.GenerationTokens), ColdPrefills: -1, Preemptions: whole(s.Preemptions)}, nil
		}
	}
	return EngineCounters{}, fmt.Errorf("/metrics is neither vLLM's nor SGLang's")
}

// whole turns an absent number into -1.
func whole(v float64) int64 {
	if math.IsNaN(v) {
		return -1
	}
	return int64(v)
}

// Total adds up what several engines have counted.
func Total(engines []EngineCounters) EngineCounters {
	var t EngineCounters
	for i := range engines {
		e := &engines[i]
		t.Requests += e.Requests
		t.PromptTokens += e.PromptTokens
		t.CachedTokens += e.CachedTokens
		t.GenerationTokens += e.GenerationTokens
		t.ColdPrefills += e.ColdPrefills
		t.BusySeconds += e.BusySeconds
		t.Preemptions += e.Preemptions
	}
	return t
}
