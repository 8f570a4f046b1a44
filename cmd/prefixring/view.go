package main

import (
	"fmt"
	"math"
	"time"

	"github.com/prefixring/prefixring/health"
	"github.com/prefixring/prefixring/internal/dialect"
	"github.com/prefixring/prefixring/internal/fingerprint"
	"github.com/prefixring/prefixring/internal/proxy"
	"github.com/prefixring/prefixring/internal/session"
	"github.com/prefixring/prefixring/internal/telemetry"
	"github.com/prefixring/prefixring/prewarm"
	"github.com/prefixring/prefixring/ring"
)

// fleetView is what /api/v1/fleet and status show.
type fleetView struct {
	Ready  string     `json:"ready"` // "yes", or why not
	Nodes  []nodeView `json:"nodes"`
	Totals totalView  `json:"totals"`
	Pools  []poolView `json:"pools"`

	Discovery []discoveryView `json:"discovery,omitempty"` // of pools whose engines are found

	Bindings map[string]session.Stats `json:"bindings,omitempty"` // by pool, where they are on

	Routes   []routeView   `json:"routes,omitempty"`
	Channels []channelView `json:"channels"` // empty: nothing leaves the fleet

	Prewarm []prewarm.CellStatus `json:"prewarm,omitempty"` // without a manifest there is none
}

// nodeView is one engine. Numbers that are not known are null.
type nodeView struct {
	Name     string   `json:"name"`
	Pool     string   `json:"pool"`
	URL      string   `json:"url"`
	Dialect  string   `json:"dialect"`
	State    string   `json:"state"`
	Reason   string   `json:"reason"`
	Seconds  float64  `json:"seconds_in_state"`
	Takes    string   `json:"takes"`
	InFlight int64    `json:"in_flight"`
	Load     float64  `json:"load"` // in requests; uncached prompt tokens count as their share of one
	Running  *float64 `json:"running"`
	Waiting  *float64 `json:"waiting"`
	KVUsage  *float64 `json:"kv_usage"`
	Models   []string `json:"models"`
	Version  string   `json:"version"`
	Epoch    int      `json:"cache_losses"`
	Hint     string   `json:"hint,omitempty"`
}

type totalView struct {
	Requests      int64    `json:"requests"`
	Errors        int64    `json:"errors"`
	PromptTokens  int64    `json:"prompt_tokens"`
	CachedTokens  int64    `json:"cached_tokens"`
	HitRate       *float64 `json:"hit_rate"` // of requests whose engine reported; null when none did
	UnknownUsages int64    `json:"requests_without_report"`
}

// view collects the facts of the moment.
func (f *fleet) view(t *telemetry.Totals) fleetView {
	v := fleetView{Ready: "yes", Nodes: []nodeView{}}
	if err := f.ready(); err != nil {
		v.Ready = err.Error()
	}
	v.Totals = totalView{
		Requests: t.Requests.Load(), Errors: t.Errors.Load(), PromptTokens: t.Prompt.Load(),
		CachedTokens: t.Cached.Load(), UnknownUsages: t.UnknownOf.Load(),
	}
	if p := v.Totals.PromptTokens; p > 0 {
		rate := float64(v.Totals.CachedTokens) / float64(p)
		v.Totals.HitRate = &rate
	}
	v.Prewarm, v.Discovery, v.Pools = f.warmCells(), f.discoveries(), f.learnedViews()
	v.Bindings = f.bindingStats()
	v.Routes = f.routeViews()
	v.Channels = f.channelViews()
	statuses := f.health.Snapshot()
	f.mu.Lock()
	defer f.mu.Unlock()
	for i := range statuses {
		v.Nodes = append(v.Nodes, f.nodeView(&statuses[i]))
	}
	return v
}

// nodeView describes one node. The caller holds mu.
func (f *fleet) nodeView(s *health.Status) nodeView {
	v := nodeView{
		Name: s.Name, Pool: s.Pool, URL: s.URL, Dialect: s.Engine.String(), State: s.State.String(), Reason: s.Reason,
		Takes: s.Level.String(), Models: append([]string{}, s.Models...), Version: s.Version, Epoch: s.Epoch,
		Running: known(s.Signals.Running), Waiting: known(s.Signals.Waiting), KVUsage: known(s.Signals.KVUsage),
	}
	v.Models = append(v.Models, s.Adapters...)
	if !s.Since.IsZero() {
		v.Seconds = math.Round(time.Since(s.Since).Seconds()*10) / 10
	}
	if m := f.nodes[s.Name]; m != nil && f.pools[m.in] != nil {
		v.Pool = m.in
		if n := f.pools[m.in].ring.Node(s.Name); n != nil {
			v.InFlight, v.Load = n.InFlight(), float64(n.Load())/float64(ring.Unit)
		}
	}
	switch {
	case s.AuthFailing:
		v.Hint = "the engine refuses the configured key (api_key_file)"
	case s.NoHits:
		v.Hint = "the engine has had no prefix-cache hit for a minute; is its prefix cache on?"
	case s.AffinityLimited:
		v.Hint = "several data-parallel ranks answer behind this URL: pod affinity limited"
	case len(s.Missing) > 0:
		v.Hint = fmt.Sprintf("not reported: %v", s.Missing)
	}
	return v
}

func known(x float64) *float64 {
	if math.IsNaN(x) || math.IsInf(x, 0) {
		return nil
	}
	return &x
}

// gauges registers what is read at each scrape.
func (f *fleet) gauges() {
	for name, read := range map[string]func(*proxy.Stats) int64{
		"prefixring_client_connections":  func(s *proxy.Stats) int64 { return s.Clients },
		"prefixring_requests_running":    func(s *proxy.Stats) int64 { return s.Running },
		"prefixring_requests_waiting":    func(s *proxy.Stats) int64 { return s.Waiting },
		"prefixring_engine_connections":  func(s *proxy.Stats) int64 { return s.EngineConns },
		"prefixring_retry_budget_spent":  func(s *proxy.Stats) int64 { return s.Retries },
		"prefixring_retry_budget_denied": func(s *proxy.Stats) int64 { return s.RetriesDenied },
	} {
		f.metrics.Gauge(name, func() float64 { s := f.proxy.Stats(); return float64(read(&s)) })
	}
}

// nodeGauges registers those of one node, until it is dropped.
func (f *fleet) nodeGauges(name string) {
	for metric, read := range map[string]func(*ring.Node) int64{
		"prefixring_node_in_flight":  (*ring.Node).InFlight,
		"prefixring_node_load_units": (*ring.Node).Load,
		"prefixring_node_level":      func(n *ring.Node) int64 { return int64(n.Level()) },
	} {
		f.metrics.Gauge(metric, func() float64 { return f.ofNode(name, read) }, "node", name)
	}
}

// ofNode reads one number of a node; NaN when it is in no ring.
func (f *fleet) ofNode(name string, read func(*ring.Node) int64) float64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	if m := f.nodes[name]; m != nil && f.pools[m.in] != nil {
		if n := f.pools[m.in].ring.Node(name); n != nil {
			return float64(read(n))
		}
	}
	return math.NaN()
}

func (f *fleet) operate(action, node string) error {
	switch action {
	case "drain":
		return f.health.Drain(node)
	case "cordon":
		return f.health.Cordon(node)
	default:
		return f.health.Resume(node)
	}
}

// explanation is what the data plane says of a body; the fingerprint is in hex, because
// JSON readers round large numbers. It shows lengths and digests, no text.
type explanation struct {
	proxy.Explanation
	Fingerprint string `json:"fingerprint,omitempty"`
	BodyBytes   int    `json:"body_bytes"`
}

// explain decides for a body as the data plane would, and touches no engine.
func (f *fleet) explain(path string, body []byte) (any, error) {
	x, err := f.proxy.Explain(path, "", body)
	if err != nil {
		return nil, err
	}
	if x.Error != "" {
		return nil, fmt.Errorf("the request would be refused with %s: %s", x.Error, x.Message)
	}
	e := explanation{Explanation: x, BodyBytes: len(body)}
	if x.Fingerprint != 0 {
		e.Fingerprint = fmt.Sprintf("%016x", x.Fingerprint)
	}
	return e, nil
}

// poolOf finds the pool of a model name, and the name that its engines know.
func (f *fleet) poolOf(asked string) (*pool, string, error) {
	for _, name := range sortedKeys(f.pools) {
		p := f.pools[name]
		if to, ok := p.conf.Aliases[asked]; ok {
			return p, to, nil
		}
		for _, m := range f.nodes {
			if m.in == name && contains(m.models, p.conf.Models, asked) {
				return p, asked, nil
			}
		}
	}
	return nil, "", fmt.Errorf("model %q is served by no pool", asked)
}

func contains(a, b []string, s string) bool {
	for _, list := range [...][]string{a, b} {
		for _, x := range list {
			if x == s {
				return true
			}
		}
	}
	return false
}

// assumeReady opens every node, and lets engines whose models nobody has named serve the
// one that the body asks for: placement by itself, without the state of the fleet.
func (f *fleet) assumeReady(p dialect.Protocol, body []byte) error {
	s, err := fingerprint.NewScanner(fingerprint.Options{})
	if err != nil {
		return err
	}
	var r fingerprint.Result
	if err := s.Scan(p, body, &r); err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, m := range f.nodes {
		m.level = ring.Open
		if len(m.pool.Models) == 0 {
			m.models = []string{string(fingerprint.Text(body, r.Model, nil))}
		}
	}
	return f.rebuild()
}
