package fingerprint

import (
	"encoding/binary"
	"math/bits"
	"unicode/utf8"
)

// parser walks one body. While run >= 0 the bytes it passes belong to the stream out:
// they are pending from run on and reach the digest in as few writes as the body's
// spelling allows (compact JSON: one).
type parser struct {
	s   *Scanner
	r   *Result
	b   []byte
	i   int
	run int
	out *sink

	depth int
	kinds [MaxMaxDepth/64 + 1]uint64 // one bit per open container: object or array
	field string
	err   *SyntaxError

	content, aux sink
	cuts         []cut // of the scanner, for Blocks
	tmp          [256]byte
	key          []byte   // backing for names that are spelled with escapes
	names        []uint64 // hashes of the top-level names
	table        []uint64 // the same, as a hash table, for bodies with very many

	found
}

func (p *parser) fail(at int, reason string) bool {
	if p.err == nil {
		p.err = &SyntaxError{Offset: at, Field: p.field, Reason: reason}
	}
	return false
}

// flush sends the pending bytes before end to the stream.
func (p *parser) flush(end int) {
	if end > p.run {
		p.out.raw(p.b[p.run:end])
		p.run = end
	}
}

// space passes white space, which is in no stream.
func (p *parser) space() {
	if p.i >= len(p.b) || p.b[p.i] <= ' ' {
		p.spaces()
	}
}

func (p *parser) spaces() {
	from := p.i
	p.i = spaces(p.b, from)
	if p.run >= 0 && p.i > from {
		p.flush(from)
		p.run = p.i
	}
}

// at reports whether the next byte is c.
func (p *parser) at(c byte) bool { return p.i < len(p.b) && p.b[p.i] == c }

// str passes the string whose opening quote is at i and returns its decoded length.
func (p *parser) str() (decoded int, ok bool) {
	b, i := p.b, p.i+1
	if n := short(b, i); n >= 0 {
		p.i = i + n + 1
		return n, true
	}
	for {
		n, escapes, high := textRun(b[i:])
		if high && !validUTF8(b[i:i+n]) {
			return 0, p.fail(i+invalidAt(b[i:i+n]), ReasonUTF8)
		}
		i += n
		decoded += n - escapes
		if i >= len(b) {
			return 0, p.fail(i, ReasonEnd)
		}
		switch b[i] {
		case '"':
			p.i = i + 1
			return decoded, true
		case '\\':
			if p.run >= 0 {
				p.flush(i)
			}
			next, d, good := p.escapes(i)
			if !good {
				return 0, false
			}
			i, decoded = next, decoded+d
			if p.run >= 0 {
				p.run = i
			}
		default:
			return 0, p.fail(i, ReasonControl)
		}
	}
}

// short returns the length of the string whose first character is at i if it is plain
// ASCII without escapes and shorter than sixteen bytes, as most names are, else -1. It
// saves them the way through textRun.
func short(b []byte, i int) int {
	if len(b)-i < 16 {
		return -1
	}
	for n := 0; n < 16; n += 8 {
		w := binary.LittleEndian.Uint64(b[i+n:])
		q := w ^ '"'*ones
		s := w ^ '\\'*ones
		quotes := (q - ones) &^ q & highs
		odd := (w | (s-ones)&^s | (w-0x20*ones)&^w) & highs
		if quotes != 0 {
			if odd&(quotes&-quotes-1) != 0 {
				return -1
			}
			return n + bits.TrailingZeros64(quotes)>>3
		}
		if odd != 0 {
			return -1
		}
	}
	return -1
}

// invalidAt is the offset of the first byte that is not UTF-8.
func invalidAt(b []byte) int {
	for i := 0; i < len(b); {
		r, n := utf8.DecodeRune(b[i:])
		if r == utf8.RuneError && n <= 1 {
			return i
		}
		i += n
	}
	return len(b)
}

func (p *parser) literal(word string) bool {
	if len(p.b)-p.i < len(word) {
		return p.fail(len(p.b), ReasonEnd)
	}
	if string(p.b[p.i:p.i+len(word)]) != word {
		return p.fail(p.i, ReasonLiteral)
	}
	p.i += len(word)
	return true
}

func digits(b []byte, i int) int {
	for i < len(b) && b[i]-'0' <= 9 {
		i++
	}
	return i
}

// number passes a number by the grammar of RFC 8259; NaN and Infinity are not in it.
func (p *parser) number() bool {
	b, i := p.b, p.i
	if i < len(b) && b[i] == '-' {
		i++
	}
	from := i
	i = digits(b, i)
	switch {
	case i == from:
		if i == len(b) {
			return p.fail(i, ReasonEnd)
		}
		if i == p.i {
			return p.fail(i, ReasonLiteral)
		}
		return p.fail(i, ReasonNumber)
	case b[from] == '0' && i > from+1:
		return p.fail(from, ReasonNumber)
	}
	if i < len(b) && b[i] == '.' {
		from = i + 1
		if i = digits(b, from); i == from {
			return p.fail(i, ReasonNumber)
		}
	}
	if i < len(b) && b[i]|0x20 == 'e' {
		i++
		if i < len(b) && (b[i] == '+' || b[i] == '-') {
			i++
		}
		from = i
		if i = digits(b, from); i == from {
			return p.fail(i, ReasonNumber)
		}
	}
	p.i = i
	return true
}

// push opens the container at i.
func (p *parser) push(object bool) bool {
	if p.depth >= p.s.maxDepth {
		return p.fail(p.i, ReasonDepth)
	}
	p.i++
	p.depth++
	w, bit := &p.kinds[p.depth>>6], uint64(1)<<(p.depth&63)
	if object {
		*w |= bit
	} else {
		*w &^= bit
	}
	return true
}

func (p *parser) inObject() bool { return p.kinds[p.depth>>6]>>(p.depth&63)&1 == 1 }

// value passes the value at i. Inside a hashed value, members named cache_control of
// objects not deeper than marks levels are left out of the stream with their comma: the
// marker moves between turns and renders to nothing.
func (p *parser) value(marks int) bool {
	if p.i < len(p.b) {
		if c := p.b[p.i]; c == '"' {
			_, ok := p.str()
			return ok
		} else if c != '{' && c != '[' {
			return p.scalar()
		}
	}
	base := p.depth
	for {
		if p.i >= len(p.b) {
			return p.fail(p.i, ReasonEnd)
		}
		opened, ok := p.token(base, marks)
		if !ok {
			return false
		}
		if opened {
			continue
		}
		for p.depth > base {
			next, ok := p.separator(base, marks)
			if !ok {
				return false
			}
			if next {
				break
			}
		}
		if p.depth == base {
			return true
		}
	}
}

// token passes a scalar, an empty container, or the opening of one up to its first
// value.
func (p *parser) token(base, marks int) (opened, ok bool) {
	switch p.b[p.i] {
	case '"':
		_, ok = p.str()
		return false, ok
	case '{':
		if !p.push(true) {
			return false, false
		}
		p.space()
		for p.depth-base <= marks && p.marker(p.i) {
			if !p.skipMarker(p.i) {
				return false, false
			}
			p.run = p.i
			p.space()
			if p.at(',') {
				p.i++
				p.run = p.i
				p.space()
				if p.at('}') {
					return false, p.fail(p.i, ReasonKey)
				}
			} else if !p.at('}') {
				return false, p.fail(p.i, p.endOr(ReasonComma))
			}
		}
		if p.at('}') {
			p.i++
			p.depth--
			return false, true
		}
		return true, p.name()
	case '[':
		if !p.push(false) {
			return false, false
		}
		p.space()
		if p.at(']') {
			p.i++
			p.depth--
			return false, true
		}
		return true, true
	}
	return false, p.scalar()
}

// scalar passes a literal or a number.
func (p *parser) scalar() bool {
	switch p.b[p.i] {
	case 't':
		return p.literal("true")
	case 'f':
		return p.literal("false")
	case 'n':
		return p.literal("null")
	}
	return p.number()
}

// separator passes what follows a value inside a container: a comma up to the next
// value, or the closing bracket.
func (p *parser) separator(base, marks int) (next, ok bool) {
	p.space()
	if p.i >= len(p.b) {
		return false, p.fail(p.i, ReasonEnd)
	}
	object := p.inObject()
	switch c := p.b[p.i]; {
	case c == ',' && object:
		if p.depth-base <= marks && p.run >= 0 {
			if j := spaces(p.b, p.i+1); p.marker(j) {
				if !p.skipMarker(j) {
					return false, false
				}
				p.run = p.i
				return false, true
			}
		}
		p.i++
		p.space()
		return true, p.name()
	case c == ',':
		p.i++
		p.space()
		return true, true
	case c == '}' && object, c == ']' && !object:
		p.i++
		p.depth--
		return false, true
	}
	return false, p.fail(p.i, ReasonComma)
}

func spaces(b []byte, i int) int {
	for i < len(b) && (b[i] == ' ' || b[i] == '\n' || b[i] == '\t' || b[i] == '\r') {
		i++
	}
	return i
}

// name passes a member name, its colon and the white space around.
func (p *parser) name() bool {
	if !p.at('"') {
		return p.fail(p.i, p.endOr(ReasonKey))
	}
	if _, ok := p.str(); !ok {
		return false
	}
	return p.colon()
}

func (p *parser) colon() bool {
	p.space()
	if !p.at(':') {
		return p.fail(p.i, p.endOr(ReasonColon))
	}
	p.i++
	p.space()
	return true
}

// endOr returns reason, or ReasonEnd at the end of the body.
func (p *parser) endOr(reason string) string {
	if p.i >= len(p.b) {
		return ReasonEnd
	}
	return reason
}

// skip passes the value at i without hashing and returns its span, absent for null.
func (p *parser) skip() (Span, bool) {
	from, null := p.i, p.at('n')
	if !p.value(0) || null {
		return Span{}, p.err == nil
	}
	return Span{from, p.i}, true
}

// hash passes the value at i and returns the hash of its canonical spelling. null is 0,
// like an absent value.
func (p *parser) hash(marks int) (sum uint64, ok bool) {
	from, null := p.i, p.at('n')
	p.aux.reset(nil)
	p.out, p.run = &p.aux, from
	ok = p.value(marks)
	if ok {
		p.flush(p.i)
		sum = p.aux.sum()
	}
	p.run = -1
	if null {
		sum = 0
	}
	return sum, ok
}

// open enters the object at i.
func (p *parser) open() bool {
	if !p.push(true) {
		return false
	}
	p.space()
	return true
}

// member moves to the next member of the object just opened or read from, and returns
// its name in canonical spelling. more is false behind the last one and on an error.
func (p *parser) member(first bool) (name []byte, more bool) {
	if !first {
		p.space()
	}
	switch {
	case p.at('}'):
		p.i++
		p.depth--
		return nil, false
	case first:
	case p.at(','):
		p.i++
		p.space()
	default:
		p.fail(p.i, p.endOr(ReasonComma))
		return nil, false
	}
	if !p.at('"') {
		p.fail(p.i, p.endOr(ReasonKey))
		return nil, false
	}
	from := p.i + 1
	decoded, ok := p.str()
	if !ok {
		return nil, false
	}
	name = p.b[from : p.i-1]
	if decoded != len(name) {
		p.key = canonicalText(p.key[:0], name)
		name = p.key
	}
	return name, p.colon()
}

// element moves to the next element of the array just opened or read from.
func (p *parser) element(first bool) (more bool) {
	p.space()
	switch {
	case p.at(']'):
		p.i++
		p.depth--
		return false
	case first:
		return true
	case p.at(','):
		p.i++
		p.space()
		return true
	}
	return p.fail(p.i, p.endOr(ReasonComma))
}
