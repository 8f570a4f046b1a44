package proxy

import (
	"bytes"
	"errors"
	"fmt"
)

// Limits on what an engine may send before its body. A head above maxReplyHead
// and more than maxInterim interim responses are a broken engine, not a reply.
const (
	maxReplyHead = 64 << 10
	maxInterim   = 16
)

var (
	errHeadTooLarge = errors.New("cannot read response head: larger than 64 KiB")
	errHeadInterim  = errors.New("cannot read response head: too many interim responses")
	errHeadUpgrade  = errors.New("cannot read response head: engine switched protocols unasked")
	errBadHead      = errors.New("cannot parse response head")
)

// replyHead is one parsed response head. Its raw bytes are a private copy, so
// fields stay valid while the body is read over the connection's buffer.
type replyHead struct {
	raw         []byte
	fields      []headField
	status      int
	reason      []byte
	contentType []byte
	retryAfter  []byte
	length      int64 // announced body length; -1 when none was announced
	chunked     bool
	keepAlive   bool // the engine will take another request on this connection
	encoded     bool // Content-Encoding other than identity: the tap can not read it
	eventStream bool
	hosted      bool // it is a hosted account's: not all of its fields are for the client
}

// headField is one header line of a reply, both parts pointing into replyHead.raw.
type headField struct {
	name, value []byte
}

// parse reads the head in raw, which ends with an empty line. It is strict where
// two readers could disagree about where the body ends (duplicate lengths, unknown
// transfer codings, folded lines, bare CR or LF): such a reply is never forwarded.
func (h *replyHead) parse(raw []byte) error {
	h.raw = append(h.raw[:0], raw...)
	h.fields = h.fields[:0]
	h.status, h.length = 0, -1
	h.reason, h.contentType, h.retryAfter = nil, nil, nil
	h.chunked, h.encoded, h.eventStream = false, false, false

	b := h.raw
	line, rest, ok := cutLine(b)
	if !ok {
		return errBadHead
	}
	minor, err := h.parseStatusLine(line)
	if err != nil {
		return err
	}
	h.keepAlive = minor == 1
	sawClose, sawKeep := false, false
	for {
		line, rest, ok = cutLine(rest)
		if !ok {
			return errBadHead
		}
		if len(line) == 0 {
			break
		}
		name, value, err := splitField(line)
		if err != nil {
			return err
		}
		h.fields = append(h.fields, headField{name, value})
		if err := h.note(name, value, &sawClose, &sawKeep); err != nil {
			return err
		}
	}
	if minor == 0 {
		h.keepAlive = sawKeep
		if h.chunked {
			return fmt.Errorf("%w: transfer coding on HTTP/1.0", errBadHead)
		}
	}
	if sawClose {
		h.keepAlive = false
	}
	if h.chunked && h.length >= 0 {
		// RFC 9112 section 6.3: the coding wins, and the connection is not trusted again.
		h.length = -1
		h.keepAlive = false
	}
	return nil
}

// parseStatusLine reads "HTTP/1.x NNN reason" and returns x.
func (h *replyHead) parseStatusLine(line []byte) (minor int, err error) {
	if len(line) < 12 || string(line[:7]) != "HTTP/1." || line[8] != ' ' {
		return 0, fmt.Errorf("%w: bad status line", errBadHead)
	}
	switch line[7] {
	case '0':
		minor = 0
	case '1':
		minor = 1
	default:
		return 0, fmt.Errorf("%w: bad protocol version", errBadHead)
	}
	for _, c := range line[9:12] {
		if c < '0' || c > '9' {
			return 0, fmt.Errorf("%w: bad status code", errBadHead)
		}
		h.status = h.status*10 + int(c-'0')
	}
	if h.status < 100 || (len(line) > 12 && line[12] != ' ') {
		return 0, fmt.Errorf("%w: bad status code", errBadHead)
	}
	if len(line) > 13 {
		h.reason = line[13:]
		if !validValue(h.reason) {
			return 0, fmt.Errorf("%w: bad reason phrase", errBadHead)
		}
	}
	return minor, nil
}

// note keeps what framing and routing need of one header field.
func (h *replyHead) note(name, value []byte, sawClose, sawKeep *bool) error {
	switch len(name) {
	case len("connection"):
		if foldEqual(name, "connection") {
			*sawClose = *sawClose || hasToken(value, "close")
			*sawKeep = *sawKeep || hasToken(value, "keep-alive")
		}
	case len("retry-after"):
		if foldEqual(name, "retry-after") {
			h.retryAfter = value
		}
	case len("content-type"):
		if foldEqual(name, "content-type") {
			h.contentType = value
			h.eventStream = hasFoldPrefix(value, "text/event-stream")
		}
	case len("content-length"):
		if foldEqual(name, "content-length") {
			n, ok := parseLength(value)
			if !ok || h.length >= 0 {
				return fmt.Errorf("%w: bad content-length", errBadHead)
			}
			h.length = n
		}
	case len("content-encoding"):
		if foldEqual(name, "content-encoding") {
			h.encoded = !foldEqual(value, "identity")
		}
	case len("transfer-encoding"):
		if foldEqual(name, "transfer-encoding") {
			if h.chunked || !foldEqual(value, "chunked") {
				return fmt.Errorf("%w: unsupported transfer coding", errBadHead)
			}
			h.chunked = true
		}
	}
	return nil
}

// bodyless reports that a reply with this status to this method has no body,
// whatever its headers announce (RFC 9112 section 6.3).
func (h *replyHead) bodyless(head bool) bool {
	return head || h.status == 204 || h.status == 304
}

// cutLine returns the bytes before the first CRLF and those after it.
func cutLine(b []byte) (line, rest []byte, ok bool) {
	i := bytes.IndexByte(b, '\n')
	if i < 1 || b[i-1] != '\r' {
		return nil, nil, false
	}
	return b[:i-1], b[i+1:], true
}

// splitField splits "name: value", refusing what a second parser could read
// differently: folded lines, space around the name, control bytes.
func splitField(line []byte) (name, value []byte, err error) {
	i := bytes.IndexByte(line, ':')
	if i <= 0 || !validToken(line[:i]) {
		return nil, nil, fmt.Errorf("%w: bad field name", errBadHead)
	}
	value = trimOWS(line[i+1:])
	if !validValue(value) {
		return nil, nil, fmt.Errorf("%w: bad field value", errBadHead)
	}
	return line[:i], value, nil
}

// parseLength reads a Content-Length: digits only, at most 18 of them.
func parseLength(v []byte) (int64, bool) {
	if len(v) == 0 || len(v) > 18 {
		return 0, false
	}
	var n int64
	for _, c := range v {
		if c < '0' || c > '9' {
			return 0, false
		}
		n = n*10 + int64(c-'0')
	}
	return n, true
}
