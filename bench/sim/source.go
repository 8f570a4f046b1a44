package sim

import (
	"time"

	"github.com/prefixring/prefixring/bench"
	"github.com/prefixring/prefixring/internal/fakeengine/core"
)

// Request is one simulated request.
type Request struct {
	At      time.Duration
	Prompt  core.Prompt
	Output  int
	Key     uint64 // of the static prefix: what a ring hashes
	Static  int    // tokens of the static prefix
	Prefix  int    // index for the breakdown, -1: none
	Session uint64 // the conversation
	Recall  uint64 // boundary up to which an earlier turn was answered; 0: none
	Known   int    // tokens of the prompt up to that boundary
	Bind    uint64 // the boundary that this turn's answer will be
	Turn    int
	head    []uint64                                // the hashes of Prompt.Head, which keeps its own to itself
	next    func(end time.Duration) (Request, bool) // the turn after this one; nil: none
}

// hash is that of a block of the prompt.
func (r *Request) hash(i int) uint64 {
	if i < len(r.head) {
		return r.head[i]
	}
	return r.Prompt.Tail[i-len(r.head)]
}

// Source gives requests in order of time.
type Source interface {
	Next() (Request, bool)
	MinTokens() int // the shortest prompt that it will ever give
}

// Prefix is a static prefix that can be prewarmed.
type Prefix struct {
	Key    uint64
	Prompt core.Prompt
	Share  float64
}

// workload turns a bench workload into requests.
type workload struct {
	w      bench.Workload
	times  *bench.Times
	plan   *bench.Planner
	seed   uint64
	block  int
	heads  []*core.Chain
	hashes [][]uint64
	tokens []int
	n      uint64
}

// FromWorkload draws requests from a workload and its arrivals. Prefixes are what can
// be prewarmed; it is empty for a workload without shared prefixes.
func FromWorkload(w bench.Workload, a bench.Arrivals, seed uint64, block int) (Source, []Prefix) {
	s := &workload{w: w, times: a.Times(seed), plan: w.Planner(seed), seed: seed, block: block}
	var all []Prefix
	for i := range w.Prefixes {
		n := w.Shared + w.PrefixTokens(seed, i)
		hashes := core.AppendSeed(nil, 0, mix(seed, uint64(i), 1), n/block)
		h := core.NewChain(hashes)
		s.hashes = append(s.hashes, hashes)
		s.heads, s.tokens = append(s.heads, h), append(s.tokens, n)
		all = append(all, Prefix{Key: mix(seed, uint64(i), 2), Share: s.plan.Share(i),
			Prompt: core.Prompt{Tokens: n + 1, Static: n, Head: h}})
	}
	return s, all
}

func (s *workload) MinTokens() int {
	n := s.w.Prefix.Min
	if s.w.Prefix.CV == 0 {
		n = int(s.w.Prefix.Mean)
	}
	return max(1, n)
}

func (s *workload) Next() (Request, bool) {
	at, ok := s.times.Next()
	if !ok {
		return Request{}, false
	}
	s.n++
	return s.turn(s.plan.Next(at), s.n, 0, 0, at), true
}

// turn builds one turn. The conversation's blocks behind the prefix are one endless
// chain, of which each turn uses a longer part: so a later turn hits what an earlier
// one left, its answer included.
func (s *workload) turn(shot bench.Shot, n uint64, turn, history int, at time.Duration) Request {
	own := mix(s.seed, n, 3)
	r := Request{At: at, Output: int(shot.Output), Prefix: int(shot.Prefix), Session: own, Turn: turn, Recall: 0}
	static := 0
	if shot.Prefix >= 0 {
		r.Prompt.Head, r.head, static = s.heads[shot.Prefix], s.hashes[shot.Prefix], s.tokens[shot.Prefix]
		r.Key = mix(s.seed, uint64(shot.Prefix), 2)
	} else {
		static = s.w.PrefixTokens(s.seed, int(n))
		r.Key = mix(s.seed, n, 4)
	}
	tail := own
	if shot.Prompt >= 0 {
		tail = mix(s.seed, uint64(uint32(shot.Prefix)), uint64(shot.Prompt), 5)
	}
	r.Static, r.Prompt.Static = static, static
	r.Prompt.Tokens = static + int(shot.Own) + int(shot.Tail) + history + int(shot.User)
	blocks := (r.Prompt.Tokens+r.Output)/s.block - r.Prompt.Head.Blocks()
	r.Prompt.Tail = core.AppendSeed(make([]uint64, 0, blocks), r.Prompt.Head.End(), tail, blocks)
	if turn > 0 {
		r.Recall = mix(own, uint64(turn-1), 6)
		r.Known = r.Prompt.Tokens - int(shot.User)
	}
	r.Bind = mix(own, uint64(turn), 6)
	if turn+1 < int(shot.Turns) {
		r.next = func(end time.Duration) (Request, bool) {
			return s.turn(shot, n, turn+1, history+int(shot.User)+int(shot.Output), end+s.w.Think), true
		}
	}
	return r
}

// trace turns a bench trace into requests.
type trace struct {
	t      *bench.Trace
	groups [][]int
	at     int
	least  int
}

// FromTrace draws requests from a trace. Engines have to use the trace's block size.
func FromTrace(t *bench.Trace) Source {
	s := &trace{t: t, groups: t.Sessions(), least: 1 << 30}
	for i := range t.Requests {
		s.least = min(s.least, t.Requests[i].Input)
	}
	return s
}

func (s *trace) MinTokens() int { return s.least }

func (s *trace) Next() (Request, bool) {
	if s.at >= len(s.groups) {
		return Request{}, false
	}
	g := s.groups[s.at]
	s.at++
	return s.turn(g, 0, s.t.Requests[g[0]].At), true
}

func (s *trace) turn(group []int, turn int, at time.Duration) Request {
	q := &s.t.Requests[group[turn]]
	r := Request{At: at, Output: q.Output, Prefix: -1, Turn: turn, Static: q.System * s.t.BlockTokens}
	h, marks := uint64(0), map[int]uint64{}
	hashes := make([]uint64, len(q.Blocks))
	for i, b := range q.Blocks {
		h = mix(h, b, 7)
		hashes[i], marks[i+1] = h, h
	}
	r.Prompt = core.Prompt{Tokens: q.Input, Static: r.Static, Tail: hashes}
	switch {
	case q.System > 0:
		r.Key = hashes[q.System-1]
	case len(hashes) > 0:
		r.Key = hashes[0]
	}
	if n := len(q.Turns); n > 0 {
		r.Recall = marks[q.Turns[n-1]]
		r.Known = q.Turns[n-1] * s.t.BlockTokens
	}
	r.Bind = h
	r.Session = mix(uint64(group[0]), 8)
	if q.Session < 0 && len(hashes) > 0 {
		// The proxy chooses among owners by the first message behind the static prefix,
		// which stays the same as a conversation grows.
		r.Session = mix(hashes[min(q.System, len(hashes)-1)], 8)
	}
	if turn+1 < len(group) {
		r.next = func(end time.Duration) (Request, bool) {
			return s.turn(group, turn+1, end+s.t.Requests[group[turn+1]].Think), true
		}
	}
	return r
}

// mix makes one number of several.
func mix(parts ...uint64) uint64 {
	h := uint64(0x13198a2e03707344)
	for _, p := range parts {
		h ^= p + 0x9e3779b97f4a7c15
		h = (h ^ h>>30) * 0xbf58476d1ce4e5b9
		h = (h ^ h>>27) * 0x94d049bb133111eb
		h ^= h >> 31
	}
	return h
}
