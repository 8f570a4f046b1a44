package prewarm

import (
	"errors"
	"fmt"
	"strings"
	"time"
)

// deadline is a moment, or a time of day that comes back each day.
type deadline struct {
	at    time.Time // zero when daily or unset
	daily bool
	clock time.Duration // since midnight, when daily
	zone  *time.Location
}

func (d deadline) set() bool { return d.daily || !d.at.IsZero() }

// next is the first deadline that is not before t; ok is false when there is none.
func (d deadline) next(t time.Time) (time.Time, bool) {
	if !d.daily {
		return d.at, !d.at.IsZero() && !d.at.Before(t)
	}
	day := t.In(d.zone)
	for i := range 3 {
		at := atClock(day, i, d.clock)
		if !at.Before(t) {
			return at, true
		}
	}
	return time.Time{}, false
}

// last is the latest deadline that is before t; ok is false when there is none.
func (d deadline) last(t time.Time) (time.Time, bool) {
	if !d.daily {
		return d.at, !d.at.IsZero() && d.at.Before(t)
	}
	day := t.In(d.zone)
	for i := 1; i >= -2; i-- {
		if at := atClock(day, i, d.clock); at.Before(t) {
			return at, true
		}
	}
	return time.Time{}, false
}

// atClock is the wall-clock time on the day that is offset days from day. In the hour
// that a change to summer time leaves out, time.Date takes the moment an hour later.
func atClock(day time.Time, offset int, clock time.Duration) time.Time {
	y, m, d := day.Date()
	h, rest := int(clock/time.Hour), clock%time.Hour
	return time.Date(y, m, d+offset, h, int(rest/time.Minute), int(rest%time.Minute/time.Second), 0, day.Location())
}

var localLayouts = []string{"2006-01-02 15:04:05", "2006-01-02 15:04", "2006-01-02T15:04:05", "2006-01-02T15:04", "2006-01-02"}

var clockLayouts = []string{"15:04:05", "15:04"}

const timeRemedy = `write "2026-11-11 20:00:00" (local time of the zone) or "2026-11-11T20:00:00+08:00"`

// parseMoment reads a local time of the zone, or RFC 3339 with its own offset. A local
// time that a clock change leaves out or shows twice is refused: only the operator
// knows which moment is meant.
func parseMoment(s string, zone *time.Location) (time.Time, error) {
	s = strings.TrimSpace(s)
	if t, err := time.Parse(time.RFC3339, s); err == nil {
		return t, nil
	}
	for _, layout := range localLayouts {
		t, err := time.ParseInLocation(layout, s, zone)
		if err != nil {
			continue
		}
		if got := t.Format(layout); got != s {
			return time.Time{}, fmt.Errorf("the clocks of %s leave out %s", zone, s)
		}
		if twice(t, layout, s) {
			return time.Time{}, fmt.Errorf("the clocks of %s show %s twice", zone, s)
		}
		return t, nil
	}
	return time.Time{}, errors.New("it is no time")
}

// twice reports whether another moment within a clock change of t reads the same.
func twice(t time.Time, layout, s string) bool {
	if layout == "2006-01-02" {
		return false
	}
	for _, shift := range []time.Duration{30 * time.Minute, time.Hour, 2 * time.Hour} {
		if t.Add(shift).Format(layout) == s || t.Add(-shift).Format(layout) == s {
			return true
		}
	}
	return false
}

func parseDeadline(s string, zone *time.Location) (deadline, error) {
	s = strings.TrimSpace(s)
	if s == "" {
		return deadline{}, nil
	}
	for _, layout := range clockLayouts {
		if t, err := time.Parse(layout, s); err == nil {
			clock := time.Duration(t.Hour())*time.Hour + time.Duration(t.Minute())*time.Minute + time.Duration(t.Second())*time.Second
			return deadline{daily: true, clock: clock, zone: zone}, nil
		}
	}
	at, err := parseMoment(s, zone)
	return deadline{at: at, zone: zone}, err
}
