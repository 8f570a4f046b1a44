package dialect

// AuthHeader returns the header that carries the engine's own key, or two empty
// strings when there is no key: an empty Bearer must never be sent. The form is
// Bearer for every protocol and both engines: vLLM answers 401 to the x-api-key
// of Anthropic clients (field case B19; capture vllm_messages_xapikey).
func AuthHeader(_ Protocol, _ Engine, key string) (name, value string) {
	if key == "" {
		return "", ""
	}
	return "Authorization", "Bearer " + key
}

// ChannelAuthHeader is AuthHeader for a hosted account: Anthropic-compatible
// hosts take x-api-key, all others Bearer.
func ChannelAuthHeader(p Protocol, key string) (name, value string) {
	if key == "" {
		return "", ""
	}
	if p == Messages {
		return "x-api-key", key
	}
	return "Authorization", "Bearer " + key
}

// EnginePriority turns an urgency (higher = sooner, 0 = normal) into the engine's
// own number for the request field `priority`: vLLM serves the lowest value
// first, SGLang the highest (engine_contracts 6.1).
func EnginePriority(e Engine, urgency int) int {
	if e == SGLang {
		return urgency
	}
	return -urgency
}

// RankHeader returns the request header that pins a data-parallel rank.
func RankHeader(e Engine) string {
	if e == SGLang {
		return "X-Data-Parallel-Rank"
	}
	return "X-data-parallel-rank"
}

// RankField returns the body field that pins a data-parallel rank, or "" where
// only the header exists. The header wins on SGLang.
func RankField(e Engine) string {
	if e == SGLang {
		return "routed_dp_rank"
	}
	return ""
}

// RankHonoured reports whether the engine reads the rank header on the protocol.
// vLLM does not read it on /v1/responses (engine_contracts 6.4).
func RankHonoured(e Engine, p Protocol) bool {
	return e == SGLang || p != Responses
}

// TakesIncludeUsage reports whether a stream of the protocol sends usage only
// when stream_options.include_usage asks for it. Responses and Messages always
// send it.
func TakesIncludeUsage(p Protocol) bool { return p == Chat || p == Completions }

// EngineOnlyHeaders are request headers that engines obey and that a client must
// not set through the router: they pick ranks, jump queues or change ids.
var EngineOnlyHeaders = []string{
	"X-Vllm-Priority", "X-Data-Parallel-Rank", "X-Override-Rid", "X-Smg-Routing-Key",
	"Endpoint-Load-Metrics-Format",
}

// Flag is an engine start-up flag that the router recommends.
type Flag struct {
	Name string // as typed, with its value where one is needed
	Why  string
}

// CachedTokensFlag returns the flag that makes the engine report cached tokens.
// Without it `usage` says null or nothing, hit or not (field case B67).
func CachedTokensFlag(e Engine) Flag {
	if e == SGLang {
		return Flag{"--enable-cache-report", "usage.prompt_tokens_details.cached_tokens is reported when it is above zero"}
	}
	return Flag{"--enable-prompt-tokens-details", "usage.prompt_tokens_details.cached_tokens is reported, zero included"}
}

// RecommendedFlags returns the engine flags this router works best with, the one
// of CachedTokensFlag first.
func RecommendedFlags(e Engine) []Flag {
	if e == SGLang {
		return []Flag{
			CachedTokensFlag(e),
			{"--enable-metrics", "/metrics is off by default; without it only answers show the load"},
			{"--host 0.0.0.0", "the default listens on 127.0.0.1 only"},
			{"--max-queued-requests N", "a finite queue answers 503 instead of growing"},
		}
	}
	return []Flag{
		CachedTokensFlag(e),
		{"--enable-request-id-headers", "the X-Request-Id of the router comes back in the answer"},
		{"--shutdown-timeout 120", "the default aborts running requests on SIGTERM"},
		{"--max-num-queued-tokens N", "0.29 and later: a finite queue answers 503 instead of growing"},
	}
}
