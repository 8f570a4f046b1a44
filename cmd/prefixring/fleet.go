package main

import (
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/prefixring/prefixring/health"
	"github.com/prefixring/prefixring/internal/config"
	"github.com/prefixring/prefixring/internal/fingerprint"
	"github.com/prefixring/prefixring/internal/proxy"
	"github.com/prefixring/prefixring/internal/residency"
	"github.com/prefixring/prefixring/internal/session"
	"github.com/prefixring/prefixring/internal/telemetry"
	"github.com/prefixring/prefixring/prewarm"
	"github.com/prefixring/prefixring/ring"
)

// fleet ties configuration, health, rings and the data plane together: it is told what
// each engine is and does, and keeps the routing table in line with that.
type fleet struct {
	log     *slog.Logger
	metrics *telemetry.Metrics
	proxy   *proxy.Proxy
	health  *health.Manager
	leaving atomic.Bool // SIGTERM has come: readiness fails before work is refused

	keeper *prewarm.Scheduler // keeps the manifest warm; nil = nobody does. Set before health runs

	// applying orders changes of the membership: reloads, and what discovery finds. It is
	// taken before mu, and held while health and the ring are told.
	applying sync.Mutex
	found    discovered // guarded by applying

	mu    sync.Mutex // guards what follows; never held when the keeper is called
	cfg   *config.Config
	keys  *proxy.Keyring     // nil = everyone may
	known *named             // the manifest and its prefixes; nil = none
	pools map[string]*pool   // by display name
	nodes map[string]*member // by node name

	channels map[string]*hosted        // by name; none = nothing leaves the fleet
	memories map[string]*session.Store // of tool loops, by route
	taken    map[string]*atomic.Int64  // requests by member of a route

	scanner *fingerprint.Scanner // of all pools

	waysMu sync.Mutex      // guards ways
	ways   map[way]*access // to engines, so that a reload keeps connections and probes
}

// member is a configured engine and the pool that it is in at present.
type member struct {
	conf     config.Engine
	pool     *config.Pool
	access   *access
	timeouts proxy.Timeouts
	upstream *proxy.Upstream
	models   []string // as it lists them, adapters included; empty until it was asked
	in       string   // display name of its pool; empty while its model is not known
	level    ring.Level
	epoch    int
	state    health.State
}

// newFleet returns a fleet without members: apply gives it those of a configuration.
func newFleet(log *slog.Logger, metrics *telemetry.Metrics) (*fleet, error) {
	f := &fleet{log: log, metrics: metrics, pools: map[string]*pool{}, nodes: map[string]*member{}, taken: map[string]*atomic.Int64{}, ways: map[way]*access{}}
	var err error
	if f.health, err = health.New(health.Options{Logger: log, OnChange: f.onChange, OnSignals: f.onSignals}); err != nil {
		return nil, err
	}
	return f, nil
}

// rebuild sorts the nodes into pools and gives the data plane a new table. The caller
// holds mu.
func (f *fleet) rebuild() error {
	members := map[string][]*member{}
	for _, m := range f.sorted() {
		m.in = m.home()
		if m.in != "" {
			members[m.in] = append(members[m.in], m)
		}
	}
	scanner, err := f.scannerOf(members)
	if err != nil {
		return err
	}
	pools := map[string]*pool{}
	var routed []*proxy.Pool
	for _, name := range sortedKeys(members) {
		p := f.pools[name]
		if p == nil {
			var err error
			if p, err = newPool(name, members[name][0].pool, &f.cfg.Bindings); err != nil {
				return err
			}
			f.poolGauges(name)
		}
		if err := p.fill(members[name]); err != nil {
			return err
		}
		pools[name] = p
		to := p.route(members[name], scanner, f.known)
		p.learn(to, f.metrics, f.log)
		routed = append(routed, to)
	}
	for _, name := range sortedKeys(f.channels) {
		routed = append(routed, f.channels[name].pool(scanner))
	}
	routes, err := f.routes(routed)
	if err != nil {
		return err
	}
	table, err := proxy.NewTable(routed, routes...)
	if err != nil {
		return err
	}
	f.pools, f.scanner = pools, scanner
	f.proxy.SetTable(table)
	return nil
}

// scannerOf makes the scanner for the pools that have members. The caller holds mu.
func (f *fleet) scannerOf(members map[string][]*member) (*fingerprint.Scanner, error) {
	var conf []*config.Pool
	for _, name := range sortedKeys(members) {
		conf = append(conf, members[name][0].pool)
	}
	return newScanner(f.known, conf)
}

// home is the display name of the pool that a member belongs in: the configured one
// where it names its models, else one per model that engines turn out to serve, so that
// a request never lands on an engine without its model (field case B32).
func (m *member) home() string {
	if len(m.pool.Models) > 0 {
		return m.pool.Name
	}
	if len(m.models) == 0 {
		return ""
	}
	if m.pool.Name == "default" {
		return m.models[0]
	}
	return m.pool.Name + "/" + m.models[0]
}

func (f *fleet) sorted() []*member {
	out := make([]*member, 0, len(f.nodes))
	for _, name := range sortedKeys(f.nodes) {
		out = append(out, f.nodes[name])
	}
	return out
}

// onChange follows one node: its level decides what it is given, a lost cache makes
// all its prefixes cold, and what it serves decides its pool.
func (f *fleet) onChange(_, s health.Status) {
	if f.follow(&s) && f.keeper != nil {
		f.keeper.Lost(s.Name, s.Reason)
	}
}

// follow books a node's change and says if its cache is gone.
func (f *fleet) follow(s *health.Status) (lost bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	m := f.nodes[s.Name]
	if m == nil {
		return false
	}
	m.level, m.state = s.Level, s.State
	m.forbid()
	models := slices.Concat(s.Models, s.Adapters)
	if len(models) > 0 && !slices.Equal(models, m.models) {
		m.models = models
		if err := f.rebuild(); err != nil {
			f.log.Error("routing table not changed", "error", err)
		}
	}
	p := f.pools[m.in]
	if p == nil {
		return false
	}
	n := p.ring.Node(s.Name)
	if n == nil {
		return false
	}
	n.SetLevel(s.Level)
	if s.Epoch != m.epoch {
		m.epoch = s.Epoch
		p.residency.Forget(n.ID(), residency.Restart)
		p.bindings.EvictTarget(uint64(n.ID())) // what they led to is not in cache any more
		return true
	}
	return false
}

// onSignals learns how many tokens fit on a node.
func (f *fleet) onSignals(name string, s *health.Signals) {
	if s.KVTokens <= 0 {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if m := f.nodes[name]; m != nil {
		if p := f.pools[m.in]; p != nil {
			if n := p.ring.Node(name); n != nil {
				p.residency.SetCapacity(n.ID(), s.KVTokens)
			}
		}
	}
}

// report hands passive evidence of the data plane to health.
func (f *fleet) report(node string, o proxy.Outcome) {
	kind := health.Success
	switch o {
	case proxy.OutcomeConnectFailed:
		kind = health.ConnectFailed
	case proxy.OutcomeClosed:
		kind = health.Reset
	case proxy.OutcomeTimeout:
		kind = health.HeaderTimeout
	case proxy.OutcomeStalled:
		kind = health.Truncated
	case proxy.OutcomeBusy:
		kind = health.Busy
	case proxy.OutcomeError:
		kind = health.ServerError
	case proxy.OutcomeAuth:
		kind = health.ClientError
	}
	f.health.Report(node, health.PassiveOutcome{Kind: kind})
}

// ready says why the router cannot serve, or nil.
func (f *fleet) ready() error {
	if f.leaving.Load() {
		return fmt.Errorf("draining: no new work is taken")
	}
	// The ring's own view decides: health knows of a change a moment before the ring does.
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, m := range f.nodes {
		if m.in != "" && m.level < ring.Closed {
			return nil
		}
	}
	return fmt.Errorf("none of %d engines can take work; /api/v1/fleet tells why", len(f.nodes))
}
