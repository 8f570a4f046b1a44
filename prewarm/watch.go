package prewarm

import (
	"cmp"
	"fmt"
	"slices"
	"time"
)

// CellStatus is one prefix on one node, for people.
type CellStatus struct {
	Prefix      string    `json:"prefix"`
	Node        string    `json:"node"`
	Fingerprint string    `json:"fingerprint"`
	Version     string    `json:"version"` // "now", or "next" for the text after the coming change
	State       CellState `json:"state"`
	Tokens      int64     `json:"tokens"`
	From        time.Time `json:"from,omitzero"`
	Deadline    time.Time `json:"deadline,omitzero"`
	Until       time.Time `json:"until,omitzero"`
	Proof       Proof     `json:"proof"`
	Used        time.Time `json:"used,omitzero"`
	Touch       float64   `json:"touch_seconds"` // the interval as learned for the node
	Why         string    `json:"why,omitempty"`
	Router      int       `json:"turn"` // this router's place for the node, 0 = first
}

// Snapshot is what the scheduler knows, by deadline, prefix and node.
func (s *Scheduler) Snapshot() []CellStatus {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.now()
	out := make([]CellStatus, 0, len(s.cells))
	for _, c := range s.cells {
		st := CellStatus{
			Prefix: c.prefix.Name, Node: c.node, Fingerprint: c.prefix.Fingerprint, Version: "now", State: c.state(now),
			Tokens: c.prefix.Tokens, From: c.from, Deadline: c.by, Until: c.until, Proof: c.proof, Used: c.used,
			Touch: s.keeper(c.node).due(s.horizon(c.node)).Seconds(), Why: c.proof.Why, Router: s.view.turns[c.node],
		}
		if c.next {
			st.Version = "next"
		}
		if c.lostWhy != "" {
			st.Why = c.lostWhy
		}
		out = append(out, st)
	}
	slices.SortFunc(out, func(a, b CellStatus) int {
		return cmp.Or(compareDeadlines(zeroNil(a.Deadline), zeroNil(b.Deadline)), cmp.Compare(a.Prefix, b.Prefix), cmp.Compare(a.Version, b.Version), cmp.Compare(a.Node, b.Node))
	})
	return out
}

// Renderings are the moments whose texts must be registered now: the present, and the
// coming change while its version is being warmed.
func (s *Scheduler) Renderings() []time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := []time.Time{s.now()}
	if s.view.ahead != nil {
		out = append(out, s.view.ahead.At)
	}
	return out
}

// deadlines raises the alarms that are due. Only the present version of a text counts.
func (s *Scheduler) deadlines(now time.Time) []Alarm {
	var out []Alarm
	type round struct {
		missing []string
		left    time.Duration // until the last of them would be warm
		by      time.Time
		need    time.Duration
	}
	rounds := map[*Entry]*round{}
	queue := map[string]time.Duration{} // work before the next cell, by node
	for _, c := range sorted(s.cells, s.urgency) {
		st := c.state(now)
		open := !c.warm && st != CellOver && st != CellWaiting
		cost := time.Duration(c.item.Seconds*float64(time.Second)) + proofTime
		if open {
			queue[c.node] += cost
		}
		if c.next || c.by.IsZero() {
			continue
		}
		r := rounds[c.prefix.Entry]
		if r == nil {
			r = &round{by: c.by}
			rounds[c.prefix.Entry] = r
		}
		r.need += cost
		// What another router is to warm is not missed before its time is over.
		if open && (c.asked || s.mine(c, now)) {
			r.missing = append(r.missing, c.prefix.Name+" on "+c.node)
			r.left = max(r.left, queue[c.node])
		}
	}
	for e, r := range rounds {
		out = append(out, s.judge(e, r.by, now, r.missing, r.left, r.need)...)
	}
	slices.SortFunc(out, func(a, b Alarm) int { return cmp.Compare(a.Entry, b.Entry) })
	return out
}

// judge is the alarm of one entry's round. A router that started after the deadline has
// proven nothing yet: it gets the time that the work takes before it calls that a miss.
func (s *Scheduler) judge(e *Entry, by, now time.Time, missing []string, left, need time.Duration) []Alarm {
	at := by
	if s.begun.After(by) {
		at = s.begun.Add(leadTime(need))
	}
	a := Alarm{At: now, Entry: e.Name, Deadline: by, Count: len(missing), Missing: missing[:min(len(missing), 20)]}
	switch {
	case len(missing) == 0 && s.missed[e.Name].Equal(by):
		delete(s.missed, e.Name)
		a.Kind, a.Why = AlarmRecovered, fmt.Sprintf("all is warm, %s after the deadline", now.Sub(by).Round(time.Second))
	case len(missing) == 0:
		return nil
	case !now.Before(at):
		a.Kind, a.Why = AlarmMissed, fmt.Sprintf("%d of its places are not warm at the deadline", len(missing))
		s.missed[e.Name] = by
	case now.Before(by) && now.Add(left).After(by):
		a.Kind, a.Why = AlarmRisk, fmt.Sprintf("%s of prefill are left on one node and the deadline is in %s", left.Round(time.Second), by.Sub(now).Round(time.Second))
	default:
		return nil
	}
	id := string(a.Kind) + "\x00" + e.Name + "\x00" + by.Format(time.RFC3339)
	if s.alarmed[id] {
		return nil
	}
	s.alarmed[id] = true
	return []Alarm{a}
}
