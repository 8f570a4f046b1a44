package health

import (
	"math"
	"slices"
	"sync/atomic"
	"time"

	"github.com/prefixring/prefixring/ring"
)

// node is a target under watch. The manager's mu guards everything but the atomics,
// which Report writes from the request path.
type node struct {
	target Target
	core   *core
	ep     *endpoint // nil once gone
	told   Status    // as delivered last

	toldMissing int

	panicking bool // opened because the whole pool looks full
	trying    bool // a trial request is under way
	leftAt    time.Time
	warned    time.Time // last warning about missing signals

	failing     atomic.Bool   // a failure has been reported since the last success
	lastSuccess atomic.Int64  // unix nanoseconds, 0 = never
	latency     atomic.Uint64 // float64 bits: moving average of the first event's time, seconds
	samples     atomic.Int64  // in latency
}

// success books a success without a lock.
func (n *node) success(o *PassiveOutcome, now time.Time) {
	// Once in 100 ms is enough, and spares the cache line under load.
	if t := now.UnixNano(); t-n.lastSuccess.Load() > int64(100*time.Millisecond) {
		n.lastSuccess.Store(t)
	}
	if !o.Warm || o.FirstByte <= 0 {
		return
	}
	x := o.FirstByte.Seconds()
	for {
		old := n.latency.Load()
		next := x
		if n.samples.Load() > 0 {
			next = math.Float64frombits(old)*0.9 + x*0.1
		}
		if n.latency.CompareAndSwap(old, math.Float64bits(next)) {
			n.samples.Add(1)
			return
		}
	}
}

func (n *node) forgetLatency() { n.samples.Store(0) }

func (n *node) successAt() time.Time {
	if t := n.lastSuccess.Load(); t != 0 {
		return time.Unix(0, t)
	}
	return time.Time{}
}

// level is the level with the panic rule applied.
func (n *node) level() ring.Level {
	if n.panicking {
		return ring.Open
	}
	return n.core.level
}

// the signals whose absence an operator should know of
const (
	missRunning = 1 << iota
	missWaiting
	missKV
	missPage
)

var missNames = [...]string{"running", "waiting", "kv_usage", "metrics"}

// missing is what the engine does not tell, a bit each; 0 also while nothing has been
// read yet.
func (c *core) missing() (bits int) {
	switch {
	case c.metricsOff || !c.signals.At.IsZero() && c.signals.Samples == 0:
		return missPage
	case c.signals.At.IsZero():
		return 0
	}
	for i, v := range [...]float64{c.signals.Running, c.signals.Waiting, c.signals.KVUsage} {
		if math.IsNaN(v) {
			bits |= 1 << i
		}
	}
	return bits
}

func missingNames(bits int) []string {
	var out []string
	for i, name := range missNames {
		if bits&(1<<i) != 0 {
			out = append(out, name)
		}
	}
	return out
}

// status is a full copy of what is known at a moment.
func (n *node) status(now time.Time) Status {
	c := n.core
	s := Status{
		Name: n.target.Name, Pool: n.target.Pool, URL: n.target.URL, Engine: n.target.Engine, Rank: n.target.Rank,
		State: c.state, Reason: c.reason, Since: c.since, Level: n.level(),
		Suspect: c.suspect || c.wantEject != "", Panicking: n.panicking,
		AuthFailing: c.noAuth != 0, Missing: missingNames(c.missing()), NoHits: c.hits.none,
		AffinityLimited: n.target.Rank == "" && len(c.signals.Ranks) > 1,
		Signals:         c.signals.clone(), Voice: c.voice(now),
		QueueTime: -1, PreemptRate: c.rates.preempt(), DrainRate: c.rates.drain(),
		Models: c.models, Adapters: c.adapters, Version: c.version,
		Epoch: c.epoch, Weight: c.weight, Ramp: c.ramp(now), Cordoned: c.cordoned,
	}
	if q := c.rates.queueTime(); q >= 0 {
		s.QueueTime = time.Duration(q * float64(time.Second))
	}
	return s
}

// news says whether anything has changed that OnChange should hear of. It allocates
// nothing unless signals are missing.
func (n *node) news(now time.Time) bool {
	c, t := n.core, &n.told
	return c.state != t.State || n.level() != t.Level || c.epoch != t.Epoch ||
		c.ramp(now) != t.Ramp || c.weight != t.Weight || c.cordoned != t.Cordoned ||
		n.panicking != t.Panicking || (c.noAuth != 0) != t.AuthFailing || c.hits.none != t.NoHits ||
		(c.suspect || c.wantEject != "") != t.Suspect || c.version != t.Version ||
		n.target.URL != t.URL || (n.target.Rank == "" && len(c.signals.Ranks) > 1) != t.AffinityLimited ||
		!slices.Equal(c.models, t.Models) || !slices.Equal(c.adapters, t.Adapters) ||
		c.missing() != n.toldMissing
}
