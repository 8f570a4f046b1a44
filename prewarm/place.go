package prewarm

import (
	"fmt"
	"math"

	"github.com/prefixring/prefixring/ring"
)

// place chooses each prefix's nodes: its owners in ring order, and with where: auto and
// known rates also the nodes on which the owners' bound makes its requests overflow.
func (p *Plan) place() {
	pools := map[string][]*Prefix{}
	var models []string
	for _, x := range p.Prefixes {
		if pools[x.target.Model] == nil {
			models = append(models, x.target.Model)
		}
		pools[x.target.Model] = append(pools[x.target.Model], x)
	}
	for _, m := range models {
		p.placePool(pools[m])
	}
	for _, x := range p.Prefixes {
		p.short(x)
	}
}

func (p *Plan) placePool(pool []*Prefix) {
	total, known := 0.0, 0.0
	for _, x := range pool {
		total += x.Entry.Rate
		known += x.Entry.Share
	}
	shares := make([]float64, len(pool))
	for i, x := range pool {
		n := len(x.target.Nodes)
		shares[i] = x.Entry.Share
		if shares[i] == 0 && total > 0 {
			shares[i] = x.Entry.Rate / total * max(1-known, 0)
		}
		switch x.Entry.owners {
		case ownersBroadcast:
			x.K = n
		case ownersAuto:
			x.K = OwnersFor(shares[i], n)
		default:
			if x.Entry.owners > n {
				p.problem(Problem{Prefix: x.Name, Line: x.Entry.line, Why: fmt.Sprintf("where asks for %d owners and %d nodes serve the model", x.Entry.owners, n), Note: true})
			}
			x.K = min(x.Entry.owners, n)
		}
	}
	p.overflow(pool, shares)
	for _, x := range pool {
		x.Nodes = x.target.Owners(x.Key, x.K+x.Spare)
	}
}

// planBound is the load, as a multiple of the mean, above which the plan expects requests
// to overflow. The router's own bound is 1.25 times the mean plus a margin; a peak is
// never even, so the plan is made for less.
const planBound = 1.05

// overflow sets Spare: how many nodes beyond the owners an auto entry is warmed on.
func (p *Plan) overflow(pool []*Prefix, shares []float64) {
	index := map[string]int{}
	order, k := make([][]int, len(pool)), make([]int, len(pool))
	sum := 0.0
	for i, x := range pool {
		for _, name := range x.target.Owners(x.Key, len(x.target.Nodes)) {
			n, ok := index[name]
			if !ok {
				n = len(index)
				index[name] = n
			}
			order[i] = append(order[i], n)
		}
		k[i] = x.K
		sum += shares[i]
	}
	if sum == 0 {
		return
	}
	bound := make([]float64, len(index))
	for n := range bound {
		bound[n] = planBound * sum / float64(len(index))
	}
	flow, _ := spread(order, k, shares, bound)
	room, block := p.roomFor(pool, order, index)
	for i, x := range pool {
		if x.Entry.owners != ownersAuto || shares[i] == 0 {
			continue
		}
		want := depth(flow[i], shares[i], x.K)
		want = min(max(want, x.K)+spare(max(want, x.K)), len(order[i]))
		for j := x.K; j < want; j++ {
			n := order[i][j]
			if room[n] < wholeBlocks(x.Tokens, block[n]) {
				break // owners are asked in ring order: a place behind a gap is of little use
			}
			room[n] -= wholeBlocks(x.Tokens, block[n])
			x.Spare++
		}
	}
}

// roomFor is each node's KV memory beside what must be there: the owned prefixes, the
// reserve and its running requests.
func (p *Plan) roomFor(pool []*Prefix, order [][]int, index map[string]int) (room, block []int64) {
	room, block = make([]int64, len(index)), make([]int64, len(index))
	for name, i := range index {
		block[i] = 1
		if n := p.fleet.node(name); n != nil && n.KVTokens > 0 {
			room[i], block[i] = n.KVTokens-p.fleet.reserved(n), max(n.BlockSize, 1)
		}
	}
	for i, x := range pool {
		for _, n := range order[i][:min(x.K, len(order[i]))] {
			room[n] -= wholeBlocks(x.Tokens, block[n])
		}
	}
	return room, block
}

// OwnersFor is how many owners the router gives a prefix that has this share of the
// load: clamp(ceil(share x nodes x headroom), 1, nodes).
func OwnersFor(share float64, nodes int) int {
	return min(max(int(math.Ceil(share*float64(nodes)*ring.DefaultHeadroom-1e-9)), 1), max(nodes, 1))
}

// short refuses a prefix that no engine can cache: less than one block.
func (p *Plan) short(x *Prefix) {
	for _, name := range x.Nodes {
		n := p.fleet.node(name)
		if n != nil && n.BlockSize > 0 && x.Tokens < n.BlockSize {
			p.problem(Problem{
				Prefix: x.Name, Node: name, Line: x.Entry.line,
				Why:    fmt.Sprintf("it has %d tokens (%s) and a block has %d: it cannot be cached", x.Tokens, x.TokensFrom, n.BlockSize),
				Remedy: "remove it, or give tokens: if the estimate is wrong", Fatal: true,
			})
			return
		}
	}
}
