package sim

import (
	"fmt"
	"math"
	"slices"
	"time"
)

// verdict is what a policy says of a request.
type verdict uint8

const (
	taken     verdict = iota
	wait              // no room now
	waitGated         // its prefix is being computed by somebody else
	refuse
)

// policy is one router. All methods are called in order of simulated time.
type policy interface {
	// pick names a node and counts the request on it. last: it has waited long enough.
	pick(now time.Duration, f *flight, last bool) (int32, verdict)
	first(now time.Duration, f *flight)                  // the first token is out
	done(now time.Duration, f *flight, ok bool)          // the request left its node
	change(now time.Duration, node int32, up, lost bool) // lost: its cache is gone
	owners(key uint64, share float64) []int32            // where prewarm should put a prefix
	warmed(node int32, key uint64, static int, share float64)
	polls() bool
	poll(now time.Duration)
}

// Policies lists the names, in the order of the tables.
func Policies() []string {
	return []string{"round-robin", "random", "least-loaded", "p2c", "chwbl", "index-approx", "index-precise", "greedy", "ring", "ring+bindings", "oracle"}
}

func newPolicy(s *simulation, router int) (policy, error) {
	b := base{s: s, load: make([]int, s.o.Engines), up: make([]bool, s.o.Engines), rng: mix(s.o.Seed, uint64(router), 10)}
	for i := range b.up {
		b.up[i] = true
		b.alive = append(b.alive, int32(i))
	}
	switch s.o.Policy {
	case "round-robin":
		return &roundRobin{base: b, at: int(mix(b.rng) % uint64(s.o.Engines))}, nil
	case "random":
		return &random{b}, nil
	case "least-loaded":
		return &least{b}, nil
	case "p2c":
		return &twoChoices{b}, nil
	case "chwbl":
		return newCHWBL(b), nil
	case "index-approx":
		return newIndex(b, false), nil
	case "index-precise":
		return newIndex(b, true), nil
	case "greedy":
		return &greedy{b}, nil
	case "ring":
		return newRing(b, noMemory)
	case "ring+bindings":
		return newRing(b, production)
	case "oracle":
		return newRing(b, everything)
	}
	return nil, fmt.Errorf("%w: unknown policy %q, known are %v", ErrUsage, s.o.Policy, Policies())
}

// base counts requests in flight, which is all that most routers know.
type base struct {
	s     *simulation
	load  []int
	total int
	up    []bool
	alive []int32
	rng   uint64
}

// rand is the policy's own stream of chance.
func (b *base) rand(n int) int {
	b.rng += 0x9e3779b97f4a7c15
	return int(mix(b.rng) % uint64(n))
}

func (b *base) take(n int32) (int32, verdict) {
	b.load[n]++
	b.total++
	return n, taken
}

func (b *base) done(_ time.Duration, f *flight, _ bool) {
	b.load[f.node]--
	b.total--
}

func (b *base) first(time.Duration, *flight) {}

func (b *base) change(_ time.Duration, node int32, up, _ bool) {
	b.up[node] = up
	b.alive = b.alive[:0]
	for i, u := range b.up {
		if u {
			b.alive = append(b.alive, int32(i))
		}
	}
}

func (b *base) owners(uint64, float64) []int32     { return nil }
func (b *base) warmed(int32, uint64, int, float64) {}
func (b *base) polls() bool                        { return false }
func (b *base) poll(time.Duration)                 {}

// barred says that a request was on that node when it died.
func (f *flight) barred(n int32) bool { return slices.Contains(f.tried[:], n+1) }

// pickFrom calls choose until it names a node that the request has not tried.
func (b *base) pickFrom(f *flight, choose func() int32) (int32, verdict) {
	if len(b.alive) == 0 {
		return 0, refuse
	}
	for range 8 {
		if n := choose(); !f.barred(n) {
			return b.take(n)
		}
	}
	for _, n := range b.alive {
		if !f.barred(n) {
			return b.take(n)
		}
	}
	return 0, refuse
}

type roundRobin struct {
	base
	at int
}

func (p *roundRobin) pick(_ time.Duration, f *flight, _ bool) (int32, verdict) {
	return p.pickFrom(f, func() int32 {
		p.at++
		return p.alive[p.at%len(p.alive)]
	})
}

type random struct{ base }

func (p *random) pick(_ time.Duration, f *flight, _ bool) (int32, verdict) {
	return p.pickFrom(f, func() int32 { return p.alive[p.rand(len(p.alive))] })
}

// least takes the node with the fewest requests of its own; ties by chance.
type least struct{ base }

func (p *least) pick(_ time.Duration, f *flight, _ bool) (int32, verdict) {
	return p.pickFrom(f, func() int32 {
		best, load, ties := int32(0), math.MaxInt, 0
		for _, n := range p.alive {
			switch l := p.load[n]; {
			case f.barred(n) || l > load:
			case l < load:
				best, load, ties = n, l, 1
			default:
				if ties++; p.rand(ties) == 0 {
					best = n
				}
			}
		}
		return best
	})
}

// twoChoices is the power of two choices: the less loaded of two random nodes.
type twoChoices struct{ base }

func (p *twoChoices) pick(_ time.Duration, f *flight, _ bool) (int32, verdict) {
	return p.pickFrom(f, func() int32 {
		a, b := p.alive[p.rand(len(p.alive))], p.alive[p.rand(len(p.alive))]
		if p.load[b] < p.load[a] {
			return b
		}
		return a
	})
}

// chwbl is plain consistent hashing with bounded loads: 128 points per node, and the
// next node on the circle while a node has ceil(1.25 x (requests + 1) / nodes).
type chwbl struct {
	base
	points []circlePoint
}

type circlePoint struct {
	at   uint64
	node int32
}

func newCHWBL(b base) *chwbl {
	p := &chwbl{base: b}
	for i := range b.load {
		for v := range 128 {
			p.points = append(p.points, circlePoint{mix(uint64(i), uint64(v), 11), int32(i)})
		}
	}
	slices.SortFunc(p.points, func(a, b circlePoint) int {
		if a.at < b.at {
			return -1
		}
		return 1
	})
	return p
}

func (p *chwbl) pick(_ time.Duration, f *flight, _ bool) (int32, verdict) {
	if len(p.alive) == 0 {
		return 0, refuse
	}
	bound := int(math.Ceil(1.25 * float64(p.total+1) / float64(len(p.alive))))
	at := mix(f.Key, 12)
	i, _ := slices.BinarySearchFunc(p.points, at, func(c circlePoint, v uint64) int {
		if c.at < v {
			return -1
		}
		return 1
	})
	for j := range p.points {
		n := p.points[(i+j)%len(p.points)].node
		if p.up[n] && !f.barred(n) && p.load[n] < bound {
			return p.take(n)
		}
	}
	return p.pickFrom(f, func() int32 { return p.alive[p.rand(len(p.alive))] })
}
