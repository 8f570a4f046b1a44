package ring

import (
	"cmp"
	"slices"
)

// maxDepth is how many places of the order are stored per partition. Beyond it the
// order goes round the nodes by name hash, from a point that depends on the
// partition: a pick that finds 64 nodes full is no longer looking for warmth.
const maxDepth = 64

// table is the placement: for each partition the order of the nodes.
type table struct {
	parts    int
	depth    int
	order    []uint16 // parts x depth, node index
	first    []uint16 // the owners alone: 8 KB that stay in the innermost cache
	nodeHash []uint64 // by node index
	byHash   []uint16 // node indexes in hash order
	ringHash []uint64 // nodeHash in that order
}

func partitionHash(p int) uint64 { return mix(uint64(p) ^ 0x5bd1e9955bd1e995) }

// partition maps a key to its partition.
func (t *table) partition(key uint64) int { return int(reduce(mix(key), t.parts)) }

// walker goes through the order of one partition. It lives on the stack.
type walker struct {
	s     *snapshot
	row   []uint16
	pos   int
	part  int
	start int // where the tail begins in byHash; -1 until it is needed
	step  int
}

func (s *snapshot) walk(key uint64) walker {
	t := &s.table
	p := t.partition(key)
	return walker{s: s, row: t.order[p*t.depth : (p+1)*t.depth], part: p, start: -1}
}

// next returns the next node, nil at the end.
func (w *walker) next() *Node {
	if w.pos < len(w.row) {
		n := w.s.nodes[w.row[w.pos]]
		w.pos++
		return n
	}
	return w.tail()
}

// tail continues beyond the stored prefix, leaving out its nodes.
func (w *walker) tail() *Node {
	t := &w.s.table
	if len(w.row) == len(w.s.nodes) {
		return nil
	}
	if w.start < 0 {
		h := partitionHash(w.part)
		w.start, _ = slices.BinarySearch(t.ringHash, h)
	}
	for w.step < len(t.byHash) {
		i := w.start + w.step
		if i >= len(t.byHash) {
			i -= len(t.byHash)
		}
		w.step++
		if idx := t.byHash[i]; !slices.Contains(w.row, idx) {
			w.pos++
			return w.s.nodes[idx]
		}
	}
	return nil
}

// seek moves on to a place.
func (w *walker) seek(place int) {
	if place <= len(w.row) {
		w.pos = place
		return
	}
	w.pos = len(w.row)
	for w.pos < place && w.tail() != nil {
	}
}

// at returns the node at a place.
func (w *walker) at(place int) *Node {
	if place < len(w.row) {
		return w.s.nodes[w.row[place]]
	}
	v := *w
	v.pos, v.start, v.step = 0, -1, 0
	v.seek(place)
	return v.next()
}

func buildTable(members []Member, o Options) (table, error) {
	n := len(members)
	t := table{parts: o.Partitions, depth: min(n, maxDepth), nodeHash: make([]uint64, n)}
	if n == 0 {
		return t, nil
	}
	for i, m := range members {
		t.nodeHash[i] = hasher{}.Sum64([]byte(m.Name))
	}
	owners, heirs, err := assign(members, o)
	if err != nil {
		return t, err
	}
	t.order = make([]uint16, t.parts*t.depth)
	rv := newRendezvous(members, t.nodeHash, t.depth)
	for p := range t.parts {
		rv.fill(p, owners[p], heirs[p], t.order[p*t.depth:(p+1)*t.depth])
	}
	t.first = make([]uint16, t.parts)
	for p := range t.first {
		t.first[p] = t.order[p*t.depth]
	}
	t.byHash, t.ringHash = make([]uint16, n), make([]uint64, n)
	for i := range t.byHash {
		t.byHash[i] = uint16(i)
	}
	slices.SortFunc(t.byHash, func(a, b uint16) int {
		return cmp.Or(cmp.Compare(t.nodeHash[a], t.nodeHash[b]), cmp.Compare(a, b))
	})
	for i, idx := range t.byHash {
		t.ringHash[i] = t.nodeHash[idx]
	}
	return t, nil
}
