package proxy

import (
	"time"

	"github.com/prefixring/prefixring/internal/session"
)

// step is where a call stands on its way to a response. It is kept in the call so
// that the way can be interrupted for a heartbeat and taken up again.
type step uint8

const (
	stepPick step = iota
	stepSend
	stepSendFresh // a pooled connection was stale: once more, on a new one
	stepAwait
)

// progress is how far advance came.
type progress uint8

const (
	moved progress = iota
	ready          // there is a response to commit
	beat           // a heartbeat is due; call advance again
	over           // nothing more can be tried
)

// advance picks and attempts until there is a response to commit, a heartbeat is
// due, or nothing more can be tried in any tier that the name leads to.
func (c *call) advance() (progress, *failure) {
	for {
		p, f := c.advanceOne()
		if p == moved || (p == over && c.fall(f)) {
			continue
		}
		return p, f
	}
}

// advanceOne takes one step.
func (c *call) advanceOne() (progress, *failure) {
	switch c.step {
	case stepPick:
		p, f := c.pick()
		if p != ready {
			if f != nil && c.last != nil {
				f = c.last // what happened says more than that nobody else is left
			}
			return p, f
		}
		c.step = stepSend
		return moved, nil
	case stepSend, stepSendFresh:
		v, f := c.ex.attempt(c.step == stepSendFresh)
		if v == replyReady {
			c.step = stepAwait
			return moved, nil
		}
		return c.decide(v, f)
	default:
		c.ex.arm(c.nextWake())
		v, f := c.ex.await()
		if v == timeUp {
			return c.wakeUp()
		}
		c.ex.arm(time.Time{})
		return c.decide(v, f)
	}
}

// decide turns an attempt's verdict into the next step.
func (c *call) decide(v verdict, f *failure) (progress, *failure) {
	if v == replyReady {
		return ready, nil
	}
	if why := c.cancelled(); why != causeNone && !(v == retryNext && c.revive()) {
		return over, why.failure()
	}
	if v == retrySame {
		if c.step != stepSendFresh && !c.again {
			c.again = true
			c.ex.hangUp()
			c.step = stepSendFresh
			return moved, nil
		}
		v = retryNext
	}
	if v == giveUp || !c.mayRetry(v) {
		c.refusedByEngine = c.ex.answered && f.code == failBound.code && c.ex.up.account == nil
		return over, f
	}
	c.putAside(f)
	c.step, c.again = stepPick, false
	return moved, nil
}

// mayRetry decides if another node may be asked.
func (c *call) mayRetry(v verdict) bool {
	if v == retryElsewhere {
		return true
	}
	if c.retries >= c.p.opts.Retry.Max || c.ntried >= len(c.tried)-1 {
		return false
	}
	if v != retryUnsent && !c.p.budget.spend() {
		return false
	}
	c.retries++
	return true
}

// putAside ends the exchange, keeps what the engine said in case nobody says
// anything better, and excludes its node.
func (c *call) putAside(f *failure) {
	c.last = f
	if c.ex.answered && c.ex.up.account == nil && (f.code == failBound.code || f.code == failStored.code) {
		c.save()
	}
	c.tried[c.ntried] = c.ex.node
	c.ntried++
	c.evict(session.Failed)
	c.ex.close()
	c.ex.reset()
	c.ex.c = c
}

// conclude answers when nothing more can be tried: with the engine's own response
// where it has one, else with f.
func (c *call) conclude(f *failure) *failure {
	if c.refusedByEngine {
		c.commit()
		return nil
	}
	return c.answerSaved(f)
}

// nextWake is when the wait for the first event has to be interrupted; zero = never.
// It is wall-clock time: the socket's deadline is.
func (c *call) nextWake() time.Time {
	switch {
	case c.beats():
		return c.nextBeat
	case c.p.opts.Hedge > 0 && !c.hedged:
		return c.hedgeAt
	}
	return time.Time{}
}

// wakeUp does what the wait was interrupted for.
func (c *call) wakeUp() (progress, *failure) {
	if c.beats() {
		return beat, nil
	}
	return c.hedge()
}
