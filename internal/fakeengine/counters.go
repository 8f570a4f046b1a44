package fakeengine

import (
	"time"

	"github.com/prefixring/prefixring/internal/dialect"
	"github.com/prefixring/prefixring/internal/fakeengine/core"
)

// histogram counts observations in cumulative buckets, as Prometheus does.
type histogram struct {
	bounds []float64
	counts []int64
	count  int64
	sum    float64
}

func (h *histogram) observe(v float64) {
	h.count++
	h.sum += v
	for i, b := range h.bounds {
		if v <= b {
			h.counts[i]++
			return
		}
	}
}

// The bucket bounds of vLLM 0.32, read from a scrape.
var (
	ttftBounds  = []float64{.001, .005, .01, .02, .04, .06, .08, .1, .25, .5, .75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640, 2560}
	tokenBounds = []float64{.01, .025, .05, .075, .1, .15, .2, .3, .4, .5, .75, 1, 2.5, 5, 7.5, 10, 20, 40, 80}
	timeBounds  = []float64{.3, .5, .8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680}
	sizeBounds  = []float64{1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000}
	stepBounds  = []float64{1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384}
	nBounds     = []float64{1, 2, 5, 10, 20}
	againBounds = []float64{1, 2, 3, 4, 5, 10, 20}
)

// counters is what one rank exports. Durations are wall seconds: what a client of
// this engine sees, whatever Speed is.
type counters struct {
	created time.Time

	queries, hits, prompt, cached, generated int64
	preemptions, aborted, rejected, done     int64
	stops, lengths                           int64
	finishedPrompt, finishedCached           int64 // SGLang counts when a request has finished
	finishedGenerated                        int64

	ttft, itl, tpot, e2e, queue, inference, prefill, decode  histogram
	promptSize, answerSize, computedSize, limitSize, maxSize histogram
	steps, n, again                                          histogram

	// gauges are SGLang's: they change on prefill batches and every DecodeInterval
	// decode steps only, and so go stale (engine_contracts 4.2).
	gauges      core.Stats
	sinceGauges int
	gaugesAt    time.Time
	throughput  float64
}

// histograms lists all of them, to copy or add.
func (c *counters) histograms() []*histogram {
	return []*histogram{&c.ttft, &c.itl, &c.tpot, &c.e2e, &c.queue, &c.inference, &c.prefill, &c.decode,
		&c.promptSize, &c.answerSize, &c.computedSize, &c.limitSize, &c.maxSize, &c.steps, &c.n, &c.again}
}

// merge adds what the front end of several ranks counts together.
func (c *counters) merge(o *counters) {
	c.finishedPrompt += o.finishedPrompt
	c.finishedCached += o.finishedCached
	c.finishedGenerated += o.finishedGenerated
	c.done += o.done
	c.aborted += o.aborted
	others := o.histograms()
	for i, h := range c.histograms() {
		h.count += others[i].count
		h.sum += others[i].sum
		for k, n := range others[i].counts {
			h.counts[k] += n
		}
	}
}

func (c *counters) init(now time.Time, e dialect.Engine) {
	c.created, c.gaugesAt = now, now
	ttft := ttftBounds
	if e == dialect.SGLang {
		ttft = sglangTTFT
	}
	for _, s := range []struct {
		h *histogram
		b []float64
	}{
		{&c.ttft, ttft}, {&c.itl, tokenBounds}, {&c.tpot, tokenBounds}, {&c.e2e, timeBounds}, {&c.queue, timeBounds},
		{&c.inference, timeBounds}, {&c.prefill, timeBounds}, {&c.decode, timeBounds}, {&c.promptSize, sizeBounds},
		{&c.answerSize, sizeBounds}, {&c.computedSize, sizeBounds}, {&c.limitSize, sizeBounds}, {&c.maxSize, sizeBounds},
		{&c.steps, stepBounds}, {&c.n, nBounds}, {&c.again, againBounds},
	} {
		*s.h = histogram{bounds: s.b, counts: make([]int64, len(s.b))}
	}
}

func (c *counters) admitted(j *job) {
	c.queries += int64(j.prompt)
	c.hits += int64(j.cached)
}

func (c *counters) firstToken(j *job) {
	c.prompt += int64(j.prompt)
	c.cached += int64(j.cached)
	c.generated++
	c.ttft.observe(j.first.Sub(j.arrived).Seconds())
}

func (c *counters) token(gap time.Duration) {
	c.generated++
	c.itl.observe(gap.Seconds())
}

func (c *counters) finished(j *job, now time.Time) {
	c.done++
	if j.finish == "length" {
		c.lengths++
	} else {
		c.stops++
	}
	c.finishedPrompt += int64(j.prompt)
	c.finishedCached += int64(j.cached)
	c.finishedGenerated += int64(j.tokens)
	c.e2e.observe(now.Sub(j.arrived).Seconds())
	c.queue.observe(j.admitted.Sub(j.arrived).Seconds())
	c.inference.observe(now.Sub(j.admitted).Seconds())
	c.prefill.observe(j.first.Sub(j.admitted).Seconds())
	c.decode.observe(now.Sub(j.first).Seconds())
	if j.tokens > 1 {
		c.tpot.observe(now.Sub(j.first).Seconds() / float64(j.tokens-1))
	}
	c.promptSize.observe(float64(j.prompt))
	c.answerSize.observe(float64(j.tokens))
	c.computedSize.observe(float64(j.prompt - j.cached))
	c.maxSize.observe(float64(j.tokens))
	if j.limit > 0 {
		c.limitSize.observe(float64(j.limit))
	}
	c.n.observe(float64(j.n))
	c.again.observe(float64(j.preempted))
}

func (c *counters) step(o core.Outcome, k *core.Core, interval int) {
	c.steps.observe(float64(o.Prefill + o.Decode))
	c.sinceGauges++
	if o.Prefill > 0 || c.sinceGauges >= interval {
		c.refresh(k.Stats(), time.Now())
	}
}

func (c *counters) refresh(s core.Stats, now time.Time) {
	if d := now.Sub(c.gaugesAt).Seconds(); d > 0 {
		c.throughput = float64(s.Generated-c.gauges.Generated) / d
	}
	c.gauges, c.sinceGauges, c.gaugesAt = s, 0, now
}

// heads remembers the static heads that were asked for, so that the oracle can
// say which are resident. Bounded: the oldest is forgotten.
type heads struct {
	known map[uint64]core.Prompt
	order []uint64
}

const maxHeads = 256

func (h *heads) note(p *core.Prompt, block int) {
	n := min(p.Static/block, len(p.Tail))
	if n == 0 {
		return
	}
	key := p.Tail[n-1]
	if _, ok := h.known[key]; ok {
		return
	}
	if h.known == nil {
		h.known = map[uint64]core.Prompt{}
	}
	if len(h.order) == maxHeads {
		delete(h.known, h.order[0])
		h.order = h.order[1:]
	}
	h.order = append(h.order, key)
	tail := append([]uint64(nil), p.Tail[:n]...)
	h.known[key] = core.Prompt{Tokens: n*block + 1, Static: n * block, Tail: tail}
}

// resident counts the heads of which nothing that could be cached is missing.
func (h *heads) resident(k *core.Core) (n int) {
	for _, p := range h.known {
		if k.Cached(&p) >= p.Static {
			n++
		}
	}
	return n
}

// Counters is the truth about an engine since it started, whatever /metrics says.
// It survives restarts and adds up all ranks.
type Counters struct {
	Requests        int64   `json:"requests"`      // generation requests that were accepted
	Refused         int64   `json:"refused"`       // for a full queue
	ColdPrefills    int64   `json:"cold_prefills"` // admitted with a static head that was not cached
	PromptTokens    int64   `json:"prompt_tokens"` // of admitted answers, cached ones included
	CachedTokens    int64   `json:"cached_tokens"`
	ComputedTokens  int64   `json:"computed_tokens"` // prefill really done, recomputation included
	GeneratedTokens int64   `json:"generated_tokens"`
	BusySeconds     float64 `json:"busy_seconds"` // simulated
	Aborts          int64   `json:"aborts"`
	Preemptions     int64   `json:"preemptions"`
	EvictedBlocks   int64   `json:"evicted_blocks"`
	Finished        int64   `json:"finished"`

	Running          int `json:"running"`
	Waiting          int `json:"waiting"` // those that are still being tokenised included
	UsedBlocks       int `json:"used_blocks"`
	IdleBlocks       int `json:"idle_blocks"`
	TotalBlocks      int `json:"total_blocks"`
	ResidentPrefixes int `json:"resident_prefixes"` // distinct static heads that are whole in the cache of a rank
	Epoch            int `json:"epoch"`             // restarts
}

func (c *Counters) add(s core.Stats, answers int64) {
	c.ColdPrefills += s.Cold
	c.PromptTokens += s.Prompt
	c.CachedTokens += s.Cached
	c.ComputedTokens += s.Computed
	c.GeneratedTokens += answers
	c.BusySeconds += s.Busy.Seconds()
	c.Aborts += s.Aborts
	c.Preemptions += s.Preemptions
	c.EvictedBlocks += s.Evicted
	c.Finished += s.Finished
}
