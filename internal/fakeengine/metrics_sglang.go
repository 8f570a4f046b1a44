package fakeengine

import (
	"strconv"
	"time"
)

var sglangTTFT = []float64{.1, .2, .4, .6, .8, 1, 2, 4, 6, 8, 10, 20, 40, 60, 80, 100, 200, 400}

// The gauges come from counters.gauges: as of the last prefill batch or every
// DecodeInterval decode steps, so they may be stale.
var sglangGauges = []series{
	{name: "sglang:num_running_reqs", help: "Running requests.", get: func(v *rankView) float64 { return float64(v.c.gauges.Running) }},
	{name: "sglang:num_queue_reqs", help: "Queued requests.", get: func(v *rankView) float64 { return float64(v.c.gauges.Waiting) }},
	{name: "sglang:num_grammar_queue_reqs", help: "Requests that wait for a grammar.", get: zero},
	{name: "sglang:num_paused_reqs", help: "Paused requests.", get: zero},
	{name: "sglang:num_retracted_reqs", help: "Requests retracted since the last report.", get: zero},
	{name: "sglang:token_usage", help: "Share of KV tokens in use, idle prefixes left out.", get: func(v *rankView) float64 { return v.usage() }},
	{name: "sglang:full_token_usage", help: "The same for full attention.", get: func(v *rankView) float64 { return v.usage() }},
	{name: "sglang:num_used_tokens", help: "KV tokens in use.", get: func(v *rankView) float64 { return v.tokens(v.c.gauges.UsedBlocks) }},
	{name: "sglang:max_total_num_tokens", help: "KV capacity.", get: func(v *rankView) float64 { return v.tokens(v.s.TotalBlocks) }},
	{name: "sglang:kv_used_tokens", help: "KV tokens in use.", get: func(v *rankView) float64 { return v.tokens(v.c.gauges.UsedBlocks) }},
	{name: "sglang:kv_evictable_tokens", help: "KV tokens of idle prefixes.", get: func(v *rankView) float64 { return v.tokens(v.c.gauges.IdleBlocks) }},
	{name: "sglang:kv_available_tokens", help: "KV tokens that hold nothing.", get: func(v *rankView) float64 {
		return v.tokens(v.s.TotalBlocks - v.c.gauges.UsedBlocks - v.c.gauges.IdleBlocks)
	}},
	{name: "sglang:cache_hit_rate", help: "Of the last prefill batch only.", get: zero},
	{name: "sglang:gen_throughput", help: "Tokens per second.", get: func(v *rankView) float64 { return v.c.throughput }},
	{name: "sglang:utilization", help: "Always 0, as in the real engine.", get: zero},
	{name: "sglang:page_size", help: "Tokens per page.", get: func(v *rankView) float64 { return float64(v.block) }},
	{name: "sglang:num_pages", help: "Pages.", get: func(v *rankView) float64 { return float64(v.s.TotalBlocks) }},
	{name: "sglang:context_len", help: "Longest context.", get: func(v *rankView) float64 { return float64(v.context) }},
	{name: "sglang:engine_startup_time", help: "Seconds to start.", get: func(*rankView) float64 { return 1 }},
	{name: "sglang:engine_load_weights_time", help: "Seconds to load weights.", get: func(*rankView) float64 { return 0.5 }},
}

// Counters of the scheduler's side carry the scheduler labels, the others only
// model and engine type. They move when a request has finished.
var sglangScheduler = []series{
	{name: "sglang:num_retracted_requests", help: "Requests whose KV was taken away.", get: func(v *rankView) float64 { return float64(v.c.preemptions) }},
	{name: "sglang:evicted_tokens", help: "KV tokens evicted.", label: "cache_type", values: []part{
		{"RadixCache", func(v *rankView) float64 { return v.tokens(int(v.s.Evicted)) }}}},
}

var sglangFront = []series{
	{name: "sglang:prompt_tokens", help: "Prompt tokens of finished requests.", get: func(v *rankView) float64 { return float64(v.c.finishedPrompt) }},
	{name: "sglang:generation_tokens", help: "Generated tokens of finished requests.", get: func(v *rankView) float64 { return float64(v.c.finishedGenerated) }},
	{name: "sglang:cached_tokens", help: "Prompt tokens from the cache.", label: "cache_source", values: []part{
		{"device", func(v *rankView) float64 { return float64(v.c.finishedCached) }}}},
	{name: "sglang:num_requests", help: "Finished requests.", get: func(v *rankView) float64 { return float64(v.c.done) }},
	{name: "sglang:num_aborted_requests", help: "Aborted requests.", get: func(v *rankView) float64 { return float64(v.c.aborted) }},
}

var sglangHistograms = []histogramSeries{
	{"sglang:time_to_first_token_seconds", "Arrival to first token.", func(c *counters) *histogram { return &c.ttft }},
	{"sglang:inter_token_latency_seconds", "Gap between tokens.", func(c *counters) *histogram { return &c.itl }},
	{"sglang:e2e_request_latency_seconds", "Arrival to last token.", func(c *counters) *histogram { return &c.e2e }},
	{"sglang:prompt_tokens_histogram", "Prompt tokens of a request.", func(c *counters) *histogram { return &c.promptSize }},
	{"sglang:uncached_prompt_tokens_histogram", "Prompt tokens of a request that were not cached.", func(c *counters) *histogram { return &c.computedSize }},
	{"sglang:generation_tokens_histogram", "Generated tokens of a request.", func(c *counters) *histogram { return &c.answerSize }},
}

func (v *rankView) usage() float64 {
	if v.s.TotalBlocks == 0 {
		return 0
	}
	return float64(v.c.gauges.UsedBlocks) / float64(v.s.TotalBlocks)
}

func (v *rankView) tokens(blocks int) float64 { return float64(blocks * v.block) }

func (e *Engine) sglangPage(p *page) {
	views := make([]rankView, len(e.ranks))
	for i, r := range e.ranks {
		r.refreshIdle()
		s := labels("engine_type", "unified", "model_name", e.opts.Model, "moe_ep_rank", "0", "pp_rank", "0", "tp_rank", "0")
		if len(e.ranks) > 1 {
			s = labels("dp_rank", strconv.Itoa(i), "engine_type", "unified", "model_name", e.opts.Model, "moe_ep_rank", "0", "pp_rank", "0", "tp_rank", "0")
		}
		views[i] = r.view(s)
		views[i].block, views[i].context = e.blockSize, e.maxModelLen
	}
	for i := range sglangGauges {
		s := sglangGauges[i]
		if e.opts.Priority && (s.name == "sglang:num_running_reqs" || s.name == "sglang:num_queue_reqs") {
			// One series is the total, the others are per value: a trap for adders (engine_contracts 4.2).
			s.label, s.values = "priority", []part{{"", s.get}, {"None", s.get}}
		}
		p.gauge(views, &s)
	}
	for i := range sglangScheduler {
		p.total(views, &sglangScheduler[i])
	}
	p.family("sglang:queue_time_seconds", "histogram", "Time in the queue.")
	for k := range views {
		p.histogram("sglang:queue_time_seconds", views[k].set, &views[k].c.queue)
	}
	front := frontView(views, e.opts.Model)
	for i := range sglangFront {
		p.total(front, &sglangFront[i])
	}
	for i := range sglangHistograms {
		h := &sglangHistograms[i]
		p.family(h.name, "histogram", h.help)
		p.histogram(h.name, front[0].set, h.of(&front[0].c))
	}
}

// frontView is the tokenizer side: one process, so one sum over the ranks.
func frontView(views []rankView, model string) []rankView {
	f := views[0]
	f.set = labels("engine_type", "unified", "model_name", model)
	for i := 1; i < len(views); i++ {
		f.c.merge(&views[i].c)
	}
	return []rankView{f}
}

func (p *page) total(views []rankView, s *series) {
	p.family(s.name+"_total", "counter", s.help)
	p.each(views, s.name+"_total", s)
}

// refreshIdle is the report of an idle scheduler, every 30 s.
func (r *rank) refreshIdle() {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := r.core.Stats()
	limit := time.Duration(float64(30*time.Second) / r.e.opts.Speed)
	if now := time.Now(); s.Running == 0 && s.Waiting == 0 && now.Sub(r.m.gaugesAt) >= limit {
		r.m.refresh(s, now)
	}
}
