package residency

import (
	"math"
	"sync"
	"sync/atomic"
	"time"
)

// Unreported marks a count that the engine did not report. It has the value that
// dialect.Unknown has.
const Unreported int64 = -1

// Warmth is what the evidence says. The zero value claims nothing.
type Warmth uint8

// The states.
const (
	Unknown Warmth = iota // no evidence, or evidence that no longer counts
	Cold                  // evidence that it is not in cache
	Warming               // a lead is out: one request is prefilling it now
	Warm                  // evidence that it is in cache
)

// String returns the word used in status and metrics.
func (w Warmth) String() string {
	return [...]string{"unknown", "cold", "warming", "warm"}[min(w, Warm)]
}

// Kind says where evidence comes from, strongest first.
type Kind uint8

// The kinds. Usage, Prefill and Removed can make a prefix cold or merely prefilled; the
// others are only given when they prove warmth.
const (
	Usage    Kind = iota // a request's own usage: prompt and cached tokens
	Proof                // a prewarm probe whose cached tokens covered the prefix
	Counters             // the engine's prefix-cache counters moved as a hit would move them
	TTFT                 // the answer came too fast for a cold prefill
	Prefill              // the first byte came: the prefix has been computed on this node
	Removed              // the engine says that it dropped blocks of the prefix
	kinds
)

// String returns the word used in status.
func (k Kind) String() string {
	return [...]string{"usage", "proof", "counters", "ttft", "prefill", "removed", "none"}[min(k, kinds)]
}

// strength is how far evidence is trusted when fresh. Below one half it proves nothing,
// so a strength s is believed for HalfLife x log2(2s): weaker evidence for less long.
var strength = [kinds]float64{Usage: 1, Proof: 1, Counters: 0.8, TTFT: 0.7, Prefill: 0.7}

// Evidence is one observation about a prefix on a node. Token counts that are not known
// are negative, never zero.
type Evidence struct {
	Kind   Kind
	Prompt int64 // all prompt tokens of the request, cached ones included
	Cached int64 // of those, served from cache
	Static int64 // tokens of the static prefix (an estimate is good enough)
	Output int64 // generated tokens: they take cache room, too; 0 if not known
	Block  int64 // the node's KV block size; 0 = 16. A last partial block is never cached.
	// Sent is when the request went out. A miss contradicts a belief only if the belief
	// is older than that: requests that run side by side all miss. Zero means 10 s ago.
	Sent time.Time
}

// Reason says why a node was forgotten.
type Reason uint8

// The reasons.
const (
	Restart Reason = iota // counters went backwards, or a new process answers
	Sleep                 // weights or cache were released
	Reset                 // the prefix cache was reset
	Flush                 // the cache was flushed, or weights were updated
	Gone                  // the node left the pool
)

// String returns the label value.
func (r Reason) String() string {
	return [...]string{"restart", "sleep", "reset", "flush", "gone"}[min(r, Gone)]
}

// Options tune a Table. The zero value of each field means its default.
type Options struct {
	Now func() time.Time // the clock; default time.Now
	// MaxEntries bounds the (node, fingerprint) pairs remembered, 64 bytes each.
	// Default 32768, rounded up to a power of two, at least 512.
	MaxEntries int
	// HalfLife of the trust in evidence: a hit that nothing has confirmed since is
	// believed for one half-life. Default 15 min. Idle caches live longer; a prefix that
	// matters is kept warm, and thereby proven, more often.
	HalfLife time.Duration
	// LeadTimeout ends a lead whose holder never called Done. Default 2 min.
	LeadTimeout time.Duration
}

const (
	ways       = 8
	shardCount = 64
)

// Table is what one pool knows. Use New.
type Table struct {
	now         func() time.Time
	start       time.Time
	halfLife    int64 // ms
	leadTimeout int64 // ms
	life        [kinds]int64
	sets        uint64 // per shard
	shards      [shardCount]shard
	nodes       nodeTable
}

type shard struct {
	mu      sync.Mutex // serialises writers of entries; guards flights
	entries []entry
	flights map[uint64]*flight
	_       [64]byte
}

// entry is evidence about one pair. Readers take no lock: they read the identity, the
// rest, and the identity again; a writer that gives the entry to another pair first
// clears meta.
type entry struct {
	fp     atomic.Uint64
	node   atomic.Uint64 // id + 1; 0 = free
	meta   atomic.Uint64 // see packMeta; 0 = no evidence
	stamp  atomic.Int64  // the node's stamp when the prefix was last touched
	static atomic.Int64  // tokens of the prefix
	lead   atomic.Int64  // ms at which the lead began; 0 = none
}

// meta is the evidence in one word: time in ms since start plus one (40 bits), epoch of
// the node (16), kind (4), misses in a row (4).
type meta struct {
	at     int64
	epoch  uint16
	kind   Kind
	misses uint8
}

func (m meta) pack() uint64 {
	return uint64(m.at+1)<<24 | uint64(m.epoch)<<8 | uint64(m.kind)<<4 | uint64(m.misses)
}

func unpackMeta(w uint64) meta {
	return meta{at: int64(w>>24) - 1, epoch: uint16(w >> 8), kind: Kind(w >> 4 & 15), misses: uint8(w & 15)}
}

// New returns an empty table.
func New(o Options) *Table {
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.MaxEntries <= 0 {
		o.MaxEntries = 32768
	}
	if o.HalfLife <= 0 {
		o.HalfLife = 15 * time.Minute
	}
	if o.LeadTimeout <= 0 {
		o.LeadTimeout = 2 * time.Minute
	}
	t := &Table{
		now: o.Now, start: o.Now(), sets: 1,
		halfLife: max(o.HalfLife.Milliseconds(), 1), leadTimeout: max(o.LeadTimeout.Milliseconds(), 1),
	}
	for int(t.sets)*ways*shardCount < o.MaxEntries {
		t.sets *= 2
	}
	for i := range t.shards {
		t.shards[i].entries = make([]entry, t.sets*ways)
		t.shards[i].flights = map[uint64]*flight{}
	}
	for k := range kinds {
		if strength[k] > 0 {
			t.life[k] = int64(float64(t.halfLife) * math.Log2(2*strength[k]))
		}
	}
	return t
}

func (t *Table) ms() int64 { return max(t.now().Sub(t.start).Milliseconds(), 0) }

// Warmth says what the evidence is, and how old.
func (t *Table) Warmth(node uint32, fp uint64) (Warmth, time.Duration) {
	now := t.ms()
	n := t.nodes.get(node)
	if e := t.find(node, fp); e != nil {
		w, age, ok := t.judge(e, node, fp, n, now)
		if ok && w != Unknown {
			return w, age
		}
	}
	if n != nil {
		if at := n.coldAt.Load(); at > 0 && now-at < t.halfLife {
			return Cold, time.Duration(now-at) * time.Millisecond
		}
	}
	return Unknown, 0
}

// judge reads an entry without a lock. ok is false if it changed hands meanwhile.
func (t *Table) judge(e *entry, node uint32, fp uint64, n *nodeState, now int64) (w Warmth, age time.Duration, ok bool) {
	word, stamp, lead := e.meta.Load(), e.stamp.Load(), e.lead.Load()
	if e.fp.Load() != fp || e.node.Load() != uint64(node)+1 {
		return Unknown, 0, false
	}
	if word != 0 {
		w, age = t.weigh(unpackMeta(word), n, stamp, now)
	}
	if w != Warm && lead != 0 && now-lead < t.leadTimeout {
		return Warming, time.Duration(now-lead) * time.Millisecond, true
	}
	return w, age, true
}

// maxMisses is how many misses in a row, each against fresh evidence, it takes to say
// that this engine does not cache this prefix at all (field case B56).
const maxMisses = 3

// weigh applies age, epoch and eviction to evidence.
func (t *Table) weigh(m meta, n *nodeState, stamp, now int64) (Warmth, time.Duration) {
	age := time.Duration(max(now-m.at, 0)) * time.Millisecond
	switch {
	case n == nil:
		return Unknown, age
	case m.epoch != uint16(n.epoch.Load()):
		return Cold, time.Duration(max(now-n.coldAt.Load(), 0)) * time.Millisecond
	case now-m.at > max(t.life[m.kind], t.halfLife/8):
		return Unknown, age
	case m.kind == Removed || m.misses >= maxMisses:
		return Cold, age
	case stamp <= n.horizon.Load():
		return Unknown, age // likely gone, but nobody has seen it go
	default:
		return Warm, age
	}
}

func mix(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// shard depends on the fingerprint alone, so that one lock covers its flights, too.
func (t *Table) shard(fp uint64) *shard { return &t.shards[mix(fp)%shardCount] }

func (t *Table) set(s *shard, node uint32, fp uint64) []entry {
	i := mix(fp^uint64(node)*0x9e3779b97f4a7c15) >> 16 % t.sets * ways
	return s.entries[i : i+ways]
}

func (t *Table) find(node uint32, fp uint64) *entry {
	set := t.set(t.shard(fp), node, fp)
	for i := range set {
		if e := &set[i]; e.node.Load() == uint64(node)+1 && e.fp.Load() == fp {
			return e
		}
	}
	return nil
}

// claim finds or makes the entry. Called with the shard's lock held. It returns nil if
// every place is held by a lead.
func (t *Table) claim(s *shard, node uint32, fp uint64) *entry {
	if e := t.find(node, fp); e != nil {
		return e
	}
	set := t.set(s, node, fp)
	now := t.ms()
	var victim *entry
	worst := math.Inf(1)
	for i := range set {
		e := &set[i]
		if e.node.Load() == 0 {
			victim = e
			break
		}
		if lead := e.lead.Load(); lead != 0 && now-lead < t.leadTimeout {
			continue
		}
		if v := t.trust(e, now); v < worst {
			victim, worst = e, v
		}
	}
	if victim == nil {
		return nil
	}
	victim.meta.Store(0)
	victim.lead.Store(0)
	victim.node.Store(0)
	victim.fp.Store(fp)
	victim.stamp.Store(0)
	victim.static.Store(0)
	victim.node.Store(uint64(node) + 1)
	return victim
}

// trust is the decayed strength of an entry's evidence, 0..1.
func (t *Table) trust(e *entry, now int64) float64 {
	word := e.meta.Load()
	if word == 0 {
		return 0
	}
	m := unpackMeta(word)
	n := t.nodes.get(uint32(e.node.Load() - 1))
	if w, _ := t.weigh(m, n, e.stamp.Load(), now); w != Warm {
		return 0
	}
	return strength[m.kind] * math.Exp2(-float64(now-m.at)/float64(t.halfLife))
}
