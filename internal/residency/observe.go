package residency

import (
	"cmp"
	"slices"
	"time"
)

// Observe takes in evidence.
func (t *Table) Observe(node uint32, fp uint64, e Evidence) {
	n := t.nodes.make(node)
	s := t.shard(fp)
	s.mu.Lock()
	defer s.mu.Unlock()
	now := t.ms()
	next := meta{at: now, epoch: uint16(n.epoch.Load()), kind: e.Kind}
	var old meta
	known, believed := false, false // known: evidence of this epoch
	en := t.find(node, fp)
	if en != nil {
		if word := en.meta.Load(); word != 0 {
			old = unpackMeta(word)
			known = old.epoch == next.epoch
			w, _ := t.weigh(old, n, en.stamp.Load(), now)
			believed = w == Warm
		}
	}
	if e.Kind == Removed {
		if en != nil {
			en.meta.Store(next.pack())
		}
		return
	}
	contradicted := false
	switch {
	case e.Kind == Usage:
		next, contradicted = t.fromUsage(e, old, known, next)
	case e.Kind == Prefill && known:
		next.misses = old.misses
		next = t.outlasting(old, next)
	}
	if en == nil {
		if en = t.claim(s, node, fp); en == nil {
			return
		}
	}
	stamp, distance := n.touch(fp, e.Static, e.written())
	switch {
	case contradicted && believed:
		n.sawMiss(distance)
	case next.kind == Usage && known:
		n.sawHit(distance)
	}
	en.stamp.Store(stamp)
	if e.Static > 0 {
		en.static.Store(e.Static)
	}
	en.meta.Store(next.pack())
	s.wake(fp)
}

// Inherit lets a prefix have what is proven of another one on a node: the caller knows that
// from contains to, so that where from is warm, to is. What is known of to itself stays.
func (t *Table) Inherit(node uint32, from, to uint64) {
	e := t.find(node, from)
	if e == nil || from == to {
		return
	}
	word, stamp, static := e.meta.Load(), e.stamp.Load(), e.static.Load()
	if w, _, ok := t.judge(e, node, from, t.nodes.get(node), t.ms()); !ok || w != Warm {
		return
	}
	s := t.shard(to)
	s.mu.Lock()
	defer s.mu.Unlock()
	if old := t.find(node, to); old != nil && old.meta.Load() != 0 {
		return
	}
	if en := t.claim(s, node, to); en != nil {
		en.stamp.Store(stamp)
		en.static.Store(static)
		en.meta.Store(word)
		s.wake(to)
	}
}

// written is how many tokens beside the static prefix the request put into the cache.
func (e *Evidence) written() int64 {
	if e.Kind != Usage || e.Prompt <= 0 {
		return 0
	}
	return max(e.Prompt-max(e.Static, e.Cached, 0), 0) + max(e.Output, 0)
}

// hit says whether the cached tokens cover the static prefix. The last block may be
// partial and is then never cached; Static may be an estimate, hence the sixteenth.
func (e *Evidence) hit() bool {
	block := e.Block
	if block <= 0 {
		block = 16
	}
	if e.Static <= 0 {
		return e.Cached > 0 && e.Cached >= e.Prompt/2
	}
	return e.Cached > 0 && e.Cached >= e.Static-max(block, e.Static/16)
}

// fromUsage turns a request's own figures into evidence. contradicted says that it missed
// although there had been evidence before it was sent.
func (t *Table) fromUsage(e Evidence, old meta, known bool, next meta) (_ meta, contradicted bool) {
	switch {
	case e.Cached >= 0 && e.hit():
		return next, false
	case e.Cached < 0:
		// Nothing reported: it was computed or found there, and that is all we know.
		next.kind = Prefill
		if known {
			next.misses = old.misses
			next = t.outlasting(old, next)
		}
		return next, false
	}
	// A miss. The prefix has been computed just now, so it is warm on weak evidence,
	// unless misses follow each other: then this engine does not keep it.
	next.kind = Prefill
	sent := next.at - 10_000
	if !e.Sent.IsZero() {
		sent = e.Sent.Sub(t.start).Milliseconds()
	}
	if known && old.at < sent && old.kind != Removed {
		next.misses = min(old.misses+1, maxMisses)
		return next, true
	}
	if known {
		next.misses = old.misses
	}
	return next, false
}

// outlasting returns the evidence that is believed for longer: a fresh weak one does not
// replace an older strong one before that has worn down.
func (t *Table) outlasting(old, next meta) meta {
	if old.kind != Removed && old.misses == 0 && old.at+t.life[old.kind] > next.at+t.life[next.kind] {
		return old
	}
	return next
}

// sawMiss learns that an entry was gone after so many tokens.
func (n *nodeState) sawMiss(tokens int64) {
	if room := n.room(); tokens > 0 && (room == 0 || tokens < room) {
		n.learned.Store(tokens)
	}
}

// sawHit unlearns: an entry was still there after so many tokens.
func (n *nodeState) sawHit(tokens int64) {
	if l := n.learned.Load(); l > 0 && tokens > l {
		n.learned.Store(tokens)
	}
}

// Entry is one pair in a snapshot.
type Entry struct {
	Node        uint32        `json:"node"`
	Fingerprint uint64        `json:"fingerprint"`
	Warmth      Warmth        `json:"warmth"`
	Kind        Kind          `json:"kind"`
	Trust       float64       `json:"trust"` // 0..1, decayed
	Age         time.Duration `json:"age"`
	Static      int64         `json:"static"` // tokens
	Misses      int           `json:"misses"` // in a row, against fresh evidence
}

// Snapshot lists all pairs by node and fingerprint. It allocates; it is for status.
func (t *Table) Snapshot() []Entry {
	now := t.ms()
	var out []Entry
	for i := range t.shards {
		s := &t.shards[i]
		s.mu.Lock()
		for j := range s.entries {
			e := &s.entries[j]
			id := e.node.Load()
			if id == 0 {
				continue
			}
			row := Entry{Node: uint32(id - 1), Fingerprint: e.fp.Load(), Static: e.static.Load(), Trust: t.trust(e, now), Kind: kinds}
			row.Warmth, row.Age, _ = t.judge(e, row.Node, row.Fingerprint, t.nodes.get(row.Node), now)
			if word := e.meta.Load(); word != 0 {
				m := unpackMeta(word)
				row.Kind, row.Misses = m.kind, int(m.misses)
			}
			out = append(out, row)
		}
		s.mu.Unlock()
	}
	slices.SortFunc(out, func(a, b Entry) int {
		return cmp.Or(cmp.Compare(a.Node, b.Node), cmp.Compare(a.Fingerprint, b.Fingerprint))
	})
	return out
}
