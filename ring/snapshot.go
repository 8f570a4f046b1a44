package ring

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
)

// snapshot is the immutable state that picks read. Level changes swap in a copy
// that shares the table.
type snapshot struct {
	nodes  []*Node // in name order
	byName map[string]*Node
	table  table

	// The mean. list holds the nodes that don't count, whose load a pick takes off the
	// total; or, when those are the majority, the ones that do (sumInstead).
	usable     int     // nodes that count
	single     bool    // one usable node in all
	perWeight  float64 // 1 / sum of the weights of the counted nodes
	rel        float64 // usable / sum of weights: turns a weight into "times the average"
	list       []*Node
	sumInstead bool
}

func checkMembers(members []Member) ([]Member, error) {
	sorted := slices.Clone(members)
	slices.SortFunc(sorted, func(a, b Member) int { return cmp.Compare(a.Name, b.Name) })
	var errs []error
	if len(sorted) > maxNodes {
		return nil, fmt.Errorf("%d members are more than %d", len(sorted), maxNodes)
	}
	for i := range sorted {
		m := &sorted[i]
		if m.Weight == 0 {
			m.Weight = 1
		}
		if m.Name == "" {
			errs = append(errs, errors.New("a member has no name"))
		}
		if strings.ContainsRune(m.Name, 0) {
			errs = append(errs, fmt.Errorf("member name %q contains NUL", m.Name))
		}
		if !(m.Weight > 0 && m.Weight <= maxWeight) { // also refuses NaN
			errs = append(errs, fmt.Errorf("weight %g of member %q is not in (0, %d]", m.Weight, m.Name, maxWeight))
		}
		if i > 0 && sorted[i-1].Name == m.Name {
			errs = append(errs, fmt.Errorf("member name %q is used twice", m.Name))
		}
	}
	return sorted, errors.Join(errs...)
}

// install swaps in a new member list. Called with mu held.
func (r *Ring) install(sorted []Member, t table) {
	old := r.snap.Load()
	s := &snapshot{table: t, byName: make(map[string]*Node, len(sorted)), nodes: make([]*Node, len(sorted))}
	for i, m := range sorted {
		n := old.byName[m.Name]
		if n == nil {
			n = r.retired[m.Name]
		}
		if n == nil {
			r.nextID++
			n = &Node{ring: r, id: r.nextID, name: m.Name, hash: t.nodeHash[i]}
			n.level.Store(uint32(m.Level))
		}
		delete(r.retired, m.Name)
		n.gone.Store(false)
		n.weight.Store(math.Float64bits(m.Weight))
		n.SetValue(m.Value)
		s.nodes[i], s.byName[m.Name] = n, n
	}
	for _, n := range old.nodes {
		if s.byName[n.name] == nil {
			n.gone.Store(true)
			n.setExternal(0)
			r.retired[n.name] = n
		}
	}
	r.recountInto(s)
}

// recount rebuilds what the mean needs, after a level change. Called with mu held.
func (r *Ring) recount() {
	s := *r.snap.Load()
	r.recountInto(&s)
}

func (r *Ring) recountInto(s *snapshot) {
	var counted, others []*Node
	var sum float64
	for _, n := range s.nodes {
		if n.Level().counted() {
			counted = append(counted, n)
			sum += n.Weight()
		} else {
			others = append(others, n)
		}
	}
	for name, n := range r.retired {
		if n.account.Load() == 0 {
			delete(r.retired, name)
			continue
		}
		others = append(others, n)
	}
	s.usable, s.single = len(counted), len(counted) == 1
	s.perWeight, s.rel = 0, 0
	if sum > 0 {
		s.perWeight, s.rel = 1/sum, float64(len(counted))/sum
	}
	s.list, s.sumInstead = others, false
	if len(others) > len(counted) {
		s.list, s.sumInstead = counted, true
	}
	r.snap.Store(s)
}

// Weight is the node's relative share, 1 unless configured.
func (n *Node) Weight() float64 { return math.Float64frombits(n.weight.Load()) }

// mean is the load of the counted nodes per unit of weight.
//
// The total is one exact counter, not a sharded or sampled one: it costs one shared
// cache line per pick and release. That line is what many cores would contend for,
// but a router does at most a few hundred thousand picks a second, some 100 ns each.
func (s *snapshot) mean(r *Ring) float64 {
	var total int64
	if s.sumInstead {
		for _, n := range s.list {
			total += n.full()
		}
	} else {
		total = r.total.Load()
		for _, n := range s.list {
			total -= n.full()
		}
	}
	return float64(max(total, 0)) * s.perWeight
}

// bound is the load that n may have when the mean per unit of weight is mean.
func (s *snapshot) bound(n *Node, mean float64, hard bool, o *Options) int64 {
	w := n.Weight()
	floor := o.Floor
	if rel := w * s.rel; rel < 1 && rel > 0 {
		// A node of half the size gets half the floor, but never less than one request.
		floor = max(int64(float64(floor)*rel), Unit)
	}
	// A node at the mean can always take one more, or all could refuse: with four nodes
	// at one request each, 1.25 x mean is 1.56, and nobody could take the fifth.
	b := max(floor+o.Margin, int64(o.Factor*mean*w)+o.Margin, int64(mean*w)+Unit)
	if hard {
		b = max(b, o.Hard)
	}
	return b
}

// followBound is the load that n may have for a request that a binding sends there.
func (s *snapshot) followBound(n *Node, mean float64, hard bool, o *Options) int64 {
	b := o.Follow * float64(s.bound(n, mean, false, o))
	if hard {
		b = max(b, float64(o.Hard))
	}
	return int64(min(b, math.MaxInt64/2))
}
