package telemetry

import (
	"bytes"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/prefixring/prefixring/internal/dialect"
)

func record() *Record {
	return &Record{
		ID: "a1", Protocol: "chat", Pool: "p", Node: "n1", Reason: "owner", Kind: "prefix", Status: 200, Tries: 1,
		Verdict: dialect.Success, Usage: dialect.Usage{Prompt: 100, Cached: 96, CacheWrite: -1, Output: 7, Reasoning: -1},
		FirstToken: 20 * time.Millisecond, Total: time.Second, BytesIn: 400, BytesOut: 90,
	}
}

func page(m *Metrics) string {
	var b bytes.Buffer
	m.Write(&b)
	return b.String()
}

func TestSettledRequestsAreCounted(t *testing.T) {
	m := NewMetrics()
	m.Settle(record())
	m.Settle(record())
	p := page(m)
	for _, want := range []string{
		`prefixring_requests_total{protocol="chat",pool="p",node="n1",status="2xx",verdict="success"} 2`,
		`prefixring_prompt_tokens_total{node="n1",source="cached"} 192`,
		`prefixring_prompt_tokens_total{node="n1",source="uncached"} 8`,
		`prefixring_picks_total{pool="p",reason="owner"} 2`,
		`prefixring_usage_unknown_requests_total 0`,
		`prefixring_time_to_first_token_seconds_bucket{protocol="chat",node="n1",le="0.025"} 2`,
	} {
		if !strings.Contains(p, want) {
			t.Errorf("page lacks %s", want)
		}
	}
}

func TestB67UnknownUsageIsNotZero(t *testing.T) {
	m := NewMetrics()
	r := record()
	r.Usage.Cached = dialect.Unknown
	m.Settle(r)
	p := page(m)
	if !strings.Contains(p, "prefixring_usage_unknown_requests_total 1") || strings.Contains(p, "prompt_tokens_total{") {
		t.Errorf("unknown usage was counted as a number:\n%s", p)
	}
}

// Nothing that a client sends may become a label (B65): the series stay the same
// however many ids, fingerprints and odd statuses pass.
func TestB65ClientsMakeNoSeries(t *testing.T) {
	m := NewMetrics()
	m.Settle(record())
	before := len(m.set.ListMetricNames())
	for i := range 2000 {
		r := record()
		r.ID, r.Fingerprint, r.Status = fmt.Sprint("id", i), uint64(i), 200+i%99
		m.Settle(r)
	}
	if after := len(m.set.ListMetricNames()); after != before {
		t.Errorf("%d series became %d", before, after)
	}
}

func TestANodeThatLeftIsDropped(t *testing.T) {
	m := NewMetrics()
	m.Settle(record())
	m.Gauge("prefixring_node_level", func() float64 { return 1 }, "node", "n1")
	m.Drop("n1")
	if p := page(m); strings.Contains(p, `"n1"`) {
		t.Errorf("series of the node remain:\n%s", p)
	}
	m.Settle(record())
	if p := page(m); !strings.Contains(p, `node="n1"`) {
		t.Error("a node that came back is not counted")
	}
}

func TestAccessLineSaysWhatIsKnown(t *testing.T) {
	var b bytes.Buffer
	a := AccessLog{slog.New(slog.NewJSONHandler(&b, nil))}
	r := record()
	r.Usage.Cached, r.FirstToken = dialect.Unknown, 0
	a.Settle(r)
	line := b.String()
	if strings.Count(line, "\n") != 1 || !strings.Contains(line, `"prompt_tokens":100`) {
		t.Errorf("line %q", line)
	}
	for _, absent := range []string{"cached_tokens", "first_token_ms", ":-1"} {
		if strings.Contains(line, absent) {
			t.Errorf("line tells %s: %s", absent, line)
		}
	}
}

// Settling costs no allocation once the labels are known: it runs for every request.
func TestSettlingAllocatesNothing(t *testing.T) {
	m, r := NewMetrics(), record()
	r.ErrorCode, r.Depth, r.Tries = "no_room", "head", 2
	m.Settle(r)
	if n := testing.AllocsPerRun(100, func() { m.Settle(r) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func BenchmarkSettleMetrics(b *testing.B) {
	m, r := NewMetrics(), record()
	b.ReportAllocs()
	for b.Loop() {
		m.Settle(r)
	}
}
