package core

import (
	"testing"
	"time"
)

// BenchmarkThinQueryOnWarmPrefix is one request of the sale on a warm engine: a
// shared prefix of 60,000 tokens, 200 tokens of its own, 500 of answer.
func BenchmarkThinQueryOnWarmPrefix(b *testing.B) {
	p, _ := FindPreset("8b-tp1")
	c, err := New(Config{Cost: p.Cost, KVTokens: p.KVTokens})
	if err != nil {
		b.Fatal(err)
	}
	head := SeedChain(1, 3750)
	tails := make([][]uint64, 4096) // as long as no request with the same slot can be live
	var ev []Event
	now := time.Duration(0)
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		slot := i % len(tails)
		tails[slot] = AppendSeed(tails[slot][:0], head.End(), uint64(i), 12)
		r := Request{Prompt: Prompt{Tokens: 60_200, Static: 60_000, Head: head, Tail: tails[slot]}, Output: 500}
		at := now + 200*time.Millisecond
		if _, err := c.Submit(now, r); err != nil {
			b.Fatal(err)
		}
		for now < at {
			now, ev = c.Run(now, at, ev[:0])
		}
	}
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "req/s")
}

// BenchmarkHash240KB is what a raw 240 KB prompt costs to hash.
func BenchmarkHash240KB(b *testing.B) {
	data := make([]byte, 240<<10)
	dst := make([]uint64, 0, 4096)
	b.SetBytes(int64(len(data)))
	for b.Loop() {
		dst = AppendHashes(dst[:0], 0, data, 64)
	}
}
