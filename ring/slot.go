package ring

import (
	"math"
	"sync"
	"sync/atomic"
)

// Slot is the reservation that a pick made. Copies are handles of the same
// reservation. The zero Slot holds nothing: its methods do nothing.
type Slot struct {
	node *Node
	hold *hold
	gen  uint32
	rank int32
}

// hold is the shared state of a slot's copies: one word, so that Adjust and Release
// can't tear. Bits: generation 32, work 31, live 1. The generation makes a stale copy
// harmless after the hold has been reused by another pick.
type hold struct{ word atomic.Uint64 }

const maxWork = math.MaxInt32

var holds = sync.Pool{New: func() any { return new(hold) }}

func packWord(gen uint32, work int64, live uint64) uint64 {
	return uint64(gen)<<32 | uint64(work)<<1 | live
}

func unpackWord(w uint64) (gen uint32, work int64, live bool) {
	return uint32(w >> 32), int64(uint32(w) >> 1), w&1 == 1
}

func newSlot(n *Node, work int64, rank int) Slot {
	h := holds.Get().(*hold)
	gen, _, _ := unpackWord(h.word.Load())
	h.word.Store(packWord(gen, work, 1))
	return Slot{node: n, hold: h, gen: gen, rank: int32(rank)}
}

// Node is the node that was picked, nil for the zero Slot.
func (s *Slot) Node() *Node { return s.node }

// Rank is the node's place in the key's order, 0 for the first owner. It is -1 for a
// node that a binding or Query.Next named, because its place is not looked up.
func (s *Slot) Rank() int { return int(s.rank) }

// Work is the work that the slot holds now, zero once it is released.
func (s *Slot) Work() int64 {
	if s.hold == nil {
		return 0
	}
	gen, work, live := unpackWord(s.hold.word.Load())
	if !live || gen != s.gen {
		return 0
	}
	return work
}

// Adjust sets the work that the slot holds (for example after the first byte, when
// the prompt has been prefilled). It does nothing once the slot is released. Values
// are clamped to 0..2^31-1.
func (s *Slot) Adjust(work int64) {
	if s.hold == nil {
		return
	}
	work = min(max(work, 0), maxWork)
	for {
		w := s.hold.word.Load()
		gen, old, live := unpackWord(w)
		if !live || gen != s.gen {
			return
		}
		if s.hold.word.CompareAndSwap(w, packWord(gen, work, 1)) {
			s.node.charge(work - old)
			return
		}
	}
}

// Release gives the slot back. It returns true the first time and false ever after,
// also for copies and under races: exactly one caller gets true.
func (s *Slot) Release() bool {
	if s.hold == nil {
		return false
	}
	for {
		w := s.hold.word.Load()
		gen, work, live := unpackWord(w)
		if !live || gen != s.gen {
			return false
		}
		if s.hold.word.CompareAndSwap(w, packWord(gen+1, 0, 0)) {
			s.node.undo(work)
			holds.Put(s.hold)
			return true
		}
	}
}
