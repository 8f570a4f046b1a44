package session

import (
	"sync"
	"time"
)

// entry is one binding, 72 bytes. Lists are linked by index: prev and next in order of
// use, older and newer in order of creation, chain within a bucket.
type entry struct {
	key          Key
	target       uint64
	gen          uint64
	expires      time.Duration
	used         int32
	prev, next   int32
	older, newer int32
	chain        int32
}

const none int32 = -1

// shard is a hash table with chained buckets over a fixed slab: nothing is allocated
// after init, and no pointer leads from one entry to another.
type shard struct {
	mu      sync.Mutex // guards all fields
	entries []entry
	buckets []int32
	free    int32 // head of the list of free entries, linked by chain
	used    int32
	recent  int32 // most recently used
	stale   int32 // least recently used
	first   int32 // created first
	last    int32 // created last
	seq     uint64
	_       [64]byte
}

func (s *shard) init(room int) {
	size := 1
	for size < room {
		size *= 2
	}
	s.entries = make([]entry, room)
	s.buckets = make([]int32, size)
	s.reset()
}

func (s *shard) reset() {
	clear(s.entries)
	for i := range s.buckets {
		s.buckets[i] = none
	}
	for i := range s.entries {
		s.entries[i].chain = int32(i) + 1
	}
	s.entries[len(s.entries)-1].chain = none
	s.free, s.used = 0, 0
	s.recent, s.stale, s.first, s.last = none, none, none, none
}

func (s *shard) clear() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.reset()
}

func (s *shard) bucket(k Key) *int32 { return &s.buckets[k.a&uint64(len(s.buckets)-1)] }

func (s *shard) find(k Key) int32 {
	for i := *s.bucket(k); i != none; i = s.entries[i].chain {
		if s.entries[i].key == k {
			return i
		}
	}
	return none
}

func (s *shard) full() bool    { return s.free == none }
func (s *shard) oldest() int32 { return s.stale }

// insert adds a binding; there must be room.
func (s *shard) insert(k Key, target uint64, expires time.Duration) uint64 {
	s.seq++
	i := s.free
	e := &s.entries[i]
	s.free = e.chain
	b := s.bucket(k)
	*e = entry{key: k, target: target, gen: s.seq, expires: expires, prev: none, next: none, older: s.last, newer: none, chain: *b}
	*b = i
	if s.last != none {
		s.entries[s.last].newer = i
	} else {
		s.first = i
	}
	s.last = i
	s.pushRecent(i)
	s.used++
	return e.gen
}

func (s *shard) pushRecent(i int32) {
	e := &s.entries[i]
	e.prev, e.next = none, s.recent
	if s.recent != none {
		s.entries[s.recent].prev = i
	} else {
		s.stale = i
	}
	s.recent = i
}

func (s *shard) unlinkUse(i int32) {
	e := &s.entries[i]
	if e.prev != none {
		s.entries[e.prev].next = e.next
	} else {
		s.recent = e.next
	}
	if e.next != none {
		s.entries[e.next].prev = e.prev
	} else {
		s.stale = e.prev
	}
}

func (s *shard) touch(i int32) {
	if s.recent != i {
		s.unlinkUse(i)
		s.pushRecent(i)
	}
}

func (s *shard) remove(i int32) {
	e := &s.entries[i]
	for p := s.bucket(e.key); ; p = &s.entries[*p].chain {
		if *p == i {
			*p = e.chain
			break
		}
	}
	s.unlinkUse(i)
	if e.older != none {
		s.entries[e.older].newer = e.newer
	} else {
		s.first = e.newer
	}
	if e.newer != none {
		s.entries[e.newer].older = e.older
	} else {
		s.last = e.older
	}
	*e = entry{chain: s.free} // nothing of a binding outlives it
	s.free = i
	s.used--
}

// expire removes what has expired. All bindings live equally long, so that the order of
// creation is the order of expiry.
func (s *shard) expire(now time.Duration) (n int) {
	for s.first != none && now >= s.entries[s.first].expires {
		s.remove(s.first)
		n++
	}
	return n
}

func (s *shard) removeTarget(target uint64) (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := s.first; i != none; {
		next := s.entries[i].newer
		if s.entries[i].target == target {
			s.remove(i)
			n++
		}
		i = next
	}
	return n
}
