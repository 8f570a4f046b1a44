package fingerprint

import (
	"bytes"
	"unicode/utf16"
	"unicode/utf8"
)

var hexValue = func() (t [256]uint16) {
	for i := range t {
		t[i] = 0xffff
	}
	for i := range 10 {
		t['0'+i] = uint16(i)
	}
	for i := range 6 {
		t['a'+i], t['A'+i] = uint16(10+i), uint16(10+i)
	}
	return t
}()

// hex4 reads four hexadecimal digits. Any bad one sets bits above the 16.
func hex4(b []byte) (rune, bool) {
	_ = b[3]
	h0, h1, h2, h3 := hexValue[b[0]], hexValue[b[1]], hexValue[b[2]], hexValue[b[3]]
	return rune(h0<<12 | h1<<8 | h2<<4 | h3), h0|h1|h2|h3 < 16
}

// escapes rewrites the series of escapes that begins at i into the canonical spelling
// and returns the offset behind it and its decoded length.
func (p *parser) escapes(i int) (next, decoded int, ok bool) {
	b, n := p.b, 0
	for i < len(b) && b[i] == '\\' {
		if n > len(p.tmp)-longestEscape {
			if p.run >= 0 {
				p.out.write(p.tmp[:n])
			}
			n = 0
		}
		if i+6 <= len(b) && b[i+1] == 'u' {
			r, good := hex4(b[i+2 : i+6])
			if !good {
				return i, 0, p.fail(i, ReasonEscape)
			}
			i += 6
			if r >= 0x800 && !utf16.IsSurrogate(r) { // most of what is escaped in bulk
				p.tmp[n], p.tmp[n+1], p.tmp[n+2] = byte(0xe0|r>>12), byte(0x80|r>>6&0x3f), byte(0x80|r&0x3f)
				n += 3
				decoded += 3
				continue
			}
			if utf16.IsSurrogate(r) {
				r, i = pair(b, r, i)
			}
			n += len(appendCanonical(p.tmp[n:n], r))
			decoded += decodedLen(r)
			continue
		}
		if i+1 >= len(b) || b[i+1] == 'u' {
			return i, 0, p.fail(len(b), ReasonEnd)
		}
		switch c := b[i+1]; {
		case canonicalEscape[c] != 0:
			p.tmp[n], p.tmp[n+1] = '\\', c
			n += 2
		case c == '/':
			p.tmp[n] = '/'
			n++
		default:
			return i, 0, p.fail(i, ReasonEscape)
		}
		decoded++
		i += 2
	}
	if p.run >= 0 {
		p.out.write(p.tmp[:n])
	}
	return i, decoded, true
}

// longestEscape is the length of the longest canonical escape: \u and four digits.
const longestEscape = 6

// pair completes the surrogate r with the escape at i, if that is its other half.
func pair(b []byte, r rune, i int) (rune, int) {
	if i+6 <= len(b) && b[i] == '\\' && b[i+1] == 'u' {
		if low, good := hex4(b[i+2:]); good {
			if full := utf16.DecodeRune(r, low); full != utf8.RuneError {
				return full, i + 6
			}
		}
	}
	return r, i
}

// decodedLen is the UTF-8 length of r; a lone surrogate counts as the three bytes it
// would take.
func decodedLen(r rune) int {
	if utf16.IsSurrogate(r) {
		return 3
	}
	return utf8.RuneLen(r)
}

// appendCanonical appends the canonical spelling of r. A lone surrogate has no UTF-8
// and keeps its escape, so that it is not taken for U+FFFD.
func appendCanonical(dst []byte, r rune) []byte {
	const hex = "0123456789abcdef"
	switch {
	case r >= 0x20 && r != '"' && r != '\\' && !utf16.IsSurrogate(r):
		return utf8.AppendRune(dst, r)
	case r == '"' || r == '\\':
		return append(dst, '\\', byte(r))
	}
	for i, c := range []byte("\b\f\n\r\t") {
		if r == rune(c) {
			return append(dst, '\\', "bfnrt"[i])
		}
	}
	return append(dst, '\\', 'u', hex[r>>12], hex[r>>8&15], hex[r>>4&15], hex[r&15])
}

// canonicalText appends the canonical spelling of raw, the inside of a valid JSON
// string.
func canonicalText(dst, raw []byte) []byte {
	return respell(dst, raw, appendCanonical)
}

// Text appends the decoded value of the JSON string at s to dst. A span that does not
// hold a string, or an absent one, appends nothing; a lone surrogate becomes U+FFFD. s
// must come from a Scan of the same body.
func Text(body []byte, s Span, dst []byte) []byte {
	if s.End-s.Start < 2 || body[s.Start] != '"' {
		return dst
	}
	return respellText(dst, body[s.Start+1:s.End-1])
}

// respellText appends the decoded text of raw, the inside of a valid JSON string.
func respellText(dst, raw []byte) []byte { return respell(dst, raw, utf8.AppendRune) }

func respell(dst, raw []byte, put func([]byte, rune) []byte) []byte {
	for i := 0; i < len(raw); {
		if raw[i] != '\\' {
			n := bytes.IndexByte(raw[i:], '\\')
			if n < 0 {
				n = len(raw) - i
			}
			dst = append(dst, raw[i:i+n]...)
			i += n
			continue
		}
		r := rune(raw[i+1])
		i += 2
		switch r {
		case 'b':
			r = '\b'
		case 'f':
			r = '\f'
		case 'n':
			r = '\n'
		case 'r':
			r = '\r'
		case 't':
			r = '\t'
		case 'u':
			r, _ = hex4(raw[i:])
			i += 4
			if utf16.IsSurrogate(r) {
				r, i = pair(raw, r, i)
			}
		}
		dst = put(dst, r)
	}
	return dst
}
