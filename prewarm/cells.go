package prewarm

import (
	"slices"
	"time"
)

// CellState says where one prefix on one node stands.
type CellState string

// The states of a cell.
const (
	CellWaiting CellState = "waiting" // its time has not come
	CellCold    CellState = "cold"    // to be warmed
	CellWarming CellState = "warming" // in work
	CellWarm    CellState = "warm"    // proven, and kept
	CellOver    CellState = "over"    // kept until now
)

// cell is one version of a prefix on one node. The scheduler's mutex guards it.
type cell struct {
	prefix *Prefix
	node   string
	item   Item
	next   bool      // it is the version after the coming change of the text
	from   time.Time // when to begin; zero = at once
	until  time.Time // when to stop; zero = never
	by     time.Time // deadline of this round; zero = none

	born     time.Time
	losses   int // counts lose calls, so that a proof made across one is not believed
	warm     bool
	asked    bool // a proof has been made since the last loss
	working  bool
	proof    Proof
	used     time.Time // last time that the engine's LRU was refreshed, as far as known
	due      time.Time // not before this, after a failure
	failures int
	lostWhy  string
}

func (c *cell) state(now time.Time) CellState {
	switch {
	case c.working:
		return CellWarming
	case !c.until.IsZero() && !now.Before(c.until):
		return CellOver
	case c.warm:
		return CellWarm
	case now.Before(c.from):
		return CellWaiting
	}
	return CellCold
}

// lose makes the cell cold.
func (c *cell) lose(why string, now time.Time) {
	c.warm, c.asked, c.failures, c.lostWhy, c.due = false, false, 0, why, now
	c.losses++
}

// shift moves what is remembered in wall-clock time when the clock has jumped back:
// a touch that seems to lie in the future would otherwise never be due.
func (c *cell) shift(d time.Duration) {
	if !c.used.IsZero() {
		c.used = c.used.Add(d)
	}
	if !c.due.IsZero() {
		c.due = c.due.Add(d)
	}
	c.born = c.born.Add(d)
	c.proof.At = c.proof.At.Add(d)
}

// window is when the entry's prefixes are to be warm around now: from when to begin,
// until when to keep, and the deadline of this round. need is how long the work takes.
func (e *Entry) window(now time.Time, need time.Duration) (from, until, by time.Time) {
	until, by = e.keepUntil, e.round(now)
	always := e.deadline.daily && e.keepFor == 0 // kept from one day's deadline to the next
	if !by.IsZero() && e.keepFor > 0 {
		until = by.Add(e.keepFor)
	}
	if !by.IsZero() && !always {
		from = by.Add(-leadTime(need))
	}
	if !e.notBefore.IsZero() && (!e.deadline.daily || e.notBefore.After(from)) {
		from = e.notBefore
	}
	return from, until, by
}

// round is the deadline that counts now: the last one while its prefixes are kept, else
// the next one.
func (e *Entry) round(now time.Time) time.Time {
	last, past := e.deadline.last(now)
	next, coming := e.deadline.next(now)
	switch {
	case past && (!coming || e.keepFor > 0 && now.Before(last.Add(e.keepFor))):
		return last
	case coming:
		return next
	}
	return time.Time{}
}

// leadTime is how long before a deadline the work begins when not_before does not say:
// twice what the plan needs, and never less than five minutes, so that an engine that
// fails on the way can be waited for.
func leadTime(need time.Duration) time.Duration { return max(2*need+time.Minute, 5*time.Minute) }

// cellKey tells cells apart.
type cellKey struct{ node, digest string }

// rebuild makes the cells of the given plans, keeping what is known of those that stay.
func rebuild(old map[cellKey]*cell, current, next *Plan, now time.Time) map[cellKey]*cell {
	cells := map[cellKey]*cell{}
	add := func(p *Plan, ahead bool) {
		for _, n := range p.Nodes {
			for _, it := range n.Items {
				x := p.Prefixes[it.Prefix]
				k := cellKey{n.Node, x.Digest}
				if cells[k] != nil {
					continue
				}
				c := old[k]
				if c == nil {
					c = &cell{born: now}
				}
				c.prefix, c.node, c.item, c.next = x, n.Node, it, ahead
				cells[k] = c
			}
		}
	}
	add(current, false)
	if next != nil {
		add(next, true)
	}
	return cells
}

// sorted are the cells in the order in which they are worked off.
func sorted(cells map[cellKey]*cell, before func(a, b *cell) int) []*cell {
	out := make([]*cell, 0, len(cells))
	for _, c := range cells {
		out = append(out, c)
	}
	slices.SortFunc(out, before)
	return out
}
