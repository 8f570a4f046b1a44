package dialect

// CodeInfo is one error that the router itself can answer with.
type CodeInfo struct {
	Code    string // the value of X-Prefixring-Error and of `code` in OpenAI-shaped bodies
	Status  int
	OpenAI  string // `error.type` in OpenAI-shaped bodies
	Claude  string // `error.type` in Anthropic-shaped bodies
	Meaning string // one sentence for the documentation
}

// Codes lists every error of the router, in the order of docs/errors. The status
// follows field case B54: a header wait that is exceeded is 504, nobody accepts
// the connection is 502, nobody may take the work is 503.
var Codes = []CodeInfo{
	{"bad_request", 400, typeInvalid, typeInvalid, "The request is not valid HTTP or lacks what its path needs."},
	{"bad_framing", 400, typeInvalid, typeInvalid, "Length and chunking contradict each other, or a header is malformed; the connection is closed."},
	{"bad_json", 400, typeInvalid, typeInvalid, "The body is not one JSON object; the message names the byte offset."},
	{"duplicate_field", 400, typeInvalid, typeInvalid, "A top-level field occurs twice, so that two readers could see two requests."},
	{"missing_model", 400, typeInvalid, typeInvalid, "The body has no model and the router serves more than one."},
	{"not_able", 400, typeInvalid, typeInvalid, "No member of the route can take the request; the message names what is lacking: protocol, context length, tools or images."},
	{"invalid_header", 400, typeInvalid, typeInvalid, "A request header has a value that cannot be passed on."},
	{"unauthorized", 401, "authentication_error", "authentication_error", "The client key is missing or unknown."},
	{"forbidden", 403, "permission_error", "permission_error", "The client key may not use this model or path."},
	{"unknown_route", 404, "not_found_error", typeNotFound, "The path is not one that the data port forwards."},
	{"model_not_found", 404, "not_found_error", typeNotFound, "No pool or route serves the model."},
	{"response_not_found", 404, "not_found_error", typeNotFound, "No engine is known to hold the stored response."},
	{"method_not_allowed", 405, typeInvalid, typeInvalid, "The path exists, the method does not; see the Allow header."},
	{"request_timeout", 408, typeInvalid, typeInvalid, "The request did not arrive within the read limit."},
	{"body_too_large", 413, typeInvalid, "request_too_large", "The body is above the limit that the message names."},
	{"unsupported_media_type", 415, typeInvalid, typeInvalid, "JSON paths take application/json, audio paths multipart/form-data."},
	{"headers_too_large", 431, typeInvalid, typeInvalid, "The header block is above the limit that the message names."},
	{"rate_limited", 429, typeRate, typeRate, "The tenant's requests per minute are used up."},
	{"tokens_limited", 429, typeRate, typeRate, "The tenant's tokens per minute are used up."},
	{"concurrency_limited", 429, typeRate, typeRate, "The tenant has too many requests in flight."},
	{"budget_exceeded", 429, "insufficient_quota", typeRate, "The tenant's daily budget is used up."},
	{"client_closed", 499, typeServer, typeAPI, "The client left; written to the log only."},
	{"internal_error", 500, typeServer, typeAPI, "A fault of the router."},
	{"not_supported", 501, typeInvalid, typeInvalid, "The protocol upgrade is not supported."},
	{"connect_failed", 502, typeServer, typeAPI, "No engine accepted the connection."},
	{"engine_closed", 502, typeServer, typeAPI, "The engine closed the connection before its answer was whole."},
	{"bad_engine_response", 502, typeServer, typeAPI, "The engine's answer is not valid HTTP."},
	{"engine_error", 502, typeServer, typeAPI, "The engine reported an error inside a stream that had begun with status 200."},
	{"no_engine", 503, typeServer, typeOverloaded, "No engine of the pool is ready."},
	{"overloaded", 503, typeServer, typeOverloaded, "Every engine of the pool is at its bound and the queue may not hold more."},
	{"queue_full", 503, typeServer, typeOverloaded, "The router's queue is full."},
	{"queue_timeout", 503, typeServer, typeOverloaded, "No engine had room within the queue's wait limit."},
	{"retries_exhausted", 503, typeServer, typeOverloaded, "The engines tried all refused, and the retry limit or budget is used up."},
	{"draining", 503, typeServer, typeOverloaded, "The router is shutting down."},
	{"connect_timeout", 504, typeServer, typeTimeout, "The connection to the engine was not made in time."},
	{"first_byte_timeout", 504, typeServer, typeTimeout, "The engine did not begin to answer within the first-byte limit."},
	{"idle_timeout", 504, typeServer, typeTimeout, "The engine was silent between two events for longer than the limit."},
	{"total_timeout", 504, typeServer, typeTimeout, "The request took longer than the total limit."},
}

const (
	typeInvalid    = "invalid_request_error"
	typeRate       = "rate_limit_error"
	typeServer     = "server_error"
	typeNotFound   = "not_found_error"
	typeAPI        = "api_error"
	typeOverloaded = "overloaded_error"
	typeTimeout    = "timeout_error"
)

// CodeOf returns the entry of a code in Codes.
func CodeOf(code string) (CodeInfo, bool) {
	for i := range Codes {
		if Codes[i].Code == code {
			return Codes[i], true
		}
	}
	return CodeInfo{}, false
}

// info completes an error: by its code, else by the class of its status.
func (e Error) info() CodeInfo {
	if c, ok := CodeOf(e.Code); ok {
		return c
	}
	c := CodeInfo{Code: e.Code, Status: e.Status, OpenAI: typeServer, Claude: typeAPI}
	if e.Status >= 400 && e.Status < 500 {
		c.OpenAI, c.Claude = typeInvalid, typeInvalid
	}
	return c
}
