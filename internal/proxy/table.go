package proxy

import (
	"fmt"
	"maps"
	"slices"

	"github.com/prefixring/prefixring/internal/fingerprint"
	"github.com/prefixring/prefixring/internal/residency"
	"github.com/prefixring/prefixring/internal/session"
	"github.com/prefixring/prefixring/ring"
)

// Pool is the set of engines that serve the same models. The exported fields are
// set once, before the pool is put in a Table.
type Pool struct {
	Name      string
	Models    []string             // names that its engines serve, adapters included
	Aliases   map[string]string    // names that clients may use -> name that the engines serve
	Ring      *ring.Ring           // the Value of each node is its *Upstream
	Scanner   *fingerprint.Scanner // the same for all pools of a table, or bodies are scanned twice
	Lead      int                  // bytes of a raw prompt that key it, one that Scanner has; 0 = its CompletionsLead
	Named     []string             // names of the registered prefixes, in the scanner's order
	Residency *residency.Table     // nil = no warm gate
	Bindings  *session.Store       // nil = no session bindings
	Affinity  Affinity             // how they are used
	Salt      string               // mixed into every fingerprint, so that fleets do not share placements
	Hosted    bool                 // a channel: its nodes are accounts, and only routes lead to it
	// MaxInFlight caps the requests in flight on one node, whatever its bound. 0 = no
	// cap: engines queue without limit by default, so health has to see it.
	MaxInFlight int64
	// Owners counts work of a fingerprint and says how many owners it has at present
	// (ring.KSizer.Observe, or a fixed number); nil = 1.
	Owners func(fingerprint uint64, work int64) int
	// OwnersNow is Owners without counting, for explanations; nil = 1.
	OwnersNow func(fingerprint uint64) int

	// Learner keys static prefixes that nobody has registered; nil = each by the whole.
	Learner *fingerprint.Learner
	// Moved is told that a learned ring key has taken the place of another; nil = nobody is.
	Moved func(from, to uint64)
	// Churn says how new static prefixes differ from those before; nil = nothing does.
	// Churned gets what it says and must not block or keep the pointer.
	Churn   *fingerprint.Churn
	Churned func(*fingerprint.Diagnosis)

	queue waitQueue
}

// Affinity says how a pool's bindings are used. The zero value follows conversations and
// forgives a client's own errors.
type Affinity struct {
	Mode     session.Mode
	Strict   bool   // a client's own 4xx evicts as well
	Revision uint64 // of the pool's policy: another one is another binding
}

// Table is an immutable routing snapshot: which pool serves which model name.
type Table struct {
	routes map[string]*route
	pools  []*Pool
	only   *route // where a request without a model goes; nil when that is ambiguous
	names  []string
}

// route is where one model name leads.
type route struct {
	pool  *Pool
	model string // name that the engine knows
	alias bool   // model differs from what the client said: splice it

	named    *Route // the name leads to tiers; pool is then that of the first member
	bindless bool   // the route by which this pool is reached wants no bindings
}

// NewTable builds a snapshot. A model name in two pools is an error: the answer
// would depend on the order of the configuration.
func NewTable(pools []*Pool, named ...*Route) (*Table, error) {
	t := &Table{routes: map[string]*route{}, pools: slices.Clone(pools)}
	engines := 0
	for _, p := range pools {
		if p.Hosted && len(p.Models)+len(p.Aliases) > 0 {
			return nil, fmt.Errorf("cannot use channel %q: only a route may lead to it", p.Name)
		}
		if !p.Hosted {
			engines++
		}
		if p.Ring == nil || p.Scanner == nil {
			return nil, fmt.Errorf("cannot route to pool %q: it has no ring or no scanner", p.Name)
		}
		for _, m := range p.Models {
			if err := t.add(m, &route{pool: p, model: m}); err != nil {
				return nil, err
			}
		}
		for _, a := range slices.Sorted(maps.Keys(p.Aliases)) {
			if err := t.add(a, &route{pool: p, model: p.Aliases[a], alias: a != p.Aliases[a]}); err != nil {
				return nil, err
			}
		}
	}
	for _, r := range named {
		if err := r.prepare(); err != nil {
			return nil, err
		}
		if _, ok := t.routes[r.Name]; ok {
			return nil, fmt.Errorf("cannot use route %q: a pool serves a model of that name", r.Name)
		}
		if err := t.add(r.Name, &route{pool: r.Members[0].Pool, model: r.Name, named: r}); err != nil {
			return nil, err
		}
	}
	if engines == 1 && !pools[0].Hosted {
		t.only = &route{pool: pools[0]}
	}
	t.names = slices.Sorted(maps.Keys(t.routes))
	return t, nil
}

func (t *Table) add(name string, r *route) error {
	if name == "" || r.model == "" {
		return fmt.Errorf("cannot route an empty model name to pool %q", r.pool.Name)
	}
	if have, ok := t.routes[name]; ok && (have.pool != r.pool || have.model != r.model) {
		return fmt.Errorf("cannot route model %q to pool %q: pool %q has it too", name, r.pool.Name, have.pool.Name)
	}
	t.routes[name] = r
	return nil
}

// find returns the route of a model name, or nil.
func (t *Table) find(model []byte) *route { return t.routes[string(model)] }
