package dialect

import (
	"strconv"
	"unicode/utf8"
)

// Error is an error that the router itself makes. Engines' own errors pass
// untouched and never go through this type.
type Error struct {
	Status  int    // HTTP status; zero takes the status of Code
	Code    string // one of Codes
	Message string // plain English, for a person; no prompt text, no key
	Param   string // the request field at fault; "" renders as null
	// RetryAfterSeconds is the value of Retry-After; 0 sends none.
	RetryAfterSeconds int
	// RequestID is repeated in Anthropic-shaped bodies, as that API does; "" leaves it out.
	RequestID string
	// Sequence is the sequence_number of a Responses stream's error event: the
	// number of events that the client has already got.
	Sequence int64
}

// StatusCode returns Status, or the status of Code when Status is zero.
func (e Error) StatusCode() int {
	if e.Status != 0 {
		return e.Status
	}
	if c, ok := CodeOf(e.Code); ok {
		return c.Status
	}
	return 500
}

// Error makes the type usable as a Go error.
func (e Error) Error() string { return e.Code + ": " + e.Message }

// Body returns the JSON body of the error in the shape of the protocol spoken:
// Anthropic's for Messages, OpenAI's for the rest.
func (e Error) Body(p Protocol) []byte {
	b := make([]byte, 0, 160+len(e.Message))
	if p == Messages {
		return e.appendClaude(b)
	}
	b = append(b, `{"error":`...)
	b = e.appendOpenAI(b)
	return append(b, '}')
}

// Stream returns the error framed as the last bytes of an event stream that has
// already begun. No [DONE] follows: a client that takes [DONE] for success would
// believe that its answer is whole.
func (e Error) Stream(p Protocol) []byte {
	b := make([]byte, 0, 320+2*len(e.Message))
	switch p {
	case Messages:
		b = append(b, "event: error\ndata: "...)
		b = e.appendClaude(b)
	case Responses:
		b = append(b, "event: error\ndata: "...)
		b = e.appendResponses(b)
	default:
		b = append(b, `data: {"error":`...)
		b = e.appendOpenAI(b)
		b = append(b, '}')
	}
	return append(b, "\n\n"...)
}

func (e Error) appendOpenAI(b []byte) []byte {
	b = append(b, `{"message":`...)
	b = appendJSONString(b, e.Message)
	b = append(b, `,"type":`...)
	b = appendJSONString(b, e.info().OpenAI)
	b = append(b, `,"param":`...)
	b = appendParam(b, e.Param)
	b = append(b, `,"code":`...)
	b = appendJSONString(b, e.Code)
	return append(b, '}')
}

func (e Error) appendClaude(b []byte) []byte {
	b = append(b, `{"type":"error","error":{"type":`...)
	b = appendJSONString(b, e.info().Claude)
	b = append(b, `,"message":`...)
	b = appendJSONString(b, e.Message)
	b = append(b, '}')
	if e.RequestID != "" {
		b = append(b, `,"request_id":`...)
		b = appendJSONString(b, e.RequestID)
	}
	return append(b, '}')
}

// appendResponses writes the documented flat fields and the nested object: the
// schema of the error event is flat, yet the official clients raise only when
// they find an object under "error".
func (e Error) appendResponses(b []byte) []byte {
	b = append(b, `{"type":"error","code":`...)
	b = appendJSONString(b, e.Code)
	b = append(b, `,"message":`...)
	b = appendJSONString(b, e.Message)
	b = append(b, `,"param":`...)
	b = appendParam(b, e.Param)
	b = append(b, `,"error":`...)
	b = e.appendOpenAI(b)
	b = append(b, `,"sequence_number":`...)
	b = strconv.AppendInt(b, e.Sequence, 10)
	return append(b, '}')
}

func appendParam(b []byte, param string) []byte {
	if param == "" {
		return append(b, "null"...)
	}
	return appendJSONString(b, param)
}

const hexDigits = "0123456789abcdef"

// appendJSONString appends s as a JSON string. Bytes that are not UTF-8 become
// U+FFFD, and line breaks are escaped, so that the text can never end an SSE
// line. HTML characters stay as they are.
func appendJSONString(b []byte, s string) []byte {
	b = append(b, '"')
	for i := 0; i < len(s); {
		c := s[i]
		if c < utf8.RuneSelf {
			switch {
			case c == '"' || c == '\\':
				b = append(b, '\\', c)
			case c == '\n':
				b = append(b, '\\', 'n')
			case c < 0x20 || c == 0x7f:
				b = append(b, '\\', 'u', '0', '0', hexDigits[c>>4], hexDigits[c&15])
			default:
				b = append(b, c)
			}
			i++
			continue
		}
		r, size := utf8.DecodeRuneInString(s[i:])
		b = utf8.AppendRune(b, r)
		i += size
	}
	return append(b, '"')
}
