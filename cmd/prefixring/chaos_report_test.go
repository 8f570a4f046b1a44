package main

import (
	"fmt"
	"os"
	"runtime"
	"strings"
	"text/tabwriter"
	"time"
)

// Windows of the hit rate, and what counts as healed: within 2 % of the plateau, for
// good, 10 s after the event.
const (
	chaosWindow = 2 * time.Second
	chaosStep   = 500 * time.Millisecond
	chaosBand   = 0.98
	chaosHeal   = 10 * time.Second
)

// judge holds the run against what was wanted.
func (c *chaos) judge() {
	c.t.Helper()
	for i, l := range c.loads {
		if l.err != nil {
			c.t.Errorf("load %d: %v", i, l.err)
		}
		if l.again > 0 {
			c.t.Logf("load %d was begun anew %d times: this machine stood still", i, l.again)
		}
	}
	lost, cut, unexplained := 0, 0, 0
	for i := range c.ledger.entries {
		e := &c.ledger.entries[i]
		switch {
		case e.record.Error == "":
		case !e.delivered():
			if lost++; lost <= 20 {
				c.t.Errorf("lost, though other engines could serve: %v", e)
			}
		case !c.struck(e.record.Node, e.sent, e.end):
			if unexplained++; unexplained <= 20 {
				c.t.Errorf("cut, though nothing was done to its engine: %v", e)
			}
		default:
			cut++
		}
	}
	c.t.Logf("%d requests, %d lost, %d cut after their first event by the end of their engine", len(c.ledger.entries), lost, cut)
	if c.watch.broken > 0 {
		c.t.Errorf("%d of %d samples of a node above its hard bound", c.watch.broken, c.watch.samples)
	}
	if os.Getenv("PREFIXRING_CHAOS_LOG") != "" {
		c.colds()
	}
	c.heal()
}

// colds lists the requests that found less than nine tenths of their prompt in cache.
func (c *chaos) colds() {
	for i := range c.ledger.entries {
		if e := &c.ledger.entries[i]; e.record.Prompt > 0 && e.record.Cached*10 < e.record.Prompt*9 {
			c.t.Logf("cold: %7.2f s load %d prefix %2d turn %d: %d of %d cached on %s (%s)", e.sent.Sub(c.start).Seconds(), e.load,
				e.record.Prefix, e.record.Turn, e.record.Cached, e.record.Prompt, e.record.Node, e.record.Reason)
		}
	}
}

// heal finds for each event when the hit rate was back for good.
func (c *chaos) heal() {
	c.t.Helper()
	plateau, n := c.plateau()
	if n == 0 {
		c.t.Error("no request told its cached tokens")
	}
	for i, e := range c.events {
		until := c.start.Add(c.length)
		if i+1 < len(c.events) {
			until = c.events[i+1].from
		}
		e.worst, e.healed = 1, 0
		for at := e.from; !at.Add(chaosWindow).After(until); at = at.Add(chaosStep) {
			rate, n := c.ledger.hitRate(at, at.Add(chaosWindow))
			if n == 0 {
				continue
			}
			e.worst = min(e.worst, rate)
			if rate < chaosBand*plateau {
				e.healed = at.Add(chaosStep).Sub(e.from)
			}
		}
		e.ok = e.healed <= chaosHeal
		if c.full() && !e.ok {
			c.t.Errorf("%s of %s: hit rate not back after %v", e.what, e.engines(), e.healed)
		}
	}
}

// plateau is the hit rate at rest: of the load before the first event, once its prefixes
// are known, or of all times that an event has not touched for its 10 s of healing,
// whichever is higher.
func (c *chaos) plateau() (rate float64, requests int) {
	if len(c.events) == 0 {
		return 0, 0
	}
	rate, requests = c.ledger.hitRate(c.start.Add(4*time.Second), c.events[0].from)
	for i, e := range c.events {
		until := c.start.Add(c.length)
		if i+1 < len(c.events) {
			until = c.events[i+1].from
		}
		if r, n := c.ledger.hitRate(e.from.Add(chaosHeal), until); n >= 50 && r > rate {
			rate, requests = r, n
		}
	}
	return rate, requests
}

// leftovers wants everything back that the run has taken.
func (c *chaos) leftovers(baseline int) {
	c.t.Helper()
	f := c.server.fleet
	for name, p := range f.pools {
		for _, n := range p.ring.Nodes() {
			if n.InFlight() != 0 || n.Load() != 0 {
				c.t.Errorf("pool %s: %s still holds %d requests, load %d", name, n.Name(), n.InFlight(), n.Load())
			}
		}
	}
	if s := f.proxy.Stats(); s.Running+s.Waiting+s.Panics != 0 {
		c.t.Errorf("the data plane is not at rest: %+v", s)
	}
	for _, e := range c.all {
		if n := e.Counters(); n.Running+n.Waiting != 0 {
			c.t.Errorf("%s still works on %d requests", e.name, n.Running+n.Waiting)
		}
		e.Close()
	}
	for range 100 { // connections notice their end in their own time
		if runtime.NumGoroutine() <= baseline+5 {
			return
		}
		<-time.After(100 * time.Millisecond)
	}
	buf := make([]byte, 1<<20)
	c.t.Errorf("%d goroutines, %d before the run:\n%s", runtime.NumGoroutine(), baseline, buf[:runtime.Stack(buf, true)])
}

// report prints what happened.
func (c *chaos) report() {
	plateau, n := c.plateau()
	var b strings.Builder
	fmt.Fprintf(&b, "seed %d, %v of load, %d requests, plateau %.2f %% (%d requests)\n", c.seed, c.length, len(c.ledger.entries), 100*plateau, n)
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "AT\tEVENT\tENGINES\tLASTED\tWORST HIT RATE\tBACK AFTER")
	for _, e := range c.events {
		fmt.Fprintf(w, "%.1f s\t%s\t%s\t%.1f s\t%.1f %%\t%.1f s\n", e.from.Sub(c.start).Seconds(), e.what, e.engines(),
			e.to.Sub(e.from).Seconds(), 100*e.worst, e.healed.Seconds())
	}
	w.Flush()
	s := c.server.fleet.proxy.Stats()
	fmt.Fprintf(&b, "most requests on a node %d; of %d samples %d above the bound of that moment (which has fallen since, or warm followers), %d above the hard bound\n",
		c.watch.most, c.watch.samples, c.watch.above, c.watch.broken)
	fmt.Fprintf(&b, "retries %d, refused by their budget %d\n", s.Retries, s.RetriesDenied)
	c.t.Log("\n" + b.String())
}
