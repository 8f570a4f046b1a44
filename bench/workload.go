package bench

import (
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"sort"
	"time"
)

// Length is a distribution of token counts: exact when CV is 0, else log-normal with
// that mean and coefficient of variation, cut to [Min, Max].
type Length struct {
	Mean float64 `json:"mean"`
	CV   float64 `json:"cv,omitempty"`
	Min  int     `json:"min,omitempty"`
	Max  int     `json:"max,omitempty"` // 0: no upper cut
}

// Exactly is a Length without spread.
func Exactly(n int) Length { return Length{Mean: float64(n)} }

func (l Length) draw(r *rand.Rand) int {
	v := l.Mean
	if l.CV > 0 && v > 0 {
		s2 := math.Log(1 + l.CV*l.CV)
		v *= math.Exp(math.Sqrt(s2)*r.NormFloat64() - s2/2)
	}
	n := max(int(math.Round(v)), l.Min)
	if l.Max > 0 {
		n = min(n, l.Max)
	}
	return n
}

func (l Length) valid() bool {
	return l.Mean >= 0 && !math.IsInf(l.Mean, 0) && l.CV >= 0 && l.Min >= 0 && (l.Max == 0 || l.Max >= l.Min)
}

// Workload is the shape of the traffic: fat prefixes times thin queries by default.
// Lengths are in tokens.
type Workload struct {
	Name string `json:"name"`
	// Prefixes is the number of distinct static prefixes; 0 gives every request a
	// prefix of its own (the control in which no router can help).
	Prefixes int    `json:"prefixes"`
	Prefix   Length `json:"prefix"`
	// Shared is a text in front of all prefixes, the same for everyone.
	Shared int     `json:"shared,omitempty"`
	Zipf   float64 `json:"zipf"` // popularity exponent; 0 makes all prefixes equally hot
	Tail   Length  `json:"tail"` // dynamic end of the system message, different each time
	Tools  int     `json:"tools,omitempty"`
	// Prompts is the number of distinct user texts per prefix, used in turn; 0 makes
	// every user text new. With it, the question is cached as well as the prefix.
	Prompts int    `json:"prompts,omitempty"`
	User    Length `json:"user"`
	Output  Length `json:"output"`
	// Turns above 1 makes conversations: each later turn carries the history with the
	// answers really received, and leaves Think after the answer before it.
	Turns Length        `json:"turns"`
	Think time.Duration `json:"think,omitempty"`
	// PerUser gives each conversation a context of its own behind the prefix.
	PerUser Length `json:"per_user"`
	// Lines are the user's own requests; with them every other field is ignored.
	Lines []Line `json:"-"`
}

// Line is one request of the user's own.
type Line struct {
	At   time.Duration   // planned offset; negative means by Arrivals
	Path string          // empty means the protocol's own
	Body json.RawMessage // sent as it is
}

func (w *Workload) validate() error {
	if len(w.Lines) > 0 {
		return nil
	}
	for name, l := range map[string]Length{"prefix": w.Prefix, "tail": w.Tail, "user": w.User, "output": w.Output, "turns": w.Turns, "per_user": w.PerUser} {
		if !l.valid() {
			return fmt.Errorf("%w: length %q is not a distribution: %+v", ErrUsage, name, l)
		}
	}
	switch {
	case w.Prefixes < 0 || w.Prompts < 0 || w.Tools < 0 || w.Shared < 0 || w.Zipf < 0:
		return fmt.Errorf("%w: workload counts cannot be negative", ErrUsage)
	case float64(w.Prefixes)*w.Prefix.Mean*BytesPerToken > 4<<30:
		return fmt.Errorf("%w: %d prefixes of %.0f tokens do not fit in 4 GiB", ErrUsage, w.Prefixes, w.Prefix.Mean)
	}
	return nil
}

// Shot is one planned request, or one planned conversation. Counts are tokens.
type Shot struct {
	Due    time.Duration
	Prefix int32 // -1: none shared
	Prompt int32 // index of the repeated user text, -1 for a new one
	Tail   int32
	User   int32
	Output int32
	Turns  int32
	Own    int32 // the conversation's own context
}

// Planner decides everything random about the requests, in their order. Two runs with
// one seed differ only in what the servers do.
type Planner struct {
	w     *Workload
	r     *rand.Rand
	pick  zipf
	cycle []int32
}

// Planner begins the plan of a seed.
func (w *Workload) Planner(seed uint64) *Planner {
	return &Planner{w: w, r: rand.New(rand.NewPCG(seed, 0x776f726b)), // "work"
		pick: newZipf(w.Prefixes, w.Zipf), cycle: make([]int32, max(w.Prefixes, 1))}
}

// Next plans the request of the given time.
func (p *Planner) Next(due time.Duration) Shot {
	w, r := p.w, p.r
	s := Shot{Due: due, Prefix: -1, Prompt: -1, Turns: 1}
	if w.Prefixes > 0 {
		s.Prefix = int32(p.pick.draw(r))
	}
	if w.Prompts > 0 {
		c := &p.cycle[max(s.Prefix, 0)]
		s.Prompt = *c % int32(w.Prompts)
		*c++
	}
	s.Tail = int32(w.Tail.draw(r))
	s.User = int32(max(1, w.User.draw(r)))
	s.Output = int32(max(1, w.Output.draw(r)))
	s.Own = int32(w.PerUser.draw(r))
	if w.Turns.Mean > 1 {
		s.Turns = int32(max(1, w.Turns.draw(r)))
	}
	return s
}

// Share is the expected share of a prefix among the requests.
func (p *Planner) Share(prefix int) float64 { return p.pick.share(prefix) }

// plan lays the workload over the send times.
func (w *Workload) plan(times []time.Duration, seed uint64) []Shot {
	p := w.Planner(seed)
	shots := make([]Shot, len(times))
	for i, t := range times {
		shots[i] = p.Next(t)
	}
	return shots
}

// zipf draws ranks 0..n-1 with probability proportional to 1/(rank+1)^s, by search in
// the cumulated table: exact for any s, which rand.Zipf (s > 1 only) is not.
type zipf struct{ cum []float64 }

func newZipf(n int, s float64) zipf {
	z := zipf{cum: make([]float64, n)}
	sum := 0.0
	for i := range n {
		sum += math.Pow(float64(i+1), -s)
		z.cum[i] = sum
	}
	return z
}

func (z zipf) draw(r *rand.Rand) int {
	u := r.Float64() * z.cum[len(z.cum)-1]
	return min(sort.SearchFloat64s(z.cum, u), len(z.cum)-1)
}

// share is the probability of a rank.
func (z zipf) share(i int) float64 {
	lo := 0.0
	if i > 0 {
		lo = z.cum[i-1]
	}
	return (z.cum[i] - lo) / z.cum[len(z.cum)-1]
}
