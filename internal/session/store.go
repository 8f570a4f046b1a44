package session

import (
	"fmt"
	"sync/atomic"
	"time"
)

// Limits and defaults of a store.
const (
	DefaultTTL  = 900 * time.Second
	HostedTTL   = 300 * time.Second // preset for hosted channels, whose caches live five minutes
	MinTTL      = time.Second
	MaxTTL      = 86400 * time.Second
	DefaultUses = 100
	DefaultMax  = 10000
)

// Options configure a store. The zero value of each field means its default.
type Options struct {
	TTL  time.Duration // life of a binding from its creation, 1 s..86400 s; default 900 s
	Uses int           // how often a binding may be followed; default 100; negative = no limit
	Max  int           // bindings kept, 1..10 million; default 10,000
	// Now is a monotonic clock: the time since any fixed moment. Default: since New.
	Now func() time.Duration
}

// Binding is what a lookup found.
type Binding struct {
	Target uint64 // what Bind was given: a node's ID, or a digest of channel and key
	Gen    uint64 // names this very binding; 0 = there is none
	// Stamp is the moment of the lookup in the store's own order. Give it to Bind when
	// the attempt has succeeded. It is also set when nothing was found.
	Stamp uint64
}

// Found says that there is a binding.
func (b Binding) Found() bool { return b.Gen != 0 }

// Store holds the bindings of one pool or route.
type Store struct {
	seeds  seeds
	ttl    time.Duration
	uses   int32
	now    func() time.Duration
	shards []shard
	stats  counters
}

// maxShards spreads the locks. Small stores have one shard, so that their bound is exact.
const (
	maxShards   = 16
	shardedFrom = 1024
)

// New returns an empty store.
func New(o Options) (*Store, error) {
	if o.TTL == 0 {
		o.TTL = DefaultTTL
	}
	if o.TTL < MinTTL || o.TTL > MaxTTL {
		return nil, fmt.Errorf("cannot use bindings: ttl %v is not in %v..%v", o.TTL, MinTTL, MaxTTL)
	}
	if o.Uses == 0 {
		o.Uses = DefaultUses
	}
	if o.Max == 0 {
		o.Max = DefaultMax
	}
	if o.Max < 1 || o.Max > 10_000_000 {
		return nil, fmt.Errorf("cannot use bindings: %d entries are not in 1..10000000", o.Max)
	}
	if o.Now == nil {
		start := time.Now()
		o.Now = func() time.Duration { return time.Since(start) }
	}
	s := &Store{seeds: newSeeds(), ttl: o.TTL, uses: int32(min(max(o.Uses, -1), 1<<30)), now: o.Now}
	count := 1
	if o.Max >= shardedFrom {
		count = maxShards
	}
	s.shards = make([]shard, count)
	for i := range s.shards {
		room := o.Max / count
		if i < o.Max%count {
			room++
		}
		s.shards[i].init(room)
	}
	return s, nil
}

// Key digests a scope under this store's secret.
func (s *Store) Key(sc *Scope) Key {
	if s == nil {
		return Key{}
	}
	return s.seeds.key(sc)
}

func (s *Store) shard(k Key) *shard { return &s.shards[k.b%uint64(len(s.shards))] }

// Lookup finds a live binding. It counts as recent use for the LRU order, but neither
// extends the life of the binding nor counts towards its use limit: see Follow. One that
// is used up is removed and not found.
func (s *Store) Lookup(k Key) Binding {
	if s == nil || k.Zero() {
		return Binding{}
	}
	now := s.now()
	sh := s.shard(k)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	b := Binding{Stamp: sh.seq}
	i := sh.find(k)
	if i < 0 {
		return b
	}
	e := &sh.entries[i]
	if now >= e.expires {
		sh.remove(i)
		s.stats.expired.Add(1)
		return b
	}
	if s.spent(e) {
		sh.remove(i)
		s.stats.spent.Add(1)
		return b
	}
	sh.touch(i)
	b.Target, b.Gen = e.target, e.gen
	return b
}

// Follow counts one use of the binding that a lookup found. It returns false if that
// binding is gone, expired, replaced, or used up; a used-up one is removed.
func (s *Store) Follow(k Key, gen uint64) bool {
	if s == nil || gen == 0 {
		return false
	}
	now := s.now()
	sh := s.shard(k)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	i := sh.find(k)
	if i < 0 || sh.entries[i].gen != gen {
		return false
	}
	e := &sh.entries[i]
	if now >= e.expires {
		sh.remove(i)
		s.stats.expired.Add(1)
		return false
	}
	if s.spent(e) {
		sh.remove(i)
		s.stats.spent.Add(1)
		return false
	}
	e.used++
	s.stats.followed.Add(1)
	return true
}

// spent says that a binding has been followed as often as it may be.
func (s *Store) spent(e *entry) bool { return s.uses >= 0 && e.used >= s.uses }

// Bind remembers that target holds the history of k. Call it only with terminal
// evidence of a whole, successful answer. stamp is that of the lookup the attempt began
// with. A live binding to the same target stays as it is, with its age and uses. A
// binding to another target that is newer than stamp stays, too. It returns the
// generation now in force, and whether that is a new binding.
func (s *Store) Bind(k Key, target, stamp uint64) (gen uint64, fresh bool) {
	if s == nil || k.Zero() {
		return 0, false
	}
	now := s.now()
	sh := s.shard(k)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	s.stats.expired.Add(uint64(sh.expire(now)))
	if i := sh.find(k); i >= 0 {
		e := &sh.entries[i]
		if e.target == target || e.gen > stamp {
			sh.touch(i)
			return e.gen, false
		}
		sh.remove(i)
		s.stats.evicted[Replaced].Add(1)
	} else if sh.full() {
		sh.remove(sh.oldest())
		s.stats.evicted[Capacity].Add(1)
	}
	s.stats.bound.Add(1)
	return sh.insert(k, target, now+s.ttl), true
}

// EvictIf removes the binding of k if its generation is gen: the one that the failed
// attempt followed. A binding made since is not touched.
func (s *Store) EvictIf(k Key, gen uint64, why Reason) bool {
	if s == nil || gen == 0 {
		return false
	}
	sh := s.shard(k)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	i := sh.find(k)
	if i < 0 || sh.entries[i].gen != gen {
		return false
	}
	sh.remove(i)
	s.stats.evicted[min(why, reasons-1)].Add(1)
	return true
}

// EvictTarget removes all bindings to a target that is gone for good, and returns how
// many there were. It visits every entry: it is not for the hot path.
func (s *Store) EvictTarget(target uint64) int {
	if s == nil {
		return 0
	}
	n := 0
	for i := range s.shards {
		n += s.shards[i].removeTarget(target)
	}
	s.stats.evicted[Gone].Add(uint64(n))
	return n
}

// Clear removes all bindings (a reload that changed what they depend on).
func (s *Store) Clear() {
	if s == nil {
		return
	}
	for i := range s.shards {
		s.shards[i].clear()
	}
}

// Len is the number of bindings held, expired ones that nobody has met included.
func (s *Store) Len() int {
	if s == nil {
		return 0
	}
	n := 0
	for i := range s.shards {
		sh := &s.shards[i]
		sh.mu.Lock()
		n += int(sh.used)
		sh.mu.Unlock()
	}
	return n
}

type counters struct {
	bound, followed, expired, spent atomic.Uint64
	evicted                         [reasons]atomic.Uint64
	refused                         [refusals]atomic.Uint64
}
