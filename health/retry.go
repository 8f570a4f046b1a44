package health

import (
	"math"
	"time"

	"github.com/prefixring/prefixring/ring"
)

// The bounds of a Retry-After. Below a second the header cannot say it, and beyond a
// minute nobody can foresee it.
const (
	minRetry     = time.Second
	maxRetry     = time.Minute
	unknownRetry = 2 * time.Second  // serving, but nothing is known of its drain
	absentRetry  = 10 * time.Second // nobody serves: an engine needs that long at least
)

// RetryAfter is how long a client that has just been refused by pool should wait: the
// time in which the first of its nodes has worked off enough of its queue, from the
// rate at which requests finish there. It is a whole number of seconds in 1..60, takes
// no lock and is at most a tick (250 ms) old.
func (m *Manager) RetryAfter(pool string) time.Duration {
	if d, ok := (*m.retry.Load())[pool]; ok {
		return d
	}
	return absentRetry
}

func (m *Manager) retryAfter(pool string, now time.Time) time.Duration {
	best := absentRetry
	for _, n := range m.pools[pool] {
		c := n.core
		if !c.state.Serving() {
			continue
		}
		queue := c.signals.WaitingCapacity
		if c.voice(now) == 0 {
			queue = math.NaN()
		}
		d := DrainTime(queue, c.opt.Thresholds.Waiting.Leave[ring.Closed-1], c.rates.drain())
		if busy := c.full.busyUntil.Sub(now); busy > d {
			d = busy
		}
		best = min(best, wholeSeconds(d))
	}
	return best
}

// DrainTime is the time until a queue of the given length has fallen to room at rate
// requests per second, and at least until one more request has finished. Unknown (NaN)
// lengths count as room; an unknown or zero rate gives 2 s, because nothing can be
// foreseen. The result is within 1 s and 60 s.
func DrainTime(queue, room, rate float64) time.Duration {
	if !(rate > 0) {
		return unknownRetry
	}
	excess := 1.0
	if queue > room {
		excess += queue - room
	}
	s := excess / rate
	return time.Duration(min(max(s, minRetry.Seconds()), maxRetry.Seconds()) * float64(time.Second))
}

func wholeSeconds(d time.Duration) time.Duration {
	d = (d + time.Second - 1) / time.Second * time.Second
	return min(max(d, minRetry), maxRetry)
}
