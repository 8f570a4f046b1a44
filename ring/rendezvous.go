package ring

import (
	"math"
	"slices"
)

// rendezvous orders the nodes of a partition by weighted rendezvous hashing: node i
// scores -w_i / ln(u_i), u_i being a hash of (partition, node) in (0, 1). That rises with
// the hash, so where all weights are 1 the hash itself is the score.
type rendezvous struct {
	weights []float64 // nil when all are 1
	hashes  []uint64
	depth   int
	cut     []uint64 // a node passes when its hash is at least its cut
	out     []uint64
	cand    []uint64 // score in the high 48 bits, node index in the low 16
}

const nodeBits = 16

func nodeOf(c uint64) uint16 { return uint16(c) }

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

// setCuts finds the score above which somewhat more than depth nodes are expected, so
// that fill sorts some 100 candidates and not 1,000 nodes.
func (rv *rendezvous) setCuts(n int) {
	want := float64(rv.depth) + 4*math.Sqrt(float64(rv.depth)) + 2
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
	for i := len(cand) - 1; i >= 0 && used < min(2, len(row)); i-- {
		if n := nodeOf(cand[i]); rv.accepts(ph, n) {
			put(n)
		}
	}
	first := used
	for i := len(cand) - 1; i >= 0 && used < len(row); i-- {
		if n := nodeOf(cand[i]); !slices.Contains(row[:first], n) {
			row[used] = n
			used++
		}
	}
}

// candidates returns the nodes of a partition by rising score: all of them, or those
// above the cut. Scores that agree in 48 bits are ordered by name.
func (rv *rendezvous) candidates(ph uint64, cut bool) []uint64 {
	cand := rv.cand[:0]
	if cut && rv.cut[0] > 0 && rv.weights == nil {
		low := rv.cut[0] // one for all: this loop is most of a rebuild
		for i, nh := range rv.hashes {
			if h := mix(ph ^ nh); h >= low {
				cand = append(cand, h>>nodeBits<<nodeBits|uint64(i))
			}
		}
		rv.cand = cand
		return rv.spread(cand)
	}
	for i, nh := range rv.hashes {
		h := mix(ph ^ nh)
		if cut && h < rv.cut[i] {
			continue
		}
		if rv.weights != nil {
			// The bits of positive floats order as the floats do.
			h = math.Float64bits(-rv.weights[i]/math.Log(unit(h))) << 1
		}
		cand = append(cand, h>>nodeBits<<nodeBits|uint64(i))
	}
	rv.cand = cand
	slices.Sort(cand)
	return cand
}

// spread sorts candidates whose scores are uniform between the cut and the top: a
// counting sort by place in that range leaves little for the insertion sort. It halves
// the time of a rebuild.
func (rv *rendezvous) spread(cand []uint64) []uint64 {
	const buckets = 128
	low := rv.cut[0] >> nodeBits << nodeBits // scores are rounded down like this
	scale := -low/buckets + 1
	var start [buckets + 1]uint16
	for _, c := range cand {
		start[(c-low)/scale+1]++
	}
	for i := 1; i < buckets; i++ {
		start[i] += start[i-1]
	}
	out := slices.Grow(rv.out[:0], len(cand))[:len(cand)]
	rv.out = out
	for _, c := range cand {
		b := (c - low) / scale
		out[start[b]] = c
		start[b]++
	}
	for i := 1; i < len(out); i++ {
		for j := i; j > 0 && out[j] < out[j-1]; j-- {
			out[j], out[j-1] = out[j-1], out[j]
		}
	}
	return out
}
