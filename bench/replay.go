package bench

import (
	"context"
	"fmt"
	"time"

	"github.com/prefixring/prefixring/internal/dialect"
)

// Replay plays a trace against an endpoint. Arrivals and Workload of the options are
// ignored; requests without a session leave at the trace's times (open loop), later
// ones of a session leave Think after the answer before them.
func Replay(ctx context.Context, o Options, t *Trace, ro ReplayOptions) (Result, error) {
	shaped, err := t.Shape(ro)
	if err != nil {
		return Result{}, err
	}
	o.trace = shaped
	o.Closed, o.Requests = 0, 0
	last := shaped.Requests[len(shaped.Requests)-1].At
	o.Arrivals = Arrivals{Kind: "constant", Rate: 1, Duration: max(last, time.Second)} // for the progress view only
	o.Workload = Workload{Name: "replay of " + shaped.Name}
	return Run(ctx, o)
}

// traceBody writes one trace request: the system blocks, then the rest as one user
// turn. The text of a block depends on its id alone, so equal ids give equal bytes.
func (c *composer) traceBody(t *Trace, q *TraceRequest, scratch []byte) parts {
	b := append(scratch[:0], c.open...)
	b = fmt.Appendf(b, "run %s ", c.named)
	left := q.Input
	block := func(id uint64) {
		n := min(left, t.BlockTokens)
		b = appendText(b, seedOf(c.nonce, id), max(n, 0))
		left -= n
	}
	text := func(ids []uint64) {
		for _, id := range ids {
			block(id)
		}
	}
	text(q.Blocks[:q.System])
	switch c.proto {
	case dialect.Completions:
		text(q.Blocks[q.System:])
		return parts{rest: c.settings(append(b, '"'), q.Output)}
	case dialect.Responses:
		b = append(b, `","input":[`...)
	case dialect.Messages:
		b = append(b, `","messages":[`...)
	default:
		b = append(b, `"},`...)
	}
	// What an earlier turn did not hold is its answer and the next question: the first
	// block stands for the answer.
	at := q.System
	say := func(role string, to int) {
		b = fmt.Appendf(b, `{"role":"%s","content":"`, role)
		text(q.Blocks[at:to])
		b = append(b, `"},`...)
		at = to
	}
	for _, end := range q.Turns {
		say("user", end)
		say("assistant", end+1)
	}
	say("user", len(q.Blocks))
	b = append(b[:len(b)-1], ']')
	return parts{rest: c.settings(b, q.Output)}
}

// replaySession plays one session of the trace.
func (r *runner) replaySession(g int) {
	k := r.calls.Get().(*call)
	defer r.calls.Put(k)
	t := r.o.trace
	due := r.shots[g].Due
	for turn, i := range r.groups[g] {
		q := &t.Requests[i]
		if turn > 0 {
			due += q.Think
			if !r.pause(due) {
				return
			}
		}
		rec := Record{Index: i, Session: g, Turn: turn, Prefix: -1, Planned: due}
		r.shoot(k, &r.shots[g], &rec, nil, false)
		if rec.Error != "" || r.soft.Load() {
			return
		}
		due = rec.End
	}
}
