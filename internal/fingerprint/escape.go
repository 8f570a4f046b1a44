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
	b, buf := p.b, p.tmp[:0]
	for i < len(b) && b[i] == '\\' {
		if i+1 >= len(b) {
			return i, 0, p.fail(len(b), ReasonEnd)
		}
		switch c := b[i+1]; {
		case canonicalEscape[c] != 0:
			buf = append(buf, '\\', c)
			decoded++
			i += 2
		case c == '/':
			buf = append(buf, '/')
			decoded++
			i += 2
		case c == 'u':
			if i+6 > len(b) {
				return i, 0, p.fail(len(b), ReasonEnd)
			}
			r, good := hex4(b[i+2:])
			if !good {
				return i, 0, p.fail(i, ReasonEscape)
			}
			i += 6
			if utf16.IsSurrogate(r) && i+6 <= len(b) && b[i] == '\\' && b[i+1] == 'u' {
				if low, good := hex4(b[i+2:]); good {
					if full := utf16.DecodeRune(r, low); full != utf8.RuneError {
						r, i = full, i+6
					}
				}
			}
			buf = appendCanonical(buf, r)
			decoded += decodedLen(r)
		default:
			return i, 0, p.fail(i, ReasonEscape)
		}
		if len(buf) > len(p.tmp)-8 {
			if p.run >= 0 {
				p.out.write(buf)
			}
			buf = buf[:0]
		}
	}
	if p.run >= 0 {
		p.out.write(buf)
	}
	return i, decoded, true
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
			if utf16.IsSurrogate(r) && i+6 <= len(raw) && raw[i] == '\\' && raw[i+1] == 'u' {
				low, _ := hex4(raw[i+2:])
				if full := utf16.DecodeRune(r, low); full != utf8.RuneError {
					r, i = full, i+6
				}
			}
		}
		dst = put(dst, r)
	}
	return dst
}
