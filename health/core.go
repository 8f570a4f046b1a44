package health

import (
	"slices"
	"time"

	"github.com/prefixring/prefixring/internal/dialect"
	"github.com/prefixring/prefixring/ring"
)

// core is the state machine of one node: plain data, changed only by step. It does no
// I/O and asks no clock.
type core struct {
	opt    *Settings // of its pool
	engine dialect.Engine
	want   []string // models that make it ready; empty: any

	// What operators and discovery want.
	drained, cordoned, terminating, unready, gone bool
	weight                                        float64

	// What probes said.
	observed   bool   // anything at all
	healthy    bool   // /health answered 2xx since the node was last down
	rise       int    // healthy answers in a row
	fails      int    // failed /health probes in a row
	refusals   int    // refused connections in a row, over all probes
	lastFail   string // the latest failure, for the reason
	suspect    bool   // /health is slow but the engine makes progress
	sawDown    bool   // it was not up when first looked at, or has been down since
	everReady  bool   // since the process was last (re)started, as far as known
	lostTouch  bool   // failures took it out: may be another process when it returns
	noAuth     uint16 // kinds of probes that the engine refuses for their key, a bit each
	served     bool   // the engine lists a wanted model
	noModel    string
	models     []string
	adapters   []string
	version    string
	askedSleep Sleep // from /is_sleeping
	asleep     bool
	epoch      int

	// What the metrics said.
	signals    Signals
	pages      int // accepted pages since the last restart
	metricsOff bool
	progress   progress
	rates      rates
	full       saturation
	hits       hitWatch

	// What traffic said.
	streak    [numKinds]int
	wantEject string // a reason to eject that waits for the manager's leave
	ejected   bool
	ejectedBy string
	ejections int // in a row, for the cool-down
	trialAt   time.Time
	returned  time.Time // last readmission

	rampFrom time.Time

	// The verdict.
	state  State
	reason string
	since  time.Time
	level  ring.Level
}

func newCore(opt *Settings, t *Target) *core {
	c := &core{opt: opt, engine: t.Engine, want: t.Models, weight: 1, terminating: t.Terminating, unready: t.Unready}
	c.signals.Reset()
	c.rates.reset()
	return c
}

// step feeds one observation to the machine. The verdict is in c.state, c.reason and
// c.level afterwards.
func (c *core) step(o observation, now time.Time) {
	switch o.kind {
	case obsHealth:
		c.onHealth(o.result, o.lastSuccess, now)
	case obsModels:
		c.onModels(&o)
	case obsSleep:
		c.askedSleep = o.sleep
		c.onSleep()
	case obsVersion:
		c.version = o.version
	case obsMetrics:
		c.onMetrics(o.signals, o.lastSuccess, now)
	case obsNoPage:
		c.onNoPage(o.result)
	case obsPassive:
		c.onOutcome(o.outcome, now)
	case obsEject:
		c.eject(o.reason, now)
	case obsTrial:
		c.onTrial(o.result, now)
	case obsMoved:
		c.moved()
	case obsGone:
		c.gone = true
	}
	c.full.step(c, now)
	c.decide(now)
}

// onHealth judges a /health answer.
func (c *core) onHealth(r result, lastSuccess, now time.Time) {
	c.observed = true
	c.touch(obsHealth, r)
	switch {
	case r.ok():
		c.fails, c.suspect = 0, false
		c.rise++
		if c.rise >= c.needRise() {
			c.up()
		}
	case r.blames():
		// The engine answers and blames us: alive, and nothing said about its health.
		c.fails, c.suspect = 0, false
	case r.answer == answered && r.took < time.Second:
		// A quick 5xx is a statement, not a stall: vLLM says 503 when its core has died,
		// SGLang while it starts or shuts down.
		c.rise = 0
		c.fail(r, max(c.opt.Failures-c.fails, 1))
	case c.progress.since(now, lastSuccess) <= 2*c.opt.Health.Period && !c.down():
		// The event loop is busy, not dead: work comes out of it (vLLM issue 38157).
		c.suspect = true
	default:
		c.rise = 0
		c.fail(r, 1)
	}
}

// needRise is the number of good answers in a row that bring a node (back) up: one for
// a new engine, two for one that has failed, so that a flapping one stays out.
func (c *core) needRise() int {
	if c.everReady && !c.healthy {
		return 2
	}
	return 1
}

// up books that the engine is healthy, once it is known whether it is the process of
// before: a node must not be ready for a moment with warmth that is not there.
func (c *core) up() {
	if !c.healthy && c.lostTouch {
		if c.signals.identify() && c.rise < c.needRise()+3 {
			return // the next page will tell, and come sooner than three more answers
		}
		c.lostTouch = false
		c.lostCache()
	}
	c.healthy = true
}

// fail books n failures of /health.
func (c *core) fail(r result, n int) {
	c.fails += n
	c.lastFail = r.String()
	c.checkDown()
}

// touch books whether anybody listens at all, and whether our key is accepted. Keys are
// judged per kind of probe, because vLLM guards /v1/models and leaves /health open.
func (c *core) touch(k obsKind, r result) {
	switch bit := uint16(1) << k; {
	case r.unauthorized():
		c.noAuth |= bit
	case r.answer == answered:
		c.noAuth &^= bit
	}
	if r.answer != refused {
		c.refusals = 0
		return
	}
	c.refusals++
	c.lastFail = r.String()
	c.checkDown()
}

func (c *core) down() bool {
	return c.fails >= c.opt.Failures || c.refusals >= c.opt.Failures
}

func (c *core) checkDown() {
	c.sawDown = c.sawDown || !c.everReady || c.down()
	if !c.down() {
		return
	}
	c.lostTouch = c.lostTouch || c.healthy
	// Whoever comes back has to show again that it serves the model.
	c.healthy, c.served, c.rise, c.suspect = false, false, 0, false
	c.clearTraffic() // from here on the probes decide
}

// onModels judges a /v1/models answer.
func (c *core) onModels(o *observation) {
	c.observed = true
	c.touch(obsModels, o.result)
	if !o.result.ok() {
		if !c.served {
			c.noModel = "models cannot be listed: " + o.result.String()
		}
		return
	}
	c.models, c.adapters = o.models, o.adapters
	c.served = c.serves()
	switch {
	case c.served:
		c.noModel = ""
	case len(o.models)+len(o.adapters) == 0:
		c.noModel = "engine lists no model"
	default:
		c.noModel = "engine does not list model " + c.want[0]
	}
}

func (c *core) serves() bool {
	if len(c.want) == 0 {
		return len(c.models)+len(c.adapters) > 0
	}
	for _, m := range c.want {
		if slices.Contains(c.models, m) || slices.Contains(c.adapters, m) {
			return true
		}
	}
	return false
}

// onSleep settles whether the engine sleeps: the metrics' word if they have one.
func (c *core) onSleep() {
	s := c.signals.Sleep
	if s == SleepUnknown {
		s = c.askedSleep
	}
	was := c.asleep
	c.asleep = s == Sleeping
	if c.asleep && !was {
		c.lostCache() // level 1 and above drop the KV cache (vllm/v1/engine/core.py)
	}
	if was && !c.asleep {
		c.sawDown = true // returns through the slow start
	}
}

// onNoPage books a metrics page that could not be had. The last page stays, and its
// voice fades.
func (c *core) onNoPage(r result) {
	c.observed = true
	c.touch(obsNoPage, r)
	if r.blames() && !r.unauthorized() {
		c.metricsOff = true // SGLang without --enable-metrics
		c.signals.Reset()
	}
}

// lostCache books that nothing is warm on the engine any more, and forgets what its
// former life had said.
func (c *core) lostCache() {
	c.epoch++
	c.pages = 0
	c.rates.reset()
	c.progress.reset()
	c.hits = hitWatch{}
	c.full = saturation{}
}

// restarted books that another process answers.
func (c *core) restarted() {
	c.lostCache()
	c.sawDown, c.everReady, c.lostTouch = true, false, false
	c.healthy, c.served, c.rise, c.fails = false, false, 0, 0
	c.noModel = ""
	c.clearTraffic()
}

// moved starts over at another address. Its name keeps its place on the ring, but
// nothing is warm there.
func (c *core) moved() {
	if c.observed {
		c.restarted()
	}
	c.observed, c.suspect, c.noAuth, c.metricsOff = false, false, 0, false
	c.refusals, c.askedSleep, c.asleep = 0, SleepUnknown, false
	c.models, c.adapters, c.version = nil, nil, ""
	c.signals.Reset()
}
