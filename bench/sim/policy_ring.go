package sim

import (
	"fmt"
	"math"
	"time"

	"github.com/prefixring/prefixring/internal/residency"
	"github.com/prefixring/prefixring/internal/session"
	"github.com/prefixring/prefixring/ring"
)

// The limits of the proxy that shape placement; internal/proxy has the same defaults.
const (
	fatTokens     = 4096
	quantumTokens = 8192
)

// ringPolicy is prefixring: the production ring, owner sizing, residency and bindings,
// asked the way internal/proxy asks them.
type ringPolicy struct {
	base
	ring     *ring.Ring
	nodes    []*ring.Node // by engine
	sizer    *ring.KSizer
	table    *residency.Table
	bindings *session.Store // nil: off
	fixed    map[uint64]int // owners that a prewarm manifest asks for
	now      time.Duration
}

// ticket is what a request holds while it is out.
type ticket struct {
	slot  ring.Slot
	lead  *ring.Node
	key   session.Key
	stamp uint64
	gen   uint64
}

// epoch is where simulated time begins on the production packages' clocks.
var epoch = time.Unix(1_800_000_000, 0)

// memory is what the ring knows of conversations.
type memory uint8

const (
	noMemory   memory = iota
	production        // bindings with their default bound, life and use limit
	everything        // the oracle: every conversation, for ever, whatever the load of its node
)

func newRing(b base, m memory) (*ringPolicy, error) {
	p := &ringPolicy{base: b, fixed: map[uint64]int{}}
	clock := func() time.Time { return epoch.Add(p.now) }
	// Room enough that nothing is thrown out for want of it: which shard would be full
	// first depends on the store's secret, and a simulation must not.
	bindings := session.Options{Max: 1 << 20, Now: func() time.Duration { return p.now }}
	var o ring.Options
	if m == everything {
		o.Follow, bindings.TTL, bindings.Uses = 100, session.MaxTTL, -1
	}
	var err error
	if p.ring, err = ring.New(o); err != nil {
		return nil, err
	}
	members := make([]ring.Member, len(b.load))
	for i := range members {
		members[i] = ring.Member{Name: fmt.Sprintf("engine-%05d", i), Value: int32(i)}
	}
	if err := p.ring.Apply(members); err != nil {
		return nil, err
	}
	p.nodes = make([]*ring.Node, len(members))
	for _, n := range p.ring.Nodes() {
		p.nodes[n.Value().(int32)] = n
	}
	p.sizer = ring.NewKSizer(ring.KOptions{Now: clock})
	p.table = residency.New(residency.Options{Now: clock, MaxEntries: 1 << 17})
	for i, n := range p.nodes {
		kv := p.s.fleet.nodes[i].core
		p.table.SetCapacity(n.ID(), int64(kv.Capacity()))
	}
	if m != noMemory {
		p.bindings, err = session.New(bindings)
	}
	return p, err
}

// gate is the warm gate of internal/proxy.
type gate struct {
	p    *ringPolicy
	f    *flight
	k    int
	cold bool
	lead *ring.Node
}

func (g *gate) Warm(n *ring.Node) bool {
	w, _ := g.p.table.Warmth(n.ID(), g.f.Key)
	return w == residency.Warm
}

func (g *gate) Admit(n *ring.Node) (extra int64, ok bool) {
	if g.f.barred(n.Value().(int32)) {
		return 0, false
	}
	if g.Warm(n) {
		return 0, true
	}
	cost := int64(g.f.Static) * ring.Unit / quantumTokens
	if g.f.Static < fatTokens || g.cold {
		return cost, true
	}
	if !g.p.table.LeadAmong(n.ID(), g.f.Key, g.k) {
		return 0, false
	}
	g.lead = n
	return cost, true
}

func (p *ringPolicy) pick(now time.Duration, f *flight, last bool) (int32, verdict) {
	p.now = now
	t, _ := f.ticket.(*ticket)
	if t == nil {
		t = &ticket{}
		f.ticket = t
	}
	work := ring.Unit + int64(f.Prompt.Tokens-f.Static)*ring.Unit/quantumTokens
	q := ring.Query{Key: f.Key, Second: f.Session, Work: work}
	if !f.waiting { // a waiting request was counted when it came
		q.K = p.sizer.Observe(f.Key, work, len(p.alive))
	} else {
		q.K = p.sizer.K(f.Key, len(p.alive))
	}
	q.K = max(q.K, p.fixed[f.Key])
	p.recall(f, t, &q)
	g := gate{p: p, f: f, k: q.K, cold: last}
	q.Gate = &g
	slot, reason, refusal := p.ring.Pick(&q)
	if reason == ring.None {
		switch refusal {
		case ring.Gated:
			return 0, waitGated
		case ring.AtBound:
			return 0, wait
		}
		return 0, refuse
	}
	if reason == ring.Binding {
		p.bindings.Follow(t.key, t.gen)
	}
	t.slot, t.lead = slot, g.lead
	p.sample()
	p.s.sums.reasons[reason.String()]++
	return p.take(slot.Node().Value().(int32))
}

// sample notes how full every node is, as a share of the load up to which bindings to
// it are followed.
func (p *ringPolicy) sample() {
	for _, n := range p.nodes {
		p.s.sums.load.record(float64(n.Load()+n.External()) / float64(p.ring.FollowBound(n)))
	}
}

// recall looks for the binding of an earlier turn.
func (p *ringPolicy) recall(f *flight, t *ticket, q *ring.Query) {
	if p.bindings == nil || f.Recall == 0 {
		return
	}
	t.key = p.bindings.Key(&session.Scope{Route: "m", Boundary: f.Recall, Prefix: f.Key})
	b := p.bindings.Lookup(t.key)
	t.stamp = b.Stamp
	if b.Found() {
		t.gen = b.Gen
		q.Bound = p.nodes[b.Target]
		q.BoundWork = ring.Unit + int64(f.Prompt.Tokens-f.Known)*ring.Unit/quantumTokens
	}
}

// first: the prompt has been computed, so the lead ends with the proof that wakes its
// followers, and the slot weighs only its request from now on.
func (p *ringPolicy) first(now time.Duration, f *flight) {
	p.now = now
	t := f.ticket.(*ticket)
	n := p.nodes[f.node]
	if f.Static >= fatTokens {
		p.table.Observe(n.ID(), f.Key, residency.Evidence{Kind: residency.Prefill, Prompt: -1, Cached: -1,
			Static: int64(f.Static), Block: int64(p.blockSize()), Sent: epoch.Add(f.sent)})
	}
	p.dropLead(f, t)
	t.slot.Adjust(ring.Unit)
}

func (p *ringPolicy) blockSize() int {
	if b := p.s.o.Engine.BlockSize; b > 0 {
		return b
	}
	return 16
}

func (p *ringPolicy) dropLead(f *flight, t *ticket) {
	if t.lead != nil {
		p.table.Done(t.lead.ID(), f.Key)
		t.lead = nil
	}
}

func (p *ringPolicy) done(now time.Duration, f *flight, ok bool) {
	p.base.done(now, f, ok)
	p.now = now
	t := f.ticket.(*ticket)
	n := p.nodes[f.node]
	p.dropLead(f, t)
	t.slot.Release()
	if ok {
		p.table.Observe(n.ID(), f.Key, residency.Evidence{Kind: residency.Usage, Prompt: int64(f.Prompt.Tokens), Cached: int64(f.cached),
			Static: int64(f.Static), Output: int64(f.Output), Block: int64(p.blockSize()), Sent: epoch.Add(f.sent)})
	}
	if p.bindings == nil {
		return
	}
	if !ok {
		p.bindings.EvictIf(t.key, t.gen, session.Failed)
		return
	}
	if f.Bind != 0 && (f.next != nil || f.Recall != 0 || f.Prefix < 0) {
		k := p.bindings.Key(&session.Scope{Route: "m", Boundary: f.Bind, Prefix: f.Key})
		p.bindings.Bind(k, uint64(f.node), math.MaxUint64>>1)
	}
}

func (p *ringPolicy) change(now time.Duration, node int32, up, lost bool) {
	p.base.change(now, node, up, lost)
	p.now = now
	n := p.nodes[node]
	if up {
		n.SetLevel(ring.Open)
	} else {
		n.SetLevel(ring.Closed)
	}
	if lost {
		p.table.Forget(n.ID(), residency.Restart)
		if p.bindings != nil {
			p.bindings.EvictTarget(uint64(node))
		}
	}
}

// owners are the nodes that prewarm warms: as many as the sizing will ask for.
func (p *ringPolicy) owners(key uint64, share float64) []int32 {
	k := int(math.Ceil(share*float64(len(p.alive))*ring.DefaultHeadroom - 1e-9))
	k = min(max(k, 1), len(p.alive))
	var out []int32
	for _, n := range p.ring.Owners(key, k, nil) {
		out = append(out, n.Value().(int32))
	}
	return out
}

func (p *ringPolicy) warmed(node int32, key uint64, static int, share float64) {
	p.fixed[key] = len(p.owners(key, share))
	n := int64(static)
	p.table.Observe(p.nodes[node].ID(), key, residency.Evidence{Kind: residency.Proof, Prompt: n, Cached: n, Static: n, Block: int64(p.blockSize())})
}

func (p *ringPolicy) polls() bool { return len(p.s.routers) > 1 }

// poll tells the ring what other routers have put on the engines, as their metrics do.
func (p *ringPolicy) poll(time.Duration) {
	for i, n := range p.nodes {
		other := p.s.fleet.nodes[i].open - p.load[i]
		n.SetExternal(int64(max(other, 0)) * ring.Unit)
	}
}
