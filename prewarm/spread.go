package prewarm

import "math"

// spread works out where the requests of each prefix go when no node takes more than its
// bound: evenly to the first k nodes of the prefix's order, what those cannot take to the
// others of them, and the rest further down the order, as the bounded pick does.
// order[i] are node numbers, rate and bound are in one unit. flow[i][j] is what prefix i
// sends to order[i][j].
//
// It is a fixed point: each node accepts the share of what it is offered that fills it to
// its bound. Being a mean it knows no bursts, which overflow further: see the callers'
// margins.
func spread(order [][]int, k []int, rate, bound []float64) (flow [][]float64, load []float64) {
	flow = make([][]float64, len(order))
	for i := range order {
		flow[i] = make([]float64, len(order[i]))
	}
	accept, offered := make([]float64, len(bound)), make([]float64, len(bound))
	for n := range accept {
		accept[n] = 1
	}
	for range spreadRounds {
		clear(offered)
		for i := range order {
			offer(order[i], flow[i], k[i], rate[i], bound, accept, offered)
		}
		for n := range accept {
			want := 1.0
			if offered[n] > bound[n] {
				want = bound[n] / offered[n]
			}
			accept[n] = (accept[n] + want) / 2 // undamped it swings between two states
		}
	}
	load = make([]float64, len(bound))
	for i, nodes := range order {
		for j, n := range nodes {
			load[n] += flow[i][j]
		}
	}
	return flow, load
}

const (
	spreadRounds = 80
	ownerTries   = 8 // after so many full owners it makes no difference
)

// offer sends one prefix's requests down its order and notes what each node was offered.
// Where no node has room the owners take it: the fleet is overloaded, and the bound moves
// with the mean.
func offer(nodes []int, flow []float64, k int, rate float64, bound, accept, offered []float64) {
	clear(flow)
	owners := min(max(k, 1), len(nodes))
	left := rate
	for try := 0; try < min(owners, ownerTries) && left > rate*1e-6; try++ {
		each := left / float64(owners)
		for j := range owners {
			n := nodes[j]
			want := min(each, bound[n])
			offered[n] += want
			took := want * accept[n]
			flow[j] += took
			left -= took
		}
	}
	for j := owners; j < len(nodes) && left > rate*1e-6; j++ {
		n := nodes[j]
		want := min(left, bound[n]) // no more than the node alone could take
		offered[n] += want
		flow[j] = want * accept[n]
		left -= flow[j]
	}
	for j := range owners {
		flow[j] += left / float64(owners)
	}
}

// traceFlow is the share of an owner's requests below which a place does not count: what
// it gets would not keep the prefix warm there.
const traceFlow = 0.05

// depth is how many places of the order get requests.
func depth(flow []float64, rate float64, k int) int {
	d := 0
	for j, f := range flow {
		if f > traceFlow*rate/float64(max(k, 1)) {
			d = j + 1
		}
	}
	return max(d, 1)
}

// spare is how many further places are warmed, where memory allows: bursts reach beyond
// what flows there on average.
func spare(depth int) int { return max(1, int(math.Ceil(float64(depth)/4))) }
