package proxy

import (
	"bytes"
	"slices"

	"github.com/prefixring/prefixring/internal/fingerprint"
)

// splices is a list of replacements in a request body. The body itself is never
// copied or written to: what goes to the engine is the list of its untouched pieces
// with the new ones between them, so every other octet is the client's.
type splices struct {
	edits []edit // by place
	text  []byte // backing of all replacements
}

type edit struct {
	span   fingerprint.Span // what is replaced; empty = insertion before Start
	t0, t1 int              // replacement in splices.text
}

func (s *splices) reset() { s.edits, s.text = s.edits[:0], s.text[:0] }

// replace plans an edit. Spans must not overlap; their order does not matter.
func (s *splices) replace(span fingerprint.Span, f func([]byte) []byte) {
	t0 := len(s.text)
	s.text = f(s.text)
	i := len(s.edits)
	for i > 0 && s.edits[i-1].span.Start > span.Start {
		i--
	}
	s.edits = slices.Insert(s.edits, i, edit{span, t0, len(s.text)})
}

// pieces appends the pieces of the spliced body to dst and returns their total
// length.
func (s *splices) pieces(body []byte, dst [][]byte) ([][]byte, int) {
	if len(s.edits) == 0 {
		return append(dst, body), len(body)
	}
	at, total := 0, len(body)
	for _, e := range s.edits {
		if e.span.Start > at {
			dst = append(dst, body[at:e.span.Start])
		}
		if e.t1 > e.t0 {
			dst = append(dst, s.text[e.t0:e.t1])
		}
		total += e.t1 - e.t0 - (e.span.End - e.span.Start)
		at = e.span.End
	}
	if at < len(body) {
		dst = append(dst, body[at:])
	}
	return dst, total
}

// headInsert is the place for new fields: just inside the top-level object. comma
// says if the object has fields already.
func headInsert(body []byte) (at fingerprint.Span, comma, ok bool) {
	i := 0
	for i < len(body) && isSpace(body[i]) {
		i++
	}
	if i == len(body) || body[i] != '{' {
		return at, false, false
	}
	i++
	at = fingerprint.Span{Start: i, End: i}
	for i < len(body) && isSpace(body[i]) {
		i++
	}
	return at, i < len(body) && body[i] != '}', true
}

// spliceUsage plans the edit that asks for usage in a stream.
func spliceUsage(s *splices, body []byte, options fingerprint.Span, head []byte) []byte {
	const field = `"include_usage":true`
	if !options.Present() {
		return append(head, `"stream_options":{`+field+`},`...)
	}
	v := body[options.Start:options.End]
	if len(v) == 0 || v[0] != '{' { // null: the same as absent
		s.replace(options, func(b []byte) []byte { return append(b, `{`+field+`}`...) })
		return head
	}
	empty := len(bytes.TrimSpace(v[1:len(v)-1])) == 0
	at := fingerprint.Span{Start: options.Start + 1, End: options.Start + 1}
	s.replace(at, func(b []byte) []byte {
		b = append(b, field...)
		if !empty {
			b = append(b, ',')
		}
		return b
	})
	return head
}

// appendJSONString appends s as a JSON string. Names come from configuration, so
// only what JSON demands is escaped.
func appendJSONString(dst []byte, s string) []byte {
	const hex = "0123456789abcdef"
	dst = append(dst, '"')
	for i := range len(s) {
		switch c := s[i]; {
		case c == '"' || c == '\\':
			dst = append(dst, '\\', c)
		case c < ' ':
			dst = append(dst, '\\', 'u', '0', '0', hex[c>>4], hex[c&15])
		default:
			dst = append(dst, c)
		}
	}
	return append(dst, '"')
}

func isSpace(c byte) bool { return c == ' ' || c == '\n' || c == '\r' || c == '\t' }
