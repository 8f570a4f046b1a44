package channel

import "time"

// budget is one limit per time: what is left of it, and how fast it comes back. A budget
// without a cap is not known, which is not the same as used up.
type budget struct {
	bought int64   // configured cap, 0 = none
	cap    int64   // in force: the lower of what was bought and what the host says
	left   float64 // at that time; below zero when more was used than was there
	rate   float64 // per second
	at     time.Time
}

func (b *budget) configure(perMinute int64, now time.Time) {
	b.bought, b.cap, b.left, b.rate, b.at = perMinute, perMinute, float64(perMinute), float64(perMinute)/60, now
}

func (b *budget) known() bool { return b.cap > 0 }

func (b *budget) now(t time.Time) float64 {
	if d := t.Sub(b.at).Seconds(); d > 0 {
		return min(b.left+d*b.rate, float64(b.cap))
	}
	return b.left
}

// has says if n is left. What is larger than the whole limit is asked for once all of it
// is there: the host has the last word.
func (b *budget) has(t time.Time, n int64) bool {
	return !b.known() || b.now(t) >= float64(min(n, b.cap))
}

// share is what is left as a part of the cap, 1 where nothing is known.
func (b *budget) share(t time.Time) float64 {
	if !b.known() {
		return 1
	}
	return b.now(t) / float64(b.cap)
}

func (b *budget) take(t time.Time, n int64) {
	if b.known() {
		b.left, b.at = b.now(t)-float64(n), t
	}
}

// wait is how long until n is there again.
func (b *budget) wait(t time.Time, n int64) time.Duration {
	if b.has(t, n) || b.rate <= 0 {
		return 0
	}
	return time.Duration((float64(min(n, b.cap)) - b.now(t)) / b.rate * float64(time.Second))
}

// learn takes over what the host said. later is what was sent since the request that it
// answers.
func (b *budget) learn(t time.Time, w window, later int64) {
	if !w.ok {
		return
	}
	b.cap, b.left, b.at = w.limit, float64(w.remaining-max(later, 0)), t
	b.rate = float64(w.limit) / 60
	if w.reset > 0 && w.remaining < w.limit {
		// Both hosts say when all of it is back.
		b.rate = float64(w.limit-w.remaining) / min(w.reset, longestRest).Seconds()
	}
	if b.bought > 0 && b.bought < b.cap {
		// The operator wants to use less of the account than the host would allow.
		used := float64(w.limit) - b.left
		b.cap, b.left, b.rate = b.bought, max(float64(b.bought)-used, 0), min(b.rate, float64(b.bought)/60)
	}
}

func (b *budget) tell(t time.Time) (left, limit int64) {
	if !b.known() {
		return -1, -1
	}
	return int64(max(b.now(t), 0)), b.cap
}
