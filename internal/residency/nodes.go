package residency

import (
	"sync"
	"sync/atomic"
)

// nodeState is what is known of a node as a whole.
type nodeState struct {
	epoch    atomic.Uint32 // evidence of another epoch is void
	coldAt   atomic.Int64  // ms of the last Forget plus one, 0 = never
	why      atomic.Uint32 // Reason of it
	fill     atomic.Int64  // tokens written to its cache, ever
	capacity atomic.Int64  // KV tokens it has, 0 = not known
	learned  atomic.Int64  // tokens written until an entry was seen to be gone, 0 = never seen
}

// room is how many tokens can be written before the least recently used go, 0 = not known.
func (n *nodeState) room() int64 {
	capacity, learned := n.capacity.Load(), n.learned.Load()
	if capacity == 0 || (learned > 0 && learned < capacity) {
		return learned
	}
	return capacity
}

// evicted estimates whether a prefix touched at fill is gone. Both engines evict the
// least recently used first, and a hit refreshes the whole prefix, so it stays until the
// tokens written since, and its own, exceed the room. Others' traffic is not seen: that
// is what age and learned are for.
func (n *nodeState) evicted(fill, static int64) bool {
	room := n.room()
	return room > 0 && n.fill.Load()-fill+max(static, 0) > room
}

// nodeTable is a growing array by node id; reading takes no lock.
type nodeTable struct {
	mu  sync.Mutex // serialises growth
	all atomic.Pointer[[]*nodeState]
}

func (t *nodeTable) get(id uint32) *nodeState {
	if all := t.all.Load(); all != nil && int(id) < len(*all) {
		return (*all)[id]
	}
	return nil
}

// make returns the node's state, growing the array where needed. Ids are small and
// counted up by the ring, so that an array by id is dense enough.
func (t *nodeTable) make(id uint32) *nodeState {
	if n := t.get(id); n != nil {
		return n
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	var old []*nodeState
	if all := t.all.Load(); all != nil {
		old = *all
	}
	if int(id) < len(old) && old[id] != nil {
		return old[id]
	}
	grown := make([]*nodeState, max(len(old), int(id)+1))
	copy(grown, old)
	n := new(nodeState)
	grown[id] = n
	t.all.Store(&grown)
	return n
}

// SetCapacity tells how many tokens the node's KV cache holds; 0 means not known.
func (t *Table) SetCapacity(node uint32, tokens int64) {
	t.nodes.make(node).capacity.Store(max(tokens, 0))
}

// Fill tells of tokens written to the node's cache that belong to no fingerprint.
func (t *Table) Fill(node uint32, tokens int64) {
	if tokens > 0 {
		t.nodes.make(node).fill.Add(tokens)
	}
}

// Room is the number of tokens that can be written to the node before an untouched
// prefix is expected to be evicted: the capacity, or less if evictions were seen
// earlier. 0 means not known.
func (t *Table) Room(node uint32) int64 {
	if n := t.nodes.get(node); n != nil {
		return n.room()
	}
	return 0
}

// Forget makes everything on the node cold, at once and in constant time.
func (t *Table) Forget(node uint32, why Reason) {
	n := t.nodes.make(node)
	n.why.Store(uint32(why))
	n.coldAt.Store(t.ms() + 1)
	n.learned.Store(0)
	n.epoch.Add(1)
}
