package proxy

import (
	"strconv"
	"time"

	"github.com/prefixring/prefixring/internal/dialect"
)

// failure is an error that the router itself answers with. Code is the value of
// X-Prefixring-Error, of metrics and of the log; it never changes its meaning.
type failure struct {
	code    string
	status  int
	message string
	param   string
	retry   time.Duration // Retry-After; 0 = none
	close   bool          // the connection can not be used for another request
}

// The failures, by the step that finds them. Codes and their statuses are those of
// dialect.Codes. Messages tell a client what to change and never carry an address, a
// key or a piece of a prompt.
var (
	// admit
	failPath     = newFailure("unknown_route", "this path is not served here")
	failMethod   = newFailure("method_not_allowed", "this path does not take this method")
	failFraming  = newFailure("bad_framing", "the request has both Content-Length and Transfer-Encoding").closing()
	failRequest  = newFailure("bad_request", "the request is not valid HTTP/1.1").closing()
	failHeader   = newFailure("bad_framing", "a request header is not valid").closing()
	failHeadSize = newFailure("headers_too_large", "the request head is larger than the limit").closing()
	failBodySize = newFailure("body_too_large", "the request body is larger than the limit").closing()
	failSlow     = newFailure("request_timeout", "the request did not arrive in time").closing()
	failUpgrade  = newFailure("not_supported", "this router does not switch protocols")
	failKey      = newFailure("unauthorized", "the API key is missing or not valid")
	failRate     = newFailure("rate_limited", "too many requests in one minute").after(time.Second)
	failParallel = newFailure("concurrency_limited", "too many requests at the same time").after(time.Second)
	failTokens   = newFailure("tokens_limited", "too many tokens in one minute").after(time.Second)
	failDraining = newFailure("draining", "this router is shutting down").after(time.Second).closing()

	// read
	failJSON    = newFailure("bad_json", "the request body is not one JSON object")
	failTwice   = newFailure("duplicate_field", "a field of the request occurs twice")
	failNoModel = newFailure("missing_model", "the request names no model").on("model")
	failModel   = newFailure("model_not_found", "this model is not served here").on("model")
	failLacks   = newFailure("not_able", "no member of this route can take the request")
	failStored  = newFailure("response_not_found", "no engine is known to hold this response")

	// pick
	failNoEngine  = newFailure("no_engine", "no engine of the pool is ready").after(time.Second)
	failBound     = newFailure("overloaded", "every engine of the pool is at its bound").after(time.Second)
	failQueueFull = newFailure("queue_full", "too many requests are waiting").after(time.Second)
	failQueueWait = newFailure("queue_timeout", "no engine became free in time").after(time.Second)

	// attempt
	failConnect     = newFailure("connect_failed", "no connection to an engine could be made")
	failConnectTime = newFailure("connect_timeout", "no connection to an engine could be made in time")
	failClosed      = newFailure("engine_closed", "the engine ended the connection before it answered")
	failReply       = newFailure("bad_engine_response", "the engine sent something that is not a valid response")
	failFirstByte   = newFailure("first_byte_timeout", "the engine did not begin to answer in time")
	failTotal       = newFailure("total_timeout", "the request took longer than the limit")

	// stream
	failIdle   = newFailure("idle_timeout", "the engine stopped answering")
	failCut    = newFailure("engine_closed", "the engine ended the connection in mid-answer")
	failEngine = newFailure("engine_error", "the engine reported an error")
	failStop   = newFailure("draining", "this router is shutting down").closing()
	failClient = newFailure("client_closed", "the client left")
	failStall  = newFailure("client_closed", "the client stopped reading")

	failInternal = newFailure("internal_error", "the router failed").closing()
)

func newFailure(code, message string) failure {
	c, ok := dialect.CodeOf(code)
	if !ok {
		panic("BUG: error code " + code + " is not in dialect.Codes")
	}
	return failure{code: code, status: c.Status, message: message}
}

func (f failure) closing() failure              { f.close = true; return f }
func (f failure) on(param string) failure       { f.param = param; return f }
func (f failure) after(d time.Duration) failure { f.retry = d; return f }

// body gives the failure the shape that clients of the protocol expect.
func (f *failure) body(p dialect.Protocol) []byte { return f.dialect().Body(p) }

// stream gives the failure as the last event of a stream.
func (f *failure) stream(p dialect.Protocol) []byte { return f.dialect().Stream(p) }

func (f *failure) dialect() dialect.Error {
	return dialect.Error{
		Status: f.status, Code: f.code, Message: f.message, Param: f.param,
		RetryAfterSeconds: f.retrySeconds(),
	}
}

// retrySeconds is Retry-After in whole seconds, never rounded down to zero.
func (f *failure) retrySeconds() int {
	return int((f.retry + time.Second - 1) / time.Second)
}

// with returns a copy that says which limit or field was met.
func (f failure) with(message string) *failure {
	f.message = message
	return &f
}

// limitBody is the refusal of a body, naming the limit in octets.
func limitBody(limit int) *failure {
	return failBodySize.with("the request body is larger than the limit of " + strconv.Itoa(limit) + " bytes")
}

// limitHead is the refusal of a head, naming the limit in octets.
func limitHead(limit int) *failure {
	return failHeadSize.with("the request head is larger than the limit of " + strconv.Itoa(limit) + " bytes")
}

// cause says why a call was cancelled before its own end.
type cause uint8

const (
	causeNone cause = iota
	causeClientGone
	causeClientStalled
	causeFirstByte
	causeIdle
	causeTotal
	causeDrain
	causePanic
)

// failure is what a cancelled call answers or ends its stream with.
func (c cause) failure() *failure {
	switch c {
	case causeClientGone:
		return &failClient
	case causeClientStalled:
		return &failStall
	case causeFirstByte:
		return &failFirstByte
	case causeIdle:
		return &failIdle
	case causeTotal:
		return &failTotal
	case causeDrain:
		return &failStop
	default:
		return &failInternal
	}
}
