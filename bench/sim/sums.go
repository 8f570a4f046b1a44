package sim

import (
	"math"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"github.com/prefixring/prefixring/bench"
	"github.com/prefixring/prefixring/internal/fakeengine/core"
)

// sums is what a run adds up.
type sums struct {
	ttft, tpot, e2e dist

	offset    time.Duration // when the stage began
	prewarm   time.Duration // how long the prewarm took
	before    []core.Stats  // of each engine, at that time
	requests  int64
	finished  int64
	errors    int64
	refused   int64
	retried   int64
	cut       int64
	waited    int64
	prewarmed int64
	last      time.Duration
	minutes   []Minute
	reasons   map[string]int64
	load      shares // of the bound of bindings: each node, at each pick
}

// shares is a histogram of shares, to a thousandth, up to ten.
type shares [10_001]int64

func (s *shares) record(v float64) { s[min(max(int(v*1000), 0), len(s)-1)]++ }

// quantile is zero when nothing was recorded.
func (s *shares) quantile(q float64) float64 {
	var n, sum int64
	for _, c := range s {
		n += c
	}
	for i, c := range s {
		if sum += c; n > 0 && float64(sum) >= q*float64(n) {
			return float64(i) / 1000
		}
	}
	return 0
}

// dist is a histogram of durations in microseconds, to three digits, up to ten hours.
type dist struct {
	h   *hdrhistogram.Histogram
	sum float64
	n   int64
	max time.Duration
}

const distMax = int64(10 * time.Hour / time.Microsecond)

func (d *dist) record(v time.Duration) {
	us := min(max(int64(v/time.Microsecond), 1), distMax)
	if err := d.h.RecordValue(us); err != nil {
		panic("BUG: a clipped value must fit the histogram: " + err.Error())
	}
	d.sum += float64(v)
	d.n++
	d.max = max(d.max, v)
}

func (d *dist) quantiles() *bench.Quantiles {
	if d.n == 0 {
		return nil
	}
	q := func(p float64) float64 { return float64(d.h.ValueAtQuantile(p)) / 1000 }
	return &bench.Quantiles{P50: q(50), P90: q(90), P99: q(99), Max: float64(d.max) / 1e6, Mean: d.sum / float64(d.n) / 1e6, Count: d.n}
}

func newSums() *sums {
	n := func() dist { return dist{h: hdrhistogram.New(1, distMax, 3)} }
	return &sums{ttft: n(), tpot: n(), e2e: n(), reasons: map[string]int64{}}
}

// step is the width of the time series: a minute, or ten seconds in the first hour.
const step = 10 * time.Second

// maxMinutes bounds the series: beyond four hours a run widens it by merging.
const maxMinutes = 1440

func (s *sums) minute(at time.Duration) *Minute {
	width := step
	if len(s.minutes) > 0 {
		width = time.Duration(s.minutes[0].Width * float64(time.Second))
	}
	i := int(max(at-s.offset, 0) / width)
	for i >= maxMinutes {
		half := s.minutes[:0]
		for j := 0; j < len(s.minutes); j += 2 {
			m := s.minutes[j]
			if j+1 < len(s.minutes) {
				m.merge(&s.minutes[j+1])
			}
			m.Width *= 2
			half = append(half, m)
		}
		s.minutes = half
		width *= 2
		i = int(max(at-s.offset, 0) / width)
	}
	for len(s.minutes) <= i {
		s.minutes = append(s.minutes, Minute{At: (time.Duration(len(s.minutes)) * width).Seconds(), Width: width.Seconds()})
	}
	return &s.minutes[i]
}

func (m *Minute) merge(b *Minute) {
	m.Requests += b.Requests
	m.Cold += b.Cold
	m.Prompt += b.Prompt
	m.Cached += b.Cached
	m.ttft += b.ttft
	m.started += b.started
	m.TTFTMax = max(m.TTFTMax, b.TTFTMax)
}

func (s *sums) arrived(at time.Duration) {
	s.requests++
	s.minute(at).Requests++
}

func (s *sums) first(f *flight, now time.Duration, block int) {
	v := now - f.At
	s.ttft.record(v)
	m := s.minute(f.At)
	m.ttft += v
	m.started++
	m.TTFTMax = max(m.TTFTMax, float64(v)/1e6)
	if core.ColdHead(f.Static, f.cached, block) {
		m.Cold++
	}
	m.Prompt += int64(f.Prompt.Tokens)
	m.Cached += int64(f.cached)
}

func (s *sums) done(f *flight, now time.Duration, _ int32) {
	s.finished++
	s.last = max(s.last, now)
	s.e2e.record(now - f.At)
	if f.Output > 1 {
		s.tpot.record((now - f.first) / time.Duration(f.Output-1))
	}
}

func (s *sums) failed(f *flight, refused bool) {
	s.errors++
	if refused {
		s.refused++
	}
}

// result closes the books.
func (s *simulation) result(wall time.Duration) Result {
	u := s.sums
	r := Result{
		Policy: s.o.Policy, Requests: u.requests, Finished: u.finished, Errors: u.errors, Refused: u.refused, Retried: u.retried, Cut: u.cut,
		TTFT: u.ttft.quantiles(), TPOT: u.tpot.quantiles(), E2E: u.e2e.quantiles(), Reasons: u.reasons,
		LoadP99: u.load.quantile(0.99), LoadMax: u.load.quantile(1),
		PrewarmSeconds: u.prewarm.Seconds(), PrewarmPrefills: u.prewarmed, Minutes: u.minutes, Wall: wall.Seconds(),
	}
	length := (u.last - u.offset).Seconds()
	r.Duration = length
	for i := range s.fleet.nodes {
		t := s.fleet.nodes[i].total()
		if len(u.before) > 0 {
			b := u.before[i]
			t.Prompt -= b.Prompt
			t.Cached -= b.Cached
			t.Generated -= b.Generated
			t.Cold -= b.Cold
			t.Busy -= b.Busy
			t.Evicted -= b.Evicted
			t.Preemptions -= b.Preemptions
		}
		r.PromptTokens += t.Prompt
		r.CachedTokens += t.Cached
		r.OutputTokens += t.Generated
		r.ColdPrefills += t.Cold
		r.Evicted += t.Evicted
		r.Preemptions += t.Preemptions
		if length > 0 {
			busy := t.Busy.Seconds() / length
			r.BusyMean += busy / float64(len(s.fleet.nodes))
			r.BusyMax = max(r.BusyMax, busy)
		}
	}
	if r.PromptTokens > 0 {
		r.HitRate = float64(r.CachedTokens) / float64(r.PromptTokens)
	}
	if length > 0 {
		r.TokenRate = float64(r.OutputTokens) / length
	}
	for i := range r.Minutes {
		m := &r.Minutes[i]
		if m.started > 0 {
			m.TTFTMean = math.Round(float64(m.ttft)/float64(m.started)/1e3) / 1e3
		}
	}
	return r
}
