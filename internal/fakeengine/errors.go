package fakeengine

import (
	"fmt"
	"net/http"
	"strconv"

	"github.com/prefixring/prefixring/internal/dialect"
)

// apiError is an error of the engine, before it takes the dialect's shape.
type apiError struct {
	status  int
	kind    string // error.type
	message string
	param   string // "" is null
}

func (a *apiError) Error() string { return a.message }

func badRequest(param, format string, args ...any) *apiError {
	return &apiError{http.StatusBadRequest, "BadRequestError", fmt.Sprintf(format, args...), param}
}

// invalid is what the framework's own validation answers.
func invalid(param, message string) *apiError {
	return &apiError{http.StatusBadRequest, "Bad Request", message, param}
}

func notFound(param, format string, args ...any) *apiError {
	return &apiError{http.StatusNotFound, "NotFoundError", fmt.Sprintf(format, args...), param}
}

// missing is a required field that is not there (capture vllm_err_nomsg).
func (e *Engine) missing(body value, field string) *apiError {
	if e.opts.Dialect == dialect.SGLang {
		return invalid("", fmt.Sprintf("[{'type': 'missing', 'loc': ('body', '%s'), 'msg': 'Field required'}]", field))
	}
	n := 0
	body.each(func(_, _ value) { n++ })
	return invalid("body."+field, fmt.Sprintf("1 validation error:\n  {'type': 'missing', 'loc': 'body.%s', 'msg': 'Field required', 'input': '<dict of %d items>'}", field, n))
}

// badJSON is a body that is not JSON (capture vllm_err_badjson).
func (e *Engine) badJSON(err *syntaxError) *apiError {
	if e.opts.Dialect == dialect.SGLang {
		return invalid("", fmt.Sprintf("[{'type': 'json_invalid', 'loc': ('body', %d), 'msg': 'JSON decode error', 'input': {}, 'ctx': {'error': '%s'}}]", err.offset, err.reason))
	}
	loc := "body." + strconv.Itoa(err.offset)
	return invalid(loc, fmt.Sprintf("1 validation error:\n  {'type': 'json_invalid', 'loc': '%s', 'msg': 'JSON decode error', 'input': '<dict of 0 items>', 'ctx': {'error': '%s'}}", loc, err.reason))
}

// queueFull is the refusal of a full queue. vLLM refuses since 0.29 and only when
// told a limit; its body was not seen on a wire, the shape is that of its other errors.
func (e *Engine) queueFull() *apiError {
	if e.opts.Dialect == dialect.SGLang {
		return &apiError{http.StatusServiceUnavailable, "SERVICE_UNAVAILABLE", "The request queue is full.", ""}
	}
	return &apiError{http.StatusServiceUnavailable, "ServiceUnavailableError", "The server is overloaded: the number of queued requests is at its limit.", ""}
}

// errorBody shapes an error: vLLM nests it, SGLang is flat, Messages is Anthropic's.
func (e *Engine) errorBody(a *apiError, messages bool) []byte {
	if messages && a.kind != "Bad Request" { // the framework's own errors keep the common shape
		return e.anthropicError(a)
	}
	if e.opts.Dialect == dialect.SGLang {
		kind := a.kind
		if a.status == http.StatusServiceUnavailable {
			kind = strconv.Itoa(a.status) // raised as an HTTPException, whose handler puts the number here
		}
		return appendError([]byte(`{"object":"error",`), a, kind)
	}
	return append(appendError([]byte(`{"error":{`), a, a.kind), '}')
}

func appendError(b []byte, a *apiError, kind string) []byte {
	b = quote(append(b, `"message":`...), a.message)
	b = quote(append(b, `,"type":`...), kind)
	b = append(b, `,"param":`...)
	if a.param == "" {
		b = append(b, "null"...)
	} else {
		b = quote(b, a.param)
	}
	return fmt.Appendf(b, `,"code":%d}`, a.status)
}

func (e *Engine) anthropicError(a *apiError) []byte {
	kind := a.kind
	if e.opts.Dialect == dialect.SGLang {
		switch {
		case a.status == http.StatusNotFound:
			kind = "not_found_error"
		case a.status == http.StatusServiceUnavailable:
			kind = "overloaded_error"
		case a.status < 500:
			kind = "invalid_request_error"
		default:
			kind = "api_error"
		}
	}
	b := quote([]byte(`{"type":"error","error":{"type":`), kind)
	b = quote(append(b, `,"message":`...), a.message)
	return append(b, "}}"...)
}

// errorEvent is an error inside a stream of the path's protocol, with all that
// follows it: [DONE] on chat and completions (engine_contracts 1), message_stop
// after an SGLang Messages error, nothing on Responses.
func (e *Engine) errorEvent(a *apiError, path string) []byte {
	switch path {
	case "/v1/messages":
		b := append([]byte("event: error\ndata: "), e.anthropicError(a)...)
		b = append(b, "\n\n"...)
		if e.opts.Dialect == dialect.SGLang {
			b = append(b, "event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n"...)
		}
		return b
	case "/v1/responses":
		return append(append([]byte("data: "), appendError([]byte(`{"error":{`), a, a.kind)...), "}\n\n"...)
	}
	b := []byte(`data: {"error":{`)
	if e.opts.Dialect == dialect.SGLang {
		b = append(b, `"object":"error",`...)
	}
	return append(appendError(b, a, a.kind), "}\n\ndata: [DONE]\n\n"...)
}
