package telemetry

import (
	"io"
	"runtime/debug"
	"strconv"
	"strings"
	"sync/atomic"

	"github.com/VictoriaMetrics/metrics"

	"github.com/prefixring/prefixring/internal/dialect"
)

// Metrics counts settled requests. Label values come from configuration and from
// fixed lists, never from clients (field case B65): the number of series is bounded
// by nodes x protocols x outcomes. It implements Sink.
type Metrics struct {
	set      *metrics.Set
	series   handles[seriesKey, *series]
	counters handles[counterKey, *metrics.Counter]
	usage    struct{ unknown *metrics.Counter }
}

// seriesKey is a combination of label values. Status is a class, so that codes an
// engine invents make no series.
type seriesKey struct {
	protocol, pool, node, class, verdict string
}

// family is a kind of counters with one or two labels.
type family uint8

const (
	picks family = iota
	keyKinds
	learned
	refusals
	promptTokens
	outputTokens
	churn
	keyChanges
)

var families = [...]struct{ name, one, two string }{
	picks:        {"prefixring_picks_total", "pool", "reason"},
	keyKinds:     {"prefixring_key_kind_total", "protocol", "kind"},
	learned:      {"prefixring_learned_requests_total", "pool", "depth"},
	refusals:     {"prefixring_refusals_total", "code", ""},
	promptTokens: {"prefixring_prompt_tokens_total", "node", "source"},
	outputTokens: {"prefixring_output_tokens_total", "node", ""},
	churn:        {"prefixring_prefix_churn_total", "pool", "change"},
	keyChanges:   {"prefixring_learned_key_changes_total", "pool", ""},
}

// counterKey is one counter: its family and the values of its labels.
type counterKey struct {
	family   family
	one, two string
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
	m.counter(picks, r.Pool, orNone(r.Reason)).Inc()
	m.counter(keyKinds, r.Protocol, orNone(r.Kind)).Inc()
	if r.Depth != "" {
		m.counter(learned, r.Pool, r.Depth).Inc()
	}
	if r.ErrorCode != "" {
		m.counter(refusals, r.ErrorCode, "").Inc()
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
		m.counter(promptTokens, r.Node, "uncached").Add(int(u.Prompt - u.Cached))
		m.counter(promptTokens, r.Node, "cached").Add(int(u.Cached))
	}
	if u.Output != dialect.Unknown {
		m.counter(outputTokens, r.Node, "").Add(int(u.Output))
	}
}

// counter returns a counter by the values of its labels. Its name is built once, not per
// request.
func (m *Metrics) counter(f family, one, two string) *metrics.Counter {
	k := counterKey{f, one, two}
	if c, ok := m.counters.get(k); ok {
		return c
	}
	pairs := []string{families[f].one, one}
	if families[f].two != "" {
		pairs = append(pairs, families[f].two, two)
	}
	return m.counters.put(k, m.set.GetOrCreateCounter(name(families[f].name, pairs...)))
}

// of returns the series of a combination.
func (m *Metrics) of(k seriesKey) *series {
	if s, ok := m.series.get(k); ok {
		return s
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
	return m.series.put(k, s)
}

// Churn counts a new static prefix by what it differs in from the ones before.
func (m *Metrics) Churn(pool, change string) {
	m.counter(churn, pool, change).Inc()
}

// KeyMoved counts a learned key that took the place of another one.
func (m *Metrics) KeyMoved(pool string) {
	m.counter(keyChanges, pool, "").Inc()
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
	m.series.drop(func(k seriesKey) bool { return k.node == node })
	m.counters.drop(func(k counterKey) bool { return families[k.family].one == "node" && k.one == node })
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
