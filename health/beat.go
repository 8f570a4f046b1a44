package health

import "time"

// jitter spreads d by a tenth either way, so that a fleet that was started at once is
// not asked at once for ever.
func (m *Manager) jitter(d time.Duration) time.Duration {
	return d + time.Duration((m.opt.Rand()-0.5)*0.2*float64(d))
}

// maxBeat is the coarsest grid of wake-ups.
const maxBeat = 50 * time.Millisecond

// untilBeat is the time until the beat nearest to at. All loops of a manager wake on one
// grid of a twentieth of the metrics period, 50 ms at most: to wake a process that rests
// costs more than to read a page, and a hundred engines on a clock each would wake it some
// hundreds of times a second. On the grid they share their wakes; the engines of one beat
// are still other ones each time, because of the jitter. The grid begins when the manager
// was made, so that two routers do not beat together.
func (m *Manager) untilBeat(at time.Time, period time.Duration) time.Duration {
	beat := min(max(period/20, time.Millisecond), maxBeat)
	n := at.Sub(m.made) + beat/2
	return max(time.Until(m.made.Add(n-n%beat)), 0)
}
