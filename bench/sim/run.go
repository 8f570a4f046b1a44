package sim

import (
	"container/heap"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/prefixring/prefixring/internal/fakeengine/core"
)

// flight is a request on its way.
type flight struct {
	Request
	tag     uint64
	router  int
	node    int32 // -1: none yet
	id      core.ID
	sent    time.Duration
	first   time.Duration
	cached  int
	tries   int
	tried   [4]int32
	waiting bool
	gated   bool
	ticket  any // the policy's own
}

// simulation is one run.
type simulation struct {
	o       *Options
	fleet   *fleet
	routers []policy
	flights []*flight
	spare   []*flight
	queue   [][]*flight // waiting, by router
	timers  timers
	sums    *sums
	now     time.Duration
	head    Request // next of the source
	more    bool
	seq     uint64
	changes []Change
}

// timer is something that will happen at a time: a later turn, the end of a wait, a
// poll of the engines.
type timer struct {
	at   time.Duration
	seq  uint64
	kind timerKind
	req  Request
	tag  uint64
	id   uint64 // the wait that it ends
}

type timerKind uint8

const (
	laterTurn timerKind = iota
	waitOver
	poll
)

type timers []timer

func (t timers) Len() int { return len(t) }
func (t timers) Less(i, j int) bool {
	return t[i].at < t[j].at || t[i].at == t[j].at && t[i].seq < t[j].seq
}
func (t timers) Swap(i, j int) { t[i], t[j] = t[j], t[i] }
func (t *timers) Push(x any)   { *t = append(*t, x.(timer)) }
func (t *timers) Pop() any {
	old := *t
	x := old[len(old)-1]
	old[len(old)-1] = timer{}
	*t = old[:len(old)-1]
	return x
}

// Run simulates. It returns an error for options that make no sense, or when the
// context ends, with what was simulated until then.
func Run(ctx context.Context, o Options) (Result, error) {
	all, err := RunStages(ctx, o, []Stage{{Source: o.Source}})
	if len(all) == 0 {
		return Result{}, err
	}
	return all[0], err
}

// Stage is a part of a run that is measured by itself.
type Stage struct {
	Name   string
	Source Source
}

// RunStages runs one stage after the other on the same fleet: each begins when the one
// before has drained, and finds the caches as they were left. Options.Source may be nil.
func RunStages(ctx context.Context, o Options, stages []Stage) ([]Result, error) {
	if len(stages) == 0 {
		return nil, fmt.Errorf("%w: no stages", ErrUsage)
	}
	if o.Source == nil {
		o.Source = stages[0].Source
	}
	if err := o.fill(); err != nil {
		return nil, err
	}
	s := &simulation{o: &o, changes: o.Changes, sums: newSums()}
	var err error
	if s.fleet, err = newFleet(&o, stages); err != nil {
		return nil, err
	}
	for i := range o.Routers {
		p, err := newPolicy(s, i)
		if err != nil {
			return nil, err
		}
		s.routers = append(s.routers, p)
	}
	s.queue = make([][]*flight, o.Routers)
	if err := s.prewarm(); err != nil {
		return nil, err
	}
	var out []Result
	for _, st := range stages {
		begun := time.Now()
		err := s.stage(ctx, st)
		r := s.result(time.Since(begun))
		r.Stage = st.Name
		out = append(out, r)
		if err != nil {
			return out, err
		}
	}
	return out, nil
}

// stage reads one source to its end.
func (s *simulation) stage(ctx context.Context, st Stage) error {
	warm, took := s.sums.prewarmed, s.sums.prewarm
	s.sums = newSums()
	s.sums.prewarmed, s.sums.prewarm, s.sums.offset = warm, took, s.now
	for i := range s.fleet.nodes {
		s.sums.before = append(s.sums.before, s.fleet.nodes[i].total())
	}
	s.o.Source = st.Source
	if s.head, s.more = st.Source.Next(); s.more {
		s.head.At += s.now
	}
	s.timers = s.timers[:0]
	if s.needPoll() {
		s.later(timer{at: s.now + s.o.Poll, kind: poll})
	}
	return s.loop(ctx)
}

// loop goes window by window.
func (s *simulation) loop(ctx context.Context) error {
	for n := 0; ; n++ {
		start := min(s.fleet.soonest(), s.nextArrival(), s.nextTimer())
		if start == core.Never || (!s.more && s.idle()) {
			return nil
		}
		if s.o.Until > 0 && start >= s.o.Until+s.sums.offset {
			return nil
		}
		if n%256 == 0 {
			if err := ctx.Err(); err != nil {
				return fmt.Errorf("simulation stopped at %v: %w", s.now, err)
			}
			if s.o.Progress != nil {
				s.o.Progress(start, s.sums.finished)
			}
		}
		end := max(start, s.now) + s.fleet.window
		if len(s.changes) > 0 {
			at := s.changes[0].At + s.sums.offset
			if at <= start {
				s.change(s.changes[0])
				s.changes = s.changes[1:]
				continue
			}
			end = min(end, at)
		}
		s.fleet.advance(end)
		s.replay(end)
	}
}

func (s *simulation) idle() bool {
	if len(s.fleet.active) > 0 || s.fleet.next < len(s.fleet.happen) {
		return false
	}
	for _, t := range s.timers {
		if t.kind != poll {
			return false
		}
	}
	return true
}

func (s *simulation) nextArrival() time.Duration {
	if !s.more {
		return core.Never
	}
	return s.head.At
}

func (s *simulation) nextTimer() time.Duration {
	if len(s.timers) == 0 {
		return core.Never
	}
	return s.timers[0].at
}

// replay handles everything before end, in order of time: what engines did, then
// timers, then arrivals.
func (s *simulation) replay(end time.Duration) {
	f := s.fleet
	for {
		engine := core.Never
		if f.next < len(f.happen) {
			engine = f.happen[f.next].At
		}
		due, arrival := s.nextTimer(), s.nextArrival()
		at := min(engine, due, arrival)
		if at >= end {
			s.now = end
			return
		}
		s.now = at
		switch at {
		case engine:
			h := f.happen[f.next]
			f.next++
			s.happened(h)
		case due:
			s.fire(heap.Pop(&s.timers).(timer))
		default:
			s.arrive(s.head)
			if s.head, s.more = s.o.Source.Next(); s.more {
				s.head.At += s.sums.offset
			}
		}
	}
}

func (s *simulation) later(t timer) {
	s.seq++
	t.seq = s.seq
	heap.Push(&s.timers, t)
}

func (s *simulation) fire(t timer) {
	switch t.kind {
	case laterTurn:
		s.arrive(t.req)
	case poll:
		for _, p := range s.routers {
			p.poll(s.now)
		}
		if s.more || !s.idle() {
			s.later(timer{at: s.now + s.o.Poll, kind: poll})
		}
	case waitOver:
		if f := s.flights[t.tag]; f != nil && f.waiting && f.Session == t.id {
			s.endWait(f)
		}
	}
}

// arrive routes a new request.
func (s *simulation) arrive(r Request) {
	f := s.take()
	f.Request = r
	f.router = int(r.Session % uint64(len(s.routers)))
	s.sums.arrived(r.At)
	s.route(f)
}

func (s *simulation) take() *flight {
	if n := len(s.spare); n > 0 {
		f := s.spare[n-1]
		s.spare = s.spare[:n-1]
		tag := f.tag
		*f = flight{tag: tag, node: -1}
		s.flights[tag] = f
		return f
	}
	f := &flight{tag: uint64(len(s.flights)), node: -1}
	s.flights = append(s.flights, f)
	return f
}

func (s *simulation) drop(f *flight) {
	s.flights[f.tag] = nil
	s.spare = append(s.spare, f)
}

// route picks a node, or lets the request wait, or refuses it.
func (s *simulation) route(f *flight) {
	switch node, verdict := s.routers[f.router].pick(s.now, f, false); verdict {
	case taken:
		s.send(f, node)
	case wait, waitGated:
		f.waiting, f.gated = true, verdict == waitGated
		s.queue[f.router] = append(s.queue[f.router], f)
		limit := s.o.QueueWait
		if f.gated {
			limit = max(limit, s.o.GateWait)
		}
		s.later(timer{at: s.now + limit, kind: waitOver, tag: f.tag, id: f.Session})
	default:
		s.fail(f, true)
	}
}

// endWait gives a request that has waited long enough its last chance, without gate.
func (s *simulation) endWait(f *flight) {
	s.unqueue(f)
	node, verdict := s.routers[f.router].pick(s.now, f, true)
	if verdict == taken {
		s.sums.waited++
		s.send(f, node)
		return
	}
	s.fail(f, true)
}

func (s *simulation) unqueue(f *flight) {
	f.waiting = false
	q := s.queue[f.router]
	for i := range q {
		if q[i] == f {
			s.queue[f.router] = append(q[:i], q[i+1:]...)
			return
		}
	}
}

// wake tries the waiting requests of a router in order; it stops at the first that
// still has to wait for room, for the others would, too.
func (s *simulation) wake(router int) {
	q := s.queue[router]
	for i := 0; i < len(q); {
		f := q[i]
		node, verdict := s.routers[router].pick(s.now, f, false)
		if verdict == taken {
			q = append(q[:i], q[i+1:]...)
			s.queue[router] = q
			f.waiting = false
			s.sums.waited++
			s.send(f, node)
			continue
		}
		if verdict == wait {
			return
		}
		i++
	}
}

func (s *simulation) send(f *flight, node int32) {
	f.node, f.sent = node, s.now
	id, err := s.fleet.submit(node, s.now, &f.Request, f.tag)
	switch {
	case err == nil:
		f.id = id
	case errors.Is(err, core.ErrTooLong), errors.Is(err, core.ErrQueueFull):
		s.routers[f.router].done(s.now, f, false)
		s.fail(f, false)
	default:
		panic("BUG: engine refuses a request: " + err.Error())
	}
}

func (s *simulation) fail(f *flight, refused bool) {
	s.sums.failed(f, refused)
	s.drop(f)
}

// happened handles one engine event.
func (s *simulation) happened(h happening) {
	if h.Tag == noFlight {
		return
	}
	f := s.flights[h.Tag]
	if f == nil || f.node != h.node || f.id != h.ID {
		return // given up meanwhile
	}
	p := s.routers[f.router]
	switch h.Kind {
	case core.Admitted:
		f.cached = h.Cached
	case core.First:
		f.first = s.now
		s.sums.first(f, s.now, s.fleet.nodes[h.node].core.Config().BlockSize)
		p.first(s.now, f)
		s.wake(f.router)
	case core.Finished:
		s.sums.done(f, s.now, h.node)
		p.done(s.now, f, true)
		if f.next != nil {
			if r, ok := f.next(s.now); ok {
				s.later(timer{at: max(r.At, s.now), kind: laterTurn, req: r})
			}
		}
		s.drop(f)
		s.wake(f.router)
	}
}

// change applies one event of the fleet.
func (s *simulation) change(c Change) {
	s.now = max(s.now, c.At+s.sums.offset)
	n := &s.fleet.nodes[c.Node]
	switch c.Action {
	case Drain:
		n.drain = true
	case Start:
		n.up, n.drain = true, false
	case Kill:
		s.fleet.kill(int32(c.Node))
	}
	for _, p := range s.routers {
		p.change(s.now, int32(c.Node), n.up && !n.drain, c.Action == Kill)
	}
	if c.Action != Kill {
		return
	}
	// Requests that were on it try another node, as long as no answer has begun.
	for _, f := range s.flights {
		if f == nil || f.waiting || f.node != int32(c.Node) {
			continue
		}
		s.routers[f.router].done(s.now, f, false)
		if f.first > 0 {
			s.sums.cut++
		}
		if f.first > 0 || f.tries >= s.o.Retries {
			s.fail(f, false)
			continue
		}
		f.tried[f.tries%len(f.tried)] = f.node + 1
		f.tries++
		s.sums.retried++
		f.node = -1
		s.route(f)
	}
}

func (s *simulation) needPoll() bool {
	for _, p := range s.routers {
		if p.polls() {
			return true
		}
	}
	return false
}

// prewarm warms the prefixes on the nodes that the policy's ring names, one after the
// other on each node.
func (s *simulation) prewarm() error {
	if !s.o.Prewarm {
		return nil
	}
	for i := range s.o.Prefixes {
		p := &s.o.Prefixes[i]
		for _, n := range s.routers[0].owners(p.Key, p.Share) {
			r := Request{Prompt: p.Prompt, Output: 1, Key: p.Key, Static: p.Prompt.Static}
			if _, err := s.fleet.submit(n, 0, &r, noFlight); err != nil {
				return fmt.Errorf("cannot prewarm prefix %d: %w", i, err)
			}
			s.sums.prewarmed++
			for _, router := range s.routers {
				router.warmed(n, p.Key, p.Prompt.Static, p.Share)
			}
		}
	}
	for len(s.fleet.active) > 0 {
		s.now += time.Second
		s.fleet.advance(s.now)
	}
	s.sums.prewarm = s.now
	s.fleet.happen, s.fleet.next = s.fleet.happen[:0], 0
	return nil
}

// noFlight is the tag of prewarm requests, which no flight has.
const noFlight = 1 << 63
