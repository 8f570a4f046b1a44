package fingerprint

import (
	"cmp"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// Defaults of LearnerOptions.
const (
	DefaultLearnerPrefixes = 4096
	DefaultLearnerBlocks   = 65536
	DefaultLearnerShare    = 0.75
	DefaultLearnerMinBytes = 4096
	DefaultLearnerVariants = 32
)

// LearnerOptions of a Learner. The zero value, but for Now, is valid.
type LearnerOptions struct {
	Now func() time.Time // required
	// MaxPrefixes bounds the static prefixes remembered, MaxBlocks their block hashes.
	// 0 = 4096 and 65536 (about 8 MiB together). The ones not seen for longest go first.
	MaxPrefixes, MaxBlocks int
	// Share is how much of a new prefix an older one must share for both to be keyed
	// together. 0 = 0.75; more than 0, at most 1.
	Share float64
	// MinBytes is the shortest shared head that is worth a key. 0 = 4096.
	MinBytes int
	// Variants is how many different continuations in a row, none of which came back,
	// make the text behind a shared head volatile. 0 = 32; at least 4.
	Variants int
}

// Learner finds the depth to which a static prefix is worth keying when nobody has
// declared it. Its rule, for a prefix that is new:
//
//   - If an older prefix of the group shares at least Share of it, they belong to one
//     family and have one key: a date at the end of a system message, a shop's name, an
//     edited last paragraph move nothing.
//   - Otherwise it founds a family with its own digest as the key, unless the last
//     Variants prefixes that left the others at the same place never came back: then the
//     text there is volatile, and all that follow share the key of the head before it, or
//     have none if that head is shorter than MinBytes. One that does come back, after
//     others have come in between, founds its family then.
//
// So the number of keys is bounded by what returns, not by what comes.
//
// A family's key starts as the digest of its first member, which depends on who came
// first. Its Next is the digest of the shared head alone: the key on which independent
// routers agree. Place changes from one to the other only when the caller says that the
// new key has an owner proven warm, so a change of depth moves nothing that is warm.
//
// A Learner is safe for concurrent use. A prefix that it knows costs one lock-free look-up;
// a new one takes a mutex for some microseconds. It keeps hashes, lengths and times.
type Learner struct {
	o        LearnerOptions
	prefixes sync.Map // (group, prefix) -> *learned
	size     atomic.Int64

	mu     sync.Mutex
	blocks map[uint64]*node // (group, block)
	buf    []Block
}

// Depth says how a learned key was made.
type Depth uint8

// The depths.
const (
	DepthWhole Depth = iota // the family of one static prefix: the whole of it is the key
	DepthHead               // several prefixes with a common head: one key for all
	DepthNone               // volatile from the start: no key, place by conversation or load
)

// String returns the label value used in metrics and explain.
func (d Depth) String() string {
	switch d {
	case DepthHead:
		return "head"
	case DepthNone:
		return "none"
	default:
		return "whole"
	}
}

// Advice is what a Learner makes of one request.
type Advice struct {
	Key    uint64 // place by it; 0 with DepthNone
	Next   uint64 // the key it becomes when proven warm; 0 = no change is due
	Moved  uint64 // the key until this call, if this very call made the change; else 0
	Family uint64 // the same for all prefixes with this key, before and after a change; 0 with DepthNone
	Depth  Depth
	Bytes  int // canonical bytes of system text that Next, or else Key, covers

	// Volatile is set while the text behind the shared head changes with every request.
	// The first difference lies in [From, To) of the canonical text of leading message
	// Message; Churn narrows it further.
	Volatile          bool
	Message, From, To int
}

// family is a set of prefixes with one key.
type family struct {
	id    uint64 // the digest that it was founded with
	key   atomic.Uint64
	next  atomic.Uint64
	bytes atomic.Int64
	many  atomic.Bool
	whole int // canonical bytes of the prefix that founded it
}

// learned is a prefix that has been seen. All but hits and seen are fixed when it is
// published in prefixes, or guarded by the mutex.
type learned struct {
	family *family
	leaves *node // set instead of family while it is one of many that pass by
	group  uint64
	first  Block  // the first block that was new
	passed uint32 // hits when the next variant came at the same place; 0 = none came yet
	hits   atomic.Uint32
	seen   atomic.Int64
}

// back reports whether the prefix came again after another one had taken its place. One
// late straggler in four is a clock's edge between two requests, not a return.
func (e *learned) back() bool {
	return e.passed > 0 && e.hits.Load() > e.passed+e.passed/4
}

// node is a block that some family passes through.
type node struct {
	family   *family
	head     *family // of those that share no more than this block, once it is volatile
	hash     uint64
	pos      int
	seen     int64
	volatile bool
	variants []*learned // the last prefixes that left here, oldest first
}

// NewLearner returns an empty Learner.
func NewLearner(o LearnerOptions) *Learner {
	if o.Now == nil {
		panic("BUG: a Learner needs a clock")
	}
	o.MaxPrefixes = orDefault(o.MaxPrefixes, DefaultLearnerPrefixes)
	o.MaxBlocks = orDefault(o.MaxBlocks, DefaultLearnerBlocks)
	o.MinBytes = orDefault(o.MinBytes, DefaultLearnerMinBytes)
	o.Variants = max(4, orDefault(o.Variants, DefaultLearnerVariants))
	if o.Share <= 0 || o.Share > 1 {
		o.Share = DefaultLearnerShare
	}
	return &Learner{o: o, blocks: map[uint64]*node{}}
}

// Place says what to key a request by, and learns from it. r must hold the Scan of the
// request and be of KindPrefix; other kinds have their key and are returned as they are.
// warm reports whether the key next has an owner that is proven warm, so that nothing warm
// is lost when it takes the place of key; it is asked only while a change is due, possibly
// with a lock held, and nil means no.
func (l *Learner) Place(model string, r *Result, warm func(key, next uint64) bool) Advice {
	if !r.Learnable() {
		return Advice{Key: r.Key, Family: r.Key, Bytes: r.SystemBytes}
	}
	group := r.Group(model)
	now := l.o.Now().UnixNano()
	id := fold('g', group, r.Prefix)
	if v, ok := l.prefixes.Load(id); ok {
		e := v.(*learned)
		if e.leaves == nil {
			e.touch(now)
			return e.family.advice(warm)
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	e := l.learn(id, group, r, now)
	e.touch(now)
	if e.leaves != nil {
		return l.fallback(e, warm)
	}
	return e.family.advice(warm)
}

// Learnable says whether a Learner has a say in the key: no registered prefix matched, and
// there is text that may have a volatile part.
func (r *Result) Learnable() bool { return r.Kind == KindPrefix && r.SystemBytes > 0 }

func (e *learned) touch(now int64) {
	e.hits.Add(1)
	e.seen.Store(now)
}

func (f *family) advice(warm func(key, next uint64) bool) Advice {
	a := Advice{Key: f.key.Load(), Next: f.next.Load(), Family: f.id, Bytes: int(f.bytes.Load())}
	if f.many.Load() {
		a.Depth = DepthHead
	}
	if a.Next == a.Key {
		a.Next = 0
	}
	if a.Next != 0 && warm != nil && warm(a.Key, a.Next) {
		if f.key.CompareAndSwap(a.Key, a.Next) {
			a.Moved = a.Key
		}
		a.Key, a.Next = a.Next, 0
	}
	return a
}

// learn finds or makes the entry of a prefix.
func (l *Learner) learn(id, group uint64, r *Result, now int64) *learned {
	v, known := l.prefixes.Load(id)
	if known {
		e := v.(*learned)
		if e.leaves == nil || e.leaves.judge(l.o.Variants) && !e.back() {
			return e
		}
	}
	l.buf = r.Blocks(l.buf[:0])
	e := &learned{group: group}
	l.admit(e, r.Prefix, now, known)
	l.prefixes.Store(id, e)
	if !known && l.size.Add(1) > int64(l.o.MaxPrefixes) {
		l.evictPrefixes()
	}
	return e
}

// admit places a prefix that has no family. proven is whether it has come back.
func (l *Learner) admit(e *learned, key uint64, now int64, proven bool) {
	blocks := l.buf
	known := l.deepest(e.group, blocks, now)
	if known < 0 {
		e.family = l.found(e.group, blocks, 0, key, now)
		return
	}
	at := l.blocks[fold('g', e.group, blocks[known].Hash)]
	switch whole := blocks[len(blocks)-1].Pos; {
	case at.pos >= whole && at.family.whole == whole: // its entry was dropped, its blocks were not
		e.family = at.family
		return
	case l.kin(at, whole):
		at.family.join(at)
		e.family = at.family
		return
	}
	if known+1 < len(blocks) && !proven {
		e.first = blocks[known+1]
		at.leave(e, l.o.Variants)
		if at.judge(l.o.Variants) {
			e.leaves = at
			return
		}
	}
	e.family = l.found(e.group, blocks, known+1, key, now)
}

// kin says whether a prefix of so many bytes, which shares the family's text up to at,
// belongs to it.
func (l *Learner) kin(at *node, whole int) bool {
	longer := max(whole, at.family.whole)
	return at.pos >= l.o.MinBytes && float64(at.pos) >= l.o.Share*float64(longer)
}

// deepest returns the index of the last block that is known, -1 for none. Blocks are
// nested: all before a known one are known, unless they were evicted. They are marked as
// seen now, unless now is 0.
func (l *Learner) deepest(group uint64, blocks []Block, now int64) int {
	i, _ := slices.BinarySearchFunc(blocks, true, func(b Block, _ bool) int {
		if n := l.blocks[fold('g', group, b.Hash)]; n != nil {
			if now > 0 {
				n.seen = now
			}
			return -1
		}
		return 1
	})
	return i - 1
}

// found starts a family with all blocks from index from on.
func (l *Learner) found(group uint64, blocks []Block, from int, key uint64, now int64) *family {
	f := &family{id: key, whole: blocks[len(blocks)-1].Pos}
	f.key.Store(key)
	f.bytes.Store(int64(f.whole))
	for _, b := range blocks[from:] {
		if len(l.blocks) >= l.o.MaxBlocks {
			l.evictBlock()
		}
		l.blocks[fold('g', group, b.Hash)] = &node{family: f, hash: b.Hash, pos: b.Pos, seen: now}
	}
	return f
}

// join notes that a family has no more in common than the head that ends at n.
func (f *family) join(n *node) {
	if f.many.Load() && int64(n.pos) >= f.bytes.Load() {
		return
	}
	f.bytes.Store(int64(n.pos))
	f.next.Store(n.hash)
	f.many.Store(true)
}

// leave notes a prefix that goes its own way behind n.
func (n *node) leave(e *learned, limit int) {
	if k := len(n.variants); k > 0 {
		last := n.variants[k-1]
		last.passed = last.hits.Load()
	}
	if len(n.variants) >= limit {
		n.variants = append(n.variants[:0], n.variants[1:]...)
	}
	n.variants = append(n.variants, e)
}

// judge decides whether the text behind n is volatile. It takes a full row of variants of
// which fewer than a sixth came back to become so, and a third to stop being so.
func (n *node) judge(limit int) bool {
	if len(n.variants) < limit {
		return false
	}
	back := 0
	for _, e := range n.variants {
		if e.back() {
			back++
		}
	}
	if n.volatile {
		n.volatile = back*3 < limit
	} else {
		n.volatile = back*6 < limit
	}
	return n.volatile
}

// fallback advises for a prefix that passes by behind volatile text.
func (l *Learner) fallback(e *learned, warm func(key, next uint64) bool) Advice {
	n := e.leaves
	a := Advice{Depth: DepthNone, Volatile: true, Message: e.first.Message, To: e.first.Offset}
	a.From = max(0, a.To-(e.first.Pos-n.pos))
	if n.pos < l.o.MinBytes {
		return a
	}
	if n.head == nil {
		// The family that was here first keeps its depth and lends its key, which is
		// where the head is warm.
		n.head = &family{id: n.hash, whole: n.pos}
		n.head.key.Store(n.family.key.Load())
		n.head.join(n)
	}
	b := n.head.advice(warm)
	a.Key, a.Next, a.Moved, a.Family = b.Key, b.Next, b.Moved, b.Family
	a.Bytes, a.Depth = n.pos, DepthHead
	return a
}

// evictPrefixes drops the quarter not seen for longest.
func (l *Learner) evictPrefixes() {
	type aged struct {
		id   any
		seen int64
	}
	var all []aged
	l.prefixes.Range(func(id, v any) bool {
		all = append(all, aged{id, v.(*learned).seen.Load()})
		return true
	})
	slices.SortFunc(all, func(a, b aged) int { return cmp.Compare(a.seen, b.seen) })
	for _, a := range all[:len(all)/4+1] {
		l.prefixes.Delete(a.id)
		l.size.Add(-1)
	}
}

// evictBlock drops the one of a few blocks, picked by the map's random order, that has
// not been seen for longest.
func (l *Learner) evictBlock() {
	const few = 8
	var oldest uint64
	at, n := int64(math.MaxInt64), 0
	for id, b := range l.blocks {
		if b.seen < at {
			oldest, at = id, b.seen
		}
		if n++; n == few {
			break
		}
	}
	delete(l.blocks, oldest)
}
