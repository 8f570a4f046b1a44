package fakeengine

import (
	"sync"
	"time"

	"github.com/prefixring/prefixring/internal/fakeengine/core"
)

// rank is one data-parallel rank: a scheduler with its own cache and metrics, and
// the goroutine that steps it.
type rank struct {
	e     *Engine
	index int
	start time.Time
	wake  chan struct{}

	mu      sync.Mutex
	core    *core.Core
	jobs    map[core.ID]*job
	epoch   int // restarts; events of an older one are dropped
	stalled bool
	asleep  int // sleep level, 0 = awake
	m       counters
	heads   heads
}

// job is one answer in the making. Its fields belong to the rank's lock; the
// request's goroutine is woken through notify and reads a snapshot.
type job struct {
	rank     *rank
	id       core.ID
	notify   chan struct{}
	produced int
	tokens   int
	cached   int
	prompt   int
	done     bool
	killed   kill // the engine aborted it
	finish   string
	n, limit int

	arrived, admitted, first, last time.Time
	preempted                      int
}

func newRank(e *Engine, index int) (*rank, error) {
	cfg, err := e.opts.coreConfig()
	if err != nil {
		return nil, err
	}
	cfg.Seed += uint64(index)
	c, err := core.New(cfg)
	if err != nil {
		return nil, err
	}
	r := &rank{e: e, index: index, start: time.Now(), wake: make(chan struct{}, 1), core: c, jobs: map[core.ID]*job{}}
	r.m.init(r.start, e.opts.Dialect)
	return r, nil
}

func (r *rank) now() time.Duration {
	return time.Duration(float64(time.Since(r.start)) * r.e.opts.Speed)
}

// maxLag is how far the steps may fall behind the clock, in wall time, before the
// engine admits that this machine cannot keep up and lets simulated time slip.
const maxLag = 250 * time.Millisecond

// run steps the scheduler until stop closes. Steps follow each other in simulated
// time, whatever the timers do, so that lateness of one step does not add up.
func (r *rank) run(stop <-chan struct{}) {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	var at time.Duration // simulated time at which the next step may begin
	var events []core.Event
	for {
		r.mu.Lock()
		at = max(at, r.now()-time.Duration(float64(maxLag)*r.e.opts.Speed))
		var o core.Outcome
		o.Wake = core.Never
		if !r.stalled && r.asleep == 0 {
			o, events = r.core.Step(at, events[:0])
		}
		epoch := r.epoch
		if o.Ran {
			r.deliver(events, true)
		}
		r.mu.Unlock()
		if !o.Ran {
			if !r.idle(stop, timer, o.Wake) {
				return
			}
			at = max(at, min(o.Wake, r.now()))
			continue
		}
		at = o.End
		if !r.sleep(stop, timer, at) {
			return
		}
		r.mu.Lock()
		if r.epoch == epoch {
			r.deliver(events, false)
			r.m.step(o, r.core, r.e.opts.DecodeInterval)
		}
		r.mu.Unlock()
	}
}

// idle waits for work or for the simulated time until; false means stop.
func (r *rank) idle(stop <-chan struct{}, timer *time.Timer, until time.Duration) bool {
	var due <-chan time.Time
	if until != core.Never {
		d := r.wall(until)
		if d <= 0 {
			return true
		}
		timer.Reset(d)
		due = timer.C
	}
	select {
	case <-stop:
		return false
	case <-r.wake:
	case <-due:
	}
	return true
}

// sleep waits until a step has ended. Less than 50 us is not worth a timer.
func (r *rank) sleep(stop <-chan struct{}, timer *time.Timer, until time.Duration) bool {
	d := r.wall(until)
	if d < 50*time.Microsecond {
		select {
		case <-stop:
			return false
		default:
			return true
		}
	}
	timer.Reset(d)
	select {
	case <-stop:
		return false
	case <-timer.C:
		return true
	}
}

func (r *rank) wall(until time.Duration) time.Duration {
	return time.Duration(float64(until-r.now()) / r.e.opts.Speed)
}

func (r *rank) kick() {
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// deliver tells the requests what happened: the lookups when a step begins, the
// tokens when it has ended.
func (r *rank) deliver(events []core.Event, begin bool) {
	now := time.Now()
	for i := range events {
		ev := &events[i]
		early := ev.Kind == core.Admitted || ev.Kind == core.Preempted
		j := r.jobs[ev.ID]
		if early != begin || j == nil {
			continue
		}
		switch ev.Kind {
		case core.Admitted:
			j.cached, j.admitted = ev.Cached, now
			r.m.admitted(j)
			continue
		case core.Preempted:
			j.preempted++
			r.m.preemptions++
			continue
		case core.First:
			j.produced, j.first, j.last = 1, now, now
			r.m.firstToken(j)
		case core.Token:
			j.produced++
			r.m.token(now.Sub(j.last))
			j.last = now
		case core.Finished:
			j.done = true
			delete(r.jobs, ev.ID)
			r.m.finished(j, now)
		}
		j.tell()
	}
}

func (j *job) tell() {
	select {
	case j.notify <- struct{}{}:
	default:
	}
}

// snapshot is what the request's goroutine sees of a job.
type snapshot struct {
	produced, cached int
	done             bool
	killed           kill
}

func (j *job) look() snapshot {
	j.rank.mu.Lock()
	defer j.rank.mu.Unlock()
	return snapshot{j.produced, j.cached, j.done, j.killed}
}

func (r *rank) stats() core.Stats {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.core.Stats()
}

// abort frees what the job holds, at once. An aborted request counts nowhere in
// the engine's own metrics (seen on vLLM 0.32: the abort counter stays 0).
func (j *job) abort() {
	r := j.rank
	r.mu.Lock()
	if r.core.Abort(j.id) {
		delete(r.jobs, j.id)
		r.m.aborted++
	}
	r.mu.Unlock()
	r.kick()
}

// kill says how the engine gave a request up.
type kill uint8

const (
	alive     kill = iota
	killAbort      // told to the client: finish_reason "abort"
	killCut        // the connection dies with the process
)

// kill aborts everything and tells the requests so.
func (r *rank) kill(how kill) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, j := range r.jobs {
		r.killLocked(j, how)
	}
}

func (r *rank) killJobs(choices []*choice) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, c := range choices {
		r.killLocked(c.job, killAbort)
	}
}

func (r *rank) killLocked(j *job, how kill) {
	if r.core.Abort(j.id) {
		delete(r.jobs, j.id)
		r.m.aborted++
		j.killed = how
		j.tell()
	}
}

// restart empties the cache and all counts, as a new process would.
func (r *rank) restart() error {
	fresh, err := newRank(r.e, r.index)
	if err != nil {
		return err
	}
	r.kill(killCut)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.core, r.m, r.heads = fresh.core, fresh.m, fresh.heads
	r.asleep, r.stalled = 0, false
	r.epoch++
	r.kick()
	return nil
}

// submit hands the answers of one prompt to the scheduler, all or none.
func (r *rank) submit(p *prompt, priority int64, notify chan struct{}) ([]*job, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.now()
	if r.core.QueueFull(len(p.answers)) {
		r.m.rejected++
		return nil, core.ErrQueueFull
	}
	jobs := make([]*job, 0, len(p.answers))
	for i := range p.answers {
		id, err := r.core.Submit(now, core.Request{Prompt: p.core, Output: p.answers[i].tokens, Priority: priority})
		if err != nil {
			for _, j := range jobs {
				r.core.Abort(j.id)
				delete(r.jobs, j.id)
			}
			return nil, err
		}
		j := &job{rank: r, id: id, notify: notify, prompt: p.core.Tokens, tokens: p.answers[i].tokens,
			finish: p.answers[i].finish, n: len(p.answers), arrived: time.Now()}
		r.jobs[id] = j
		jobs = append(jobs, j)
	}
	r.heads.note(&p.core, r.e.blockSize)
	r.kick()
	return jobs, nil
}
