package fingerprint

import (
	"github.com/cespare/xxhash/v2"

	"github.com/prefixring/prefixring/internal/dialect"
)

func (p *parser) mark(mark byte, a, b uint64) {
	var w [17]byte
	w[0] = mark
	putUint64(w[1:], a)
	putUint64(w[9:], b)
	p.content.write(w[:])
}

// parts reads content given as a list.
func (p *parser) parts(m *message) bool {
	if !p.push(false) {
		return false
	}
	m.kind = contentEmpty
	n, comma := 0, 0
	for first := true; p.element(first); first = false {
		from := p.i
		kind, ok := p.part(m, n > 0)
		if !ok {
			return false
		}
		if kind == partDropped {
			p.strip(from, comma, n == 0)
			comma = p.i
			continue
		}
		comma = p.i
		m.kind = contentParts
		if n == 0 && kind == partText {
			m.kind = contentText
		}
		n++
	}
	return p.err == nil
}

// strip notes the range of an element that the engine should not see, and one of the
// commas around it: the following one while nothing stands before it.
func (p *parser) strip(from, comma int, leading bool) {
	s := Span{from, p.i}
	if leading {
		if j := spaces(p.b, p.i); j < len(p.b) && p.b[j] == ',' {
			s.End = spaces(p.b, j+1)
		}
	} else {
		s.Start = comma
	}
	p.r.Strip = append(p.r.Strip, s)
}

const (
	partOther = iota
	partText
	partDropped
)

// part is one element of a content list while it is read.
type part struct {
	later       bool // parts stand before it
	typ, extras uint64
	texts       int
	weight      int // prompt bytes of what is not text
	media       bool
	dropped     bool // the accounting line
}

// part reads one element of a content list into the content stream.
func (p *parser) part(m *message, later bool) (kind int, ok bool) {
	if !p.at('{') {
		sum, ok := p.hash(MaxMaxDepth)
		p.separate(later)
		p.mark(markExtra, 0, sum)
		m.decoded += p.aux.pos
		return partOther, ok
	}
	if !p.open() {
		return 0, false
	}
	one := part{later: later}
	for first := true; ; first = false {
		name, more := p.member(first)
		if !more {
			break
		}
		if !p.partField(m, &one, name) {
			return 0, false
		}
	}
	if p.err != nil {
		return 0, false
	}
	if one.dropped && one.texts == 0 {
		return partDropped, true
	}
	if one.media {
		one.weight = pictureBytes
		p.r.Media = true
	}
	m.decoded += one.weight
	if one.typ == 0 && one.extras == 0 && one.texts == 1 {
		return partText, true
	}
	if one.texts == 0 {
		p.separate(later)
	}
	p.mark(markExtra, one.typ, one.extras)
	return partOther, true
}

func (p *parser) partField(m *message, one *part, name []byte) bool {
	switch {
	case string(name) == markerName:
		_, ok := p.skip()
		return ok
	case string(name) == "text" && p.at('"'):
		if p.volatile() {
			one.dropped = true
			_, ok := p.skip()
			return ok
		}
		if one.texts == 0 {
			p.separate(one.later)
		} else {
			p.mark(markOther, 0, 0)
		}
		one.texts++
		return p.text(m)
	case string(name) == "type":
		from := p.i
		sum, ok := p.hash(0)
		if ok && !textType(p.b[from:p.i]) {
			one.typ, one.media = sum, mediaType(p.b[from:p.i])
		}
		return ok
	}
	key := xxhash.Sum64(name)
	sum, ok := p.hash(MaxMaxDepth)
	if ok && sum != 0 {
		one.extras += mix(key, sum)
		one.weight += p.aux.pos
	}
	return ok
}

func (p *parser) separate(later bool) {
	if later {
		p.content.write([]byte{markPart})
	}
}

func textType(raw []byte) bool {
	switch string(raw) {
	case `"text"`, `"input_text"`, `"output_text"`, "null":
		return true
	}
	return false
}

func mediaType(raw []byte) bool {
	switch string(raw) {
	case `"image_url"`, `"input_image"`, `"image"`, `"audio_url"`, `"input_audio"`, `"video_url"`, `"video"`,
		`"file"`, `"input_file"`, `"document"`:
		return true
	}
	return false
}

// volatile reports whether the text at i is the accounting line that Anthropic clients
// put into system, new in every request. vLLM drops it before rendering and SGLang does
// not (engine_contracts 6.3).
func (p *parser) volatile() bool {
	const line = `"x-anthropic-billing-header`
	return p.r.Protocol == dialect.Messages && p.field == "system" &&
		len(p.b)-p.i > len(line) && string(p.b[p.i:p.i+len(line)]) == line
}
