package proxy

import (
	"slices"
	"sync"
	"sync/atomic"
)

// waitQueue holds the calls that wait for a node of one pool. Tenants share it:
// whoever is woken next comes from the tenant that was served longest ago, and
// within a tenant in order of arrival, so one tenant's burst delays itself first.
// Higher classes go before lower ones.
//
// A waiter that is woken and finds no room for itself (its node is the one still
// full) passes the wake on to the next, until everybody has been asked once.
type waitQueue struct {
	waiting atomic.Int64 // fast check: nobody waits, so a release takes no lock

	mu    sync.Mutex // guards the following
	lines []*line    // tenants with waiters, next to be served first
	round uint64     // of wakes; a waiter is asked once per round
}

// line is the waiters of one tenant.
type line struct {
	scope   uint64
	class   int
	waiters []*waiter
}

// waiter is one waiting call.
type waiter struct {
	ready chan struct{} // capacity 1
	scope uint64
	class int
	round uint64 // last round it was woken in
}

// join puts a waiter in line. It reports false when depth calls wait already.
func (q *waitQueue) join(w *waiter, depth int) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if int(q.waiting.Load()) >= depth {
		return false
	}
	q.waiting.Add(1)
	for _, l := range q.lines {
		if l.scope == w.scope && l.class == w.class {
			l.waiters = append(l.waiters, w)
			return true
		}
	}
	q.lines = append(q.lines, &line{scope: w.scope, class: w.class, waiters: []*waiter{w}})
	return true
}

// leave takes a waiter out, served or not. A wake that it leaves unused goes to the
// next.
func (q *waitQueue) leave(w *waiter, served bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.remove(w, served)
	select {
	case <-w.ready:
		if !served {
			q.wakeLocked()
		}
	default:
	}
}

// remove takes w out of its line. mu is held.
func (q *waitQueue) remove(w *waiter, served bool) {
	i := slices.IndexFunc(q.lines, func(l *line) bool { return l.scope == w.scope && l.class == w.class })
	if i < 0 {
		return
	}
	l := q.lines[i]
	j := slices.Index(l.waiters, w)
	if j < 0 {
		return
	}
	q.waiting.Add(-1)
	l.waiters = slices.Delete(l.waiters, j, j+1)
	switch {
	case len(l.waiters) == 0:
		q.lines = slices.Delete(q.lines, i, i+1)
	case served: // its tenant goes to the back
		q.lines = append(slices.Delete(q.lines, i, i+1), l)
	}
}

// wake asks the next waiter: something became free.
func (q *waitQueue) wake() {
	if q.waiting.Load() == 0 {
		return
	}
	q.mu.Lock()
	q.round++
	q.wakeLocked()
	q.mu.Unlock()
}

// pass asks the next waiter of the same round: the one woken could not use it.
func (q *waitQueue) pass() {
	q.mu.Lock()
	q.wakeLocked()
	q.mu.Unlock()
}

// wakeLocked wakes the best waiter not asked in this round. mu is held.
func (q *waitQueue) wakeLocked() {
	var best *waiter
	for depth := 0; best == nil; depth++ {
		more := false
		for _, l := range q.lines {
			if depth >= len(l.waiters) {
				continue
			}
			more = true
			w := l.waiters[depth]
			if w.round != q.round && (best == nil || w.class > best.class) {
				best = w
			}
		}
		if !more {
			return
		}
	}
	best.round = q.round
	select {
	case best.ready <- struct{}{}:
	default:
	}
}
