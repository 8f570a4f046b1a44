package proxy

import (
	"bytes"
	"net/netip"
	"strconv"
	"strings"

	"github.com/valyala/fasthttp"

	"github.com/prefixring/prefixring/internal/dialect"
)

// Header policy. What goes to an engine is built from nothing: a field is copied
// only when its name is valid and on none of the lists below. So a hop-by-hop
// field, a client's key or a router header cannot leak by being forgotten.

// requestDrop are request fields that are never forwarded.
var requestDrop = map[string]bool{
	// Hop by hop (RFC 9110 section 7.6.1) and framing, which is our own.
	"connection": true, "proxy-connection": true, "keep-alive": true, "te": true,
	"trailer": true, "transfer-encoding": true, "upgrade": true,
	"proxy-authorization": true, "proxy-authenticate": true,
	"content-length": true, "host": true,
	// Answered here: fasthttp sends the 100.
	"expect": true,
	// The client's key goes no further; the engine's own is added (B19).
	"authorization": true, "x-api-key": true,
	// Made unique and added again.
	"x-request-id": true,
	// Ours.
	"x-prefixring-conversation": true, "x-prefixring-explain": true, "x-prefixring-lane": true,
}

func init() {
	for _, name := range dialect.EngineOnlyHeaders {
		requestDrop[strings.ToLower(name)] = true
	}
}

// longestDropped is the length of the longest name above.
const longestDropped = 28

// appendRequestHead appends the request head for one attempt to dst.
func (c *call) appendRequestHead(dst []byte, up *Upstream, bodyLength int) []byte {
	h := &c.ctx.Request.Header
	dst = append(dst, h.Method()...)
	dst = append(dst, ' ')
	dst = append(dst, up.prefix...)
	dst = append(dst, originForm(h.RequestURI())...)
	dst = append(dst, " HTTP/1.1\r\nHost: "...)
	dst = append(dst, up.host...)
	dst = append(dst, crlf...)
	if up.account != nil {
		return c.appendLength(c.appendHostedFields(dst, up), bodyLength)
	}
	dst = appendForwarded(dst, h)
	dst = c.appendForwardedFor(dst)
	dst = append(dst, "X-Request-Id: "...)
	dst = append(dst, c.id...)
	if c.record.Tries > 1 {
		// An engine may still hold the id of an earlier attempt (engine_contracts 6.1).
		dst = append(dst, '-')
		dst = strconv.AppendInt(dst, int64(c.record.Tries), 10)
	}
	dst = append(dst, crlf...)
	dst = c.appendCredentials(dst, up)
	if up.rank >= 0 && dialect.RankHonoured(up.engine, c.protocol) {
		dst = append(dst, dialect.RankHeader(up.engine)...)
		dst = append(dst, ": "...)
		dst = strconv.AppendInt(dst, int64(up.rank), 10)
		dst = append(dst, crlf...)
	}
	return c.appendLength(dst, bodyLength)
}

// appendLength ends a request head.
func (c *call) appendLength(dst []byte, bodyLength int) []byte {
	h := &c.ctx.Request.Header
	if bodyLength > 0 || h.IsPost() || h.IsPut() || h.IsPatch() {
		dst = append(dst, "Content-Length: "...)
		dst = strconv.AppendInt(dst, int64(bodyLength), 10)
		dst = append(dst, crlf...)
	}
	return append(dst, crlf...)
}

const crlf = "\r\n"

// appendForwarded copies the client's own fields, in its order and spelling.
// validHeaders has checked every line before.
func appendForwarded(dst []byte, h *fasthttp.RequestHeader) []byte {
	named := connectionNamed(h)
	for rest := h.RawHeaders(); ; {
		line, more, ok := cutLine(rest)
		if !ok || len(line) == 0 {
			return dst
		}
		rest = more
		name := line[:max(bytes.IndexByte(line, ':'), 0)]
		if dropped(name) || (len(named) > 0 && hasFoldToken(named, name)) {
			continue
		}
		dst = append(dst, line...)
		dst = append(dst, crlf...)
	}
}

// dropped looks a field name up in requestDrop, without caring for case.
func dropped(name []byte) bool {
	if len(name) > longestDropped {
		return false
	}
	var low [longestDropped]byte
	for i, c := range name {
		if c >= 'A' && c <= 'Z' {
			c += 'a' - 'A'
		}
		low[i] = c
	}
	return requestDrop[string(low[:len(name)])]
}

// connectionNamed returns the fields that the client's Connection header makes hop
// by hop. Close and keep-alive are no fields.
func connectionNamed(h *fasthttp.RequestHeader) []byte {
	v := h.Peek(fasthttp.HeaderConnection)
	if len(v) == 0 || foldEqual(v, "close") || foldEqual(v, "keep-alive") {
		return nil
	}
	return v
}

// hasFoldToken reports that the comma list names the field.
func hasFoldToken(list, name []byte) bool {
	for len(list) > 0 {
		item := list
		if i := bytes.IndexByte(list, ','); i >= 0 {
			item, list = list[:i], list[i+1:]
		} else {
			list = nil
		}
		if bytes.EqualFold(trimOWS(item), name) {
			return true
		}
	}
	return false
}

// appendForwardedFor adds the client's address to the chain it brought, as one more
// line: lines of one name are one list (RFC 9110 section 5.3).
func (c *call) appendForwardedFor(dst []byte) []byte {
	addr, ok := netip.AddrFromSlice(c.ctx.RemoteIP())
	if !ok || addr.IsUnspecified() {
		return dst
	}
	dst = append(dst, "X-Forwarded-For: "...)
	dst = addr.Unmap().AppendTo(dst)
	return append(dst, crlf...)
}

// appendCredentials adds the engine's own key in the form that its dialect takes on
// this protocol. Without one nothing is sent, never an empty header (B19).
func (c *call) appendCredentials(dst []byte, up *Upstream) []byte {
	if line := up.credential(c.protocol); line != "" {
		return append(dst, line...)
	}
	if c.p.opts.PassClientKey {
		h := &c.ctx.Request.Header
		for _, name := range [...]string{"Authorization", "X-Api-Key"} {
			if v := h.Peek(name); len(v) > 0 {
				dst = append(dst, name...)
				dst = append(dst, ": "...)
				dst = append(dst, v...)
				dst = append(dst, crlf...)
			}
		}
	}
	return dst
}

// originForm returns path and query of a request target: a client may send the
// absolute form (RFC 9112 section 3.2.2).
func originForm(target []byte) []byte {
	if len(target) > 0 && target[0] == '/' {
		return target
	}
	i := bytes.Index(target, []byte("://"))
	if i < 0 {
		return target
	}
	rest := target[i+3:]
	if j := bytes.IndexAny(rest, "/?"); j >= 0 {
		return rest[j:]
	}
	return []byte("/")
}

// checkHeaders refuses a head that another parser could read differently from
// fasthttp: both framings, folded lines, names or values with odd octets.
func checkHeaders(h *fasthttp.RequestHeader) *failure {
	length, coding := false, false
	for rest := h.RawHeaders(); ; {
		line, more, ok := cutLine(rest)
		if !ok {
			if len(rest) == 0 {
				break
			}
			return &failHeader
		}
		if len(line) == 0 {
			break
		}
		rest = more
		name, _, err := splitField(line)
		if err != nil {
			return &failHeader
		}
		switch len(name) {
		case len("content-length"):
			length = length || foldEqual(name, "content-length")
		case len("transfer-encoding"):
			coding = coding || foldEqual(name, "transfer-encoding")
		}
	}
	if length && coding {
		return &failFraming
	}
	return nil
}

// replyDrop are response fields that are never forwarded.
func replyDropped(name []byte) bool {
	switch len(name) {
	case len("te"):
		return foldEqual(name, "te")
	case len("upgrade"):
		return foldEqual(name, "upgrade") || foldEqual(name, "trailer")
	case len("connection"):
		return foldEqual(name, "connection") || foldEqual(name, "keep-alive")
	case len("content-length"):
		return foldEqual(name, "content-length")
	case len("proxy-connection"):
		return foldEqual(name, "proxy-connection")
	case len("transfer-encoding"):
		return foldEqual(name, "transfer-encoding")
	case len("proxy-authenticate"):
		return foldEqual(name, "proxy-authenticate")
	}
	return false
}

// copyReplyHead gives the client's response the engine's status and fields.
func copyReplyHead(dst *fasthttp.ResponseHeader, h *replyHead, status int) {
	dst.SetStatusCode(status)
	if status == h.status && len(h.reason) > 0 && string(h.reason) != fasthttp.StatusMessage(status) {
		dst.SetStatusMessage(h.reason)
	}
	var named []byte
	for _, f := range h.fields {
		if len(f.name) == len("connection") && foldEqual(f.name, "connection") &&
			!foldEqual(f.value, "close") && !foldEqual(f.value, "keep-alive") {
			named = f.value
		}
	}
	for _, f := range h.fields {
		if replyDropped(f.name) || h.private(f.name) || (named != nil && hasFoldToken(named, f.name)) {
			continue
		}
		dst.AddBytesKV(f.name, f.value)
	}
}
