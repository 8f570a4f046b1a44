package main

import (
	"context"
	"strings"
	"syscall"
	"time"

	"github.com/prefixring/prefixring/internal/fakeengine"
)

// chaosEvent is one thing that was done to engines.
type chaosEvent struct {
	what   string
	on     []string
	from   time.Time
	to     time.Time // when its cause had ended
	healed time.Duration
	ok     bool
	worst  float64 // lowest hit rate of two seconds until the next event
}

// chaosKinds are the events in the order of the short run; a long run shuffles them.
var chaosKinds = []string{"kill", "restart", "stall", "join", "freeze", "leave", "kill two"}

// The gaps leave each event its 10 s of healing before the next.
const (
	chaosCalm = 10 * time.Second // load without events, for the plateau
	chaosGap  = 13 * time.Second
)

// script runs one event after the other until the load ends.
func (c *chaos) script() {
	calm, gap := chaosCalm, chaosGap
	if !c.full() {
		calm, gap = 5*time.Second, 4*time.Second
	}
	var kinds []string
	for at := calm; at+gap <= c.length; at += gap {
		if len(kinds) == 0 {
			kinds = append(kinds, chaosKinds...)
			if c.full() {
				c.rng.Shuffle(len(kinds), func(i, j int) { kinds[i], kinds[j] = kinds[j], kinds[i] })
			}
		}
		<-time.After(time.Until(c.start.Add(at)))
		c.event(kinds[0])
		kinds = kinds[1:]
	}
}

func (c *chaos) event(kind string) {
	e := &chaosEvent{what: kind, from: time.Now()}
	c.events = append(c.events, e)
	switch kind {
	case "kill two":
		c.kill(e, 2)
	case "kill":
		c.kill(e, 1)
	case "restart":
		v := c.victim(e)
		c.check(v.Restart())
		e.to = time.Now()
	case "stall":
		v := c.victim(e)
		v.SetFault(fakeengine.Fault{Kind: fakeengine.FaultStall})
		c.after(e, c.between(2, 5), func() { v.RemoveFault(string(fakeengine.FaultStall)) })
	case "freeze":
		c.freeze(e)
	case "join":
		c.join(e)
	case "leave":
		c.leave(e)
	}
}

// victim takes an engine to which nothing is being done: of three, the one with the most
// work, because idle ones are no loss.
func (c *chaos) victim(e *chaosEvent) *chaosEngine {
	var v *chaosEngine
	for n, most := 0, -1; n < 3; {
		x := c.engines[c.rng.IntN(len(c.engines))]
		if time.Now().Before(x.busy) {
			continue
		}
		n++
		if k := x.Counters(); k.Running+k.Waiting > most {
			v, most = x, k.Running+k.Waiting
		}
	}
	v.busy = time.Now().Add(chaosGap)
	e.on = append(e.on, v.name)
	return v
}

func (c *chaos) between(lo, hi float64) time.Duration {
	return time.Duration((lo + c.rng.Float64()*(hi-lo)) * float64(time.Second))
}

// after ends an event later, before the next one begins.
func (c *chaos) after(e *chaosEvent, d time.Duration, end func()) {
	e.to = time.Now().Add(d)
	c.wg.Go(func() {
		<-time.After(d)
		end()
	})
}

// kill ends processes: ports refuse, connections are cut. Their supervisor brings them
// back after a few seconds, cold.
func (c *chaos) kill(e *chaosEvent, n int) {
	for range n {
		v := c.victim(e)
		v.Kill()
		c.after(e, c.between(2, 4), func() { c.check(v.Revive()) })
	}
}

// freeze hangs a whole process, front end and core, until a watchdog kills it.
func (c *chaos) freeze(e *chaosEvent) {
	v := c.victim(e)
	v.SetFault(fakeengine.Fault{Kind: fakeengine.FaultStall})
	v.SetFault(fakeengine.Fault{Kind: fakeengine.FaultHang, Path: "*"})
	c.after(e, c.between(3, 5), func() {
		v.Kill()
		v.ClearFaults()
		c.check(v.Revive())
	})
}

// join starts an engine and names it in the configuration, as scaling out does.
func (c *chaos) join(e *chaosEvent) {
	v := c.add()
	e.on = append(e.on, v.name)
	c.reload()
	c.until("engine joined", 5*time.Second, func() bool { return c.member(v.name) })
	e.to = time.Now()
}

// leave takes an engine out of the configuration and ends it once its work is done.
func (c *chaos) leave(e *chaosEvent) {
	v := c.victim(e)
	for i, x := range c.engines {
		if x == v {
			c.engines = append(c.engines[:i:i], c.engines[i+1:]...)
			break
		}
	}
	c.reload()
	c.until("engine left", 5*time.Second, func() bool { return !c.member(v.name) })
	c.until("its work is done", 20*time.Second, func() bool { return v.Counters().Running+v.Counters().Waiting == 0 })
	c.check(v.Shutdown(context.Background()))
	e.to = time.Now()
}

func (c *chaos) reload() {
	c.writeConfig()
	c.check(syscall.Kill(syscall.Getpid(), syscall.SIGHUP))
}

// member says whether the routing table has the engine.
func (c *chaos) member(name string) bool {
	f := c.server.fleet
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, p := range f.pools {
		if p.ring.Node(name) != nil {
			return true
		}
	}
	return false
}

func (c *chaos) check(err error) {
	if err != nil {
		c.t.Errorf("event: %v", err)
	}
}

// struck says whether something was done to an engine while a request was on it.
func (c *chaos) struck(node string, from, to time.Time) bool {
	for _, e := range c.events {
		for _, name := range e.on {
			if name == node && e.from.Before(to) && e.to.Add(time.Second).After(from) {
				return true
			}
		}
	}
	return false
}

func (e *chaosEvent) engines() string {
	return strings.ReplaceAll(strings.Join(e.on, " "), "engine-", "")
}
