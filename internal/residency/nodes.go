package residency

import (
	"sync"
	"sync/atomic"
)

// nodeState is what is known of a node as a whole.
type nodeState struct {
	epoch    atomic.Uint32 // evidence of another epoch is void
	coldAt   atomic.Int64  // ms of the last Forget plus one, 0 = never
	capacity atomic.Int64  // KV tokens it has, 0 = not known
	learned  atomic.Int64  // tokens after which an entry was seen to be gone, 0 = never seen
	horizon  atomic.Int64  // entries last touched at this stamp or before are evicted

	mu     sync.Mutex // guards the fields below; taken inside a shard's lock, never around one
	stamp  int64
	recent []touched // most recently used last
}

// touched is one prefix in the node's cache, as an LRU would order it. Both engines evict
// the least recently used first, and a hit refreshes the whole prefix.
type touched struct {
	fp     uint64 // 0 = several, merged
	stamp  int64
	static int64 // tokens of the prefix
	extra  int64 // tokens written while it was the most recent: user text, output, other prompts
}

// maxTouched bounds the list; beyond it the two oldest are merged. A node holds some tens
// of fat prefixes; that thin ones are merged makes their eviction estimate coarser.
const maxTouched = 256

// room is how many tokens fit before the least recently used go, 0 = not known.
func (n *nodeState) room() int64 {
	capacity, learned := n.capacity.Load(), n.learned.Load()
	if capacity == 0 || (learned > 0 && learned < capacity) {
		return learned
	}
	return capacity
}

// touch makes fp the most recently used and returns its stamp, and how many tokens were
// used since its last touch, its own included; 0 if it was not in the list.
func (n *nodeState) touch(fp uint64, static, extra int64) (stamp, distance int64) {
	n.mu.Lock()
	defer n.mu.Unlock()
	at := -1
	for i := len(n.recent) - 1; i >= 0 && at < 0; i-- {
		distance += n.recent[i].static
		if n.recent[i].fp == fp && fp != 0 {
			at = i
		} else {
			distance += n.recent[i].extra
		}
	}
	if at < 0 {
		distance = 0
	} else {
		old := n.recent[at]
		static = max(static, 0)
		if static == 0 {
			static = old.static
		}
		distance += old.extra
		n.recent = append(n.recent[:at], n.recent[at+1:]...)
		n.leave(at, old.extra)
	}
	n.push(fp, max(static, 0), max(extra, 0))
	n.evict()
	return n.stamp, distance
}

func (n *nodeState) push(fp uint64, static, extra int64) {
	n.stamp++
	n.recent = append(n.recent, touched{fp, n.stamp, static, extra})
	if len(n.recent) > maxTouched {
		a, b := n.recent[0], &n.recent[1]
		b.fp, b.static, b.extra = 0, b.static+a.static, b.extra+a.extra
		n.recent = append(n.recent[:0], n.recent[1:]...)
	}
}

// leave keeps the tokens that were written beside a prefix where they were in the order.
func (n *nodeState) leave(at int, extra int64) {
	switch {
	case extra == 0:
	case at > 0:
		n.recent[at-1].extra += extra
	case len(n.recent) > 0:
		n.recent[0].extra += extra
	}
}

// evict moves the horizon to the first prefix that no longer fits.
func (n *nodeState) evict() {
	room := n.room()
	if room <= 0 {
		return
	}
	for i := len(n.recent) - 1; i >= 0; i-- {
		t := &n.recent[i]
		room -= t.static + t.extra
		if room >= 0 {
			continue
		}
		if i == len(n.recent)-1 && t.static > 0 {
			continue // the most recent one is there, whatever the estimate says
		}
		n.horizon.Store(max(n.horizon.Load(), t.stamp))
		return // what is older stays in the list: a hit on it shows that the estimate is wrong
	}
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
	if tokens <= 0 {
		return
	}
	n := t.nodes.make(node)
	n.mu.Lock()
	defer n.mu.Unlock()
	if last := len(n.recent) - 1; last >= 0 && n.recent[last].fp == 0 {
		n.recent[last].extra += tokens
	} else {
		n.push(0, 0, tokens)
	}
	n.evict()
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
	n.mu.Lock()
	defer n.mu.Unlock()
	n.coldAt.Store(t.ms() + 1)
	n.epoch.Add(1)
	n.recent = n.recent[:0]
	if why == Restart || why == Gone {
		n.learned.Store(0) // it may come back with another cache size
	}
}
