package fakeengine

import (
	"fmt"
	"net/http"
	"time"

	"github.com/prefixring/prefixring/internal/dialect"
)

// serverInfo is SGLang's discovery document and, shorter, vLLM's of dev mode.
func (e *Engine) serverInfo(x *wire) {
	cfg := e.cfg
	if e.opts.Dialect == dialect.VLLM {
		x.json(http.StatusOK, fmt.Appendf(nil, `{"vllm_config":"model='%s', max_seq_len=%d, enable_prefix_caching=%t","vllm_env":null,"system_env":null}`,
			e.opts.Model, e.maxModelLen, !e.opts.NoPrefixCache))
		return
	}
	b := quote([]byte(`{"model_path":`), "/models/"+e.opts.Model)
	b = quote(append(b, `,"served_model_name":`...), e.opts.Model)
	queued := "null"
	if e.opts.QueueLimit > 0 {
		queued = fmt.Sprint(e.opts.QueueLimit)
	}
	b = fmt.Appendf(b, `,"context_length":%d,"max_running_requests":%d,"max_queued_requests":%s,"chunked_prefill_size":%d,"page_size":%d,"dp_size":%d,"schedule_policy":"fcfs","radix_eviction_policy":"lru","disable_radix_cache":%t,"enable_cache_report":%t,"enable_metrics":%t,"enable_priority_scheduling":%t,"status":"ready","max_total_num_tokens":%d,"max_req_input_len":%d,"internal_states":[`,
		e.maxModelLen, cfg.MaxSeqs, queued, cfg.Budget, cfg.BlockSize, len(e.ranks), e.opts.NoPrefixCache, e.opts.ReportCached, !e.opts.NoMetrics, e.opts.Priority,
		e.kvTokens, e.maxModelLen-1)
	for i, r := range e.ranks {
		if i > 0 {
			b = append(b, ',')
		}
		r.mu.Lock()
		b = fmt.Appendf(b, `{"last_gen_throughput":%g,"memory_usage":{"token_capacity":%d},"effective_max_running_requests_per_dp":%d}`, r.m.throughput, r.core.Capacity(), cfg.MaxSeqs)
		r.mu.Unlock()
	}
	x.json(http.StatusOK, append(quote(append(b, `],"version":`...), e.opts.Version), `,"kv_events":null}`...))
}

func (e *Engine) modelInfo(x *wire) {
	b := quote([]byte(`{"model_path":`), "/models/"+e.opts.Model)
	b = quote(append(b, `,"tokenizer_path":`...), "/models/"+e.opts.Model)
	x.json(http.StatusOK, append(b, `,"is_generation":true,"preferred_sampling_params":null,"weight_version":"default","has_image_understanding":false,"has_audio_understanding":false,"model_type":"sim","architectures":["Sim"]}`...))
}

// loads1 is /v1/loads, whose numbers are of the moment, unlike those of /metrics.
func (e *Engine) loads1(x *wire) {
	q := x.r.URL.Query()
	text := q.Get("format") == "prometheus"
	if text {
		x.reply(http.StatusOK, "text/plain; version=0.0.4; charset=utf-8", e.loadsText(q.Get("dp_rank")))
		return
	}
	b := fmt.Appendf(nil, `{"timestamp":"%s","version":"%s","accelerator":null,"num_accelerators":1,"loads":[`,
		time.Now().UTC().Format("2006-01-02T15:04:05.000000+00:00"), e.opts.Version)
	n := 0
	for i, r := range e.ranks {
		if want := q.Get("dp_rank"); want != "" && want != fmt.Sprint(i) {
			continue
		}
		if n++; n > 1 {
			b = append(b, ',')
		}
		l := r.load()
		b = fmt.Appendf(b, `{"timestamp":%.6f,"dp_rank":%d,"num_running_reqs":%d,"num_waiting_reqs":%d,"num_waiting_uncached_tokens":%d,"num_used_tokens":%d,"num_total_tokens":%d,"max_total_num_tokens":%d,"max_running_requests":%d,"token_usage":%.4f,"gen_throughput":%.2f,"cache_hit_rate":%.4f,"utilization":0.0,"queues":{"waiting":%d,"grammar":0,"paused":0,"retracted":0}}`,
			float64(time.Now().UnixMicro())/1e6, i, l.running, l.waiting, l.uncached, l.used, l.used, l.total, l.seqs, l.usage, l.throughput, l.hits, l.waiting)
	}
	x.json(http.StatusOK, append(b, "]}"...))
}

// loadsText spells the names with underscores, unlike /metrics (engine_contracts 4.4).
func (e *Engine) loadsText(rank string) (b []byte) {
	for _, m := range []struct {
		name string
		get  func(*rankLoad) float64
	}{
		{"num_running_reqs", func(l *rankLoad) float64 { return float64(l.running) }},
		{"num_waiting_reqs", func(l *rankLoad) float64 { return float64(l.waiting) }},
		{"num_waiting_uncached_tokens", func(l *rankLoad) float64 { return float64(l.uncached) }},
		{"num_used_tokens", func(l *rankLoad) float64 { return float64(l.used) }},
		{"max_total_num_tokens", func(l *rankLoad) float64 { return float64(l.total) }},
		{"token_usage", func(l *rankLoad) float64 { return l.usage }},
	} {
		b = fmt.Appendf(b, "# TYPE sglang_%s gauge\n", m.name)
		for i, r := range e.ranks {
			if rank == "" || rank == fmt.Sprint(i) {
				l := r.load()
				b = fmt.Appendf(b, "sglang_%s{dp_rank=\"%d\"} %g\n", m.name, i, m.get(&l))
			}
		}
	}
	return b
}

func (e *Engine) oldLoad(x *wire) {
	b := []byte{'['}
	for i, r := range e.ranks {
		if i > 0 {
			b = append(b, ',')
		}
		l := r.load()
		b = fmt.Appendf(b, `{"dp_rank":%d,"num_reqs":%d,"num_waiting_reqs":%d,"num_tokens":%d,"num_pending_tokens":%d,"ts_tic":%.6f}`,
			i, l.running+l.waiting, l.waiting, l.used+l.uncached, l.uncached, time.Since(e.startedAt()).Seconds())
	}
	x.json(http.StatusOK, append(b, ']'))
}

type rankLoad struct {
	running, waiting, uncached, used, total, seqs int
	usage, throughput, hits                       float64
}

func (r *rank) load() rankLoad {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := r.core.Stats()
	block := r.core.Config().BlockSize
	l := rankLoad{running: s.Running, waiting: s.Waiting, uncached: r.core.WaitingUncached(), used: s.UsedBlocks * block,
		total: r.core.Capacity(), seqs: r.core.Config().MaxSeqs, usage: s.Usage(), throughput: r.m.throughput}
	if s.Prompt > 0 {
		l.hits = float64(s.Cached) / float64(s.Prompt)
	}
	return l
}
