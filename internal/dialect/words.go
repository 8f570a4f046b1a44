package dialect

// kind classifies a stream event by its type.
type kind uint8

const (
	kindNone kind = iota
	kindOther
	kindDelta // any Responses type that ends in ".delta"
	kindError
	kindRespCompleted
	kindRespIncomplete
	kindRespFailed
	kindRespCancelled
	kindAnnounce // says that an answer will come, and nothing of it
	kindMessageDelta
	kindMessageStop
)

func kindOf(b []byte) kind {
	switch string(b) {
	case "":
		return kindNone
	case "error":
		return kindError
	case "response.completed":
		return kindRespCompleted
	case "response.incomplete":
		return kindRespIncomplete
	case "response.failed":
		return kindRespFailed
	case "response.cancelled":
		return kindRespCancelled
	case "response.created", "response.in_progress", "response.queued", "message_start", "ping":
		return kindAnnounce
	case "message_delta":
		return kindMessageDelta
	case "message_stop":
		return kindMessageStop
	}
	const suffix = ".delta"
	if n := len(b) - len(suffix); n > 0 && string(b[n:]) == suffix {
		return kindDelta
	}
	return kindOther
}

// status is the `status` of a Responses object.
type status uint8

const (
	statusNone status = iota
	statusOther
	statusCompleted
	statusIncomplete
	statusFailed
	statusCancelled
)

func statusOf(b []byte) status {
	switch string(b) {
	case "completed":
		return statusCompleted
	case "incomplete":
		return statusIncomplete
	case "failed":
		return statusFailed
	case "cancelled":
		return statusCancelled
	}
	return statusOther
}

// reason is an interned finish or stop reason: an index into reasons.
type reason uint8

const (
	reasonNone  reason = 0
	reasonOther reason = 1
)

// reasons holds every finish reason that either engine or a hosted API is known
// to send, with what it proves. Order within a verdict has no meaning. A reason
// that is not here proves nothing: nothing is believed without evidence.
var reasons = [...]struct {
	name    string
	verdict Verdict
}{
	reasonNone:  {"", Unproven},
	reasonOther: {"other", Unproven},

	{"stop", Success}, {"tool_calls", Success}, {"function_call", Success},
	{"end_turn", Success}, {"stop_sequence", Success}, {"tool_use", Success},

	{"length", Incomplete}, {"max_tokens", Incomplete}, {"max_output_tokens", Incomplete},
	{"content_filter", Incomplete}, {"refusal", Incomplete}, {"pause_turn", Incomplete},
	{"model_context_window_exceeded", Incomplete},
	{"abort", Incomplete}, {"repetition", Incomplete},

	{"error", Failed},
}

func reasonOf(b []byte) reason {
	if len(b) == 0 {
		return reasonOther
	}
	for i := range reasons {
		if len(reasons[i].name) == len(b) && reasons[i].name == string(b) {
			return reason(i)
		}
	}
	return reasonOther
}

// worse returns the reason that weighs more when several choices of one answer
// end differently: failed, then unproven, then incomplete, then success.
func worse(a, b reason) reason {
	if a == reasonNone || weight(b) > weight(a) {
		return b
	}
	return a
}

func weight(r reason) int {
	switch reasons[r].verdict {
	case Failed:
		return 3
	case Unproven:
		return 2
	case Incomplete:
		return 1
	default:
		return 0
	}
}

// errorStatus turns the code or the type of an error object into the HTTP status
// that the engine would have answered with, 0 when it says nothing.
func errorStatus(b []byte) int {
	n := 0
	for _, c := range b {
		if c < '0' || c > '9' || n > 999 {
			return errorStatusByName(b)
		}
		n = n*10 + int(c-'0')
	}
	return statusRange(int64(n))
}

func statusRange(n int64) int {
	if n < 400 || n > 599 {
		return 0
	}
	return int(n)
}

func errorStatusByName(b []byte) int {
	switch string(b) {
	case "invalid_request_error", "BadRequestError", "Bad Request", "context_length_exceeded", "invalid_prompt":
		return 400
	case "authentication_error", "invalid_api_key":
		return 401
	case "insufficient_quota", "rate_limit_error", "rate_limit_exceeded", "RateLimitError":
		return 429
	case "permission_error", "PermissionDeniedError":
		return 403
	case "not_found_error", "NotFoundError", "model_not_found":
		return 404
	case "request_too_large":
		return 413
	case "api_error", "server_error", "InternalServerError", "Internal Server Error", "internal_error":
		return 500
	case "ServiceUnavailableError", "service_unavailable", "Service Unavailable":
		return 503
	case "timeout_error":
		return 504
	case "overloaded_error":
		return 529
	}
	return 0
}
