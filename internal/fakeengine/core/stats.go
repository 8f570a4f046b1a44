package core

import "time"

// Stats are an engine's true counts since New. Gauges are as of the call.
type Stats struct {
	Requests    int64 // submitted and accepted
	Admitted    int64 // looked up once; preempted re-runs do not count again
	Finished    int64
	Aborts      int64
	Preemptions int64

	Prompt    int64 // prompt tokens of admitted requests = queried tokens
	Cached    int64 // of these, served from the cache
	Computed  int64 // prefill tokens really computed, recomputation after preemption included
	Generated int64

	// Cold counts admitted requests with a static head of at least one block of
	// which less than 90 % (or the whole blocks of it, if that is less) was cached.
	Cold    int64
	Evicted int64 // blocks
	Steps   int64
	Busy    time.Duration // sum of step durations

	Running, Waiting, Pending int
	// UsedBlocks are held by running requests, IdleBlocks are cached and held by
	// nobody. Engines' usage gauges show the first only.
	UsedBlocks, IdleBlocks, TotalBlocks int
}

// Stats returns the counts. Generated counts a decode step when it is planned.
func (c *Core) Stats() Stats {
	s := c.stats
	s.Evicted = c.kv.evicted
	s.Running, s.Waiting, s.Pending = c.running, c.waiting.len(), c.pending.len()
	s.UsedBlocks, s.IdleBlocks, s.TotalBlocks = c.kv.pinned+c.kv.private, c.kv.idle, c.kv.total
	return s
}

// Usage is the share of KV blocks that running requests hold, 0..1.
func (s Stats) Usage() float64 { return float64(s.UsedBlocks) / float64(s.TotalBlocks) }

// WaitingUncached estimates the prompt tokens that waiting requests must compute.
func (c *Core) WaitingUncached() (tokens int) {
	for _, s := range c.waiting.s {
		tokens += s.target - c.kv.peek(&s.Prompt, (s.target-1)/c.cfg.BlockSize)*c.cfg.BlockSize
	}
	return tokens
}

func (s *Stats) count(l load, d time.Duration) {
	s.Steps++
	s.Busy += d
	s.Computed += int64(l.tokens - l.decoding)
}

func (s *Stats) lookup(q *seq, block int) {
	s.Admitted++
	s.Prompt += int64(q.Prompt.Tokens)
	s.Cached += int64(q.computed)
	if ColdHead(q.Prompt.Static, q.computed, block) {
		s.Cold++
	}
}

// ColdHead reports whether a request whose static head has `static` tokens and
// which found `cached` tokens counts as a cold prefill.
func ColdHead(static, cached, block int) bool {
	whole := static / block * block
	return whole > 0 && cached < min(whole, static*9/10)
}
