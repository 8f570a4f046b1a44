package prewarm

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// refresh makes the plans again when something that they rest on has changed.
func (s *Scheduler) refresh(m *Manifest, f Fleet, now time.Time) (changed bool, alarms []Alarm) {
	v := &s.view
	sig := signature(&f)
	if m == v.manifest && sig == v.fleet && !v.again.IsZero() && now.Before(v.again) {
		return false, nil
	}
	if m == nil {
		changed = v.manifest != nil
		s.view, s.cells = view{fleet: sig, again: now.Add(time.Minute)}, map[cellKey]*cell{}
		return changed, nil
	}
	if m != v.manifest {
		s.notices, s.alarmed = map[string]bool{}, map[string]bool{}
	}
	old := versions(s.cells)
	s.replan(m, f, sig, now)
	for _, p := range s.view.plan.Problems {
		if p.Note || p.late || s.notices[p.String()] {
			continue
		}
		s.notices[p.String()] = true
		alarms = append(alarms, Alarm{At: now, Kind: AlarmRefused, Entry: p.Prefix, Why: p.String()})
	}
	return old != versions(s.cells), alarms
}

// versions tells whether the renderings are others.
func versions(cells map[cellKey]*cell) string {
	set := map[string]bool{}
	for k := range cells {
		set[k.digest] = true
	}
	list := make([]string, 0, len(set))
	for d := range set {
		list = append(list, d)
	}
	slices.Sort(list)
	return strings.Join(list, " ")
}

// planAge bounds how old a plan gets, should placement change without a sign of it.
const planAge = 5 * time.Minute

func (s *Scheduler) replan(m *Manifest, f Fleet, sig string, now time.Time) {
	v := view{manifest: m, fleet: sig, at: now, again: now.Add(planAge), runner: s.view.runner}
	moments := []time.Time{now}
	var only []string
	var change time.Time
	for _, e := range m.Prefixes {
		at, ok := e.nextChange(now)
		if !ok || e.source.tmpl == nil {
			continue // what the engine itself writes cannot be rendered before its time
		}
		if begin := at.Add(-e.Ahead); now.Before(begin) {
			v.again = earlier(v.again, begin)
			continue
		}
		v.again = earlier(v.again, at)
		only, change = append(only, e.Name), at
		moments = append(moments, at)
	}
	if next, ok := m.NextChange(now); ok {
		v.again = earlier(v.again, next)
	}
	// The plan's own errors are alarms; what it could plan is done all the same.
	keyed, err := f.withKey(m, moments...)
	if err == nil {
		f = keyed
	}
	v.plan, _ = NewPlan(m, f, PlanOptions{Now: now, Force: true})
	if len(only) > 0 {
		v.ahead, _ = NewPlan(m, f, PlanOptions{Now: change, Force: true, Only: only})
	}
	if v.runner == nil || sig != s.view.fleet {
		for _, r := range s.runners {
			r.close() // its requests go on; the connections that they leave close by themselves
		}
		v.runner = newRunner(&f, s.o.Run, s.tokens)
		s.runners = append(s.runners[max(0, len(s.runners)-8):], v.runner)
	}
	turns, err := turnsOf(s.o.Routers, s.o.Self, f.Nodes)
	if err != nil {
		panic("BUG: NewScheduler has checked the routers: " + err.Error())
	}
	v.turns = turns
	s.view = v
	s.cells = rebuild(s.cells, v.plan, v.ahead, now)
	s.windows(now)
}

func earlier(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}

// windows sets when each cell begins and ends.
func (s *Scheduler) windows(now time.Time) {
	need := map[string]time.Duration{}
	s.view.need = need
	for _, n := range s.view.plan.Nodes {
		for _, it := range n.Items {
			need[n.Node] += time.Duration(it.Seconds*float64(time.Second)) + proofTime
		}
	}
	for _, c := range s.cells {
		from, until, by := c.prefix.Entry.window(now, need[c.node])
		c.from, c.until, c.by = from, until, by
		// The version before a change is of no use after it; while both stand, the present
		// one is kept by traffic and by touches like any other.
		if !c.next && c.prefix.Changes != nil && (until.IsZero() || c.prefix.Changes.Before(until)) {
			c.until = *c.prefix.Changes
		}
	}
}

// signature tells whether the fleet is another one.
func signature(f *Fleet) string {
	var b strings.Builder
	b.WriteString(f.Version + "\x00")
	for _, n := range f.Nodes {
		fmt.Fprintf(&b, "%s\x00%s\x00%d\x00%v\x00%d\x00%d\x00%d\x00%v\x00", n.Name, n.URL, n.Engine, n.Models, n.KVTokens, n.BlockSize, n.Ranks, n.Pinned)
	}
	return b.String()
}
