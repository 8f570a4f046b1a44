package core

import (
	"math/rand/v2"
	"slices"
	"testing"
)

// run1 runs one request alone to its end and returns the cached tokens it found.
func run1(t *testing.T, c *Core, p Prompt, output int) int {
	t.Helper()
	id := submit(t, c, 0, Request{Prompt: p, Output: output})
	ev, _ := drain(t, c, 0)
	e, ok := find(ev, id, Admitted)
	if !ok {
		t.Fatal("the request was never admitted")
	}
	return e.Cached
}

func TestLastTokenIsAlwaysRecomputed(t *testing.T) {
	for _, row := range []struct{ tokens, cached int }{
		{16, 0}, {17, 16}, {31, 16}, {32, 16}, {33, 32}, {160, 144}, {161, 160},
	} {
		c := mustNew(t, Config{})
		p := unique(7, row.tokens, 16)
		if got := run1(t, c, p, 1); got != 0 {
			t.Fatalf("a cold request found %d tokens", got)
		}
		if got := run1(t, c, p, 1); got != row.cached {
			t.Errorf("%d tokens again: %d cached, want %d", row.tokens, got, row.cached)
		}
	}
}

func TestSharedHeadIsFoundWhateverFollows(t *testing.T) {
	c := mustNew(t, Config{BlockSize: 128})
	head := SeedChain(1, 28)
	with := func(seed uint64) Prompt {
		return Prompt{Tokens: 28*128 + 68, Head: head, Tail: AppendSeed(nil, head.End(), seed, 0), Static: 28 * 128}
	}
	if got := run1(t, c, with(1), 8); got != 0 {
		t.Fatalf("cold: %d", got)
	}
	if got := run1(t, c, with(2), 8); got != 3584 {
		t.Errorf("a 3,652-token prompt with 128-token blocks finds %d tokens, a real vLLM 3,584", got)
	}
	if cold := c.Stats().Cold; cold != 1 {
		t.Errorf("%d cold prefills, want 1", cold)
	}
}

func TestOneChangedEarlyBlockLosesEverythingAfterIt(t *testing.T) {
	c := mustNew(t, Config{})
	a := SeedChain(1, 10)
	b := &Chain{h: append(slices.Clone(a.h[:4]), AppendSeed(nil, a.h[3], 99, 6)...)}
	run1(t, c, Prompt{Tokens: 161, Head: a}, 1)
	if got := run1(t, c, Prompt{Tokens: 161, Head: b}, 1); got != 64 {
		t.Errorf("%d cached, want 64", got)
	}
	if got := run1(t, c, Prompt{Tokens: 161, Head: a}, 1); got != 160 {
		t.Errorf("the first prompt lost its cache to the second: %d cached", got)
	}
}

func TestSaltAndAdapterSeparateTheCache(t *testing.T) {
	data := make([]byte, 640)
	roots := map[uint64]string{}
	for _, r := range [][2]string{{"", ""}, {"a", ""}, {"", "a"}, {"a", "a"}, {"aa", ""}, {"", "aa"}} {
		h := AppendHashes(nil, Root(r[0], r[1]), data, 64)
		if other, ok := roots[h[0]]; ok {
			t.Errorf("adapter and salt %q share blocks with %s", r, other)
		}
		roots[h[0]] = r[0] + "/" + r[1]
	}
}

func TestEvictionTakesTheTailOfTheOldestFirst(t *testing.T) {
	c := mustNew(t, Config{KVTokens: 40 * 16})
	a, b := unique(1, 15*16, 16), unique(2, 15*16, 16)
	run1(t, c, a, 1)
	run1(t, c, b, 1)
	// 30 blocks are idle, 10 free. 14 more cost a 4 blocks of its tail, b none.
	run1(t, c, unique(3, 14*16, 16), 1)
	if got := c.Cached(&b); got != 14*16 {
		t.Errorf("the younger prefix has %d tokens left, want all of %d", got, 14*16)
	}
	// Admission alone takes 14 blocks; the answer's only token needs none.
	if got := c.Cached(&a); got != 11*16 {
		t.Errorf("the older prefix has %d tokens left, want %d: its head must live longest", got, 11*16)
	}
}

func TestAHitRefreshesTheWholePrefix(t *testing.T) {
	c := mustNew(t, Config{KVTokens: 40 * 16})
	a, b := unique(1, 15*16, 16), unique(2, 15*16, 16)
	run1(t, c, a, 1)
	run1(t, c, b, 1)
	run1(t, c, a, 1) // touches a
	run1(t, c, unique(3, 20*16, 16), 1)
	if got := c.Cached(&a); got != 14*16 {
		t.Errorf("the touched prefix has %d tokens left", got)
	}
	if got := c.Cached(&b); got >= 14*16 {
		t.Error("the untouched prefix lost nothing")
	}
}

func TestAnswerBlocksServeTheNextTurn(t *testing.T) {
	c := mustNew(t, Config{})
	hashes := SeedChain(5, 20).h
	first := Prompt{Tokens: 100, Tail: hashes[:12]} // 6 whole blocks of prompt, the answer fills the next
	run1(t, c, first, 97)                           // 196 tokens in KV: 12 whole blocks
	next := Prompt{Tokens: 300, Tail: hashes}
	if got := run1(t, c, next, 1); got != 192 {
		t.Errorf("the second turn finds %d tokens, want 192", got)
	}
}

// lruModel is the cache as vLLM has it: one entry per block, a free queue in which
// a freed request puts its blocks in reverse.
type lruModel struct {
	total int
	queue []uint64 // idle blocks, next victim first
}

func (m *lruModel) serve(hashes []uint64, tokens, block int) (cached int) {
	limit := min((tokens-1)/block, len(hashes))
	hit := 0
	for hit < limit && slices.Contains(m.queue, hashes[hit]) {
		hit++
	}
	for _, h := range hashes[:hit] {
		m.queue = slices.DeleteFunc(m.queue, func(x uint64) bool { return x == h })
	}
	need := (tokens+block-1)/block - hit
	if free := m.total - len(m.queue) - hit; need > free {
		m.queue = m.queue[need-free:]
	}
	whole := min(tokens/block, len(hashes))
	for i := whole - 1; i >= 0; i-- {
		m.queue = slices.DeleteFunc(m.queue, func(x uint64) bool { return x == hashes[i] })
		m.queue = append(m.queue, hashes[i])
	}
	return hit * block
}

func TestCacheAgreesWithAPerBlockLRU(t *testing.T) {
	for seed := range uint64(30) {
		r := rand.New(rand.NewPCG(seed, 1))
		c := mustNew(t, Config{KVTokens: 64 * 16})
		model := &lruModel{total: 64}
		var prompts [][]uint64
		for range 300 {
			var h []uint64
			if len(prompts) > 0 && r.IntN(4) > 0 { // branch off an old one
				old := prompts[r.IntN(len(prompts))]
				h = slices.Clone(old[:r.IntN(len(old)+1)])
			}
			parent := uint64(0)
			if len(h) > 0 {
				parent = h[len(h)-1]
			}
			h = AppendSeed(h, parent, r.Uint64(), r.IntN(8))
			h = h[:min(len(h), 40)]
			tokens := len(h)*16 + r.IntN(16)
			if tokens == 0 {
				continue
			}
			prompts = append(prompts, h)
			p := Prompt{Tokens: tokens, Tail: h}
			if cut := r.IntN(len(h) + 1); r.IntN(2) == 0 {
				p = Prompt{Tokens: tokens, Head: &Chain{h: h[:cut]}, Tail: h[cut:]}
			}
			want := model.serve(h, tokens, 16)
			if got := run1(t, c, p, 1); got != want {
				t.Fatalf("seed %d: %d cached tokens, the per-block model says %d", seed, got, want)
			}
		}
		if c.Stats().Evicted == 0 {
			t.Fatalf("seed %d evicted nothing: the test proves nothing", seed)
		}
	}
}
