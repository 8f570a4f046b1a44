package ring

import (
	"cmp"
	"math"
	"slices"
)

// rendezvous orders the nodes of a partition by weighted rendezvous hashing: node i
// scores -w_i / ln(u_i), u_i being a hash of (partition, node) in (0, 1).
type rendezvous struct {
	weights []float64 // nil when all are 1
	hashes  []uint64
	depth   int
	cut     []uint64 // a node passes when its hash is at least its cut
	cand    []scored
}

type scored struct {
	score float64
	hash  uint64
	node  uint16
}

func newRendezvous(members []Member, hashes []uint64, depth int) *rendezvous {
	rv := &rendezvous{hashes: hashes, depth: depth, cut: make([]uint64, len(members))}
	for _, m := range members {
		if m.Weight != 1 {
			rv.weights = make([]float64, len(members))
			break
		}
	}
	for i := range rv.weights {
		rv.weights[i] = members[i].Weight
	}
	rv.setCuts(len(members))
	return rv
}

// setCuts finds the score above which about 1.5 x depth nodes are expected, so that
// fill sorts some 100 candidates and not 1,000 nodes.
func (rv *rendezvous) setCuts(n int) {
	want := float64(rv.depth)*1.5 + 16
	if want >= float64(n) {
		return
	}
	weight := func(i int) float64 {
		if rv.weights == nil {
			return 1
		}
		return rv.weights[i]
	}
	lo, hi := 0.0, 1e9 // 1/score
	for range 80 {
		mid := (lo + hi) / 2
		expect := 0.0
		for i := range n {
			expect += -math.Expm1(-weight(i) * mid)
		}
		if expect < want {
			lo = mid
		} else {
			hi = mid
		}
	}
	for i := range n {
		rv.cut[i] = uint64(math.Exp(-weight(i)*hi) * (1 << 63) * 2)
	}
}

// unit turns a hash into a number in (0, 1).
func unit(h uint64) float64 { return (float64(h>>11) + 0.5) / (1 << 53) }

// accepts says whether node i takes the first place of a partition that its shares
// own; always for whole weights.
func (rv *rendezvous) accepts(ph uint64, i uint16) bool {
	if rv.weights == nil {
		return true
	}
	w := rv.weights[i]
	return unit(mix(ph+0x51ed270b^rv.hashes[i])) < w/math.Ceil(w)
}

// fill writes the order of one partition.
func (rv *rendezvous) fill(p int, owner, heir uint16, row []uint16) {
	ph := partitionHash(p)
	cand := rv.candidates(ph, true)
	if len(cand) < len(row)+2 && len(cand) < len(rv.hashes) {
		cand = rv.candidates(ph, false)
	}
	used := 0
	put := func(n uint16) {
		if used < len(row) && !slices.Contains(row[:min(used, 2)], n) {
			row[used] = n
			used++
		}
	}
	// A node that is not to accept a partition leaves it to the heir, or else to the
	// first in the rendezvous order that accepts.
	if rv.accepts(ph, owner) {
		put(owner)
	}
	if rv.accepts(ph, heir) {
		put(heir)
	}
	for i := 0; i < len(cand) && used < min(2, len(row)); i++ {
		if rv.accepts(ph, cand[i].node) {
			put(cand[i].node)
		}
	}
	first := used
	for i := 0; i < len(cand) && used < len(row); i++ {
		if !slices.Contains(row[:first], cand[i].node) {
			row[used] = cand[i].node
			used++
		}
	}
}

func (rv *rendezvous) candidates(ph uint64, cut bool) []scored {
	cand := rv.cand[:0]
	for i, nh := range rv.hashes {
		h := mix(ph ^ nh)
		if cut && h < rv.cut[i] {
			continue
		}
		c := scored{hash: h, node: uint16(i)}
		if rv.weights != nil {
			c.score = -rv.weights[i] / math.Log(unit(h))
		}
		cand = append(cand, c)
	}
	rv.cand = cand
	slices.SortFunc(cand, func(a, b scored) int {
		return cmp.Or(cmp.Compare(b.score, a.score), cmp.Compare(b.hash, a.hash), cmp.Compare(a.node, b.node))
	})
	return cand
}
