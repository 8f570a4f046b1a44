package ring

import "sync/atomic"

// Node is a ring member. Its counters survive rebuilds as long as its name stays.
type Node struct {
	id    uint32
	name  string
	value atomic.Pointer[any]
	gone  atomic.Bool // not in the current snapshot; written under ring.mu
	_     [64]byte

	// All that a pick touches, on one cache line: a pick writes account anyway, so that
	// the fields beside it cost nothing more.
	ring     *Ring
	hash     uint64
	weight   atomic.Uint64 // math.Float64bits; written under ring.mu
	account  atomic.Int64  // slots << 44 | work units: one word, so that a pick writes it once
	external atomic.Int64
	level    atomic.Uint32 // written under ring.mu
	_        [84]byte
}

// One slot in Node.account. Work takes the low 44 bits: 17 billion requests' worth.
const (
	oneSlot  = 1 << 44
	workMask = oneSlot - 1
)

// Name is the stable configured name.
func (n *Node) Name() string { return n.name }

// ID is a small number, unique while the process lives, for use as a table key.
func (n *Node) ID() uint32 { return n.id }

// Level is what the node may be given now.
func (n *Node) Level() Level { return Level(n.level.Load()) }

// SetLevel changes what the node may be given. Slots that are out stay out.
func (n *Node) SetLevel(l Level) {
	if n.Level() == l {
		return
	}
	n.ring.mu.Lock()
	defer n.ring.mu.Unlock()
	n.level.Store(uint32(l))
	n.ring.recount()
}

// Load is the work this process has in flight on the node, in work units.
func (n *Node) Load() int64 { return n.account.Load() & workMask }

// InFlight is the number of slots out on the node.
func (n *Node) InFlight() int64 { return n.account.Load() >> 44 }

// External is what SetExternal said last.
func (n *Node) External() int64 { return n.external.Load() }

// SetExternal tells the work, in work units, that others have in flight on the node:
// what the engine reports less what this process sent (field case B36). It enters
// the node's load and the mean. Negative values count as zero; a node that has left
// the ring takes none.
func (n *Node) SetExternal(units int64) {
	n.ring.mu.Lock()
	defer n.ring.mu.Unlock()
	if n.gone.Load() {
		units = 0
	}
	n.setExternal(units)
}

func (n *Node) setExternal(units int64) {
	units = max(units, 0)
	old := n.external.Swap(units)
	n.ring.total.Add(units - old)
}

// Value returns the owner's data, nil if there is none.
func (n *Node) Value() any {
	if p := n.value.Load(); p != nil {
		return *p
	}
	return nil
}

// SetValue replaces the owner's data.
func (n *Node) SetValue(v any) { n.value.Store(&v) }

// Gone says that the node is no member any more; its slots may still be out.
func (n *Node) Gone() bool { return n.gone.Load() }

// full is the node's load as the bound sees it.
func (n *Node) full() int64 { return n.Load() + n.external.Load() }

// reserve adds work if the node's load plus need stays within bound. It is a
// compare-and-swap and not add-check-undo, so that the load that others read never
// contains a reservation that will be undone.
func (n *Node) reserve(need, work, bound int64) bool {
	bound -= n.external.Load() + need
	for {
		cur := n.account.Load()
		if cur&workMask > bound {
			return false
		}
		if n.account.CompareAndSwap(cur, cur+oneSlot+work) {
			n.ring.total.Add(work)
			return true
		}
	}
}

// undo gives back a reservation.
func (n *Node) undo(work int64) {
	n.ring.total.Add(-work)
	n.account.Add(-oneSlot - work)
}

// charge changes the work of a reservation that stands.
func (n *Node) charge(delta int64) {
	if delta != 0 {
		n.account.Add(delta)
		n.ring.total.Add(delta)
	}
}
