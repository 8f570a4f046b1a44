package sim

import (
	"math"
	"time"

	"github.com/prefixring/prefixring/internal/fakeengine/core"
)

// greedy sees every engine's true cache and queue, at no cost and without delay, and
// sends each request where it is expected to have its first token soonest. No router
// can know that much, and yet it is no upper bound: it warms a prefix wherever there is
// a gap, and where memory is short its copies drive each other out. Its view is that of
// the end of the simulation's window, so it sees a little ahead.
type greedy struct{ base }

func (p *greedy) pick(_ time.Duration, f *flight, _ bool) (int32, verdict) {
	if len(p.alive) == 0 {
		return 0, refuse
	}
	c := &p.s.o.Engine.Cost
	best, least, ties := int32(-1), math.Inf(1), 0
	for _, n := range p.alive {
		if f.barred(n) {
			continue
		}
		e := p.s.fleet.nodes[n].core
		cached := e.Cached(&f.Prompt)
		st := e.Stats()
		own := prefill(c, cached, f.Prompt.Tokens-cached)
		queue := 0.0
		if st.Waiting > 0 {
			queue = prefill(c, 0, e.WaitingUncached())
		}
		// A busy engine decodes slower for everybody: each running request costs what its
		// sequence adds to a step, for as many steps as this request will take.
		slow := float64(p.load[n]) * (c.Sequence + c.Context*float64(f.Prompt.Tokens)) * float64(f.Output)
		cost := own + queue + slow
		switch {
		case cost < least-1e-12:
			best, least, ties = n, cost, 1
		case cost <= least+1e-12:
			if ties++; p.rand(ties) == 0 {
				best = n
			}
		}
	}
	if best < 0 {
		return 0, refuse
	}
	return p.take(best)
}

// prefill is the time to compute tokens behind cached ones.
func prefill(c *core.Cost, cached, tokens int) float64 {
	t := float64(tokens)
	return c.Token*t + c.Attention*t*(float64(cached)+t/2)
}

// index is the approximate prefix index of the common gateways: it remembers which
// blocks it has sent where, in an LRU per node of the size that it believes the cache
// has, and adds scores for the matched share, the queue and the KV use.
type index struct {
	base
	nodes []blockLRU
	room  int
	exact bool // asks the engines' true caches instead: the precise index, the oracle
}

// indexTokens is how many tokens one index block covers: coarser than the engines'
// blocks, as the public indexes are.
const indexTokens = 512

func newIndex(b base, exact bool) *index {
	p := &index{base: b, nodes: make([]blockLRU, b.s.o.Engines), exact: exact}
	kv := b.s.o.Engine.KVTokens
	if kv == 0 {
		kv = 430_000
	}
	p.room = max(1, kv/(p.blockSize()*p.stride()))
	for i := range p.nodes {
		p.nodes[i].at = map[uint64]*lruEntry{}
	}
	return p
}

// stride is how many engine blocks one index block covers.
func (p *index) stride() int { return max(1, indexTokens/p.blockSize()) }

// blocks calls f with the hash of each index block of the prompt, in order.
func (p *index) blocks(q *Request, f func(h uint64) bool) {
	n := min(q.Prompt.Tokens/p.blockSize(), len(q.head)+len(q.Prompt.Tail))
	for i := p.stride() - 1; i < n; i += p.stride() {
		if !f(q.hash(i)) {
			return
		}
	}
}

func (p *index) blockSize() int {
	if b := p.s.o.Engine.BlockSize; b > 0 {
		return b
	}
	return 16
}

func (p *index) pick(_ time.Duration, f *flight, _ bool) (int32, verdict) {
	if len(p.alive) == 0 {
		return 0, refuse
	}
	deep := 0
	for _, n := range p.alive {
		st := p.s.fleet.nodes[n].core.Stats()
		deep = max(deep, st.Waiting+st.Pending)
	}
	best, top, ties := int32(-1), math.Inf(-1), 0
	for _, n := range p.alive {
		if f.barred(n) {
			continue
		}
		hit := p.matched(n, &f.Request)
		// The weights are those of llm-d's guides: prefix 3, waiting queue 2, KV use 2. Queue
		// and use are the engine's own metrics, seen here without delay.
		st := p.s.fleet.nodes[n].core.Stats()
		queue := 1.0
		if deep > 0 {
			queue = 1 - float64(st.Waiting+st.Pending)/float64(deep)
		}
		score := 3*hit + 2*queue + 2*(1-st.Usage())
		switch {
		case score > top+1e-12:
			best, top, ties = n, score, 1
		case score >= top-1e-12:
			if ties++; p.rand(ties) == 0 {
				best = n
			}
		}
	}
	if best < 0 {
		return 0, refuse
	}
	if !p.exact {
		p.blocks(&f.Request, func(h uint64) bool {
			p.nodes[best].touch(h, p.room)
			return true
		})
	}
	return p.take(best)
}

// matched is the share of the prompt that the index has for a node.
func (p *index) matched(n int32, r *Request) float64 {
	if p.exact {
		return float64(p.s.fleet.nodes[n].core.Cached(&r.Prompt)) / float64(r.Prompt.Tokens)
	}
	hit := 0
	p.blocks(r, func(h uint64) bool {
		if p.nodes[n].at[h] == nil {
			return false
		}
		hit++
		return true
	})
	return float64(hit) / float64(max(1, r.Prompt.Tokens/(p.blockSize()*p.stride())))
}

func (p *index) change(now time.Duration, node int32, up, lost bool) {
	p.base.change(now, node, up, lost)
	if lost {
		p.nodes[node] = blockLRU{at: map[uint64]*lruEntry{}}
	}
}

// blockLRU is a set of the most recently used block hashes.
type blockLRU struct {
	at         map[uint64]*lruEntry
	head, tail *lruEntry // head: used last
}

type lruEntry struct {
	h          uint64
	prev, next *lruEntry
}

func (l *blockLRU) touch(h uint64, room int) {
	e := l.at[h]
	if e == nil {
		if len(l.at) >= room {
			e = l.tail
			l.unlink(e)
			delete(l.at, e.h)
		} else {
			e = &lruEntry{}
		}
		e.h = h
		l.at[h] = e
	} else {
		if l.head == e {
			return
		}
		l.unlink(e)
	}
	e.prev, e.next = nil, l.head
	if l.head != nil {
		l.head.prev = e
	}
	l.head = e
	if l.tail == nil {
		l.tail = e
	}
}

func (l *blockLRU) unlink(e *lruEntry) {
	if e.prev != nil {
		e.prev.next = e.next
	} else {
		l.head = e.next
	}
	if e.next != nil {
		e.next.prev = e.prev
	} else {
		l.tail = e.prev
	}
}
