package bench

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// hist holds durations in microseconds up to two hours, exact to three digits.
type hist struct {
	h   *hdrhistogram.Histogram
	sum float64
	n   int64
	max time.Duration
}

const histMax = int64(2 * time.Hour / time.Microsecond)

func newHist(digits int) *hist {
	return &hist{h: hdrhistogram.New(1, histMax, digits)}
}

func (h *hist) record(d time.Duration) {
	d = max(d, 0)
	us := min(max(int64(d/time.Microsecond), 1), histMax)
	if err := h.h.RecordValue(us); err != nil {
		panic("BUG: a clipped value must fit the histogram: " + err.Error())
	}
	h.sum += float64(d)
	h.n++
	h.max = max(h.max, d)
}

func (h *hist) quantiles() *Quantiles {
	if h == nil || h.n == 0 {
		return nil
	}
	q := func(p float64) float64 { return float64(h.h.ValueAtQuantile(p)) / 1000 }
	ms := func(d float64) float64 { return math.Round(d/1e3) / 1e3 }
	return &Quantiles{P50: q(50), P90: q(90), P99: q(99), Max: ms(float64(h.max)), Mean: ms(h.sum / float64(h.n)), Count: h.n}
}

func (h *hist) curve() Curve {
	if h.n == 0 {
		return nil
	}
	c := make(Curve, len(CurvePercentiles))
	for i, p := range CurvePercentiles {
		c[i] = float64(h.h.ValueAtQuantile(p)) / 1000
	}
	return c
}

// collector gathers settled requests. One lock is enough: a record costs about a
// microsecond and 10,000 of them a second are 1 % of one core.
type collector struct {
	mu sync.Mutex // guards all below

	ttft, ttftSent, ttftChunk, firstByte, tpot, itl, e2e, e2eSent, mean, lag *hist

	sent, succeeded, inflight int64
	good                      int64
	slo                       SLO
	errs                      map[string]int64
	maxLag                    time.Duration
	lastSend                  time.Duration

	output, prompt, cached, known, unknown, chunksOnly int64
	prefixes                                           map[int]*tally
	nodes                                              map[string]*tally
	heat                                               map[heatKey]*Cell
	width                                              time.Duration
	series                                             []Bucket
	end                                                time.Duration
	onRecord                                           func(*Record)
}

type heatKey struct {
	prefix int
	node   string
}

// maxGroups bounds the breakdowns; what comes later is folded into the totals only.
const maxGroups = 1024

type tally struct {
	requests, errors, prompt, cached int64
	known                            bool
	ttft                             *hist
}

func newCollector(o *Options, length time.Duration) *collector {
	c := &collector{
		ttft: newHist(3), ttftSent: newHist(3), ttftChunk: newHist(3), firstByte: newHist(3), tpot: newHist(3),
		itl: newHist(3), e2e: newHist(3), e2eSent: newHist(3), mean: newHist(3), lag: newHist(3),
		slo: o.SLO, errs: map[string]int64{}, prefixes: map[int]*tally{}, nodes: map[string]*tally{},
		heat: map[heatKey]*Cell{}, onRecord: o.OnRecord,
	}
	c.width = time.Second
	for length/c.width > 600 {
		c.width *= 2
	}
	return c
}

func (c *collector) bucket(at time.Duration) *Bucket {
	i := int(max(at, 0) / c.width)
	for len(c.series) <= i && len(c.series) < 1<<16 {
		c.series = append(c.series, Bucket{At: (time.Duration(len(c.series)) * c.width).Seconds(), Width: c.width.Seconds()})
	}
	return &c.series[min(i, len(c.series)-1)]
}

// starts notes that a request is being sent.
func (c *collector) starts(planned, sent time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.sent++
	c.inflight++
	c.lag.record(sent - planned)
	c.maxLag = max(c.maxLag, sent-planned)
	c.lastSend = max(c.lastSend, sent)
	c.bucket(sent).Sent++
}

// settle takes a finished request and the times of its token events.
func (c *collector) settle(r *Record, start time.Time, ticks []time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.inflight--
	c.end = max(c.end, r.End)
	b := c.bucket(r.End)
	ok := r.Error == ""
	if ok {
		c.succeeded++
		b.Done++
		c.samples(r)
		for i := 1; i < len(ticks); i++ {
			c.itl.record(ticks[i].Sub(ticks[i-1]))
		}
	} else {
		c.errs[r.Error]++
		b.Errors++
	}
	c.tokens(r, start, ticks, ok)
	if r.Prefix >= 0 {
		c.group(r, tallyOf(c.prefixes, r.Prefix))
	}
	if r.Node != "" {
		c.group(r, tallyOf(c.nodes, r.Node))
		c.warmth(r)
	}
	if c.onRecord != nil {
		c.onRecord(r)
	}
}

func tallyOf[K comparable](m map[K]*tally, k K) *tally {
	t := m[k]
	if t == nil && len(m) < maxGroups {
		t = &tally{ttft: newHist(2)}
		m[k] = t
	}
	return t
}

// samples feeds the percentiles, with successes only (B72).
func (c *collector) samples(r *Record) {
	e2e := r.End - r.Planned
	c.e2e.record(e2e)
	c.e2eSent.record(r.End - r.Sent)
	c.firstByte.record(r.FirstByte - r.Planned)
	good := c.slo.E2E == 0 || e2e <= c.slo.E2E
	if r.FirstChunk >= 0 {
		c.ttftChunk.record(r.FirstChunk - r.Planned)
	}
	if r.FirstToken >= 0 {
		c.ttft.record(r.FirstToken - r.Planned)
		c.ttftSent.record(r.FirstToken - r.Sent)
		b := c.bucket(r.End)
		b.sample(float32((r.FirstToken - r.Planned).Seconds() * 1000))
		good = good && (c.slo.TTFT == 0 || r.FirstToken-r.Planned <= c.slo.TTFT)
	}
	if r.Output > 0 {
		c.mean.record(e2e / time.Duration(r.Output))
	}
	if r.FirstToken >= 0 && r.Output > 1 {
		tpot := (r.End - r.FirstToken) / time.Duration(r.Output-1)
		c.tpot.record(tpot)
		good = good && (c.slo.TPOT == 0 || tpot <= c.slo.TPOT)
	}
	if good {
		c.good++
	}
}

// sample keeps at most a few thousand samples per bucket, evenly spread over it.
func (b *Bucket) sample(ms float32) {
	const keep = 4096
	b.ttftCount++
	if len(b.ttft) < keep {
		b.ttft = append(b.ttft, ms)
		return
	}
	if i := int(mix(uint64(b.ttftCount)) % uint64(b.ttftCount)); i < keep {
		b.ttft[i] = ms
	}
}

// tokens counts what was generated and what was cached. A failed request's tokens
// were generated all the same, so they count where its usage came.
func (c *collector) tokens(r *Record, start time.Time, ticks []time.Time, ok bool) {
	n := r.Output
	if n < 0 {
		n = int64(r.Events)
		if n > 0 {
			c.chunksOnly++
		}
	}
	c.output += n
	if len(ticks) > 0 {
		share := float64(n) / float64(len(ticks))
		for _, t := range ticks {
			c.bucket(t.Sub(start)).Tokens += share
		}
	} else if n > 0 {
		c.bucket(r.End).Tokens += float64(n)
	}
	if r.Prompt > 0 && r.Cached >= 0 {
		c.known++
		c.prompt += r.Prompt
		c.cached += r.Cached
		b := c.bucket(r.End)
		b.prompt += r.Prompt
		b.cached += r.Cached
	} else if ok {
		c.unknown++
	}
}

func (c *collector) group(r *Record, t *tally) {
	if t == nil {
		return
	}
	t.requests++
	if r.Error != "" {
		t.errors++
	}
	if r.Prompt > 0 && r.Cached >= 0 {
		t.known = true
		t.prompt += r.Prompt
		t.cached += r.Cached
	}
	if r.Error == "" && r.FirstToken >= 0 {
		t.ttft.record(r.FirstToken - r.Planned)
	}
}

func (c *collector) warmth(r *Record) {
	if r.Prefix < 0 {
		return
	}
	k := heatKey{r.Prefix, r.Node}
	cell := c.heat[k]
	if cell == nil {
		if len(c.heat) >= 64*maxGroups {
			return
		}
		cell = &Cell{Prefix: r.Prefix, Node: r.Node}
		c.heat[k] = cell
	}
	cell.Requests++
	if r.Cached >= 0 && r.Cached*2 < r.Prompt {
		cell.Cold++
	}
}

// progress takes a look.
func (c *collector) progress() Progress {
	c.mu.Lock()
	defer c.mu.Unlock()
	p := Progress{Sent: c.sent, InFlight: c.inflight, Done: c.succeeded, TTFT50: math.NaN(), TTFT99: math.NaN(), HitRate: math.NaN()}
	for _, n := range c.errs {
		p.Errors += n
	}
	if q := c.ttft.quantiles(); q != nil {
		p.TTFT50, p.TTFT99 = q.P50, q.P99
	}
	if c.prompt > 0 {
		p.HitRate = float64(c.cached) / float64(c.prompt)
	}
	return p
}

// fill writes what was collected into the result.
func (c *collector) fill(res *Result) {
	c.mu.Lock()
	defer c.mu.Unlock()
	res.Sent, res.Succeeded, res.Errors = c.sent, c.succeeded, maps.Clone(c.errs)
	res.MaxSendLagMS = math.Round(float64(c.maxLag)/1e3) / 1e3
	res.SendLagMS = c.lag.quantiles()
	res.TTFT, res.TTFTSent, res.TTFTChunk = c.ttft.quantiles(), c.ttftSent.quantiles(), c.ttftChunk.quantiles()
	res.FirstByte, res.TPOT, res.ITL = c.firstByte.quantiles(), c.tpot.quantiles(), c.itl.quantiles()
	res.E2E, res.E2ESent, res.MeanToken = c.e2e.quantiles(), c.e2eSent.quantiles(), c.mean.quantiles()
	res.OutputTokens, res.PromptTokens, res.UnknownCache = c.output, c.prompt, c.unknown
	res.Curves = map[string]Curve{"ttft_ms": c.ttft.curve(), "e2e_ms": c.e2e.curve(), "tpot_ms": c.tpot.curve()}
	res.OutputBasis = "usage"
	if c.chunksOnly > 0 {
		res.OutputBasis = "chunks, not tokens"
	}
	if c.known > 0 {
		cached := c.cached
		res.CachedTokens = &cached
	}
	res.HitRate = ratio(c.cached, c.prompt)
	res.Duration = c.end.Seconds()
	if c.slo.set() && c.sent > 0 && c.end > 0 {
		res.Goodput = &Goodput{SLO: c.slo, Good: c.good, Share: float64(c.good) / float64(c.sent), PerSec: float64(c.good) / c.end.Seconds()}
	}
	c.breakdown(res)
	c.timeline(res)
}

func (c *collector) breakdown(res *Result) {
	for _, k := range slices.Sorted(maps.Keys(c.prefixes)) {
		res.Prefixes = append(res.Prefixes, c.prefixes[k].group(fmt.Sprintf("prefix %d", k)))
	}
	for _, k := range slices.Sorted(maps.Keys(c.nodes)) {
		res.Nodes = append(res.Nodes, c.nodes[k].group(k))
	}
	for _, cell := range c.heat {
		res.Heat = append(res.Heat, *cell)
	}
	slices.SortFunc(res.Heat, func(a, b Cell) int {
		if a.Prefix != b.Prefix {
			return a.Prefix - b.Prefix
		}
		if a.Node < b.Node {
			return -1
		}
		return 1
	})
}

func (t *tally) group(name string) Group {
	g := Group{Name: name, Requests: t.requests, Errors: t.errors, Prompt: t.prompt, Cached: t.cached, TTFT: t.ttft.quantiles()}
	if t.known {
		g.HitRate = ratio(t.cached, t.prompt)
	}
	return g
}

// timeline closes the series. Peak and mean token rate share its buckets, from the
// first with tokens to the last, so the peak can never lie below the mean (B70).
func (c *collector) timeline(res *Result) {
	first, last := -1, -1
	for i := range c.series {
		b := &c.series[i]
		if b.Tokens > 0 {
			if first < 0 {
				first = i
			}
			last = i
			res.PeakTokens = max(res.PeakTokens, b.Tokens/b.Width)
		}
		b.HitRate = ratio(b.cached, b.prompt)
		if len(b.ttft) > 0 {
			slices.Sort(b.ttft)
			p50, p99 := float64(b.ttft[len(b.ttft)/2]), float64(b.ttft[min(len(b.ttft)-1, len(b.ttft)*99/100)])
			b.TTFT50, b.TTFT99 = &p50, &p99
		}
	}
	res.Series = c.series
	if first >= 0 {
		span := time.Duration(last-first+1) * c.width
		res.TokenRate = float64(c.output) / span.Seconds()
	}
}

func ratio(part, whole int64) *float64 {
	if whole <= 0 {
		return nil
	}
	v := float64(part) / float64(whole)
	return &v
}

// outcomeOf names the kind of error, "" for a success.
func outcomeOf(rep *reply, a *answer, cancelled bool) string {
	switch {
	case cancelled && (rep.err != nil || rep.late != nil):
		return "cancelled"
	case rep.err != nil && isTimeout(rep.err), rep.late != nil && isTimeout(rep.late):
		return "timeout"
	case rep.err != nil && rep.firstByte.IsZero() && rep.sent == 0:
		return "connect"
	case rep.err != nil:
		return "broken"
	case rep.status != 200:
		return fmt.Sprintf("http_%d", rep.status)
	case a.failed:
		return "error_event"
	case rep.late != nil || !a.done:
		return "truncated"
	case a.tokens == 0 && a.usage.Output <= 0:
		return "empty"
	}
	return ""
}
