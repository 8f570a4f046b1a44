package proxy

import "bytes"

// usageFilter takes the usage chunk out of a stream when the router asked for it
// and the client did not (field case B06b). Whole events are looked at; an event
// that is not complete yet is held back, which costs no client anything because it
// could not use half an event. All other octets pass unchanged.
type usageFilter struct {
	on   bool
	pass bool // inside an event too long to be a usage chunk
	held []byte
	out  []byte
}

// maxHeld is the longest event that can be a usage chunk, with room to spare: the
// real ones are below 1 KiB (captures/vllm_chat_stream.http).
const maxHeld = 16 << 10

func (f *usageFilter) reset() {
	f.on, f.pass = false, false
	f.held, f.out = f.held[:0], f.out[:0]
}

// feed takes the next octets of the stream and returns those that may go on. The
// result is valid until the next call.
func (f *usageFilter) feed(p []byte) []byte {
	if !f.on {
		return p
	}
	f.out = f.out[:0]
	for len(p) > 0 {
		n, whole := eventEnd(f.held, p)
		if f.pass {
			f.out = append(f.out, p[:n]...)
			f.pass = !whole
			if whole {
				f.held = f.held[:0]
			} else {
				f.held = append(f.held[:0], tailOf(p[:n])...)
			}
			p = p[n:]
			continue
		}
		f.held = append(f.held, p[:n]...)
		p = p[n:]
		switch {
		case whole:
			if !usageOnly(f.held) {
				f.out = append(f.out, f.held...)
			}
			f.held = f.held[:0]
		case len(f.held) > maxHeld:
			f.out = append(f.out, f.held...)
			f.held = append(f.held[:0], tailOf(f.held)...)
			f.pass = true
		}
	}
	return f.out
}

// rest returns what is still held when the stream ends.
func (f *usageFilter) rest() []byte {
	if !f.on || f.pass {
		return nil
	}
	return f.held
}

// tailOf keeps enough octets to see an event end that is cut by a read boundary.
func tailOf(p []byte) []byte { return p[max(0, len(p)-3):] }

// eventEnd returns how many octets of p belong to the event that began in held,
// and if p completes it. Events end with an empty line, LF or CRLF.
func eventEnd(held, p []byte) (n int, whole bool) {
	for i := 0; i < len(p); i++ {
		j := bytes.IndexByte(p[i:], '\n')
		if j < 0 {
			return len(p), false
		}
		i += j
		if endsEvent(held, p[:i]) {
			return i + 1, true
		}
	}
	return len(p), false
}

// endsEvent reports that the line before the LF that follows held+p is empty.
func endsEvent(held, p []byte) bool {
	at := func(back int) byte { // octet `back` places from the end of held+p
		if back <= len(p) {
			return p[len(p)-back]
		}
		if back -= len(p); back <= len(held) {
			return held[len(held)-back]
		}
		return 0
	}
	return at(1) == '\n' || (at(1) == '\r' && at(2) == '\n')
}

// usageOnly reports that the event is a chunk without choices that carries usage.
// Inside JSON text the quotes would be escaped, so these names are real keys.
func usageOnly(ev []byte) bool {
	i := bytes.Index(ev, []byte(`"choices"`))
	if i < 0 {
		return false
	}
	rest, ok := skipPast(ev[i+len(`"choices"`):], ':', '[', ']')
	_ = rest
	if !ok {
		return false
	}
	i = bytes.Index(ev, []byte(`"usage"`))
	if i < 0 {
		return false
	}
	_, ok = skipPast(ev[i+len(`"usage"`):], ':', '{')
	return ok
}

// skipPast consumes the given octets with white space before each.
func skipPast(b []byte, want ...byte) ([]byte, bool) {
	for _, w := range want {
		for len(b) > 0 && isSpace(b[0]) {
			b = b[1:]
		}
		if len(b) == 0 || b[0] != w {
			return b, false
		}
		b = b[1:]
	}
	return b, true
}
