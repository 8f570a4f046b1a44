package fakeengine

import "github.com/prefixring/prefixring/internal/dialect"

// routes lists what the dialect serves, by method and exact path.
func (e *Engine) routes() map[string]endpoint {
	t := map[string]endpoint{
		"POST /v1/chat/completions":      e.chat,
		"POST /v1/completions":           e.completions,
		"POST /v1/messages":              e.messages,
		"POST /v1/messages/count_tokens": e.countTokens,
		"POST /v1/responses":             e.responses,
		"POST /v1/embeddings":            e.embeddings,
		"POST /v1/audio/transcriptions":  e.transcribe,
		"GET /v1/models":                 e.models,
		"POST /tokenize":                 e.tokenize,
		"POST /detokenize":               e.detokenize,
		"GET /health":                    e.health,
		"GET /ping":                      e.ping,
	}
	if e.opts.Dialect == dialect.SGLang {
		e.sglangRoutes(t)
	} else {
		e.vllmRoutes(t)
	}
	return t
}

func (e *Engine) vllmRoutes(t map[string]endpoint) {
	t["POST /ping"] = e.ping
	t["POST /inference/v1/generate"] = e.generate
	t["GET /version"] = e.version
	t["GET /load"] = e.serverLoad
	t["GET /metrics"] = e.metrics
	t["POST /v1/chat/completions/render"] = func(x *wire) {
		x.fail(&apiError{403, "PermissionDeniedError", "Scale-out endpoints are disabled. Restart vllm serve with --enable-scale-out to enable them.", ""})
	}
	if e.opts.RuntimeLoRA {
		t["POST /v1/load_lora_adapter"] = e.loadAdapter
		t["POST /v1/unload_lora_adapter"] = e.unloadAdapter
	}
	if e.opts.DevMode {
		t["POST /sleep"] = e.goToSleep
		t["POST /wake_up"] = e.wakeUp
		t["GET /is_sleeping"] = e.isSleeping
		t["POST /reset_prefix_cache"] = e.resetCache
		t["GET /server_info"] = e.serverInfo
	}
}

func (e *Engine) sglangRoutes(t map[string]endpoint) {
	t["POST /v1/tokenize"], t["POST /v1/detokenize"] = e.tokenize, e.detokenize
	t["POST /generate"], t["PUT /generate"] = e.generate, e.generate
	t["GET /health_generate"] = e.health
	t["GET /server_info"], t["GET /get_server_info"] = e.serverInfo, e.serverInfo
	t["GET /model_info"], t["GET /get_model_info"] = e.modelInfo, e.modelInfo
	t["GET /v1/loads"] = e.loads1
	t["GET /get_load"] = e.oldLoad
	t["GET /flush_cache"], t["POST /flush_cache"] = e.flushCache, e.flushCache
	t["POST /load_lora_adapter"], t["POST /unload_lora_adapter"] = e.loadAdapter, e.unloadAdapter
	t["POST /release_memory_occupation"], t["POST /resume_memory_occupation"] = e.goToSleep, e.wakeUp
	if !e.opts.NoMetrics {
		t["GET /metrics"] = e.metrics
	}
}
