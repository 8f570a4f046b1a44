package ledger

import "time"

// retention is a clock that goes no faster than time passes: a clock that jumps years
// ahead must not delete years of rows. It advances with each flush by what the wall
// clock advanced, but at most by a few flush intervals, and follows back at once.
type retention struct {
	flush    time.Duration
	last     time.Time // the wall clock at the last flush
	at       time.Time // what retention believes
	advanced time.Duration
}

func (a *retention) begin(now time.Time, flush time.Duration) {
	a.flush, a.last, a.at = flush, now, now
}

// limit returns the time before which nothing older than keep is needed; false while it
// is too early to know.
func (a *retention) limit(now time.Time, keep time.Duration) (time.Time, bool) {
	// Round(0) takes the monotonic reading off: the wall clock is what is judged.
	step := min(now.Round(0).Sub(a.last.Round(0)), 3*a.flush)
	a.last = now
	if step > 0 {
		a.advanced += step
		a.at = a.at.Add(step)
	}
	if a.at.After(now) {
		a.at = now
	}
	return a.at.Add(-keep), a.advanced >= settleIn
}
