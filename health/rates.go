package health

import (
	"math"
	"time"
)

// rates turns counters into rates over the latest pages. It is reset with the epoch,
// so that no rate spans a restart: none is ever negative or huge (field case B56).
type rates struct {
	at   [32]point
	n    int // points written since reset
	last point
}

type point struct {
	at                                        time.Time
	preemptions, finished, queueSum, queueLen float64
}

// The windows: long enough to be steady, short enough to follow a peak. Requests are
// long, so that the drain needs the longest.
const (
	preemptWindow = 5 * time.Second
	queueWindow   = 10 * time.Second
	drainWindow   = 30 * time.Second
)

func (r *rates) reset() { r.n = 0 }

func (r *rates) add(s *Signals, now time.Time) {
	r.last = point{now, s.Preemptions, s.Finished, s.QueueSeconds, s.QueueCount}
	r.at[r.n%len(r.at)] = r.last
	r.n++
}

// back is the oldest point within the window, other than the latest.
func (r *rates) back(window time.Duration) (point, bool) {
	var found point
	for i := r.n - 2; i >= 0 && i > r.n-1-len(r.at); i-- {
		p := r.at[i%len(r.at)]
		if r.last.at.Sub(p.at) > window+window/10 {
			break
		}
		found = p
	}
	return found, !found.at.IsZero() && r.last.at.After(found.at)
}

// preempt is preemptions per second, NaN if unknown.
func (r *rates) preempt() float64 {
	p, ok := r.back(preemptWindow)
	if !ok {
		return math.NaN()
	}
	// Two pages are a second apart: one preemption between them is not yet one a second.
	return (r.last.preemptions - p.preemptions) / max(r.last.at.Sub(p.at), preemptWindow).Seconds()
}

// queueTime is the mean wait in seconds of the requests that left the queue in the
// window, NaN if none did or nothing is known.
func (r *rates) queueTime() float64 {
	p, ok := r.back(queueWindow)
	n := r.last.queueLen - p.queueLen
	if !ok || !(n > 0) {
		return math.NaN()
	}
	return (r.last.queueSum - p.queueSum) / n
}

// drain is requests finished per second, NaN if unknown.
func (r *rates) drain() float64 {
	p, ok := r.back(drainWindow)
	if !ok {
		return math.NaN()
	}
	return (r.last.finished - p.finished) / r.last.at.Sub(p.at).Seconds()
}

// hitWatch notices a prefix cache that is asked and never hits (field case B56).
type hitWatch struct {
	from          time.Time
	queries, hits float64
	none          bool
}

const (
	noHitsAfter  = 45 * time.Second
	noHitsTokens = 10_000
)

func (h *hitWatch) step(s *Signals, now time.Time) {
	if math.IsNaN(s.PrefixQueries) || math.IsNaN(s.PrefixHits) {
		*h = hitWatch{}
		return
	}
	if h.from.IsZero() || s.PrefixHits != h.hits || s.PrefixQueries < h.queries {
		*h = hitWatch{from: now, queries: s.PrefixQueries, hits: s.PrefixHits}
		return
	}
	h.none = now.Sub(h.from) >= noHitsAfter && s.PrefixQueries-h.queries >= noHitsTokens
}

// HitRate is the share of looked-up prompt tokens that were found in the prefix cache
// between two pages of one engine, in 0..1. It is unknown (false) across a restart, or
// when nothing was looked up, so that it is never negative or above 1.
func HitRate(older, newer *Signals) (float64, bool) {
	if restartedBetween(older, newer) {
		return 0, false
	}
	queries, hits := newer.PrefixQueries-older.PrefixQueries, newer.PrefixHits-older.PrefixHits
	if !(queries > 0) || !(hits >= 0) || hits > queries {
		return 0, false
	}
	return hits / queries, true
}
