package dialect

// Meaning says what a scraped series measures, in the router's own words.
type Meaning uint8

// The meanings. A meaning may have several names: see MetricName.Age.
const (
	MeanRunning           Meaning = iota + 1 // requests being worked on
	MeanWaiting                              // requests in the engine's queue, whatever the cause
	MeanWaitingCapacity                      // requests that wait because the engine has no room: shed on this one
	MeanWaitingDeferred                      // requests that wait for a LoRA budget, a KV transfer or the like
	MeanKVUsage                              // 0..1, KV memory held by live requests; idle cached prefixes do not count
	MeanKVTokens                             // tokens of KV memory the engine has
	MeanBlockSize                            // tokens in one cache block or page
	MeanKVEvictable                          // tokens of idle cached prefixes (SGLang)
	MeanKVBlocks                             // cache blocks the engine has; tokens = blocks x block size
	MeanPreemptions                          // requests thrown out of KV memory and recomputed
	MeanPrefixQueries                        // tokens looked up in the prefix cache
	MeanPrefixHits                           // tokens found in the prefix cache
	MeanPromptTokens                         // prompt tokens, cached ones included
	MeanCachedTokens                         // prompt tokens that came from the cache
	MeanGenerationTokens                     // generated tokens
	MeanSteps                                // engine steps: the heartbeat that tells a hung core from an idle one
	MeanFinished                             // requests that ended, by reason
	MeanQueueSecondsSum                      // sum of the queue times of requests, seconds
	MeanQueueSecondsCount                    // number of requests in that sum
	MeanSleep                                // 1 on the series whose label names the present sleep state
	MeanLoRA                                 // labels list the adapters; the value is a time stamp
)

// Fold says how the series of one name in one page become one number: an engine
// with several data-parallel ranks exports one series per rank.
type Fold uint8

// The folds.
const (
	Sum    Fold = iota // counts and counters
	Max                // ratios: averaging would hide one full rank (field case B55)
	First              // constants that every rank repeats
	Newest             // the series with the highest value wins (LoRA time stamps)
)

// MetricName is one name under which a version of an engine exports a meaning.
type MetricName struct {
	Name    string
	Meaning Meaning
	Fold    Fold
	Counter bool // only grows; a decrease is a restart, and a restart is a cold cache
	// Age orders the names of one meaning: the lowest Age that is present in the
	// page wins, also when a page has several (field case B42: "new wins").
	Age uint8
	// Label and Value restrict the name to the series that carry that label value.
	// An empty Label takes every series. A series that lacks Label is taken, too:
	// SGLang adds `priority` and `tp_rank` only when the feature is on.
	Label, Value string
	// FromLabel names the label whose text is the number (vLLM's
	// cache_config_info has the value 1 and the facts in its labels).
	FromLabel string
}

// vllmMetrics: engine_contracts 4.1 and the captured pages of vLLM 0.32.0.
var vllmMetrics = []MetricName{
	{Name: "vllm:num_requests_running", Meaning: MeanRunning},
	{Name: "vllm:num_requests_waiting", Meaning: MeanWaiting},
	{Name: "vllm:num_requests_waiting_by_reason", Meaning: MeanWaitingCapacity, Label: "reason", Value: "capacity"},
	{Name: "vllm:num_requests_waiting_by_reason", Meaning: MeanWaitingDeferred, Label: "reason", Value: "deferred"},
	{Name: "vllm:kv_cache_usage_perc", Meaning: MeanKVUsage, Fold: Max},
	{Name: "vllm:gpu_cache_usage_perc", Meaning: MeanKVUsage, Fold: Max, Age: 1},
	{Name: "vllm:cache_config_info", Meaning: MeanKVTokens, Fold: First, FromLabel: "kv_cache_size_tokens"},
	{Name: "vllm:cache_config_info", Meaning: MeanKVBlocks, Fold: First, FromLabel: "num_gpu_blocks"},
	{Name: "vllm:cache_config_info", Meaning: MeanBlockSize, Fold: First, FromLabel: "block_size"},
	{Name: "vllm:num_preemptions_total", Meaning: MeanPreemptions, Counter: true},
	{Name: "vllm:prefix_cache_queries_total", Meaning: MeanPrefixQueries, Counter: true},
	{Name: "vllm:gpu_prefix_cache_queries_total", Meaning: MeanPrefixQueries, Counter: true, Age: 1},
	{Name: "vllm:prefix_cache_hits_total", Meaning: MeanPrefixHits, Counter: true},
	{Name: "vllm:gpu_prefix_cache_hits_total", Meaning: MeanPrefixHits, Counter: true, Age: 1},
	{Name: "vllm:prompt_tokens_total", Meaning: MeanPromptTokens, Counter: true},
	{Name: "vllm:prompt_tokens_cached_total", Meaning: MeanCachedTokens, Counter: true},
	{Name: "vllm:generation_tokens_total", Meaning: MeanGenerationTokens, Counter: true},
	// A histogram whose base name ends in _total; its count moves on every step.
	{Name: "vllm:iteration_tokens_total_count", Meaning: MeanSteps, Counter: true},
	{Name: "vllm:request_success_total", Meaning: MeanFinished, Counter: true},
	{Name: "vllm:request_queue_time_seconds_sum", Meaning: MeanQueueSecondsSum, Counter: true},
	{Name: "vllm:request_queue_time_seconds_count", Meaning: MeanQueueSecondsCount, Counter: true},
	{Name: "vllm:engine_sleep_state", Meaning: MeanSleep, Fold: Max},
	{Name: "vllm:lora_requests_info", Meaning: MeanLoRA, Fold: Newest},
}

// sglangMetrics: engine_contracts 4.2. sglang:cache_hit_rate and
// sglang:utilization are left out on purpose: the first describes only the last
// prefill batch and the second is stuck at zero.
var sglangMetrics = []MetricName{
	{Name: "sglang:num_running_reqs", Meaning: MeanRunning, Label: "tp_rank", Value: "0"},
	{Name: "sglang:num_queue_reqs", Meaning: MeanWaiting, Label: "priority", Value: ""},
	{Name: "sglang:token_usage", Meaning: MeanKVUsage, Fold: Max},
	{Name: "sglang:max_total_num_tokens", Meaning: MeanKVTokens, Label: "tp_rank", Value: "0"},
	{Name: "sglang:page_size", Meaning: MeanBlockSize, Fold: First},
	{Name: "sglang:kv_evictable_tokens", Meaning: MeanKVEvictable, Label: "tp_rank", Value: "0"},
	{Name: "sglang:num_retracted_requests_total", Meaning: MeanPreemptions, Counter: true},
	{Name: "sglang:prompt_tokens_total", Meaning: MeanPromptTokens, Counter: true},
	{Name: "sglang:prompt_tokens_total", Meaning: MeanPrefixQueries, Counter: true},
	// Some versions export one series per source, some only "total": never add both.
	{Name: "sglang:cached_tokens_total", Meaning: MeanCachedTokens, Counter: true, Label: "cache_source", Value: "total"},
	{Name: "sglang:cached_tokens_total", Meaning: MeanCachedTokens, Counter: true, Age: 1},
	{Name: "sglang:cached_tokens_total", Meaning: MeanPrefixHits, Counter: true, Label: "cache_source", Value: "total"},
	{Name: "sglang:cached_tokens_total", Meaning: MeanPrefixHits, Counter: true, Age: 1},
	{Name: "sglang:generation_tokens_total", Meaning: MeanGenerationTokens, Counter: true},
	{Name: "sglang:num_requests_total", Meaning: MeanFinished, Counter: true},
	{Name: "sglang:queue_time_seconds_sum", Meaning: MeanQueueSecondsSum, Counter: true},
	{Name: "sglang:queue_time_seconds_count", Meaning: MeanQueueSecondsCount, Counter: true},
}

// MetricTable returns the names worth reading from an engine's /metrics page. The
// caller must not change the table. Names are detected in the page, never
// derived from a version number: both engines rename gauges every few months.
func MetricTable(e Engine) []MetricName {
	if e == SGLang {
		return sglangMetrics
	}
	return vllmMetrics
}
