package main

import (
	"cmp"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/prefixring/prefixring/health"
	"github.com/prefixring/prefixring/internal/config"
	"github.com/prefixring/prefixring/internal/fingerprint"
	"github.com/prefixring/prefixring/internal/proxy"
	"github.com/prefixring/prefixring/internal/residency"
	"github.com/prefixring/prefixring/internal/session"
	"github.com/prefixring/prefixring/ring"
)

// pool is the ring of one model and what is known about its nodes' caches. It outlives
// reloads, so that counters and warmth do, too.
type pool struct {
	name      string
	affinity  proxy.Affinity
	conf      *config.Pool
	ring      *ring.Ring
	sizer     *ring.KSizer
	residency *residency.Table
	learning
	bindings *session.Store // nil = off
	planned  sync.Map       // fingerprint -> owners that a prewarm has proven warm (int)
}

func newPool(name string, conf *config.Pool, b *config.Bindings) (*pool, error) {
	pl := &conf.Placement
	units := func(requests float64) int64 { return int64(requests * float64(ring.Unit)) }
	r, err := ring.New(ring.Options{
		Factor: pl.Factor, Floor: units(pl.Floor), Margin: units(pl.Margin), Hard: units(pl.Hard), Follow: pl.Follow,
	})
	if err != nil {
		return nil, err
	}
	store, err := newBindings(b, conf)
	if err != nil {
		return nil, err
	}
	return &pool{
		name: name, bindings: store, affinity: newAffinity(b, conf), conf: conf, ring: r, learning: newLearning(),
		sizer:     ring.NewKSizer(ring.KOptions{}),
		residency: residency.New(residency.Options{}),
	}, nil
}

// fill makes members the nodes of the ring. A node takes work once health says so.
func (p *pool) fill(members []*member) error {
	p.conf = members[0].pool
	var list []ring.Member
	for _, m := range members {
		list = append(list, ring.Member{Name: m.conf.Name, Weight: m.conf.Weight, Value: m.upstream, Level: m.level})
	}
	before := p.ring.Nodes()
	if err := p.ring.Apply(list); err != nil {
		return err
	}
	for _, n := range before {
		if n.Gone() {
			p.bindings.EvictTarget(uint64(n.ID()))
		}
	}
	for _, m := range members {
		n := p.ring.Node(m.conf.Name)
		n.SetValue(m.upstream)
		n.SetLevel(m.level)
		m.forbid()
	}
	return nil
}

// route is the pool as the data plane sees it. It is replaced with the routing table:
// requests under way keep the one that they were read with.
func (p *pool) route(members []*member, scanner *fingerprint.Scanner, known *named) *proxy.Pool {
	models := slices.Clone(p.conf.Models)
	for _, m := range members {
		models = append(models, m.models...)
	}
	slices.Sort(models)
	fixed := p.conf.Placement.Owners // as of this table: the next one may have another
	return &proxy.Pool{
		Name: p.name, Models: slices.Compact(models), Aliases: p.conf.Aliases, Salt: p.conf.Salt,
		Ring: p.ring, Scanner: scanner, Lead: int(p.conf.Placement.CompletionLead), Named: known.names(),
		Residency: p.residency, Bindings: p.bindings, Affinity: p.affinity,
		Owners: func(fp uint64, work int64) int {
			return p.atLeast(fp, fixed, p.sizer.Observe(fp, work, p.ring.Usable()))
		},
		OwnersNow: func(fp uint64) int { return p.atLeast(fp, fixed, p.sizer.K(fp, p.ring.Usable())) },
	}
}

// atLeast is how many owners a fingerprint has: as many as are fixed, else as its measured
// load asks for, and no fewer than a prewarm has proven.
func (p *pool) atLeast(fp uint64, fixed, measured int) int {
	if fixed > 0 {
		return fixed
	}
	if n, ok := p.planned.Load(fp); ok {
		return max(measured, n.(int))
	}
	return measured
}

func sortedKeys[K cmp.Ordered, V any](m map[K]V) []K { return slices.Sorted(maps.Keys(m)) }

// healthSettings maps configuration to health's own; zero stays zero there.
func healthSettings(h *config.Health) health.Settings {
	o := health.Settings{
		Metrics:  health.Probe{Period: h.Interval.D(), Timeout: h.Timeout.D()},
		Failures: h.Failures, HangAfter: h.HangAfter.D(), SlowStart: h.SlowStart.D(),
	}
	// Only the first step is configured; the others keep their distance from it.
	if w := h.Waiting; w > 0 {
		o.Thresholds.Waiting = health.Steps{Enter: [3]float64{w, 4 * w, 16 * w}, Leave: [3]float64{0, 2 * w, 8 * w}}
	}
	if kv := h.KVUsage; kv > 0 {
		step := func(share float64) float64 { return kv + (1-kv)*share }
		o.Thresholds.KVUsage = health.Steps{
			Enter: [3]float64{kv, step(0.4), step(0.7)},
			Leave: [3]float64{kv * 0.93, kv*0.93 + (step(0.4) - kv), kv*0.93 + (step(0.7) - kv)},
		}
	}
	return o
}

// timeouts maps configuration to the data plane's.
func timeouts(l *config.Limits) proxy.Timeouts {
	return proxy.Timeouts{
		Connect: l.Connect.D(), FirstByte: l.FirstByte.D(), Announce: l.Announce.D(), BetweenEvents: l.BetweenEvents.D(),
		Total: l.Total.D(), EngineIdle: l.EngineIdle.D(),
		ReadRequest: l.ReadRequest.D(), ClientIdle: l.ClientIdle.D(), ClientStall: l.ClientStall.D(),
	}
}

// proxyOptions maps configuration to the data plane's own; zero stays zero there.
func proxyOptions(c *config.Config) (proxy.Options, error) {
	salt, err := saltSecret(c)
	if err != nil {
		return proxy.Options{}, err
	}
	o := proxy.Options{
		MaxBody: int(c.Limits.MaxBody), MaxHeader: int(c.Limits.MaxHeader),
		Timeouts: timeouts(&c.Limits),
		Queue: proxy.Queue{
			Wait: c.Limits.QueueWait.D(), Depth: c.Limits.QueueDepth, Gate: c.Limits.GateWait.D(),
		},
		Retry:         proxy.Retry{Ratio: c.Retry.Budget, OnTimeout: c.Retry.OnTimeout},
		QuantumTokens: c.Work.QuantumTokens, BytesPerToken: c.Work.BytesPerToken, FatTokens: c.Work.FatTokens,
		Heartbeat: c.Limits.Heartbeat.D(), Hedge: c.Retry.Hedge.D(),
		Explain: c.Telemetry.Explain, InjectUsage: true,
		SaltTenants: salt != nil, SaltSecret: salt, PassClientKey: c.Access.PassClientKey,
		Now: time.Now,
	}
	if m := c.Retry.Max; m != nil {
		o.Retry.Max = *m
		if *m == 0 {
			o.Retry.Max = -1 // there, zero means the default
		}
	}
	return o, nil
}
