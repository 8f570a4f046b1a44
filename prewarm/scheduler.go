package prewarm

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/sourcegraph/conc"
)

// SchedulerOptions configure a Scheduler. Manifest and Fleet are required.
type SchedulerOptions struct {
	// Manifest returns the manifest in force, nil for none. A reload returns another
	// pointer. Fleet returns the engines as they are now. Both are called once a tick.
	Manifest func() *Manifest
	Fleet    func() Fleet

	// Run are the options of the single requests: Load, Proven, Timeout, Retries, Clock
	// and so on. State and Total are not used: a restarted router proves again.
	Run Options

	// Self and Routers divide the work among several routers, see Turn. Empty = alone.
	Self    string
	Routers []string
	Grace   time.Duration // after which the next router takes over; default 30 s

	// Warm is what the router believes from its own traffic: warmth, and the age of the
	// last evidence. A hit of traffic counts as a touch. nil = own proofs only.
	Warm func(node string, key uint64) (warm bool, age time.Duration)
	// Horizon estimates how long a node keeps an idle prefix; 0 = unknown. nil = never known.
	Horizon func(node string) time.Duration

	Alarm  func(Alarm) // receives alarms, one at a time; nil = none
	Events func(Event) // as Options.Events
	// Changed is called after the set of renderings has changed, so that the router can
	// register the named prefixes of both versions: see Scheduler.Renderings.
	Changed func()

	Tick               time.Duration // default 1 s
	TouchMin, TouchMax time.Duration // bounds of the touch interval; default 5 s and 15 min
}

// AlarmKind says what an alarm is about.
type AlarmKind string

// The kinds of alarms. Each is raised once per deadline.
const (
	AlarmRisk      AlarmKind = "at_risk"   // what is left to do takes longer than until the deadline
	AlarmMissed    AlarmKind = "missed"    // the deadline has come and not all is warm
	AlarmRecovered AlarmKind = "recovered" // all is warm, after a miss
	AlarmRefused   AlarmKind = "refused"   // the plan has a problem
	AlarmClock     AlarmKind = "clock"     // the wall clock has jumped back
)

// Alarm is something that a person should know before the customers do.
type Alarm struct {
	At       time.Time `json:"at"`
	Kind     AlarmKind `json:"alarm"`
	Entry    string    `json:"prefix,omitempty"`
	Deadline time.Time `json:"deadline,omitzero"`
	Missing  []string  `json:"missing,omitempty"` // "prefix on node", at most 20
	Count    int       `json:"missing_count,omitempty"`
	Why      string    `json:"why"`
}

// Scheduler keeps the manifest's prefixes warm by itself. Use NewScheduler, then Run.
type Scheduler struct {
	o      SchedulerOptions
	clock  Clock
	tokens *counter
	wake   chan struct{}

	mu      sync.Mutex // guards the following
	view    view
	cells   map[cellKey]*cell
	keepers map[string]*keeper
	busy    map[string]int       // requests at work by node
	alarmed map[string]bool      // "kind entry deadline" already raised
	missed  map[string]time.Time // deadline missed by entry, until it is recovered
	notices map[string]bool      // plan problems already raised
	last    time.Time
	begun   time.Time // when Run began
	runners []*runner
}

// view is what the cells were made of.
type view struct {
	manifest *Manifest
	fleet    string // signature
	plan     *Plan
	ahead    *Plan
	at       time.Time // when it was made
	again    time.Time // when it must be made again
	runner   *runner
	turns    map[string]int           // this router's place by node
	need     map[string]time.Duration // prefill time of all of a node's prefixes
}

// NewScheduler checks the options.
func NewScheduler(o SchedulerOptions) (*Scheduler, error) {
	if o.Manifest == nil || o.Fleet == nil {
		return nil, errors.New("cannot schedule: manifest or fleet is missing")
	}
	if _, err := Turn(o.Routers, o.Self, ""); err != nil {
		return nil, err
	}
	o.Run.fill()
	// A node that stays busy must not hold its lane: other prefixes may be more urgent by
	// then, and the node may have left.
	o.Run.PauseMax = min(o.Run.PauseMax, 30*time.Second)
	if o.Events != nil {
		o.Run.Events = o.Events
	}
	if o.Alarm == nil {
		o.Alarm = func(Alarm) {}
	}
	if o.Changed == nil {
		o.Changed = func() {}
	}
	orDuration(&o.Grace, 30*time.Second)
	orDuration(&o.Tick, time.Second)
	orDuration(&o.TouchMin, 5*time.Second)
	orDuration(&o.TouchMax, 15*time.Minute)
	return &Scheduler{
		o: o, clock: o.Run.Clock, tokens: &counter{}, wake: make(chan struct{}, 1), cells: map[cellKey]*cell{}, keepers: map[string]*keeper{},
		busy: map[string]int{}, alarmed: map[string]bool{}, missed: map[string]time.Time{}, notices: map[string]bool{},
	}, nil
}

// Run works until ctx is done, and returns nil then. All requests that it started have
// ended when it returns.
func (s *Scheduler) Run(ctx context.Context) error {
	var wg conc.WaitGroup
	defer s.closeRunners()
	s.begin()
	for ctx.Err() == nil {
		for _, job := range s.tick() {
			wg.Go(func() { s.work(ctx, job) })
		}
		s.pause(ctx)
	}
	if c := wg.WaitAndRecover(); c != nil {
		return fmt.Errorf("cannot go on: %w", c.AsError())
	}
	return nil
}

func (s *Scheduler) begin() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.begun = s.now()
}

// now is the wall clock without its monotonic part, so that jumps show.
func (s *Scheduler) now() time.Time { return s.clock.Now().Round(0) }

// pause waits for the next tick, or until something has become due.
func (s *Scheduler) pause(ctx context.Context) {
	sleep, cancel := context.WithCancel(ctx)
	var wg conc.WaitGroup
	wg.Go(func() {
		select {
		case <-s.wake:
			cancel()
		case <-sleep.Done():
		}
	})
	_ = s.clock.Sleep(sleep, s.o.Tick)
	cancel()
	wg.Wait()
}

func (s *Scheduler) poke() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

func (s *Scheduler) closeRunners() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range s.runners {
		r.close()
	}
	s.runners = nil
}

// Lost says that a node's cache is gone: a restart, sleep, reset, flush, new weights.
// Everything there is warmed again at once. why is for people.
func (s *Scheduler) Lost(node, why string) {
	s.mu.Lock()
	now := s.now()
	for k, c := range s.cells {
		if k.node == node {
			c.lose(why, now)
		}
	}
	s.mu.Unlock()
	s.poke()
}

// Evicted says that the engine has dropped (part of) one prefix. It is warmed again at
// once, and the node's touch interval learns from it.
func (s *Scheduler) Evicted(node string, key uint64) {
	s.mu.Lock()
	now := s.now()
	for k, c := range s.cells {
		if k.node == node && c.prefix.Key == key && c.warm {
			s.keeper(node).lost(now.Sub(c.used))
			c.lose("the engine evicted it", now)
		}
	}
	s.mu.Unlock()
	s.poke()
}

func (s *Scheduler) keeper(node string) *keeper {
	k := s.keepers[node]
	if k == nil {
		k = newKeeper(s.o.TouchMin, s.o.TouchMax)
		s.keepers[node] = k
	}
	return k
}

// job is one request to be made now.
type job struct {
	cell   *cell
	prefix *Prefix
	node   string
	runner *runner
	losses int
	gap    time.Duration // since the last use, when it was warm; else 0
}

// tick brings the cells up to date and picks what is to be done now.
func (s *Scheduler) tick() []job {
	m, f := s.o.Manifest(), s.o.Fleet()
	s.mu.Lock()
	now := s.now()
	alarms := s.jumped(now)
	changed, problems := s.refresh(m, f, now)
	alarms = append(alarms, problems...)
	s.believeTraffic(now)
	jobs := s.pick(now)
	alarms = append(alarms, s.deadlines(now)...)
	s.mu.Unlock()
	for _, a := range alarms {
		s.o.Alarm(a)
	}
	if changed {
		s.o.Changed()
	}
	return jobs
}

// jumped notices a clock that was set back.
func (s *Scheduler) jumped(now time.Time) []Alarm {
	defer func() { s.last = now }()
	back := s.last.Sub(now)
	if s.last.IsZero() || back < time.Second {
		return nil
	}
	for _, c := range s.cells {
		c.shift(-back)
	}
	s.begun = s.begun.Add(-back)
	s.view.again = time.Time{}
	return []Alarm{{At: now, Kind: AlarmClock, Why: fmt.Sprintf("the wall clock went back by %s", back.Round(time.Millisecond))}}
}

// believeTraffic takes hits of traffic as touches, and its misses as losses.
func (s *Scheduler) believeTraffic(now time.Time) {
	if s.o.Warm == nil {
		return
	}
	for _, c := range s.cells {
		if c.working {
			continue
		}
		warm, age := s.o.Warm(c.node, c.prefix.Key)
		seen := now.Add(-age)
		switch {
		case warm && seen.After(c.used) && c.warm:
			c.used = seen
		case !warm && c.warm && age > 0 && seen.After(c.proof.At):
			s.keeper(c.node).lost(seen.Sub(c.used))
			c.lose("traffic found it cold", now)
		}
	}
}

// pick chooses what to do now: on each node the most urgent cell, as long as it has room
// for one more request.
func (s *Scheduler) pick(now time.Time) []job {
	var jobs []job
	for _, c := range sorted(s.cells, s.urgency) {
		if s.busy[c.node] >= s.o.Run.PerNode || !s.isDue(c, now) {
			continue
		}
		j := job{cell: c, prefix: c.prefix, node: c.node, runner: s.view.runner, losses: c.losses}
		if c.warm {
			j.gap = now.Sub(c.used)
		}
		c.working = true
		s.busy[c.node]++
		jobs = append(jobs, j)
	}
	return jobs
}

// urgency puts cold cells before touches, and those by their plan's order; the next
// version of a text comes after all that serves now.
func (s *Scheduler) urgency(a, b *cell) int {
	return cmp.Or(
		compareBool(a.warm, b.warm),
		compareBool(a.next, b.next),
		compareDeadlines(zeroNil(a.by), zeroNil(b.by)),
		cmp.Compare(b.prefix.Entry.Priority, a.prefix.Entry.Priority),
		cmp.Compare(b.prefix.Entry.LateCost, a.prefix.Entry.LateCost),
		a.used.Compare(b.used),
		cmp.Compare(a.prefix.Name, b.prefix.Name),
		cmp.Compare(a.node, b.node),
		cmp.Compare(a.prefix.Digest, b.prefix.Digest),
	)
}

func compareBool(a, b bool) int {
	switch {
	case a == b:
		return 0
	case b:
		return -1
	}
	return 1
}

func zeroNil(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	return &t
}

// isDue reports whether a cell is to be asked now. A router that is not the first for the
// node touches the more seldom, since it cannot see the others' touches.
func (s *Scheduler) isDue(c *cell, now time.Time) bool {
	st := c.state(now)
	if st != CellWarm && st != CellCold || now.Before(c.due) {
		return false
	}
	turn := time.Duration(s.view.turns[c.node])
	if st == CellWarm {
		idle := s.keeper(c.node).due(s.horizon(c.node))
		return now.Sub(c.used) >= idle*(turn+1)
	}
	return s.mine(c, now)
}

// mine reports whether it is this router's turn to warm a cold cell: at once when it is
// the first for the node, else when the ones before it have had the time to do all of
// the node's work and a grace each.
func (s *Scheduler) mine(c *cell, now time.Time) bool {
	turn := time.Duration(s.view.turns[c.node])
	if turn == 0 {
		return true
	}
	begin := c.from
	for _, t := range []time.Time{s.begun, c.born, c.due} {
		if t.After(begin) {
			begin = t
		}
	}
	return now.Sub(begin) >= (s.o.Grace+s.view.need[c.node])*turn
}

func (s *Scheduler) horizon(node string) time.Duration {
	if s.o.Horizon == nil {
		return 0
	}
	return s.o.Horizon(node)
}

// work makes one request with its proof and notes what it showed.
func (s *Scheduler) work(ctx context.Context, j job) {
	proof, err := j.runner.attempt(ctx, j.node, j.prefix, false)
	if err == nil {
		s.o.Run.Proven(j.node, j.prefix, proof)
	}
	if err != nil && ctx.Err() != nil {
		err = ctx.Err()
	}
	s.mu.Lock()
	now := s.now()
	s.settle(j, proof, err, now)
	s.mu.Unlock()
	if ctx.Err() == nil {
		s.told(j, proof, err)
	}
	s.poke()
}

// settle notes the outcome. A proof of a cell that was lost while the request ran may tell
// of the time before: it is not believed, and asked for again.
func (s *Scheduler) settle(j job, proof Proof, err error, now time.Time) {
	c := j.cell
	c.working = false
	s.busy[j.node]--
	if c.losses != j.losses {
		c.due = now
		return
	}
	c.asked, c.proof = true, proof
	if err != nil || !proof.Warm {
		if err != nil {
			c.proof.Why = err.Error()
		}
		c.warm = false
		c.failures++
		c.due = now.Add(min(time.Second<<min(c.failures-1, 5), 30*time.Second))
		return
	}
	if j.gap > 0 && proof.Already {
		s.keeper(j.node).held(j.gap)
	} else if j.gap > 0 {
		s.keeper(j.node).lost(j.gap)
	}
	c.used, c.warm, c.failures, c.lostWhy, c.due = now, true, 0, "", time.Time{}
}

func (s *Scheduler) told(j job, proof Proof, err error) {
	e := Event{At: s.clock.Now(), Kind: EventWarm, Node: j.node, Prefix: j.prefix.Name, Key: j.prefix.Fingerprint, Tokens: j.prefix.Tokens, Proof: &proof, Seconds: proof.Cold}
	if err != nil || !proof.Warm {
		e.Kind, e.Why = EventFailed, proof.Why
		if err != nil {
			e.Why = err.Error()
		}
	}
	s.o.Run.Events(e)
}
