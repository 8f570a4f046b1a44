package fakeengine

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/prefixring/prefixring/internal/fakeengine/core"
)

// rankView is a copy of what one rank exports, taken under its lock.
type rankView struct {
	set
	c     counters
	s     core.Stats
	sleep int

	block, context int
}

func (r *rank) view(s set) rankView {
	r.mu.Lock()
	defer r.mu.Unlock()
	v := rankView{set: s, c: r.m, s: r.core.Stats(), sleep: r.asleep}
	for _, h := range v.c.histograms() {
		h.counts = append([]int64(nil), h.counts...)
	}
	return v
}

// series is one family of samples, one per rank and extra label value.
type series struct {
	name, help string
	get        func(v *rankView) float64
	label      string // extra label
	values     []part
}

type part struct {
	value string
	get   func(v *rankView) float64
}

func zero(*rankView) float64 { return 0 }

func flag(on bool) float64 {
	if on {
		return 1
	}
	return 0
}

var vllmGauges = []series{
	{name: "vllm:num_requests_running", help: "Requests in execution.", get: func(v *rankView) float64 { return float64(v.s.Running) }},
	{name: "vllm:num_requests_waiting", help: "Requests in the queue.", get: func(v *rankView) float64 { return float64(v.s.Waiting) }},
	{name: "vllm:num_requests_waiting_by_reason", help: "Requests in the queue, by what they wait for.", label: "reason", values: []part{
		{"capacity", func(v *rankView) float64 { return float64(v.s.Waiting) }}, {"deferred", zero}}},
	{name: "vllm:engine_sleep_state", help: "1 for the state the engine is in.", label: "sleep_state", values: []part{
		{"awake", func(v *rankView) float64 { return flag(v.sleep == 0) }},
		{"weights_offloaded", func(v *rankView) float64 { return flag(v.sleep == 1) }},
		{"discard_all", func(v *rankView) float64 { return flag(v.sleep == 2) }}}},
	{name: "vllm:kv_cache_usage_perc", help: "Share of KV blocks that running requests hold, 0 to 1.", get: func(v *rankView) float64 { return v.s.Usage() }},
}

var vllmCounters = []series{
	{name: "vllm:prefix_cache_queries", help: "Tokens looked up in the prefix cache.", get: func(v *rankView) float64 { return float64(v.c.queries) }},
	{name: "vllm:prefix_cache_hits", help: "Tokens found in the prefix cache.", get: func(v *rankView) float64 { return float64(v.c.hits) }},
	{name: "vllm:external_prefix_cache_queries", help: "Tokens looked up in other instances' caches.", get: zero},
	{name: "vllm:external_prefix_cache_hits", help: "Tokens found in other instances' caches.", get: zero},
	{name: "vllm:mm_cache_queries", help: "Media items looked up.", get: zero},
	{name: "vllm:mm_cache_hits", help: "Media items found.", get: zero},
	{name: "vllm:num_preemptions", help: "Requests whose KV was taken away.", get: func(v *rankView) float64 { return float64(v.c.preemptions) }},
	{name: "vllm:prompt_tokens", help: "Prompt tokens.", get: func(v *rankView) float64 { return float64(v.c.prompt) }},
	{name: "vllm:prompt_tokens_by_source", help: "Prompt tokens by where their KV came from.", label: "source", values: []part{
		{"local_compute", func(v *rankView) float64 { return float64(v.c.prompt - v.c.cached) }},
		{"local_cache_hit", func(v *rankView) float64 { return float64(v.c.cached) }}, {"external_kv_transfer", zero}}},
	{name: "vllm:prompt_tokens_cached", help: "Prompt tokens from a cache.", get: func(v *rankView) float64 { return float64(v.c.cached) }},
	{name: "vllm:prompt_tokens_cached_by_source", help: "Prompt tokens from a cache, by tier.", label: "source", values: []part{
		{"device", func(v *rankView) float64 { return float64(v.c.hits) }}, {"host", zero}, {"p2p", zero}, {"disk", zero}, {"external_unspecified", zero}}},
	{name: "vllm:generation_tokens", help: "Generated tokens.", get: func(v *rankView) float64 { return float64(v.c.generated) }},
	{name: "vllm:request_success", help: "Finished requests by reason. A client that leaves counts nowhere.", label: "finished_reason", values: []part{
		{"stop", func(v *rankView) float64 { return float64(v.c.stops) }}, {"length", func(v *rankView) float64 { return float64(v.c.lengths) }},
		{"abort", zero}, {"error", zero}, {"repetition", zero}}},
}

type histogramSeries struct {
	name, help string
	of         func(c *counters) *histogram
}

var vllmHistograms = []histogramSeries{
	{"vllm:request_prompt_tokens", "Prompt tokens of a request.", func(c *counters) *histogram { return &c.promptSize }},
	{"vllm:request_generation_tokens", "Generated tokens of a request.", func(c *counters) *histogram { return &c.answerSize }},
	{"vllm:iteration_tokens_total", "Tokens of a step.", func(c *counters) *histogram { return &c.steps }},
	{"vllm:request_max_num_generation_tokens", "Longest answer of a request.", func(c *counters) *histogram { return &c.maxSize }},
	{"vllm:request_params_n", "The field n.", func(c *counters) *histogram { return &c.n }},
	{"vllm:request_params_max_tokens", "The field max_tokens.", func(c *counters) *histogram { return &c.limitSize }},
	{"vllm:time_to_first_token_seconds", "Arrival to first token.", func(c *counters) *histogram { return &c.ttft }},
	{"vllm:inter_token_latency_seconds", "Gap between tokens.", func(c *counters) *histogram { return &c.itl }},
	{"vllm:request_time_per_output_token_seconds", "Mean gap between a request's tokens.", func(c *counters) *histogram { return &c.tpot }},
	{"vllm:e2e_request_latency_seconds", "Arrival to last token.", func(c *counters) *histogram { return &c.e2e }},
	{"vllm:request_queue_time_seconds", "Arrival to first scheduling.", func(c *counters) *histogram { return &c.queue }},
	{"vllm:request_inference_time_seconds", "First scheduling to last token.", func(c *counters) *histogram { return &c.inference }},
	{"vllm:request_prefill_time_seconds", "First scheduling to first token.", func(c *counters) *histogram { return &c.prefill }},
	{"vllm:request_decode_time_seconds", "First to last token.", func(c *counters) *histogram { return &c.decode }},
	{"vllm:request_num_preemptions", "Preemptions of a request.", func(c *counters) *histogram { return &c.again }},
	{"vllm:request_prefill_kv_computed_tokens", "Prompt tokens of a request that were not cached.", func(c *counters) *histogram { return &c.computedSize }},
}

func (e *Engine) vllmPage(p *page) {
	views := make([]rankView, len(e.ranks))
	for i, r := range e.ranks {
		views[i] = r.view(labels("engine", strconv.Itoa(i), "model_name", e.opts.Model))
	}
	for _, name := range []string{"flops", "read_bytes", "write_bytes"} {
		p.counter(views, &series{name: "vllm:estimated_" + name + "_per_gpu", help: "Not estimated here.", get: zero})
	}
	for i := range vllmGauges {
		p.gauge(views, &vllmGauges[i])
	}
	for i := range vllmCounters {
		p.counter(views, &vllmCounters[i])
	}
	e.rejections(p, views)
	e.loraInfo(p)
	for i := range vllmHistograms {
		h := &vllmHistograms[i]
		p.family(h.name, "histogram", h.help)
		for k := range views {
			p.histogram(h.name, views[k].set, h.of(&views[k].c))
		}
		p.created(views, h.name, h.help, nil, "")
	}
	e.cacheConfig(p)
}

func (p *page) each(views []rankView, name string, s *series) {
	for i := range views {
		v := &views[i]
		if s.label == "" {
			p.sample(name, v.with(), s.get(v))
			continue
		}
		for _, x := range s.values {
			p.sample(name, v.with(s.label, x.value), x.get(v))
		}
	}
}

func (p *page) gauge(views []rankView, s *series) {
	p.family(s.name, "gauge", s.help)
	p.each(views, s.name, s)
}

// counter writes name_total and, as prometheus_client does, name_created.
func (p *page) counter(views []rankView, s *series) {
	p.family(s.name+"_total", "counter", s.help)
	p.each(views, s.name+"_total", s)
	p.created(views, s.name, s.help, s.values, s.label)
}

func (p *page) created(views []rankView, name, help string, values []part, label string) {
	p.gauge(views, &series{name: name + "_created", help: help, label: label, values: createdParts(values),
		get: func(v *rankView) float64 { return createdAt(v.c.created) }})
}

func createdParts(values []part) (all []part) {
	for _, x := range values {
		all = append(all, part{x.value, func(v *rankView) float64 { return createdAt(v.c.created) }})
	}
	return all
}

// rejections carry no engine label: the front end counts them (capture vllm_metrics).
func (e *Engine) rejections(p *page, views []rankView) {
	one := views[0]
	one.set = labels("model_name", e.opts.Model)
	n := int64(0)
	for i := range views {
		n += views[i].c.rejected
	}
	p.counter([]rankView{one}, &series{name: "vllm:admission_rejections", help: "Requests refused by a queue limit.", label: "reason", values: []part{
		{"max_num_queued_reqs", func(*rankView) float64 { return float64(n) }}, {"max_num_queued_tokens", zero}}})
}

// loraInfo is a timestamp with names in its labels (engine_contracts 4.1).
func (e *Engine) loraInfo(p *page) {
	names := e.modelNames()[1:]
	if len(names) == 0 && !e.opts.RuntimeLoRA {
		return
	}
	p.family("vllm:lora_requests_info", "gauge", "When the adapters in the labels were last in use.")
	p.sample("vllm:lora_requests_info", labels("max_lora", strconv.Itoa(max(len(names), 1)), "running_lora_adapters", strings.Join(names, ","),
		"waiting_lora_adapters", "").with(), float64(time.Now().UnixMilli())/1e3)
}

func (e *Engine) cacheConfig(p *page) {
	cfg, tokens := e.cfg, e.kvTokens
	p.family("vllm:cache_config_info", "gauge", "The cache configuration, in labels.")
	block := strconv.Itoa(cfg.BlockSize)
	for i := range e.ranks {
		p.sample("vllm:cache_config_info", labels(
			"_block_size_resolved", "True", "block_size", block, "cache_dtype", "auto", "cache_hit_alignment_tokens", "None",
			"effective_attention_block_size", block, "enable_mamba_shared_prefix_checkpoint", "False",
			"enable_prefix_caching", pythonBool(!cfg.NoCache), "engine", strconv.Itoa(i), "gpu_memory_utilization", "0.92",
			"hash_block_size", "None", "is_attention_free", "False", "kv_cache_dtype_skip_layers", "[]", "kv_cache_layout", "None",
			"kv_cache_max_concurrency", fmt.Sprintf("%.1f", float64(tokens)/float64(e.maxModelLen)), "kv_cache_memory_bytes", "None",
			"kv_cache_size_tokens", strconv.Itoa(tokens), "kv_offloading_backend", "native", "kv_offloading_size", "None",
			"kv_sharing_fast_prefill", "False", "mamba_block_size", "None", "mamba_cache_dtype", "auto", "mamba_cache_mode", "none",
			"mamba_page_size_padded", "None", "mamba_ssm_cache_dtype", "float32", "num_cpu_blocks", "None",
			"num_gpu_blocks", strconv.Itoa(tokens/cfg.BlockSize), "num_gpu_blocks_override", "None", "prefix_cache_retention_interval", "0",
			"prefix_caching_hash_algo", "sha256", "prefix_match_unit", "None", "replayssm_buffer_len", "16", "skip_page_size_padded", "None",
			"sliding_window", "None", "swa_bounded_replay", "True", "use_kda_recoverssm", "False", "use_replayssm", "False",
			"user_specified_block_size", "False").with(), 1)
	}
}

func pythonBool(b bool) string {
	if b {
		return "True"
	}
	return "False"
}
