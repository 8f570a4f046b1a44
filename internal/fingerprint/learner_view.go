package fingerprint

import (
	"cmp"
	"slices"
	"time"
)

// Peek is Place for explanations: what Place would advise now, without learning from it
// and without making a change that is due.
func (l *Learner) Peek(model string, r *Result) Advice {
	if !r.Learnable() {
		return Advice{Key: r.Key, Family: r.Key, Bytes: r.SystemBytes}
	}
	group := r.Group(model)
	l.mu.Lock()
	defer l.mu.Unlock()
	if v, ok := l.prefixes.Load(fold('g', group, r.Prefix)); ok {
		switch e := v.(*learned); {
		case e.leaves == nil:
			return e.family.advice(nil)
		case e.leaves.judge(l.o.Variants) && !e.back():
			return l.fallback(e, nil)
		}
		return Advice{Key: r.Prefix, Family: r.Prefix, Bytes: r.SystemBytes}
	}
	return l.foresee(group, r)
}

// foresee advises for a prefix that has not been seen.
func (l *Learner) foresee(group uint64, r *Result) Advice {
	blocks := r.Blocks(nil)
	whole := blocks[len(blocks)-1].Pos
	own := Advice{Key: r.Prefix, Family: r.Prefix, Bytes: whole}
	known := l.deepest(group, blocks, 0)
	if known < 0 {
		return own
	}
	at := l.blocks[fold('g', group, blocks[known].Hash)]
	switch {
	case at.pos >= whole && at.family.whole == whole:
		return at.family.advice(nil)
	case l.kin(at, whole):
		a := at.family.advice(nil)
		a.Depth, a.Bytes = DepthHead, min(a.Bytes, at.pos)
		return a
	case known+1 < len(blocks) && at.judge(l.o.Variants):
		return l.fallback(&learned{leaves: at, first: blocks[known+1]}, nil)
	}
	return own
}

// Learned is one key that a Learner has in use, or the prefixes that it gives none.
type Learned struct {
	Key, Next uint64 // as in Advice
	Depth     Depth
	Bytes     int
	Prefixes  int    // remembered prefixes that have this key
	Requests  uint64 // of these prefixes, in the time that they are remembered
	Seen      time.Time

	Volatile          bool // as in Advice
	Message, From, To int
}

// Families lists what was learned, most used first, at most limit. It walks all that is
// remembered: it is for status pages.
func (l *Learner) Families(limit int) []Learned {
	l.mu.Lock()
	defer l.mu.Unlock()
	all := map[any]*Learned{}
	l.prefixes.Range(func(_, v any) bool {
		e := v.(*learned)
		var id any = e.family
		var a Advice
		if e.leaves != nil {
			a, id = l.fallback(e, nil), e.leaves
		} else {
			a = e.family.advice(nil)
		}
		f := all[id]
		if f == nil {
			f = &Learned{Key: a.Key, Next: a.Next, Depth: a.Depth, Bytes: a.Bytes, Volatile: a.Volatile, Message: a.Message, From: a.From, To: a.To}
			all[id] = f
		}
		f.Prefixes++
		f.Requests += uint64(e.hits.Load())
		if seen := time.Unix(0, e.seen.Load()); seen.After(f.Seen) {
			f.Seen = seen
		}
		return true
	})
	out := make([]Learned, 0, len(all))
	for _, f := range all {
		out = append(out, *f)
	}
	slices.SortFunc(out, func(a, b Learned) int {
		return cmp.Or(cmp.Compare(b.Requests, a.Requests), cmp.Compare(a.Key, b.Key), cmp.Compare(a.Bytes, b.Bytes))
	})
	return out[:min(limit, len(out))]
}

// Size is how many prefixes and blocks are remembered, for a gauge.
func (l *Learner) Size() (prefixes, blocks int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return int(l.size.Load()), len(l.blocks)
}
