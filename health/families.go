package health

import "github.com/prefixring/prefixring/internal/dialect"

// field is a number that the parser collects per data-parallel rank.
type field uint8

const (
	fRunning field = iota
	fWaiting
	fRunningPrio // SGLang with priority scheduling: series of single priorities
	fWaitingPrio
	fCapacity
	fKVNew
	fKVOld
	fPreemptions
	fQueriesNew
	fQueriesOld
	fHitsNew
	fHitsOld
	fPrompt
	fGeneration
	fFinished
	fSteps
	fQueueSum
	fQueueCount
	fUsed
	fEvictable
	fThroughput
	fCapacityTokens
	numFields

	fSleep  // the special ones: their labels are the message
	fConfig // cache shape
	fLoRA
	fStart
	fPage
	fNone
)

// lookup names the field that a series of engine e feeds. The names of all versions
// stand side by side, because a fleet is upgraded engine by engine; where an old and a
// new name carry the same number they have a field each, and the new one wins
// (field case B42). Series that end in _created or _bucket are deliberately absent.
//
// Sources: vllm/v1/metrics/loggers.py, sglang/srt/observability/metrics_collector.py
// and the captured pages in testdata.
func lookup(e dialect.Engine, name []byte) field {
	if string(name) == "process_start_time_seconds" {
		return fStart
	}
	if e == dialect.SGLang {
		if len(name) < 8 || string(name[:6]) != "sglang" || name[6] != ':' && name[6] != '_' {
			return fNone
		}
		return sglangField(name[7:])
	}
	if len(name) < 6 || string(name[:5]) != "vllm:" {
		return fNone
	}
	return vllmField(name[5:])
}

func vllmField(name []byte) field {
	switch string(name) {
	case "num_requests_running":
		return fRunning
	case "num_requests_waiting":
		return fWaiting
	case "num_requests_waiting_by_reason": // since vLLM PR 38435
		return fCapacity
	case "kv_cache_usage_perc": // since 0.9.2
		return fKVNew
	case "gpu_cache_usage_perc": // up to 0.11
		return fKVOld
	case "num_preemptions_total":
		return fPreemptions
	case "prefix_cache_queries_total":
		return fQueriesNew
	case "gpu_prefix_cache_queries_total":
		return fQueriesOld
	case "prefix_cache_hits_total":
		return fHitsNew
	case "gpu_prefix_cache_hits_total":
		return fHitsOld
	case "prompt_tokens_total":
		return fPrompt
	case "generation_tokens_total":
		return fGeneration
	case "request_success_total": // "success" includes abort and error
		return fFinished
	case "iteration_tokens_total_count": // a histogram named like a counter; one count per engine step
		return fSteps
	case "request_queue_time_seconds_sum":
		return fQueueSum
	case "request_queue_time_seconds_count":
		return fQueueCount
	case "engine_sleep_state": // since vLLM PR 24176
		return fSleep
	case "cache_config_info":
		return fConfig
	case "lora_requests_info":
		return fLoRA
	}
	return fNone
}

func sglangField(name []byte) field {
	switch string(name) {
	case "num_running_reqs":
		return fRunning
	case "num_queue_reqs":
		return fWaiting
	case "token_usage":
		return fKVNew
	case "num_used_tokens":
		return fUsed
	case "kv_evictable_tokens": // since SGLang PR 22726
		return fEvictable
	case "max_total_num_tokens": // since SGLang PR 14256
		return fCapacityTokens
	case "page_size":
		return fPage
	case "cache_config_info": // older: the shape was in labels
		return fConfig
	case "cached_tokens_total":
		return fHitsNew
	case "prompt_tokens_total":
		return fPrompt
	case "generation_tokens_total":
		return fGeneration
	case "num_requests_total":
		return fFinished
	case "realtime_tokens_total":
		return fSteps
	case "num_retracted_requests_total":
		return fPreemptions
	case "queue_time_seconds_sum":
		return fQueueSum
	case "queue_time_seconds_count":
		return fQueueCount
	case "gen_throughput":
		return fThroughput
	}
	return fNone
}
