package telemetry

import (
	"io"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/VictoriaMetrics/metrics"

	"github.com/prefixring/prefixring/internal/dialect"
)

// Metrics counts settled requests. Label values come from configuration and from
// fixed lists, never from clients (field case B65): the number of series is bounded
// by nodes x protocols x outcomes. It implements Sink.
type Metrics struct {
	set    *metrics.Set
	series sync.Map // seriesKey -> *series: written once per combination, then only read
	usage  struct{ unknown *metrics.Counter }
}

// seriesKey is a combination of label values. Status is a class, so that codes an
// engine invents make no series.
type seriesKey struct {
	protocol, pool, node, class, verdict string
}

type series struct {
	requests, bytesIn, bytesOut *metrics.Counter
	retries                     *metrics.Counter
	firstToken, total, queue    *metrics.PrometheusHistogram
}

// latencyBuckets reach from a warm thin request to a cold prefill behind a queue.
var latencyBuckets = []float64{0.005, 0.01, 0.025, 0.05, 0.1, 0.18, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600}

// NewMetrics returns a set without series.
func NewMetrics() *Metrics {
	m := &Metrics{set: metrics.NewSet()}
	m.usage.unknown = m.set.NewCounter("prefixring_usage_unknown_requests_total")
	m.set.NewGauge(buildInfo(), func() float64 { return 1 })
	return m
}

// buildInfo names the series that tells what runs.
func buildInfo() string {
	version, goVersion := "unknown", "unknown"
	if b, ok := debug.ReadBuildInfo(); ok {
		version, goVersion = b.Main.Version, b.GoVersion
	}
	return name("prefixring_build_info", "version", version, "go", goVersion)
}

// Settle counts one request.
func (m *Metrics) Settle(r *Record) {
	s := m.of(seriesKey{r.Protocol, r.Pool, r.Node, statusClass(r.Status), r.Verdict.String()})
	s.requests.Inc()
	s.bytesIn.Add(int(r.BytesIn))
	s.bytesOut.Add(int(r.BytesOut))
	if r.Tries > 1 {
		s.retries.Add(r.Tries - 1)
	}
	if r.FirstToken > 0 {
		s.firstToken.Update(r.FirstToken.Seconds())
	}
	s.total.Update(r.Total.Seconds())
	s.queue.Update(r.Queue.Seconds())
	m.count("prefixring_picks_total", "pool", r.Pool, "reason", orNone(r.Reason))
	m.count("prefixring_key_kind_total", "protocol", r.Protocol, "kind", orNone(r.Kind))
	if r.Depth != "" {
		m.count("prefixring_learned_requests_total", "pool", r.Pool, "depth", r.Depth)
	}
	if r.ErrorCode != "" {
		m.count("prefixring_refusals_total", "code", r.ErrorCode)
	}
	m.tokens(r)
}

// tokens counts what the engine reported. Unknown is not zero (field case B67): such
// a request is counted as unknown and enters no ratio.
func (m *Metrics) tokens(r *Record) {
	u := &r.Usage
	if u.Prompt == dialect.Unknown || u.Cached == dialect.Unknown {
		if r.Verdict == dialect.Success {
			m.usage.unknown.Inc()
		}
	} else {
		m.add(u.Prompt-u.Cached, "prefixring_prompt_tokens_total", "node", r.Node, "source", "uncached")
		m.add(u.Cached, "prefixring_prompt_tokens_total", "node", r.Node, "source", "cached")
	}
	if u.Output != dialect.Unknown {
		m.add(u.Output, "prefixring_output_tokens_total", "node", r.Node)
	}
}

func (m *Metrics) count(metric string, labels ...string) { m.add(1, metric, labels...) }

func (m *Metrics) add(n int64, metric string, labels ...string) {
	m.set.GetOrCreateCounter(name(metric, labels...)).Add(int(n))
}

// of returns the series of a combination.
func (m *Metrics) of(k seriesKey) *series {
	if s, ok := m.series.Load(k); ok {
		return s.(*series)
	}
	all := []string{"protocol", k.protocol, "pool", k.pool, "node", k.node, "status", k.class, "verdict", k.verdict}
	node := []string{"protocol", k.protocol, "node", k.node}
	s := &series{
		requests:   m.set.GetOrCreateCounter(name("prefixring_requests_total", all...)),
		bytesIn:    m.set.GetOrCreateCounter(name("prefixring_request_bytes_total", node...)),
		bytesOut:   m.set.GetOrCreateCounter(name("prefixring_response_bytes_total", node...)),
		retries:    m.set.GetOrCreateCounter(name("prefixring_retries_total", node...)),
		firstToken: m.set.GetOrCreatePrometheusHistogramExt(name("prefixring_time_to_first_token_seconds", node...), latencyBuckets),
		total:      m.set.GetOrCreatePrometheusHistogramExt(name("prefixring_request_seconds", node...), latencyBuckets),
		queue:      m.set.GetOrCreatePrometheusHistogramExt(name("prefixring_queue_seconds", "pool", k.pool), latencyBuckets),
	}
	have, _ := m.series.LoadOrStore(k, s)
	return have.(*series)
}

// Churn counts a new static prefix by what it differs in from the ones before.
func (m *Metrics) Churn(pool, change string) {
	m.count("prefixring_prefix_churn_total", "pool", pool, "change", change)
}

// KeyMoved counts a learned key that took the place of another one.
func (m *Metrics) KeyMoved(pool string) {
	m.count("prefixring_learned_key_changes_total", "pool", pool)
}

// Gauge registers a value that is read at each scrape.
func (m *Metrics) Gauge(metric string, f func() float64, labels ...string) {
	m.set.GetOrCreateGauge(name(metric, labels...), f)
}

// Drop removes all series of a node that has left.
func (m *Metrics) Drop(node string) {
	mark := `node=` + strconv.Quote(node)
	for _, n := range m.set.ListMetricNames() {
		if strings.Contains(n, mark) {
			m.set.UnregisterMetric(n)
		}
	}
	m.series.Range(func(k, _ any) bool {
		if k.(seriesKey).node == node {
			m.series.Delete(k)
		}
		return true
	})
}

// Write writes all series in the Prometheus text format, with those of the process.
func (m *Metrics) Write(w io.Writer) {
	m.set.WritePrometheus(w)
	metrics.WriteProcessMetrics(w)
}

// name puts labels behind a metric's name. Pairs are key, value.
func name(metric string, pairs ...string) string {
	if len(pairs) == 0 {
		return metric
	}
	b := make([]byte, 0, 128)
	b = append(append(b, metric...), '{')
	for i := 0; i+1 < len(pairs); i += 2 {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(append(b, pairs[i]...), '=')
		b = strconv.AppendQuote(b, pairs[i+1])
	}
	return string(append(b, '}'))
}

func statusClass(status int) string {
	switch {
	case status == 499:
		return "499"
	case status >= 100 && status < 600:
		return [...]string{"1xx", "2xx", "3xx", "4xx", "5xx"}[status/100-1]
	}
	return "none"
}

func orNone(s string) string {
	if s == "" {
		return "none"
	}
	return s
}

// Sinks hands each record to several sinks, in order.
type Sinks []Sink

// Settle implements Sink.
func (s Sinks) Settle(r *Record) {
	for _, sink := range s {
		sink.Settle(r)
	}
}

// Totals are sums over all requests, for the status line and the summary at the end.
type Totals struct {
	Requests, Errors          atomic.Int64
	Prompt, Cached, UnknownOf atomic.Int64
}

// Settle implements Sink.
func (t *Totals) Settle(r *Record) {
	t.Requests.Add(1)
	if r.Status >= 500 || r.Verdict == dialect.Failed {
		t.Errors.Add(1)
	}
	if r.Usage.Prompt == dialect.Unknown || r.Usage.Cached == dialect.Unknown {
		t.UnknownOf.Add(1)
		return
	}
	t.Prompt.Add(r.Usage.Prompt)
	t.Cached.Add(r.Usage.Cached)
}
