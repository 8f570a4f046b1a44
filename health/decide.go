package health

import (
	"fmt"
	"time"

	"github.com/prefixring/prefixring/ring"
)

// decide derives the verdict from the facts, the strongest first.
func (c *core) decide(now time.Time) {
	state, reason := c.judge()
	if state != c.state || c.since.IsZero() {
		c.enter(state, reason, now)
		return
	}
	level := c.levelOf(state, now)
	if state != Saturated || level != c.level {
		// A queue that grows by one is no news; another cause is.
		c.reason = reason
	}
	c.level = level
}

// judge names the state and the reason for it.
func (c *core) judge() (State, string) {
	switch {
	case c.gone:
		return Gone, "not a target any more"
	case c.drained:
		return Draining, "drained by an operator"
	case c.terminating:
		return Draining, "terminating, says discovery"
	case c.unready:
		return Draining, "not ready, says discovery"
	case !c.observed:
		return Unknown, "not looked at yet"
	case c.asleep:
		return Asleep, "engine sleeps"
	case c.down() && c.everReady:
		return Unhealthy, c.lastFail
	case !c.healthy || !c.served:
		return c.judgeUnready()
	case c.progress.hung:
		return Unhealthy, fmt.Sprintf("no progress with %.0f requests running", c.signals.Running)
	case c.ejected:
		return Ejected, c.ejectedBy
	case c.full.out > ring.Open:
		return Saturated, c.full.reason
	}
	return Ready, "serves its model"
}

func (c *core) judgeUnready() (State, string) {
	if c.everReady && !c.healthy {
		return Unhealthy, "recovering: " + c.lastFail
	}
	switch {
	case c.noAuth != 0:
		return Starting, "engine refuses the configured key"
	case !c.healthy && c.lastFail != "":
		return Starting, c.lastFail
	case !c.healthy:
		return Starting, "health not confirmed yet"
	case c.noModel != "":
		return Starting, c.noModel
	}
	return Starting, "models not listed yet"
}

// enter changes the state.
func (c *core) enter(state State, reason string, now time.Time) {
	was := c.state
	c.state, c.reason, c.since = state, reason, now
	if state.Serving() {
		if !was.Serving() && c.sawDown {
			c.rampFrom = now
			c.sawDown = false
		}
		c.everReady = true
	}
	c.level = c.levelOf(state, now)
}

// levelOf is what the node may be given, before the panic rule.
func (c *core) levelOf(state State, now time.Time) ring.Level {
	if !state.Serving() {
		return ring.Closed
	}
	l := c.full.out
	if c.ramp(now) < 1 {
		l = max(l, ring.NoOverflow)
	}
	if c.cordoned {
		l = max(l, ring.WarmOnly)
	}
	return l
}

// ramp is the slow start at a moment, in tenths.
func (c *core) ramp(now time.Time) float64 {
	d := c.opt.SlowStart
	if d <= 0 || c.rampFrom.IsZero() {
		return 1
	}
	tenths := 1 + int(9*now.Sub(c.rampFrom)/d)
	return float64(min(max(tenths, 1), 10)) / 10
}
