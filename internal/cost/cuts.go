package cost

import (
	"slices"
	"time"
)

// Cuts returns the minutes within (from, to), in order, at which a report with these
// options must not take rows of both sides as one: borders of local days and hours and
// of the prices' validity. Between two cuts rows of many minutes may be added as one.
func Cuts(book *Book, o *ReportOptions, from, to int64) []int64 {
	var cuts []int64
	add := func(t time.Time) {
		if m := minuteOf(t); m > from && m < to {
			cuts = append(cuts, m)
		}
	}
	if book != nil {
		for i := range book.prices {
			p := &book.prices[i]
			for _, t := range [...]time.Time{p.From, p.Until} {
				if !t.IsZero() {
					// A price may begin within a minute; both of its ends are cut out.
					add(t)
					add(t.Add(time.Minute - 1))
				}
			}
		}
	}
	loc := o.Location
	if loc == nil {
		loc = time.UTC
	}
	next := nextDay
	switch {
	case slices.Contains(o.By, ByMinute):
		next = nil // the caller reads minutes
	case slices.Contains(o.By, ByHour):
		next = nextHour
	case !slices.Contains(o.By, ByDay):
		next = nil
	}
	if next != nil {
		for t := time.Unix(from*60, 0).In(loc); minuteOf(t) < to; {
			t = next(t)
			add(t)
		}
	}
	slices.Sort(cuts)
	return slices.Compact(cuts)
}

// nextDay returns the beginning of the next local day, which may be 23 or 25 hours
// after that of t's.
func nextDay(t time.Time) time.Time {
	y, m, d := t.Date()
	return time.Date(y, m, d+1, 0, 0, 0, 0, t.Location())
}

// nextHour returns the beginning of the next local hour, or the moment at which the
// zone's offset changes if that comes first: an offset may change by half an hour.
func nextHour(t time.Time) time.Time {
	_, offset := t.Zone()
	next := t.Add(time.Duration(3600-mod(t.Unix()+int64(offset), 3600)) * time.Second)
	if _, change := t.ZoneBounds(); !change.IsZero() && change.After(t) && change.Before(next) {
		return change
	}
	return next
}
