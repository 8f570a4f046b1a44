package dialect

import "bytes"

// MaxHold bounds the bytes that a UsageStripper holds back. A usage chunk is well
// below one kilobyte; an event that grows beyond MaxHold undecided is passed on.
const MaxHold = 64 << 10

// UsageStripper takes the usage chunk out of a chat or completions stream again
// when the router asked for it (stream_options.include_usage spliced in) and the
// client did not (field case B06). It removes exactly the events whose `choices`
// is an empty array and whose `usage` is an object, with their empty line, and
// changes no other byte. An event that also carries an error or SGLang's sglext is
// kept whole.
//
// It holds back the bytes of one undecided event at most, and only until its
// `choices` shows an element, which in every chunk of both engines is before the
// text; comment lines are never held. Any split of the bytes gives the same
// output. The zero value is ready; it is used by one goroutine at a time.
type UsageStripper struct {
	w        walker
	line     lineState
	ready    bool // w was reset for the current event
	begun    bool // the current event has a line that is no comment
	pending  bool // and one of them is data
	passing  bool // the current event is decided: its bytes pass
	skipLF   bool
	dropLF   bool // the LF that skipLF waits for belongs to a removed event
	bom      uint8
	field    [6]byte
	fieldN   uint8
	held     []byte
	stripped int
}

// Reset makes the stripper ready for another stream and keeps its buffer.
func (s *UsageStripper) Reset() { *s = UsageStripper{held: s.held[:0]} }

// Stripped returns the number of events that were removed.
func (s *UsageStripper) Stripped() int { return s.stripped }

// Held returns the number of bytes that are held back at the moment.
func (s *UsageStripper) Held() int { return len(s.held) }

// Filter appends to dst the bytes that may go to the client now.
func (s *UsageStripper) Filter(dst, b []byte) []byte {
	if !s.ready {
		s.w.reset(nChat)
		s.ready = true
	}
	for s.bom < 3 && len(b) > 0 {
		if b[0] != byteOrderMark[s.bom] {
			s.bom = 3
			break
		}
		dst = append(dst, b[0])
		s.bom++
		b = b[1:]
	}
	for len(b) > 0 {
		if s.skipLF {
			s.skipLF = false
			if b[0] == '\n' {
				dst = s.lateLF(dst, b[:1])
				b = b[1:]
				continue
			}
		}
		end := bytes.IndexByte(b, '\n')
		seg := b
		if end >= 0 {
			seg = b[:end]
		}
		if cr := bytes.IndexByte(seg, '\r'); cr >= 0 {
			end, seg = cr, b[:cr]
			s.skipLF = true
		}
		if end < 0 {
			return s.part(dst, seg, seg)
		}
		dst = s.part(dst, seg, b[:end+1])
		dst = s.endLine(dst)
		b = b[end+1:]
	}
	return dst
}

// Flush appends what is held back at the end of the stream. A usage chunk that
// lacks only its empty line is removed, too; part of an event is passed on.
func (s *UsageStripper) Flush(dst []byte) []byte {
	if s.usageOnly() {
		return s.drop(dst)
	}
	dst = append(dst, s.held...)
	s.held = s.held[:0]
	return dst
}

// part takes bytes of the current line; raw is the same with its line end.
func (s *UsageStripper) part(dst, seg, raw []byte) []byte {
	dst = s.emit(dst, raw)
	if s.line == lineStart {
		seg = s.fieldName(seg)
	}
	for s.line == lineData && !s.passing && len(seg) > 0 {
		// In steps: the decision falls early, and the rest needs no reading.
		n := min(len(seg), maxEnvelope)
		s.w.feed(seg[:n])
		seg = seg[n:]
		if s.mustPass() {
			dst = s.pass(dst)
		}
	}
	return dst
}

// emit passes raw bytes on or holds them, as the current event is decided.
func (s *UsageStripper) emit(dst, raw []byte) []byte {
	if s.passing {
		return append(dst, raw...)
	}
	if len(s.held)+len(raw) > MaxHold {
		dst = s.pass(dst)
		return append(dst, raw...)
	}
	s.held = append(s.held, raw...)
	return dst
}

// lateLF places the LF of a CR LF pair: it belongs to the line before.
func (s *UsageStripper) lateLF(dst, lf []byte) []byte {
	switch {
	case s.dropLF:
		return dst
	case !s.begun: // between two events: the line before has gone out already
		return append(dst, lf...)
	default:
		return s.emit(dst, lf)
	}
}

func (s *UsageStripper) pass(dst []byte) []byte {
	s.passing = true
	dst = append(dst, s.held...)
	s.held = s.held[:0]
	return dst
}

// mustPass reports that the event cannot become a usage-only chunk any more.
func (s *UsageStripper) mustPass() bool {
	e := &s.w.ev
	return e.choices == 2 || e.err || e.flat || e.ext || e.done || s.w.st == stBad
}

// usageOnly reports that the event as it stands is a whole usage-only chunk.
func (s *UsageStripper) usageOnly() bool {
	return s.pending && !s.passing && !s.mustPass() && s.w.whole() && s.w.ev.choices == 1 && s.w.ev.usage
}

func (s *UsageStripper) fieldName(b []byte) []byte {
	for i, c := range b {
		if c == ':' {
			s.beginValue()
			return b[i+1:]
		}
		if int(s.fieldN) == len(s.field) {
			s.line = lineSkip
			return nil
		}
		s.field[s.fieldN] = c
		s.fieldN++
	}
	return nil
}

func (s *UsageStripper) beginValue() {
	s.line = lineSkip
	if string(s.field[:s.fieldN]) == "data" {
		if s.pending && !s.passing {
			s.w.feed(lineBreak)
		}
		s.line, s.pending = lineData, true
	}
}

func (s *UsageStripper) endLine(dst []byte) []byte {
	comment := s.line == lineSkip && s.fieldN == 0
	blank := s.line == lineStart && s.fieldN == 0
	s.line, s.fieldN, s.dropLF = lineStart, 0, false
	switch {
	case blank:
		return s.endEvent(dst)
	case !comment:
		s.begun = true
	case !s.begun && !s.passing:
		dst = s.pass(dst)
		s.passing = false
	}
	return dst
}

func (s *UsageStripper) endEvent(dst []byte) []byte {
	if s.usageOnly() {
		dst = s.drop(dst)
		s.dropLF = true
	} else {
		dst = s.pass(dst)
	}
	s.w.reset(nChat)
	s.begun, s.pending, s.passing = false, false, false
	return dst
}

// drop removes the held event and keeps the comment lines inside it.
func (s *UsageStripper) drop(dst []byte) []byte {
	s.stripped++
	for b := s.held; len(b) > 0; {
		n := bytes.IndexAny(b, "\r\n") + 1
		if n == 0 {
			n = len(b)
		} else if b[n-1] == '\r' && n < len(b) && b[n] == '\n' {
			n++
		}
		if b[0] == ':' {
			dst = append(dst, b[:n]...)
		}
		b = b[n:]
	}
	s.held = s.held[:0]
	return dst
}
