package bench

import (
	"fmt"
	"math"
	"slices"
	"time"
)

// TraceRequest is one request of a trace. Equal block ids at equal places mean equal
// text, so equal leading ids are a shared prefix.
type TraceRequest struct {
	At      time.Duration
	Session int           // requests of one session go one after the other; -1: none
	Think   time.Duration // pause after the answer before it, within a session
	Blocks  []uint64      // content ids of the whole prompt, in order
	System  int           // how many of the leading blocks are the system message
	Input   int           // prompt length in tokens, at most len(Blocks) x BlockTokens
	Output  int
	Turns   []int // places in Blocks where an earlier request ended: the turns of a conversation
}

// Trace is a parsed trace, in order of time.
type Trace struct {
	Name        string
	BlockTokens int
	Requests    []TraceRequest
}

// ReplayOptions shape a trace before it is played.
type ReplayOptions struct {
	Speed     float64       // 2 plays twice as fast; 0 means 1
	Jitter    time.Duration // each time moves by up to that much, later only (Mooncake: 3 s)
	MaxInput  int           // longer prompts are cut; 0: no cap
	MaxOutput int
	Limit     int // only the first n requests
	Seed      uint64
}

// TraceError names the line that broke.
type TraceError struct {
	Line int // from 1
	Err  error
}

func (e *TraceError) Error() string {
	return fmt.Sprintf("cannot read trace line %d: %v", e.Line, e.Err)
}
func (e *TraceError) Unwrap() error { return e.Err }

// Shape returns the trace as the options want it played; the original is left alone.
func (t *Trace) Shape(o ReplayOptions) (*Trace, error) {
	if o.Speed < 0 || math.IsInf(o.Speed, 0) || math.IsNaN(o.Speed) || o.Jitter < 0 || o.MaxInput < 0 || o.MaxOutput < 0 || o.Limit < 0 {
		return nil, fmt.Errorf("%w: speed, jitter, caps and limit cannot be negative", ErrUsage)
	}
	speed := orFloat(o.Speed, 1)
	r := newRand(seedOf(o.Seed, 0x6a6974)) // "jit"
	out := &Trace{Name: t.Name, BlockTokens: t.BlockTokens}
	for _, q := range t.Requests {
		if o.Jitter > 0 {
			q.At += time.Duration(r.Float64() * float64(o.Jitter))
		}
		q.At = time.Duration(float64(q.At) / speed)
		q.Think = time.Duration(float64(q.Think) / speed)
		if o.MaxInput > 0 && q.Input > o.MaxInput {
			q.Input = o.MaxInput
			q.Blocks = q.Blocks[:min(len(q.Blocks), (q.Input+t.BlockTokens-1)/t.BlockTokens)]
			q.System = min(q.System, len(q.Blocks))
		}
		if o.MaxOutput > 0 {
			q.Output = min(q.Output, o.MaxOutput)
		}
		out.Requests = append(out.Requests, q)
	}
	slices.SortStableFunc(out.Requests, func(a, b TraceRequest) int { return int(a.At - b.At) })
	if o.Limit > 0 && len(out.Requests) > o.Limit {
		out.Requests = out.Requests[:o.Limit]
	}
	if len(out.Requests) == 0 {
		return nil, fmt.Errorf("%w: the trace holds no request", ErrUsage)
	}
	out.link()
	return out, nil
}

// link finds conversations: a request that begins with the whole of an earlier one is
// its next turn. Traces have no roles, and without turns a router that remembers
// conversations would have nothing to recognise. An earlier request loses the part of
// a block at its end, because the trace does not say how that part went on.
func (t *Trace) link() {
	ends := map[uint64]int{}
	for i := range t.Requests {
		q := &t.Requests[i]
		q.Turns = nil
		full := min(q.Input/t.BlockTokens, len(q.Blocks))
		h, parent, depth := uint64(0), -1, 0
		for j := range full {
			h = seedOf(h, q.Blocks[j])
			if p, ok := ends[h]; ok && j+1 > q.System && j+2 < len(q.Blocks) { // an answer and a question must follow
				parent, depth = p, j+1
			}
		}
		if parent >= 0 {
			p := &t.Requests[parent]
			p.Input = min(p.Input, depth*t.BlockTokens)
			p.Blocks = p.Blocks[:depth]
			q.Turns = append(slices.Clone(p.Turns), depth)
		}
		if full > q.System && (len(q.Turns) == 0 || full >= q.Turns[len(q.Turns)-1]+2) {
			ends[h] = i
		}
	}
}

// Ceiling is the share of prompt blocks that one cache of unlimited size would serve:
// what no router and no fleet can beat. Published figures count blocks, too.
func (t *Trace) Ceiling() float64 {
	seen := make(map[uint64]struct{})
	hit, all := 0, 0
	for i := range t.Requests {
		h := uint64(0)
		matching := true
		for _, b := range t.Requests[i].Blocks {
			h = seedOf(h, b) // a block is cached under all that is in front of it
			_, known := seen[h]
			seen[h] = struct{}{}
			if matching = matching && known; matching {
				hit++
			}
			all++
		}
	}
	if all == 0 {
		return 0
	}
	return float64(hit) / float64(all)
}

// Sessions groups the requests that must follow each other. A request without a
// session is a group of its own.
func (t *Trace) Sessions() [][]int {
	var out [][]int
	at := map[int]int{}
	for i := range t.Requests {
		s := t.Requests[i].Session
		g, ok := at[s]
		if s < 0 || !ok {
			g = len(out)
			out = append(out, nil)
			if s >= 0 {
				at[s] = g
			}
		}
		out[g] = append(out[g], i)
	}
	return out
}
