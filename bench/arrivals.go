package bench

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"time"
)

// Arrivals is a point process: a random or regular sequence of gaps (Process) laid
// over a rate that may change with time (Profile).
type Arrivals struct {
	Kind     string        // constant, poisson, gamma, weibull, ramp, step, sale, day; empty means poisson
	Rate     float64       // requests per second; for ramp and step the last rate, for sale the peak
	Duration time.Duration // length of the schedule
	From     float64       // ramp and step: first rate; sale: quiet rate. 0 means Rate/10
	Steps    int           // step: number of plateaus; 0 means 5
	// Shape is the gamma or Weibull shape: 1 is Poisson, below 1 comes in bursts.
	// 0 means 0.5 (a coefficient of variation of 1.41 for gamma).
	Shape float64
	// Regular makes ramp, step and sale deterministic in their gaps instead of Poisson.
	Regular bool
}

// Kinds lists the arrival kinds by name.
func Kinds() []string {
	return []string{"constant", "poisson", "gamma", "weibull", "ramp", "step", "sale", "day"}
}

func (a Arrivals) kind() string {
	if a.Kind == "" {
		return "poisson"
	}
	return a.Kind
}

func (a Arrivals) validate() error {
	switch {
	case !slices.Contains(Kinds(), a.kind()):
		return fmt.Errorf("%w: unknown arrivals %q, known are %v", ErrUsage, a.Kind, Kinds())
	case !(a.Rate > 0) || math.IsInf(a.Rate, 0):
		return fmt.Errorf("%w: rate must be above 0 requests per second, not %v", ErrUsage, a.Rate)
	case a.Duration <= 0:
		return fmt.Errorf("%w: duration must be above 0, not %v", ErrUsage, a.Duration)
	case a.From < 0 || a.Steps < 0 || a.Shape < 0:
		return fmt.Errorf("%w: from, steps and shape cannot be negative", ErrUsage)
	case a.Rate*a.Duration.Seconds() > 50e6:
		return fmt.Errorf("%w: %.0f requests are more than one schedule holds (50,000,000)", ErrUsage, a.Rate*a.Duration.Seconds())
	}
	return nil
}

// point is a corner of the piecewise linear rate.
type point struct{ at, rate float64 }

func (a Arrivals) from() float64 {
	if a.From == 0 {
		return a.Rate / 10
	}
	return a.From
}

// profile returns the corners of the rate over time, in seconds and requests/second.
func (a Arrivals) profile() []point {
	d := a.Duration.Seconds()
	low, high := a.from(), a.Rate
	switch a.kind() {
	case "ramp":
		return []point{{0, low}, {d, high}}
	case "step":
		n := a.Steps
		if n == 0 {
			n = 5
		}
		var p []point
		for i := range n {
			r := high
			if n > 1 {
				r = low + (high-low)*float64(i)/float64(n-1)
			}
			p = append(p, point{d * float64(i) / float64(n), r}, point{d * float64(i+1) / float64(n), r})
		}
		return p
	case "sale":
		// Quiet, the countdown in which people gather, the door opens, the peak holds,
		// then a tail that halves twice. The quiet rate is a tenth of the peak by default.
		return []point{
			{0, low}, {0.20 * d, low}, {0.35 * d, low + (high-low)*0.3},
			{0.36 * d, high}, {0.65 * d, high}, {0.80 * d, high / 2}, {d, high / 4},
		}
	case "day":
		// One day however long it lasts here: least at four in the morning, most at eight
		// in the evening, as shops see it.
		var p []point
		for i, share := range dayShape {
			p = append(p, point{d * float64(i) / float64(len(dayShape)-1), low + (high-low)*share})
		}
		return p
	default:
		return []point{{0, high}, {d, high}}
	}
}

// dayShape is the share of the way from the quiet rate to the peak, hour by hour.
var dayShape = [25]float64{0.45, 0.25, 0.12, 0.04, 0, 0.02, 0.06, 0.15, 0.28, 0.4, 0.5, 0.55, 0.6, 0.58, 0.55, 0.55, 0.58, 0.65, 0.78, 0.92, 1, 0.95, 0.8, 0.62, 0.45}

// Schedule returns the planned send times, ascending. One seed gives one schedule (an
// architecture that fuses multiplications may differ by nanoseconds).
func (a Arrivals) Schedule(seed uint64) []time.Duration {
	out := make([]time.Duration, 0, int(a.Rate*a.Duration.Seconds())+16)
	g := a.Times(seed)
	for t, ok := g.Next(); ok; t, ok = g.Next() {
		out = append(out, t)
	}
	return out
}

// Times draws the schedule one by one, in constant memory.
type Times struct {
	gap  func() float64
	prof []point
	seg  int
	area float64 // under the rate, before segment seg
	x    float64 // the next request's place in that area
}

// Times begins the schedule of a seed.
func (a Arrivals) Times(seed uint64) *Times {
	r := rand.New(rand.NewPCG(seed, 0x61727269)) // "arri": keeps this stream apart from the workload's
	t := &Times{gap: a.gaps(r), prof: a.profile()}
	if a.regular() {
		t.x = -0.5 // the first of n regular requests sits half a gap in, so n = rate x duration exactly
	}
	return t
}

// Next returns the next time, or false at the end. Time rescaling: gaps of mean one are
// laid along the cumulated rate, so any process works over any profile.
func (t *Times) Next() (time.Duration, bool) {
	t.x += t.gap()
	for t.seg < len(t.prof)-1 {
		a := segArea(t.prof[t.seg], t.prof[t.seg+1])
		if t.area+a > t.x {
			at := invert(t.prof[t.seg], t.prof[t.seg+1], t.x-t.area)
			return time.Duration(at * float64(time.Second)), true
		}
		t.area += a
		t.seg++
	}
	return 0, false
}

func (a Arrivals) regular() bool { return a.kind() == "constant" || a.Regular }

// gaps returns the generator of unit-mean gaps.
func (a Arrivals) gaps(r *rand.Rand) func() float64 {
	shape := a.Shape
	if shape == 0 {
		shape = 0.5
	}
	switch {
	case a.regular():
		return func() float64 { return 1 }
	case a.kind() == "gamma":
		return func() float64 { return gamma(r, shape) / shape }
	case a.kind() == "weibull":
		mean := math.Gamma(1 + 1/shape)
		return func() float64 { return math.Pow(r.ExpFloat64(), 1/shape) / mean }
	default:
		return r.ExpFloat64
	}
}

func segArea(a, b point) float64 { return (a.rate + b.rate) / 2 * (b.at - a.at) }

// invert finds the time at which the area from a's corner reaches want.
func invert(a, b point, want float64) float64 {
	w := b.at - a.at
	if w <= 0 {
		return a.at
	}
	slope := (b.rate - a.rate) / w
	if math.Abs(slope) < 1e-12 {
		return a.at + want/a.rate
	}
	// slope/2 t^2 + rate t - want = 0, in the form that does not cancel.
	root := math.Sqrt(max(0, a.rate*a.rate+2*slope*want))
	return a.at + 2*want/(a.rate+root)
}

// gamma draws from Gamma(shape, 1) by the squeeze of Marsaglia and Tsang (2000).
func gamma(r *rand.Rand, shape float64) float64 {
	if shape < 1 {
		u := 1 - r.Float64() // (0,1]
		return gamma(r, shape+1) * math.Pow(u, 1/shape)
	}
	d := shape - 1.0/3
	c := 1 / math.Sqrt(9*d)
	for {
		x := r.NormFloat64()
		v := 1 + c*x
		if v <= 0 {
			continue
		}
		v = v * v * v
		u := 1 - r.Float64()
		if math.Log(u) < x*x/2+d-d*v+d*math.Log(v) {
			return d * v
		}
	}
}
