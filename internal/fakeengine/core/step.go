package core

import (
	"math"
	"time"
)

// Outcome says what one step did.
type Outcome struct {
	Ran     bool          // false: nothing could run at this time
	End     time.Duration // when the step ends; the next one may begin then
	Wake    time.Duration // without a step: when a request becomes schedulable, or Never
	Prefill int           // prompt tokens computed
	Decode  int           // sequences that decoded
}

// Step runs one step that begins at now and appends what happened to ev. Times of
// events lie at its end, except Admitted. Call it with times that do not decrease.
func (c *Core) Step(now time.Duration, ev []Event) (Outcome, []Event) {
	c.promote(now)
	ev, preempted := c.makeRoom(now, ev)
	decoding := c.finish.len()
	l := load{tokens: decoding, context: c.context, decoding: decoding}
	c.growDecoding()
	budget := c.cfg.Budget - decoding
	budget = c.continuePrefill(budget, &l)
	if !preempted { // vLLM admits nobody in a step that took KV away
		ev = c.admit(now, budget, &l, ev)
	}
	if l.tokens == 0 {
		wake := Never
		if c.pending.len() > 0 {
			wake = c.pending.min().ready
		}
		return Outcome{Wake: wake}, ev
	}
	end := now + c.duration(l)
	c.stats.count(l, end-now)
	ev = c.decode(end, ev)
	ev = c.finishPrefill(end, ev)
	return Outcome{Ran: true, End: end, Prefill: l.tokens - decoding, Decode: decoding}, ev
}

// Run executes steps from now on and returns when the last one ended. It stops
// after the first step that gave an event, when a step would begin at `until` or
// later, and when nothing can run before `until` (it then returns `until`).
func (c *Core) Run(now, until time.Duration, ev []Event) (time.Duration, []Event) {
	given := len(ev)
	for now < until {
		if c.quiet(now) {
			now = c.coast(now, until)
			if now >= until {
				return now, ev
			}
		}
		var o Outcome
		o, ev = c.Step(now, ev)
		if !o.Ran {
			now = min(o.Wake, until)
		} else {
			now = o.End
		}
		if len(ev) > given {
			return now, ev
		}
	}
	return now, ev
}

// quiet reports whether the coming steps only decode.
func (c *Core) quiet(now time.Duration) bool {
	return !c.cfg.TokenEvents && c.cfg.Noise == 0 && c.finish.len() > 0 && len(c.prefill) == 0 &&
		c.waiting.len() == 0 && (c.pending.len() == 0 || c.pending.min().ready > now)
}

// coast runs decode-only steps up to the one that ends a request, lacks a block,
// or would meet a new request. It gives the times that Step would.
func (c *Core) coast(now, until time.Duration) time.Duration {
	if c.pending.len() > 0 {
		until = min(until, c.pending.min().ready)
	}
	n := c.finish.len()
	stop := c.finish.min().ending - 1
	l := load{tokens: n, decoding: n}
	for now < until && c.steps < stop {
		if c.growth[(c.steps+1)%int64(c.cfg.BlockSize)] > c.kv.available() {
			break
		}
		c.growDecoding()
		l.context = c.context
		d := c.duration(l)
		c.stats.count(l, d)
		now += d
		c.steps++
		c.context += n
		c.stats.Generated += int64(n)
	}
	return now
}

func (c *Core) promote(now time.Duration) {
	for c.pending.len() > 0 && c.pending.min().ready <= now {
		s := c.pending.min()
		c.pending.remove(s)
		s.state = stateWaiting
		c.waiting.push(s)
	}
}

// makeRoom preempts until every decoding sequence can have the block it needs.
func (c *Core) makeRoom(now time.Duration, ev []Event) ([]Event, bool) {
	preempted := false
	for c.finish.len() > 0 && c.growth[(c.steps+1)%int64(c.cfg.BlockSize)] > c.kv.available() {
		v := c.victim()
		c.stop(v)
		v.state, v.again = stateWaiting, true
		v.target, v.computed = v.Prompt.Tokens+v.generated, 0
		c.waiting.push(v)
		c.stats.Preemptions++
		preempted = true
		ev = append(ev, Event{ID: v.id, Tag: v.Tag, Kind: Preempted, At: now})
	}
	return ev, preempted
}

// victim is the newest running sequence, or the least urgent one.
func (c *Core) victim() *seq {
	v := c.last
	if c.cfg.Priority {
		for s := c.first; s != nil; s = s.nextup {
			if c.waiting.less(v, s) {
				v = s
			}
		}
	}
	return v
}

func (c *Core) growDecoding() {
	if c.finish.len() == 0 {
		return
	}
	if n := c.growth[(c.steps+1)%int64(c.cfg.BlockSize)]; n > 0 && !c.kv.alloc(n) {
		panic("BUG: no block for a decoding sequence after preemption")
	}
}

func (c *Core) continuePrefill(budget int, l *load) int {
	for _, s := range c.prefill {
		if budget <= 0 {
			break
		}
		budget -= c.chunk(s, budget, l)
	}
	return budget
}

// chunk computes the next part of a prompt. Its whole blocks can be hit by others
// from now on: engines enter them into the table when the chunk is scheduled.
func (c *Core) chunk(s *seq, budget int, l *load) int {
	n := min(budget, s.target-s.computed)
	l.tokens += n
	l.attention += float64(n) * (float64(s.computed) + float64(n)/2)
	s.computed += n
	c.store(s, s.computed)
	return n
}

// admit takes waiting requests in order until budget, sequences or memory run out.
func (c *Core) admit(now time.Duration, budget int, l *load, ev []Event) []Event {
	for budget > 0 && c.running < c.cfg.MaxSeqs && c.waiting.len() > 0 {
		s := c.waiting.min()
		leaf, hit := c.lookup(s)
		need := c.blocksFor(s.target) - hit
		spare := 1
		if c.blocksFor(s.target)+1 > c.kv.total {
			spare = 0 // it fills the whole memory, there is no block to spare
		}
		if need+spare > c.kv.available()-c.kv.idleIn(leaf) {
			break
		}
		c.waiting.remove(s)
		c.kv.pin(leaf)
		c.kv.alloc(need)
		s.leaf, s.shared, s.computed, s.state = leaf, hit, hit*c.cfg.BlockSize, statePrefill
		c.list(s)
		c.prefill = append(c.prefill, s)
		if !s.again {
			c.stats.lookup(s, c.cfg.BlockSize)
			ev = append(ev, Event{ID: s.id, Tag: s.Tag, Kind: Admitted, At: now, Cached: s.computed})
		}
		budget -= c.chunk(s, budget, l)
	}
	return ev
}

// lookup finds the cached head of s. The last token is always recomputed, so that
// a fully cached prompt still yields logits.
func (c *Core) lookup(s *seq) (*node, int) {
	if c.cfg.NoCache {
		return nil, 0
	}
	return c.kv.match(&s.Prompt, (s.target-1)/c.cfg.BlockSize)
}

func (c *Core) decode(end time.Duration, ev []Event) []Event {
	n := c.finish.len()
	if n == 0 {
		return ev
	}
	c.steps++
	c.context += n
	c.stats.Generated += int64(n)
	if c.cfg.TokenEvents {
		for s := c.first; s != nil; s = s.nextup {
			if s.state == stateDecode {
				ev = append(ev, Event{ID: s.id, Tag: s.Tag, Kind: Token, At: end})
			}
		}
	}
	for c.finish.len() > 0 && c.finish.min().ending == c.steps {
		ev = c.end(c.finish.min(), end, ev)
	}
	return ev
}

func (c *Core) finishPrefill(end time.Duration, ev []Event) []Event {
	ready := c.ready[:0]
	keep := c.prefill[:0]
	for _, s := range c.prefill {
		if s.computed < s.target {
			keep = append(keep, s)
		} else {
			ready = append(ready, s)
		}
	}
	c.prefill, c.ready = keep, ready
	for _, s := range ready {
		s.generated++
		c.stats.Generated++
		kind := Token
		if s.generated == 1 {
			kind = First
		}
		if kind == First || c.cfg.TokenEvents {
			ev = append(ev, Event{ID: s.id, Tag: s.Tag, Kind: kind, At: end})
		}
		s.state, s.base = stateDecode, c.steps
		s.ending = c.steps + int64(s.Output-s.generated)
		c.finish.push(s)
		c.growth[c.residue(s)]++
		c.context += s.target
		if s.generated == s.Output {
			ev = c.end(s, end, ev)
		}
	}
	return ev
}

func (c *Core) end(s *seq, at time.Duration, ev []Event) []Event {
	ev = append(ev, Event{ID: s.id, Tag: s.Tag, Kind: Finished, At: at})
	c.stop(s)
	c.stats.Finished++
	c.drop(s)
	return ev
}

func (c *Core) duration(l load) time.Duration {
	d := c.cfg.Cost.step(l)
	if s := c.cfg.Noise; s > 0 {
		d *= math.Exp(s*c.rng.NormFloat64() - s*s/2)
	}
	return seconds(d)
}
