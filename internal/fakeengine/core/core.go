package core

import (
	"math/rand/v2"
	"time"
)

// Core is one engine's scheduler, cache and clockless state.
type Core struct {
	cfg  Config
	kv   cache
	rng  *rand.Rand
	next ID
	seqs map[ID]*seq
	pool []*seq

	pending heap // in the front end, by ready time
	waiting heap // by priority, then arrival
	finish  heap // decoding, by the decode step that ends them
	first   *seq // running, in admission order
	last    *seq
	running int
	prefill []*seq // running and not yet fully computed, in admission order
	ready   []*seq // scratch

	steps   int64 // decode steps so far
	context int   // sum of KV tokens of decoding sequences
	growth  []int // decoding sequences that need a block at a decode step with this residue
	stats   Stats
}

type state uint8

const (
	statePending state = iota + 1
	stateWaiting
	statePrefill
	stateDecode
)

type seq struct {
	Request
	id     ID
	state  state
	again  bool // preempted before: its lookups do not count
	ready  time.Duration
	slot   int // index in the heap it is in
	prev   *seq
	nextup *seq

	target    int // tokens to compute before the next token can be sampled
	computed  int
	generated int
	shared    int // blocks held through leaf
	leaf      *node

	base   int64 // decode steps when it began to decode
	ending int64 // decode step that yields its last token
}

// New makes an engine with an empty cache.
func New(cfg Config) (*Core, error) {
	if err := cfg.fill(); err != nil {
		return nil, err
	}
	c := &Core{cfg: cfg, seqs: map[ID]*seq{}, growth: make([]int, cfg.BlockSize)}
	c.rng = rand.New(rand.NewPCG(cfg.Seed, 0x636f7265))
	c.kv.init(cfg.KVTokens / cfg.BlockSize)
	c.pending.less = func(a, b *seq) bool {
		return a.ready < b.ready || a.ready == b.ready && a.id < b.id
	}
	c.waiting.less = func(a, b *seq) bool { return a.id < b.id }
	if cfg.Priority {
		c.waiting.less = func(a, b *seq) bool {
			return a.Priority < b.Priority || a.Priority == b.Priority && a.id < b.id
		}
	}
	c.finish.less = func(a, b *seq) bool { return a.ending < b.ending || a.ending == b.ending && a.id < b.id }
	return c, nil
}

// Config returns the configuration with its defaults filled in.
func (c *Core) Config() Config { return c.cfg }

// Capacity returns the KV capacity in tokens, a whole number of blocks.
func (c *Core) Capacity() int { return c.kv.total * c.cfg.BlockSize }

// Submit hands in a request at time now. It becomes schedulable when the front
// end has tokenised it. Errors: ErrQueueFull, ErrTooLong, ErrEmpty.
func (c *Core) Submit(now time.Duration, r Request) (ID, error) {
	if r.Prompt.Tokens < 1 || r.Output < 1 {
		return 0, ErrEmpty
	}
	if c.blocksFor(r.Prompt.Tokens+r.Output) > c.kv.total {
		return 0, ErrTooLong
	}
	if c.QueueFull(1) {
		return 0, ErrQueueFull
	}
	c.next++
	s := c.take()
	*s = seq{Request: r, id: c.next, target: r.Prompt.Tokens, ready: now + c.cfg.Cost.front(r.Prompt.Tokens)}
	c.seqs[s.id] = s
	s.state = statePending
	c.pending.push(s)
	c.stats.Requests++
	return s.id, nil
}

// QueueFull reports whether n more requests would exceed Config.QueueLimit.
func (c *Core) QueueFull(n int) bool {
	if c.cfg.QueueLimit == 0 {
		return false
	}
	queued := c.waiting.len() + c.pending.len()
	if c.cfg.QueueRunning {
		queued += c.running
	}
	return queued+n > c.cfg.QueueLimit
}

// Abort ends a request at once and frees its KV; what it computed stays cached.
// It reports false when the request has ended already.
func (c *Core) Abort(id ID) bool {
	s := c.seqs[id]
	if s == nil {
		return false
	}
	switch s.state {
	case statePending:
		c.pending.remove(s)
	case stateWaiting:
		c.waiting.remove(s)
	default:
		c.stop(s)
	}
	c.drop(s)
	c.stats.Aborts++
	return true
}

// Reset forgets all cached blocks that no request holds and reports whether none
// was held, as /reset_prefix_cache does.
func (c *Core) Reset() bool { return c.kv.clear() }

// Cached returns how many of the prompt's tokens a request would find cached now,
// without touching the cache.
func (c *Core) Cached(p *Prompt) int {
	return c.kv.peek(p, (p.Tokens-1)/c.cfg.BlockSize) * c.cfg.BlockSize
}

func (c *Core) blocksFor(tokens int) int { return (tokens + c.cfg.BlockSize - 1) / c.cfg.BlockSize }

func (c *Core) take() *seq {
	if n := len(c.pool); n > 0 {
		s := c.pool[n-1]
		c.pool = c.pool[:n-1]
		return s
	}
	return &seq{}
}

// drop forgets a sequence that is in no list any more.
func (c *Core) drop(s *seq) {
	delete(c.seqs, s.id)
	*s = seq{}
	c.pool = append(c.pool, s)
}

// kvTokens is how many tokens of s have a place in KV memory.
func (c *Core) kvTokens(s *seq) int {
	if s.state == stateDecode {
		return s.target + int(c.steps-s.base)
	}
	return s.target
}

// residue is the decode-step residue at which a decoding sequence needs a block.
func (c *Core) residue(s *seq) int64 {
	b := int64(c.cfg.BlockSize)
	return ((s.base+1-int64(s.target))%b + b) % b
}

// stop takes a running sequence off the engine and frees its KV. Whole blocks that
// it computed, the answer's included, stay in the cache.
func (c *Core) stop(s *seq) {
	tokens, whole := c.kvTokens(s), s.computed
	if s.state == stateDecode {
		whole = tokens
		c.finish.remove(s)
		c.growth[c.residue(s)]--
		c.context -= tokens
		s.generated += int(c.steps - s.base)
	} else {
		for i, p := range c.prefill {
			if p == s {
				c.prefill = append(c.prefill[:i], c.prefill[i+1:]...)
				break
			}
		}
	}
	private := c.blocksFor(tokens) - s.shared
	private -= c.store(s, whole)
	c.kv.private -= private
	c.kv.release(s.leaf)
	s.leaf, s.shared = nil, 0
	c.unlist(s)
}

// store moves the whole blocks of the first `tokens` tokens into the cache and
// returns how many blocks stopped being private.
func (c *Core) store(s *seq, tokens int) int {
	to := min(tokens/c.cfg.BlockSize, s.Prompt.blocks())
	if c.cfg.NoCache || to <= s.shared {
		return 0
	}
	before := c.kv.private
	s.leaf = c.kv.insert(s.id, &s.Prompt, s.leaf, s.shared, to)
	moved := before - c.kv.private
	s.shared += moved
	return moved
}

func (c *Core) list(s *seq) {
	s.prev, s.nextup = c.last, nil
	if c.last != nil {
		c.last.nextup = s
	} else {
		c.first = s
	}
	c.last = s
	c.running++
}

func (c *Core) unlist(s *seq) {
	if s.prev != nil {
		s.prev.nextup = s.nextup
	} else {
		c.first = s.nextup
	}
	if s.nextup != nil {
		s.nextup.prev = s.prev
	} else {
		c.last = s.prev
	}
	s.prev, s.nextup = nil, nil
	c.running--
}
