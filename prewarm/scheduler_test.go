package prewarm

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// drive runs a scheduler by hand: each step is a tick with all its requests.
type drive struct {
	t      *testing.T
	s      *Scheduler
	c      *fakeClock
	toys   []*toy
	fleet  []*toy // what Fleet reports
	m      *Manifest
	alarms []Alarm
	warm   func(node string, key uint64) (bool, time.Duration)
}

func newDrive(t *testing.T, c *fakeClock, m *Manifest, toys ...*toy) *drive {
	t.Helper()
	d := &drive{t: t, c: c, toys: toys, fleet: toys, m: m}
	d.s = d.scheduler("", nil)
	return d
}

func (d *drive) scheduler(self string, routers []string) *Scheduler {
	d.t.Helper()
	s, err := NewScheduler(SchedulerOptions{
		Manifest: func() *Manifest { return d.m },
		Fleet: func() Fleet {
			f := Fleet{}
			for _, e := range d.fleet {
				f.Nodes = append(f.Nodes, e.node())
			}
			return f
		},
		Run: Options{Clock: d.c, Retries: -1}, Self: self, Routers: routers,
		Warm: func(node string, key uint64) (bool, time.Duration) {
			if d.warm == nil {
				return false, 0
			}
			return d.warm(node, key)
		},
		Alarm: func(a Alarm) { d.alarms = append(d.alarms, a) },
	})
	if err != nil {
		d.t.Fatal(err)
	}
	s.begin()
	d.t.Cleanup(s.closeRunners)
	return s
}

func (d *drive) step(ss ...*Scheduler) {
	d.t.Helper()
	if len(ss) == 0 {
		ss = []*Scheduler{d.s}
	}
	for range 1000 {
		did := false
		for _, s := range ss {
			for _, j := range s.tick() {
				s.work(context.Background(), j)
				did = true
			}
		}
		if !did {
			return
		}
	}
	d.t.Fatal("the scheduler never rests")
}

// run steps until the clock has moved by dur: once a second, or a hundred times.
func (d *drive) run(dur time.Duration, ss ...*Scheduler) {
	d.t.Helper()
	stride := max(time.Second, dur/100)
	for end := d.c.Now().Add(dur); d.c.Now().Before(end); d.c.advance(stride) {
		d.step(ss...)
	}
}

func (d *drive) states(s *Scheduler) string {
	var out []string
	for _, c := range s.Snapshot() {
		out = append(out, fmt.Sprintf("%s@%s:%s", c.Prefix, c.Node, c.State))
	}
	slices.Sort(out)
	return strings.Join(out, " ")
}

func (d *drive) kinds() string {
	var out []string
	for _, a := range d.alarms {
		out = append(out, string(a.Kind)+":"+a.Entry)
	}
	return strings.Join(out, " ")
}

func (e *toy) requests() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return len(e.bodies)
}

func (e *toy) colds() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.cold
}

func oneShop(extra string) map[string]string {
	return map[string]string{
		"manifest.yaml": "zone: Asia/Shanghai\nprefixes:\n  - {name: alpha, model: m, file: alpha.txt, where: broadcast, tokens: 3000" + extra + "}\n",
		"alpha.txt":     policy("alpha", 3000),
	}
}

func TestSchedulerWarmsBeforeTheDeadline(t *testing.T) {
	c := newFakeClock()
	a, b := newToy(t, "a", c), newToy(t, "b", c)
	d := newDrive(t, c, manifest(t, oneShop(", deadline: 2026-11-11 20:00")), a, b)
	d.run(54 * time.Minute)
	if a.requests() != 0 {
		t.Fatal("too early: the prefix would have to be kept for an hour")
	}
	if got := d.states(d.s); got != "alpha@a:waiting alpha@b:waiting" {
		t.Errorf("%s", got)
	}
	d.run(5 * time.Minute)
	if got := d.states(d.s); got != "alpha@a:warm alpha@b:warm" {
		t.Errorf("%s", got)
	}
	d.run(10 * time.Minute)
	if len(d.alarms) > 0 || a.colds() != 1 || b.colds() != 1 {
		t.Errorf("alarms %v, cold prefills %d and %d", d.alarms, a.colds(), b.colds())
	}
}

func TestSchedulerAlarms(t *testing.T) {
	c := newFakeClock()
	a := newToy(t, "a", c)
	a.rate = 10 // 3,000 tokens take five minutes
	d := newDrive(t, c, manifest(t, oneShop(", deadline: \"2026-11-11 19:02\"")), a)
	a.set(func() { a.waiting = 9 }) // and the node has no room
	d.run(3 * time.Minute)
	if got := d.kinds(); got != "at_risk:alpha missed:alpha" {
		t.Fatalf("%s", got)
	}
	last := d.alarms[len(d.alarms)-1]
	if last.Count != 1 || last.Missing[0] != "alpha on a" || !last.Deadline.Equal(t0.Add(2*time.Minute)) {
		t.Errorf("%+v", last)
	}
	a.set(func() { a.waiting = 0 })
	d.run(10 * time.Minute)
	if got := d.kinds(); !strings.HasSuffix(got, "missed:alpha recovered:alpha") || strings.Count(got, "missed") != 1 {
		t.Errorf("%s", got)
	}
}

func TestSchedulerStartedAfterTheDeadlineRaisesNoFalseAlarm(t *testing.T) {
	c := newFakeClock()
	a := newToy(t, "a", c)
	d := newDrive(t, c, manifest(t, oneShop(", deadline: 2026-11-11 18:00, keep_until: 6h")), a)
	d.run(20 * time.Minute)
	if got := d.kinds(); got != "" {
		t.Errorf("%s", got)
	}
	if got := d.states(d.s); got != "alpha@a:warm" {
		t.Errorf("%s", got)
	}
}

func TestRestartedNodeAloneIsWarmedAgain(t *testing.T) {
	c := newFakeClock()
	a, b := newToy(t, "a", c), newToy(t, "b", c)
	d := newDrive(t, c, manifest(t, threeFiles()), a, b)
	d.step()
	sent := b.requests()
	a.restart()
	d.s.Lost("a", "it restarted")
	d.step()
	if a.colds() != 3 || b.requests() != sent {
		t.Errorf("%d cold prefills on the restarted node, %d more requests on the other", a.colds(), b.requests()-sent)
	}
	if got := d.states(d.s); strings.Contains(got, "cold") {
		t.Errorf("%s", got)
	}
}

func TestProofAcrossALossIsNotBelieved(t *testing.T) {
	c := newFakeClock()
	a := newToy(t, "a", c)
	d := newDrive(t, c, manifest(t, oneShop("")), a)
	jobs := d.s.tick()
	if len(jobs) != 1 {
		t.Fatalf("%d jobs", len(jobs))
	}
	proof, err := jobs[0].runner.attempt(t.Context(), "a", jobs[0].prefix, false)
	if err != nil || !proof.Warm {
		t.Fatal(err, proof)
	}
	a.restart()
	d.s.Lost("a", "it restarted")
	d.s.mu.Lock()
	d.s.settle(jobs[0], proof, nil, c.Now())
	d.s.mu.Unlock()
	if got := d.states(d.s); got != "alpha@a:cold" {
		t.Fatalf("%s", got)
	}
	d.step()
	if got := d.states(d.s); got != "alpha@a:warm" || a.colds() != 1 {
		t.Errorf("%s, %d cold prefills", got, a.colds())
	}
}

// Others' traffic evicts an idle prefix within 30 s: touches must learn to come earlier.
func TestTouchIntervalIsLearnedFromEviction(t *testing.T) {
	c := newFakeClock()
	a := newToy(t, "a", c)
	a.capacity = 188 + 60
	m := manifest(t, oneShop(""))
	d := newDrive(t, c, m, a)
	n, lost := 0, 0
	d.s.o.Run.Events = func(e Event) {
		if e.Kind == EventWarm && !e.Proof.Already {
			lost++ // whole or in part
		}
	}
	losses := func(dur time.Duration) int {
		before := lost
		for end := c.Now().Add(dur); c.Now().Before(end); {
			// 40 words a second fill 2 blocks: the spare 60 blocks last 30 s.
			n++
			a.traffic(t, request(policy(fmt.Sprint("x", n), 35), "hello"))
			d.step()
			c.advance(time.Second)
		}
		return lost - before
	}
	first := losses(10 * time.Minute)
	later := losses(30 * time.Minute)
	if first < 2 {
		t.Errorf("%d cold prefills in the first minutes: the test evicts nothing", first)
	}
	if later > 3 {
		t.Errorf("%d evictions in half an hour after learning, %d before", later, first)
	}
	if k := d.s.keeper("a"); k.interval > 30*time.Second || k.interval < 5*time.Second {
		t.Errorf("interval %s", k.interval)
	}
}

func TestTrafficCountsAsTouches(t *testing.T) {
	c := newFakeClock()
	a := newToy(t, "a", c)
	d := newDrive(t, c, manifest(t, oneShop("")), a)
	d.step()
	sent := a.requests()
	d.warm = func(string, uint64) (bool, time.Duration) { return true, time.Second }
	d.run(20 * time.Minute)
	if got := a.requests(); got != sent {
		t.Errorf("%d touches though traffic keeps the prefix warm", got-sent)
	}
	d.warm = nil
	d.run(2 * time.Minute)
	if got := a.requests(); got == sent {
		t.Error("no touch after traffic has ended")
	}
	sent = a.colds()
	a.restart()
	found := c.Now()
	d.warm = func(string, uint64) (bool, time.Duration) { return false, c.Now().Sub(found) }
	c.advance(time.Second)
	d.step()
	if a.colds() != 1 {
		t.Errorf("%d cold prefills after traffic found it cold (%d before)", a.colds(), sent)
	}
}

func TestMidnightVersionIsWarmAhead(t *testing.T) {
	c := newFakeClock()
	a := newToy(t, "a", c)
	m := manifest(t, map[string]string{
		"manifest.yaml": "zone: Asia/Shanghai\nprefixes:\n  - {name: alpha, model: m, template: a.tmpl, tokens: 3000, ahead: 10m}\n",
		"a.tmpl":        `Today is {{ date "2-January-2006" }}. ` + policy("alpha", 3000),
	})
	d := newDrive(t, c, m, a)
	d.run(4*time.Hour + 49*time.Minute) // 23:49
	if a.colds() != 1 {
		t.Fatalf("%d cold prefills before the last ten minutes", a.colds())
	}
	changed := false
	d.s.o.Changed = func() { changed = true }
	d.run(5 * time.Minute)
	if got := len(d.s.Renderings()); a.colds() != 2 || got != 2 || !changed {
		t.Fatalf("%d cold prefills, %d renderings, told %v: the next version must be warm", a.colds(), got, changed)
	}
	today := request("Today is 11-November-2026. "+policy("alpha", 3000), "hi")
	if n, cached := a.traffic(t, today); n-cached > 32 {
		t.Errorf("the present version hits %d of %d", cached, n)
	}
	d.run(10 * time.Minute) // 00:04
	tomorrow := request("Today is 12-November-2026. "+policy("alpha", 3000), "hi")
	if n, cached := a.traffic(t, tomorrow); n-cached > 32 || a.colds() != 2 {
		t.Errorf("after midnight %d of %d hit, %d cold prefills", cached, n, a.colds())
	}
	if got := d.states(d.s); got != "alpha@a:warm" {
		t.Errorf("%s", got)
	}
}

func TestEngineDateIsWarmedRightAfterMidnight(t *testing.T) {
	c := newFakeClock()
	a := newToy(t, "a", c)
	a.dated = true
	d := newDrive(t, c, manifest(t, oneShop(", engine_date: Asia/Shanghai")), a)
	d.run(4*time.Hour + 59*time.Minute)
	if a.colds() != 1 {
		t.Fatalf("%d cold prefills before midnight", a.colds())
	}
	d.run(90 * time.Second)
	if a.colds() != 2 {
		t.Errorf("%d cold prefills after midnight", a.colds())
	}
	if n, cached := a.traffic(t, request(policy("alpha", 3000), "hi")); n-cached > 32 {
		t.Errorf("%d of %d hit", cached, n)
	}
}

func TestSleepingEngineIsWarmedWhenItWakes(t *testing.T) {
	c := newFakeClock()
	a := newToy(t, "a", c)
	d := newDrive(t, c, manifest(t, oneShop("")), a)
	d.step()
	a.restart()
	a.set(func() { a.asleep = true })
	d.s.Lost("a", "it sleeps")
	sent := a.requests()
	d.run(3 * time.Minute)
	if a.requests() != sent {
		t.Error("a sleeping engine was asked")
	}
	if why := d.s.Snapshot()[0].Why; !strings.Contains(why, "sleep") {
		t.Errorf("why: %s", why)
	}
	a.set(func() { a.asleep = false })
	d.run(time.Minute)
	if got := d.states(d.s); got != "alpha@a:warm" {
		t.Errorf("%s", got)
	}
}

func TestJoiningNodeIsWarmedAndLeavingOneForgotten(t *testing.T) {
	c := newFakeClock()
	a, b := newToy(t, "a", c), newToy(t, "b", c)
	d := newDrive(t, c, manifest(t, oneShop("")), a, b)
	d.fleet = []*toy{a}
	d.step()
	if b.requests() != 0 {
		t.Fatal("a node that is not there was asked")
	}
	d.fleet = []*toy{a, b}
	d.step()
	if b.colds() != 1 || a.colds() != 1 {
		t.Errorf("cold prefills %d and %d", a.colds(), b.colds())
	}
	d.fleet = []*toy{b}
	sent := a.requests()
	d.run(5 * time.Minute)
	if a.requests() != sent || d.states(d.s) != "alpha@b:warm" {
		t.Errorf("%d requests to a node that left; %s", a.requests()-sent, d.states(d.s))
	}
}

func TestReloadedManifestIsFollowed(t *testing.T) {
	c := newFakeClock()
	a := newToy(t, "a", c)
	d := newDrive(t, c, manifest(t, threeFiles()), a)
	d.step()
	files := threeFiles()
	files["manifest.yaml"] = strings.Replace(threeShops, "  - {name: beta, model: m, file: beta.txt, where: broadcast, tokens: 2000}\n", "", 1)
	d.m = manifest(t, files)
	colds := a.colds()
	d.run(time.Minute)
	if got := d.states(d.s); got != "alpha@a:warm gamma@a:warm" || a.colds() != colds {
		t.Errorf("%s, %d more cold prefills", got, a.colds()-colds)
	}
	d.m = nil
	d.step()
	if got := d.states(d.s); got != "" {
		t.Errorf("%s", got)
	}
}

func TestKeepUntilEnds(t *testing.T) {
	c := newFakeClock()
	a := newToy(t, "a", c)
	d := newDrive(t, c, manifest(t, oneShop(", deadline: 2026-11-11 19:10, keep_until: 20m")), a)
	d.run(31 * time.Minute)
	if got := d.states(d.s); got != "alpha@a:over" {
		t.Fatalf("%s", got)
	}
	sent := a.requests()
	d.run(time.Hour)
	if a.requests() != sent {
		t.Errorf("%d touches after the end", a.requests()-sent)
	}
}

func TestDailyDeadlineComesBack(t *testing.T) {
	c := newFakeClock()
	a := newToy(t, "a", c)
	d := newDrive(t, c, manifest(t, oneShop(", deadline: \"20:00\", keep_until: 2h")), a)
	d.run(2 * time.Hour)
	if a.colds() != 1 || len(d.alarms) != 0 {
		t.Fatalf("%d cold prefills, %v", a.colds(), d.alarms)
	}
	a.restart() // over night
	c.advance(21 * time.Hour)
	d.step()
	d.run(3 * time.Hour)
	if a.colds() != 1 || len(d.alarms) != 0 {
		t.Errorf("the second day: %d cold prefills, %v", a.colds(), d.alarms)
	}
}

func TestEvictedPrefixIsWarmedAtOnce(t *testing.T) {
	c := newFakeClock()
	a := newToy(t, "a", c)
	d := newDrive(t, c, manifest(t, oneShop("")), a)
	d.step()
	key := d.s.view.plan.Prefixes[0].Key
	c.advance(20 * time.Second)
	a.restart()
	d.s.Evicted("a", key)
	d.step()
	if got := d.states(d.s); got != "alpha@a:warm" || a.colds() != 1 {
		t.Errorf("%s, %d cold prefills", got, a.colds())
	}
	if k := d.s.keeper("a").interval; k > 20*time.Second {
		t.Errorf("interval %s", k)
	}
}

func TestSchedulerRunsAndStops(t *testing.T) {
	c := newFakeClock()
	a := newToy(t, "a", c)
	m := manifest(t, threeFiles())
	var mu sync.Mutex
	warm := 0
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	s, err := NewScheduler(SchedulerOptions{
		Manifest: func() *Manifest { return m },
		Fleet:    func() Fleet { return Fleet{Nodes: []Node{a.node()}} },
		Events: func(e Event) {
			mu.Lock()
			defer mu.Unlock()
			if e.Kind == EventWarm {
				if warm++; warm == 3 {
					cancel()
				}
			}
		},
		Tick: 5 * time.Millisecond,
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Run(ctx); err != nil {
		t.Fatal(err)
	}
	if warm != 3 {
		t.Errorf("%d warm", warm)
	}
}
