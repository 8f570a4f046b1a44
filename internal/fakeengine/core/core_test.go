package core

import (
	"math"
	"testing"
	"time"
)

// drain steps until nothing is left and returns all events.
func drain(t *testing.T, c *Core, now time.Duration) ([]Event, time.Duration) {
	t.Helper()
	var ev []Event
	for range 1 << 20 {
		var o Outcome
		o, ev = c.Step(now, ev)
		check(t, c)
		switch {
		case o.Ran:
			now = o.End
		case o.Wake == Never:
			return ev, now
		default:
			now = o.Wake
		}
	}
	t.Fatal("the engine does not come to rest")
	return nil, 0
}

// check verifies the conservation of blocks and the shape of the tree.
func check(t *testing.T, c *Core) {
	t.Helper()
	kv := &c.kv
	if kv.pinned < 0 || kv.private < 0 || kv.idle < 0 || kv.pinned+kv.private+kv.idle > kv.total {
		t.Fatalf("blocks are not conserved: pinned %d private %d idle %d total %d", kv.pinned, kv.private, kv.idle, kv.total)
	}
	idle, pinned := 0, 0
	kids := map[*node]int{}
	for h, v := range kv.index {
		if len(v.h) == 0 || v.h[0] != h {
			t.Fatalf("node is indexed under a hash that is not its first")
		}
		if v.refs == 0 {
			idle += len(v.h)
		} else {
			pinned += len(v.h)
		}
		if v.parent != nil {
			kids[v.parent]++
			if v.parent.refs < v.refs {
				t.Fatalf("a parent has %d references, its child %d", v.parent.refs, v.refs)
			}
		}
	}
	if idle != kv.idle || pinned != kv.pinned {
		t.Fatalf("tree holds %d idle and %d pinned blocks, counted are %d and %d", idle, pinned, kv.idle, kv.pinned)
	}
	for _, v := range kv.index {
		if v.kids != kids[v] {
			t.Fatalf("node counts %d children and has %d", v.kids, kids[v])
		}
	}
	private, context := 0, 0
	for s := c.first; s != nil; s = s.nextup {
		private += c.blocksFor(c.kvTokens(s)) - s.shared
		if s.state == stateDecode {
			context += c.kvTokens(s)
		}
	}
	if context != c.context {
		t.Fatalf("decoding sequences have %d tokens of context, counted are %d", context, c.context)
	}
	if private != kv.private {
		t.Fatalf("running requests own %d private blocks, counted are %d", private, kv.private)
	}
	seen := 0
	for v := kv.lru.next; v != &kv.lru; v = v.next {
		seen += len(v.h)
		if v.kids > 0 && v.prev == &kv.lru {
			t.Fatal("the next node to be evicted has children")
		}
	}
	if seen != kv.idle {
		t.Fatalf("idle list holds %d blocks, counted are %d", seen, kv.idle)
	}
}

func mustNew(t *testing.T, cfg Config) *Core {
	t.Helper()
	c, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func submit(t *testing.T, c *Core, now time.Duration, r Request) ID {
	t.Helper()
	id, err := c.Submit(now, r)
	if err != nil {
		t.Fatal(err)
	}
	return id
}

// unique is a prompt nobody shares.
func unique(seed uint64, tokens, block int) Prompt {
	return Prompt{Tokens: tokens, Tail: SeedChain(seed, tokens/block).h}
}

func find(ev []Event, id ID, k Kind) (Event, bool) {
	for _, e := range ev {
		if e.ID == id && e.Kind == k {
			return e, true
		}
	}
	return Event{}, false
}

func TestColdPrefillSecondsMatchTheTable(t *testing.T) {
	for _, row := range []struct {
		preset  string
		tokens  int
		seconds float64
	}{
		{"8b-tp1", 10_000, 0.32}, {"8b-tp1", 20_000, 0.75}, {"8b-tp1", 40_000, 1.97}, {"8b-tp1", 80_000, 5.8}, {"8b-tp1", 128_000, 12.9},
		{"70b-tp4", 10_000, 0.75}, {"70b-tp4", 20_000, 1.65}, {"70b-tp4", 40_000, 3.9}, {"70b-tp4", 80_000, 10.1}, {"70b-tp4", 128_000, 20.6},
		{"70b-tp8", 10_000, 0.48}, {"70b-tp8", 20_000, 1.03}, {"70b-tp8", 40_000, 2.3}, {"70b-tp8", 80_000, 5.9}, {"70b-tp8", 128_000, 11.6},
		// The table has no column for 32B: a*n + b*n*n/2 + steps*o by hand.
		{"32b-tp2", 40_000, 68e-6*40_000 + 1.4e-9*8e8 + 5*1e-3}, {"32b-tp2", 80_000, 68e-6*80_000 + 1.4e-9*3.2e9 + 10*1e-3},
	} {
		p, err := FindPreset(row.preset)
		if err != nil {
			t.Fatal(err)
		}
		c := mustNew(t, Config{Cost: p.Cost, KVTokens: p.KVTokens, Budget: p.Budget, MaxSeqs: p.MaxSeqs})
		id := submit(t, c, 0, Request{Prompt: unique(1, row.tokens, 16), Output: 1})
		ev, _ := drain(t, c, 0)
		e, ok := find(ev, id, First)
		if !ok {
			t.Fatalf("%s %d: no first token", row.preset, row.tokens)
		}
		got := (e.At - p.Cost.front(row.tokens)).Seconds()
		if off := math.Abs(got-row.seconds) / row.seconds; off > 0.05 {
			t.Errorf("%s: cold prefill of %d tokens takes %.3f s, the table says %.3f (off by %.1f %%)", row.preset, row.tokens, got, row.seconds, off*100)
		}
		if busy := c.Stats().Busy.Seconds(); math.Abs(busy-got) > 1e-6 {
			t.Errorf("%s: busy %.6f s, prefill %.6f s", row.preset, busy, got)
		}
	}
}

func TestDecodeStepMatchesTheTable(t *testing.T) {
	for _, row := range []struct {
		preset  string
		context int
		batch   int
		ms      float64
	}{
		{"70b-tp4", 2048, 1, 11.9}, {"70b-tp4", 2048, 16, 13.0}, {"70b-tp4", 2048, 64, 16.5}, {"70b-tp4", 2048, 128, 21.3},
		{"70b-tp4", 8192, 1, 12.0}, {"70b-tp4", 8192, 16, 15.1}, {"70b-tp4", 8192, 64, 25.0}, {"70b-tp4", 8192, 128, 38.2},
		{"8b-tp1", 2048, 1, 6.6}, {"8b-tp1", 2048, 16, 8.4}, {"8b-tp1", 2048, 64, 14.2}, {"8b-tp1", 2048, 128, 21.9},
	} {
		p, _ := FindPreset(row.preset)
		got := p.Cost.step(load{tokens: row.batch, decoding: row.batch, context: row.batch * row.context}) * 1e3
		if math.Abs(got-row.ms)/row.ms > 0.05 {
			t.Errorf("%s at %d x %d: a decode step takes %.2f ms, the table says %.2f", row.preset, row.batch, row.context, got, row.ms)
		}
	}
}
