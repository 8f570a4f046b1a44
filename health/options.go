package health

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"time"
)

// Probe is the clock of one kind of probe.
type Probe struct {
	Period  time.Duration // mean time between the starts of two probes; each is jittered by a tenth
	Timeout time.Duration // from dial to the last byte
}

// Steps are the thresholds of one saturation signal, for the levels NoOverflow,
// WarmOnly and Closed in this order. A level is entered when the signal is at or above
// Enter and left when it is at or below Leave; each must not fall, and each Leave must
// be below its Enter.
type Steps struct {
	Enter, Leave [3]float64
	// Hold is how long a breach of the first step must last before it counts. The two
	// others count at once. 0 means 750 ms, so that one crowded scrape is not enough.
	Hold time.Duration
}

// Thresholds are the entries and exits of saturation. A zero Steps means the default.
type Thresholds struct {
	// Waiting is the number of requests that wait for room. Default: 2, 8, 32; left at
	// 0, 4, 16.
	Waiting Steps
	// KVUsage is the share of the KV cache held by live requests. Default: 0.88, 0.93,
	// 0.96; left at 0.82, 0.86, 0.90.
	KVUsage Steps
	// Preemptions are preemptions or retractions per second. Default: 0.2, 1, 5; left at
	// 0.05, 0.3, 2.
	Preemptions Steps
	// QueueTime is the mean wait, in seconds, of requests that began lately. Default: 1,
	// 3, 10; left at 0.5, 1.5, 5.
	QueueTime Steps
	// Dwell is the least time between two changes of level in opposite directions. It
	// keeps ownership from flapping (field case B36). Default 5 s.
	Dwell time.Duration
	// FreshFor is the age up to which a page speaks with full voice, SilentAfter the age
	// at which it has none. Between the two the highest level that the page can ask for
	// falls step by step. Defaults 3 s and 15 s.
	FreshFor, SilentAfter time.Duration
}

// Outliers are the limits of passive ejection: failures in a row, as Report tells them.
// Zero means the default, a negative value switches the rule off.
type Outliers struct {
	ConnectFailures int // default 3
	Resets          int // default 3
	HeaderTimeouts  int // default 3
	Truncated       int // default 5
	ServerErrors    int // default 5
	// LatencyFactor ejects a node whose first event on warm prefixes comes later than
	// this many times the median of the other nodes of its pool, when that is also
	// later than LatencyFloor. Defaults 5 and 2 s; it needs 3 nodes and 20 samples.
	LatencyFactor float64
	LatencyFloor  time.Duration
	// Share is the largest share of a pool's nodes that may be ejected at a time; one
	// may always be, unless it is the last in service. Default 0.5, range 0..1.
	Share float64
	// Cooldown is the wait before the first trial after an ejection; each failed trial
	// doubles it up to CooldownMax. Defaults 5 s and 60 s.
	Cooldown, CooldownMax time.Duration
}

// Settings are how the nodes of a pool are watched and judged. The zero value works.
type Settings struct {
	// The probes. Zero fields mean the defaults: metrics each 1 s within 2 s; health
	// each 5 s within 4 s (SGLang's takes a second by design and must not be asked more
	// often); models and version each 12 s and 60 s within 4 s. A failing vLLM engine
	// and one that is starting are asked each second.
	Metrics, Health, Models, Version Probe
	Thresholds                       Thresholds
	Outliers                         Outliers

	// Failures is the number of failed probes in a row that takes a node out. Default 3.
	Failures int
	// HangAfter is how long an engine may report running requests without any progress.
	// Defaults: 30 s for vLLM, 60 s for SGLang, whose gauges move only now and then. A
	// negative value switches the rule off.
	HangAfter time.Duration
	// SlowStart is the time in which Status.Ramp grows from 0.1 to 1 after a node became
	// ready. Default 10 s; negative means at once.
	SlowStart time.Duration
	// TrialTimeout bounds the one-token request that readmits an ejected or hung node.
	// Default 10 s.
	TrialTimeout time.Duration
}

// Options configures a Manager. The zero value works.
type Options struct {
	Settings // of pools that SetPools has not named

	// KeepGone is how long Snapshot goes on to show a node that is no target any more.
	// Default 1 min; negative means not at all.
	KeepGone time.Duration

	// OnChange receives each change of state, level, epoch, models, adapters, weight or
	// ramp, in order and one at a time. OnSignals receives each accepted metrics page;
	// the pointer is valid only during the call, and calls for different nodes may
	// overlap. Both may be nil.
	OnChange  func(old, new Status)
	OnSignals func(name string, s *Signals)

	Logger *slog.Logger                                                      // nil means slog.Default()
	Rand   func() float64                                                    // uniform in [0, 1), safe for concurrent use; nil means math/rand/v2
	Dial   func(ctx context.Context, network, addr string) (net.Conn, error) // nil means net.Dialer
}

func (p *Probe) fill(period, timeout time.Duration) {
	if p.Period <= 0 {
		p.Period = period
	}
	if p.Timeout <= 0 {
		p.Timeout = timeout
	}
}

func (s *Steps) fill(enter, leave [3]float64) {
	if s.Enter == [3]float64{} && s.Leave == [3]float64{} {
		s.Enter, s.Leave = enter, leave
	}
	if s.Hold == 0 {
		s.Hold = 750 * time.Millisecond
	}
}

func (s *Steps) check(name string) error {
	for i := range 3 {
		if !(s.Leave[i] < s.Enter[i]) || s.Leave[i] < 0 {
			return fmt.Errorf("cannot use threshold %s: step %d is left at %v but entered at %v", name, i+1, s.Leave[i], s.Enter[i])
		}
		if i > 0 && (s.Enter[i] < s.Enter[i-1] || s.Leave[i] < s.Leave[i-1]) {
			return fmt.Errorf("cannot use threshold %s: step %d is below step %d", name, i+1, i)
		}
	}
	return nil
}

func (t *Thresholds) fill() error {
	t.Waiting.fill([3]float64{2, 8, 32}, [3]float64{0, 4, 16})
	t.KVUsage.fill([3]float64{0.88, 0.93, 0.96}, [3]float64{0.82, 0.86, 0.90})
	t.Preemptions.fill([3]float64{0.2, 1, 5}, [3]float64{0.05, 0.3, 2})
	t.QueueTime.fill([3]float64{1, 3, 10}, [3]float64{0.5, 1.5, 5})
	orDefault(&t.Dwell, 5*time.Second)
	orDefault(&t.FreshFor, 3*time.Second)
	orDefault(&t.SilentAfter, 15*time.Second)
	if t.SilentAfter <= t.FreshFor {
		return fmt.Errorf("cannot use a metrics page as silent after %v: it is fresh for %v", t.SilentAfter, t.FreshFor)
	}
	for _, s := range []struct {
		name  string
		steps *Steps
	}{{"waiting", &t.Waiting}, {"kv_usage", &t.KVUsage}, {"preemptions", &t.Preemptions}, {"queue_time", &t.QueueTime}} {
		if err := s.steps.check(s.name); err != nil {
			return err
		}
	}
	return nil
}

func (o *Outliers) fill() error {
	orDefault(&o.ConnectFailures, 3)
	orDefault(&o.Resets, 3)
	orDefault(&o.HeaderTimeouts, 3)
	orDefault(&o.Truncated, 5)
	orDefault(&o.ServerErrors, 5)
	orDefault(&o.LatencyFactor, 5)
	orDefault(&o.LatencyFloor, 2*time.Second)
	orDefault(&o.Share, 0.5)
	orDefault(&o.Cooldown, 5*time.Second)
	orDefault(&o.CooldownMax, time.Minute)
	if o.Share < 0 || o.Share > 1 {
		return fmt.Errorf("cannot eject a share of %v of a pool: it must be within 0..1", o.Share)
	}
	return nil
}

func orDefault[T comparable](v *T, def T) {
	var zero T
	if *v == zero {
		*v = def
	}
}

// fill sets defaults and reports the first setting that makes no sense.
func (o *Settings) fill() error {
	o.Metrics.fill(time.Second, 2*time.Second)
	o.Health.fill(5*time.Second, 4*time.Second)
	o.Models.fill(12*time.Second, 4*time.Second)
	o.Version.fill(time.Minute, 4*time.Second)
	if err := o.Thresholds.fill(); err != nil {
		return err
	}
	if err := o.Outliers.fill(); err != nil {
		return err
	}
	orDefault(&o.Failures, 3)
	orDefault(&o.SlowStart, 10*time.Second)
	orDefault(&o.TrialTimeout, 10*time.Second)
	return nil
}

// Check reports the first setting that makes no sense.
func (o Settings) Check() error { return o.fill() }

func (o *Options) fill() error {
	if err := o.Settings.fill(); err != nil {
		return err
	}
	orDefault(&o.KeepGone, time.Minute)
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	if o.Rand == nil {
		o.Rand = rand.Float64
	}
	if o.Dial == nil {
		d := &net.Dialer{Timeout: 2 * time.Second, KeepAlive: 15 * time.Second}
		o.Dial = d.DialContext
	}
	return nil
}
