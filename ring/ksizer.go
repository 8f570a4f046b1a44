package ring

import (
	"math"
	"sync/atomic"
	"time"
)

// KOptions tune a KSizer. The zero value of each field means its default.
type KOptions struct {
	Now func() time.Time // the clock; default time.Now
	// MaxKeys is how many keys are measured at once. Default 1024, rounded up to a
	// power of two. Keys that find no room have K = 1.
	MaxKeys int
	// HalfLife of the measured load. Default 30 s.
	HalfLife time.Duration
	// Headroom is what the share is multiplied with. Default DefaultHeadroom: a key
	// gets a second owner when it alone would bring its first one to the bound.
	Headroom float64
	// Prior is the decayed load, in the unit of Observe, below which shares are taken of
	// Prior and not of the load: the first request of the day is not a hot key, and a
	// pool with little to do needs no second owners. Default 64 requests (64 x Unit).
	Prior int64
	// Hold is how long a smaller K must have been enough before one owner is let go.
	// Default 4 half-lives: an owner is a warm cache that costs seconds to fill.
	Hold time.Duration
}

// DefaultHeadroom is 1 / DefaultFactor.
const DefaultHeadroom = 0.8

const (
	kWays = 8           // places that a key can have in the table
	kTick = time.Second // how often shares are worked out

	// Shares between shrinkBelow and growAbove times the one in force change nothing: a
	// key of some hundred requests in the window jitters by 6 %.
	growAbove   = 1.1
	shrinkBelow = 0.75
	shrinkStep  = 0.5 // of the share in force, at most, per Hold
)

// KSizer measures each key's decayed share of the load and sizes its owner set:
// K = clamp(ceil(share x nodes x headroom), 1, nodes). It grows at the next tick (one
// second) and shrinks step by step, late. Since the owners of K are a prefix of
// the owners of K+1, growing never moves existing owners.
//
// Memory is bounded (about 40 bytes per MaxKeys). Observe and K may be called from any
// goroutine; they take no lock and allocate nothing. The caller that crosses a tick
// does the sweep, some 5 us for 1,024 keys.
type KSizer struct {
	opts  KOptions
	decay float64 // per tick
	mask  uint64
	keys  []keyLoad
	start time.Time
	tick  atomic.Int64  // ticks done
	total atomic.Uint64 // decayed load of all keys, math.Float64bits
	seen  atomic.Int64  // load of this tick, measured keys or not
}

type keyLoad struct {
	key   atomic.Uint64 // 0 = free
	seen  atomic.Int64  // load of this tick
	load  atomic.Uint64 // decayed, math.Float64bits
	share atomic.Uint64 // math.Float64bits; what K is computed from, with hysteresis
	spare atomic.Int64  // tick since which the share has been lower than needed, 0 = it isn't
}

// NewKSizer returns an empty sizer.
func NewKSizer(o KOptions) *KSizer {
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.MaxKeys <= 0 {
		o.MaxKeys = 1024
	}
	if o.HalfLife <= 0 {
		o.HalfLife = 30 * time.Second
	}
	if o.Headroom <= 0 {
		o.Headroom = DefaultHeadroom
	}
	if o.Prior <= 0 {
		o.Prior = 64 * Unit
	}
	if o.Hold <= 0 {
		o.Hold = 4 * o.HalfLife
	}
	size := kWays
	for size < o.MaxKeys {
		size *= 2
	}
	return &KSizer{
		opts: o, mask: uint64(size - 1), keys: make([]keyLoad, size), start: o.Now(),
		decay: math.Exp2(-float64(kTick) / float64(o.HalfLife)),
	}
}

// Observe counts work of a key and returns how many owners it should have among
// nodes. work is in any unit, as long as all calls use the same; values below 1 count
// as 1.
func (z *KSizer) Observe(key uint64, work int64, nodes int) int {
	z.sweepIfDue()
	work = max(work, 1)
	z.seen.Add(work)
	e := z.find(key, true)
	if e == nil {
		return 1
	}
	e.seen.Add(work)
	return z.size(e, nodes)
}

// K returns how many owners the key should have among nodes, at least 1.
func (z *KSizer) K(key uint64, nodes int) int {
	e := z.find(key, false)
	if e == nil {
		return 1
	}
	return z.size(e, nodes)
}

// Share returns the key's share of the load, 0..1, as K sees it.
func (z *KSizer) Share(key uint64) float64 {
	e := z.find(key, false)
	if e == nil {
		return 0
	}
	return math.Float64frombits(e.share.Load())
}

// Inherit makes a key that takes the place of another one begin with that one's load and
// share, so that it has as many owners from its first request on.
func (z *KSizer) Inherit(from, to uint64) {
	old, e := z.find(from, false), z.find(to, true)
	if old == nil || e == nil || old == e {
		return
	}
	// The old key keeps its own and decays. A sweep that runs meanwhile costs a tick's load.
	load := math.Float64frombits(e.load.Load()) + math.Float64frombits(old.load.Load())
	e.load.Store(math.Float64bits(load))
	share := max(math.Float64frombits(e.share.Load()), math.Float64frombits(old.share.Load()))
	e.share.Store(math.Float64bits(share))
	e.spare.Store(0)
}

func (z *KSizer) size(e *keyLoad, nodes int) int {
	share := math.Float64frombits(e.share.Load())
	return min(max(int(math.Ceil(share*float64(nodes)*z.opts.Headroom-1e-9)), 1), max(nodes, 1))
}

// find returns the key's place. With claim it takes a free one; a key with load is
// never thrown out for a newcomer.
func (z *KSizer) find(key uint64, claim bool) *keyLoad {
	if key == 0 {
		key = 1
	}
	at := mix(key) & z.mask
	for i := range uint64(kWays) {
		if e := &z.keys[(at+i)&z.mask]; e.key.Load() == key {
			return e
		}
	}
	if !claim {
		return nil
	}
	for i := range uint64(kWays) {
		e := &z.keys[(at+i)&z.mask]
		// Two callers may claim two places for one key: the second decays unused.
		if e.key.Load() == 0 && e.key.CompareAndSwap(0, key) || e.key.Load() == key {
			return e
		}
	}
	return nil
}

// sweepIfDue lets one caller per tick decay the loads and work out the shares.
func (z *KSizer) sweepIfDue() {
	now := int64(z.opts.Now().Sub(z.start) / kTick)
	last := z.tick.Load()
	if now <= last || !z.tick.CompareAndSwap(last, now) {
		return
	}
	z.sweep(now, math.Pow(z.decay, float64(now-last)))
}

func (z *KSizer) sweep(now int64, decay float64) {
	total := math.Float64frombits(z.total.Load())*decay + float64(z.seen.Swap(0))
	z.total.Store(math.Float64bits(total))
	for i := range z.keys {
		e := &z.keys[i]
		if e.key.Load() == 0 {
			continue
		}
		load := math.Float64frombits(e.load.Load())*decay + float64(e.seen.Swap(0))
		e.load.Store(math.Float64bits(load))
		if load < 1e-2*total/float64(len(z.keys)) || load < 1e-3*float64(z.opts.Prior) {
			e.share.Store(0)
			e.load.Store(0)
			e.key.Store(0)
			continue
		}
		z.setShare(e, min(load/max(total, float64(z.opts.Prior)), 1), now)
	}
}

// setShare moves the share up at once, and down only after it has been lower for Hold.
func (z *KSizer) setShare(e *keyLoad, share float64, now int64) {
	old := math.Float64frombits(e.share.Load())
	since := e.spare.Load()
	switch {
	case share > old*growAbove:
		e.share.Store(math.Float64bits(share))
		e.spare.Store(0)
	case share > old*shrinkBelow:
		e.spare.Store(0)
	case since == 0:
		e.spare.Store(now)
	case time.Duration(now-since)*kTick >= z.opts.Hold:
		e.share.Store(math.Float64bits(max(share, old*shrinkStep)))
		e.spare.Store(0)
	}
}
