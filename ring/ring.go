package ring

import (
	"fmt"
	"sync"
	"sync/atomic"
)

// Unit is one request in flight, in the work units that bounds are counted in.
const Unit int64 = 1000

// Level says what a node may still be given. Health sets it, Pick obeys it.
type Level uint32

// The levels, from most to least open.
const (
	Open       Level = iota // everything
	NoOverflow              // bindings and owned work, but nobody's overflow
	WarmOnly                // bindings, and prefixes that are proven warm here
	Closed                  // nothing new
)

// String returns the word used in explanations.
func (l Level) String() string {
	switch l {
	case Open:
		return "open"
	case NoOverflow:
		return "no-overflow"
	case WarmOnly:
		return "warm-only"
	default:
		return "closed"
	}
}

// counted says whether a node at this level is part of the mean. Nodes that can't
// take general work must not be: eight joining nodes at load zero would halve the
// mean, and with it the bound of the eight that serve.
func (l Level) counted() bool { return l <= NoOverflow }

// Member is what configuration and discovery know of a node.
type Member struct {
	Name   string  // stable, unique, not empty, without NUL; the only thing, with Weight, that placement depends on
	Weight float64 // share of partitions and of the mean relative to the others, 0 < w <= 16; 0 means 1
	Value  any     // the owner's data (for example its upstream), see Node.Value
	Level  Level   // where a node starts that is new to the ring; ignored for one that is known
}

// Gate lets the caller veto nodes during a pick (the warm gate). Admit is asked
// last, after the bound has been reserved, so a true answer may take a token that
// the caller gives back when the request settles. extra is added to the work that
// the reservation holds: the uncached prompt tokens this node would have to prefill.
// It is charged, not checked: see Query.Work for why size alone never refuses.
type Gate interface {
	Admit(n *Node) (extra int64, ok bool)
}

// WarmGate is a Gate that can also prove warmth. Without it a node at WarmOnly takes
// bindings only; with it, it also takes keys for which Warm answers true.
type WarmGate interface {
	Gate
	Warm(n *Node) bool
}

// Ring is one pool's placement and its load accounts. Use New.
type Ring struct {
	opts Options
	snap atomic.Pointer[snapshot]

	mu      sync.Mutex       // guards the fields below and serialises writers of snap
	nextID  uint32           // last node id given out
	retired map[string]*Node // nodes that left with work in flight, until it is gone

	_     [64]byte // the total is the hottest word here; it has its own cache line
	total atomic.Int64
	_     [56]byte
}

// New returns an empty ring. Zero options mean defaults.
func New(o Options) (*Ring, error) {
	o, err := o.withDefaults()
	if err != nil {
		return nil, err
	}
	r := &Ring{opts: o, retired: map[string]*Node{}}
	r.snap.Store(&snapshot{})
	return r, nil
}

// Options returns the options in force, defaults filled in.
func (r *Ring) Options() Options { return r.opts }

// Nodes returns the members in name order. The slice is shared: don't change it.
func (r *Ring) Nodes() []*Node { return r.snap.Load().nodes }

// Node returns the member of that name, nil if there is none.
func (r *Ring) Node(name string) *Node { return r.snap.Load().byName[name] }

// Usable is the number of nodes that take general work (Open or NoOverflow).
func (r *Ring) Usable() int { return r.snap.Load().usable }

// Owners appends the first k nodes of the key's order to dst, whatever their level
// and load, and returns the extended slice. k is clamped to the number of nodes.
// For a member list the answer is always the same, and the answer for k is a prefix
// of the answer for k+1.
func (r *Ring) Owners(key uint64, k int, dst []*Node) []*Node {
	s := r.snap.Load()
	if len(s.nodes) == 0 {
		return dst
	}
	w := s.walk(key)
	for i := 0; i < k; i++ {
		n := w.next()
		if n == nil {
			break
		}
		dst = append(dst, n)
	}
	return dst
}

// Bound is the load in work units that the node may have now, as Pick sees it.
func (r *Ring) Bound(n *Node, hard bool) int64 {
	s := r.snap.Load()
	return s.bound(n, s.mean(r)+float64(Unit)*s.perWeight, hard, &r.opts)
}

// FollowBound is the load in work units up to which a binding to the node is followed now.
func (r *Ring) FollowBound(n *Node) int64 {
	s := r.snap.Load()
	return s.followBound(n, s.mean(r)+float64(Unit)*s.perWeight, false, &r.opts)
}

// Apply replaces the members: it rebuilds the placement and swaps it in. Nodes whose
// name stays keep their identity, counters and level, and get the new Value and Weight.
// On error (bad member, or the library refuses) the old snapshot stays in force and
// nothing has changed. An empty list is a valid, empty ring.
func (r *Ring) Apply(members []Member) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	sorted, err := checkMembers(members)
	if err != nil {
		return fmt.Errorf("cannot apply members: %w", err)
	}
	t, err := buildTable(sorted, r.opts)
	if err != nil {
		return fmt.Errorf("cannot apply members: %w", err)
	}
	r.install(sorted, t)
	return nil
}
