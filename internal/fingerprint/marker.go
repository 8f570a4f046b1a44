package fingerprint

import "bytes"

const markerName = "cache_control"

// marker reports whether a hashed value has the member name cache_control at i.
func (p *parser) marker(i int) bool {
	if p.run < 0 || len(p.b)-i < len(markerName)+2 || p.b[i] != '"' {
		return false
	}
	switch p.b[i+1] {
	case 'c':
		if p.b[i+2] != 'a' && p.b[i+2] != '\\' {
			return false
		}
	case '\\':
	default:
		return false
	}
	const longest = 6 * len(markerName) // every character as \u00xx
	name := p.b[i+1 : min(len(p.b), i+2+longest)]
	if name = name[:max(0, bytes.IndexByte(name, '"'))]; bytes.IndexByte(name, '\\') < 0 {
		return string(name) == markerName
	}
	// Escapes are not checked yet, so the name is read as a value would be.
	run, at := p.run, p.i
	p.run, p.i = -1, i
	_, ok := p.str()
	end := p.i
	p.run, p.i = run, at
	if !ok {
		return false // str has noted the error, and the caller meets it again
	}
	p.key = canonicalText(p.key[:0], p.b[i+1:end-1])
	return string(p.key) == markerName
}

// skipMarker passes the member at i without hashing. What came before it is flushed.
func (p *parser) skipMarker(i int) bool {
	p.flush(p.i)
	run := p.run
	p.run, p.i = -1, i
	ok := p.name() && p.value(0)
	p.run = run
	return ok
}
