package health

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sourcegraph/conc"
	"github.com/sourcegraph/conc/panics"
)

// tick is how often what depends on time alone is looked at: fading, cool-downs, the
// slow start and the panic rule.
const tick = 250 * time.Millisecond

// Manager watches a set of nodes. See the package comment for what it guarantees.
type Manager struct {
	opt  Options
	made time.Time // where the grid of wake-ups begins

	byName atomic.Pointer[map[string]*node] // for Report; replaced, never changed
	retry  atomic.Pointer[map[string]time.Duration]

	mu        sync.Mutex         // guards all below
	nodes     []*node            // in the order of the first Apply that named them
	pools     map[string][]*node // the nodes that are not gone, by pool
	endpoints map[endpointID]*endpoint
	operators map[string]operator
	settings  map[string]*Settings // by pool; see settingsOf
	ctx       context.Context      // set while Run runs
	running   bool
	wg        *conc.WaitGroup

	// Changes wait here until the one goroutine that is delivering has told them, so that
	// they are told in order and without mu.
	changes    []change
	delivering bool
}

type change struct{ old, new Status }

// operator is what an operator has set for a name.
type operator struct {
	drained, cordoned bool
	weight            float64 // 0 = not set
}

// New returns a manager without nodes, or an error that names the first option that
// makes no sense.
func New(o Options) (*Manager, error) {
	if err := o.fill(); err != nil {
		return nil, err
	}
	m := &Manager{opt: o, made: time.Now(), endpoints: map[endpointID]*endpoint{}, operators: map[string]operator{}}
	m.byName.Store(&map[string]*node{})
	m.retry.Store(&map[string]time.Duration{})
	return m, nil
}

// Apply makes targets the set of watched nodes. Nodes that stay keep all that is known
// of them; one that comes back or moves to another URL starts over with a new epoch;
// one that is missing becomes gone. An error names the first bad target, and nothing
// has changed then.
func (m *Manager) Apply(targets []Target) error {
	seen := make(map[string]bool, len(targets))
	for i := range targets {
		t := &targets[i]
		if t.Name == "" {
			return fmt.Errorf("cannot watch a node without a name (%s)", t.URL)
		}
		if seen[t.Name] {
			return fmt.Errorf("cannot watch node %q twice", t.Name)
		}
		seen[t.Name] = true
		if _, err := parseURL(t.URL); err != nil {
			return fmt.Errorf("cannot watch node %q: %w", t.Name, err)
		}
	}
	now := time.Now()
	m.mu.Lock()
	m.apply(targets, seen, now)
	m.mu.Unlock()
	m.deliver()
	return nil
}

func (m *Manager) apply(targets []Target, seen map[string]bool, now time.Time) {
	byName := make(map[string]*node, len(targets))
	for _, n := range m.nodes {
		byName[n.target.Name] = n
	}
	for _, t := range targets {
		t.Models = slices.Clone(t.Models)
		n := byName[t.Name]
		if n == nil {
			n = &node{target: t, core: newCore(m.settingsOf(t.Pool), &t)}
			m.nodes = append(m.nodes, n)
			byName[t.Name] = n
			n.told = Status{Name: t.Name, Pool: t.Pool, Weight: 1, Ramp: 1} // a ring opens new nodes: the first news closes it
			m.attach(n)
			m.setOperator(n, now)
			continue
		}
		m.retarget(n, t, now)
	}
	for _, n := range m.nodes {
		if !seen[n.target.Name] && n.ep != nil {
			m.detach(n)
			n.leftAt = now
			n.core.step(observation{kind: obsGone}, now)
			m.note(n, now)
			delete(byName, n.target.Name)
		}
	}
	for name := range byName {
		if !seen[name] {
			delete(byName, name)
		}
	}
	m.byName.Store(&byName)
	m.pools = map[string][]*node{}
	for _, n := range m.nodes {
		if n.ep != nil {
			m.pools[n.target.Pool] = append(m.pools[n.target.Pool], n)
		}
	}
	m.sweep(now)
}

// retarget gives a known name its new facts.
func (m *Manager) retarget(n *node, t Target, now time.Time) {
	back := n.ep == nil
	moved := back || idOf(&t) != idOf(&n.target) || t.Rank != n.target.Rank
	n.target = t
	c := n.core
	c.engine, c.want, c.gone, c.opt = t.Engine, t.Models, false, m.settingsOf(t.Pool)
	c.terminating, c.unready = t.Terminating, t.Unready
	if moved {
		if !back {
			m.detach(n)
		}
		c.moved()
		m.attach(n)
	} else {
		n.ep.setKey(t.APIKey)
		m.retime(n.ep) // it may be in another pool now
	}
	if c.observed && len(c.models)+len(c.adapters) > 0 {
		c.served = c.serves()
	}
	m.setOperator(n, now)
}

// setOperator applies what an operator has set for the node's name.
func (m *Manager) setOperator(n *node, now time.Time) {
	op := m.operators[n.target.Name]
	n.core.drained, n.core.cordoned, n.core.weight = op.drained, op.cordoned, 1
	if op.weight > 0 {
		n.core.weight = op.weight
	}
	n.core.step(observation{kind: obsOperator}, now)
	if m.note(n, now) {
		m.panicRule(n.target.Pool, now)
	}
}

// attach puts the node behind its endpoint, and starts that if it is new.
func (m *Manager) attach(n *node) {
	id := idOf(&n.target)
	ep := m.endpoints[id]
	fresh := ep == nil
	if fresh {
		ep = &endpoint{id: id, kick: make(chan struct{}, 1), sooner: make(chan struct{}, 1), first: n.target, looked: make(chan struct{})}
		ep.setKey(n.target.APIKey)
		m.endpoints[id] = ep
	}
	ep.nodes = append(ep.nodes, n)
	n.ep = ep
	m.retime(ep)
	if fresh && m.running {
		m.start(ep)
	}
	ep.wake()
}

// detach takes the node from its endpoint, and stops that if it was the last.
func (m *Manager) detach(n *node) {
	ep := n.ep
	n.ep = nil
	ep.nodes = slices.DeleteFunc(ep.nodes, func(o *node) bool { return o == n })
	if len(ep.nodes) == 0 {
		if ep.stop != nil {
			ep.stop()
		}
		delete(m.endpoints, ep.id)
	}
	m.retime(ep)
}

// start runs the loops of an endpoint. A loop that panics is restarted: a bug in one
// probe must not end the router, which can go on without it.
func (m *Manager) start(ep *endpoint) {
	ctx, cancel := context.WithCancel(m.ctx)
	ep.stop = cancel
	for _, loop := range []func(context.Context, *endpoint){m.scrape, m.check} {
		m.wg.Go(func() { m.guard(ctx, ep, loop) })
	}
}

func (m *Manager) guard(ctx context.Context, ep *endpoint, loop func(context.Context, *endpoint)) {
	for ctx.Err() == nil {
		p := panics.Try(func() { loop(ctx, ep) })
		if p == nil {
			return
		}
		m.opt.Logger.Error("health loop failed and is restarted", "engine", ep.id.url, "error", p.AsError())
		select {
		case <-ctx.Done():
		case <-time.After(time.Second):
		}
	}
}

// Run polls until ctx ends, and returns nil after the last goroutine has ended. It
// may run once at a time; a second call returns an error at once.
func (m *Manager) Run(ctx context.Context) error {
	m.mu.Lock()
	if m.running {
		m.mu.Unlock()
		return errors.New("cannot run the health manager: it runs already")
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	m.ctx, m.running, m.wg = ctx, true, conc.NewWaitGroup()
	for _, ep := range m.endpoints {
		m.start(ep)
	}
	m.mu.Unlock()

	t := time.NewTicker(tick)
	defer t.Stop()
	for {
		select {
		case <-t.C:
			m.onTick()
			continue
		case <-ctx.Done():
		}
		break
	}
	m.mu.Lock()
	m.running = false // from here on, Apply starts nothing
	for _, ep := range m.endpoints {
		ep.stop()
		ep.stop = nil
	}
	wg := m.wg
	m.mu.Unlock()
	wg.Wait()
	return nil
}

// Snapshot returns the status of every node, those lately gone included, in a stable
// order.
func (m *Manager) Snapshot() []Status {
	now := time.Now()
	m.mu.Lock()
	defer m.mu.Unlock()
	out := make([]Status, 0, len(m.nodes))
	for _, n := range m.nodes {
		out = append(out, n.status(now))
	}
	return out
}

// sweep forgets nodes that have been gone for long enough.
func (m *Manager) sweep(now time.Time) {
	m.nodes = slices.DeleteFunc(m.nodes, func(n *node) bool {
		return n.ep == nil && now.Sub(n.leftAt) >= m.opt.KeepGone
	})
}
