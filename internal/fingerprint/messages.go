package fingerprint

import (
	"bytes"

	"github.com/cespare/xxhash/v2"
)

// message is one message as it is gathered. Its fields may come in any order; they are
// combined when the object closes.
type message struct {
	role     Role
	roleHash uint64
	kind     byte   // what content was
	content  uint64 // digest of the content stream
	extras   uint64 // other members, in no order
	decoded  int    // bytes of text and other rendered members
	stream   int    // bytes of the content stream
	sumsAt   int    // sums at the cuts it reached, in parser.content.sums
	sumsN    int
	text     Span // inside of the last text of the content
	turn     Role // who speaks: differs from role for items without one
}

// What content was. One text part is the same as a string: both engines hand both to
// the template as one text. Several parts differ from their concatenation, because
// engines join them in different ways.
const (
	contentAbsent = iota
	contentText
	contentNull
	contentEmpty
	contentParts
	contentOther
	contentTokens
)

// Bytes that canonical text cannot hold mark the structure inside a content stream.
const (
	markPart  = 0x1e // between parts
	markExtra = 0x1f // a part that is not plain text, or what is odd about it: 16 bytes follow
	markOther = 0x1d // content that is neither text nor parts
)

// head is what a message says before its content.
func (m *message) head() uint64 { return fold('h', m.roleHash, m.extras) }

func (m *message) hash() uint64 {
	return fold('c', m.head(), fold(m.kind, m.content, uint64(m.stream)))
}

// The hash of a role is that of its canonical spelling. No role is spelled like the
// last two.
var (
	systemRole    = xxhash.Sum64String("system")
	developerRole = xxhash.Sum64String("developer")
	userRole      = xxhash.Sum64String("user")
	assistantRole = xxhash.Sum64String("assistant")
	toolRole      = xxhash.Sum64String("tool")
	promptRole    = xxhash.Sum64String("\x00prompt")
	tokensRole    = xxhash.Sum64String("\x00tokens")
)

// messages reads a chat's messages or a Responses input, which may be a bare string.
func (p *parser) messages(span *Span) bool {
	from := p.i
	switch {
	case p.at('n'):
		return p.literal("null")
	case p.at('['):
		if !p.push(false) {
			return false
		}
		for first := true; p.element(first); first = false {
			if !p.message() {
				return false
			}
		}
	case p.at('"'):
		m := message{role: RoleUser, turn: RoleUser, roleHash: userRole}
		p.startContent(&m)
		if !p.text(&m) {
			return false
		}
		m.kind = contentText
		p.endContent(&m)
		p.settle(&m)
	default: // not for us to judge
		if _, ok := p.skip(); !ok {
			return false
		}
	}
	*span = Span{from, p.i}
	return p.err == nil
}

// message reads one element of messages or input.
func (p *parser) message() bool {
	var m message
	if !p.at('{') {
		sum, ok := p.hash(0)
		m.kind, m.content, m.sumsAt = contentOther, sum, len(p.content.sums)
		p.settle(&m)
		return ok
	}
	p.startContent(&m)
	if !p.open() {
		return false
	}
	for first := true; ; first = false {
		name, more := p.member(first)
		if !more {
			break
		}
		if !p.messageField(&m, name) {
			return false
		}
	}
	if p.err != nil {
		return false
	}
	p.endContent(&m)
	p.settle(&m)
	return true
}

func (p *parser) messageField(m *message, name []byte) bool {
	switch string(name) {
	case "role":
		return p.roleValue(m)
	case "content":
		return p.contentValue(m)
	case "cache_control":
		_, ok := p.skip()
		return ok
	case "type":
		from := p.i
		sum, ok := p.hash(0)
		if !ok {
			return false
		}
		if t := p.b[from:p.i]; string(t) != `"message"` && sum != 0 {
			m.extras += mix(xxhash.Sum64String("type"), sum)
			if m.roleHash == 0 {
				m.turn = turnOf(t)
			}
		}
		return true
	default:
		return p.extra(m, name)
	}
}

// roleValue reads a role. The known ones have their hashes ready.
func (p *parser) roleValue(m *message) bool {
	from := p.i
	if !p.at('"') {
		sum, ok := p.hash(0)
		m.role, m.turn, m.roleHash = RoleOther, RoleOther, fold('r', sum, 0)
		return ok
	}
	decoded, ok := p.str()
	if !ok {
		return false
	}
	word := p.b[from+1 : p.i-1]
	if decoded != len(word) {
		p.key = canonicalText(p.key[:0], word)
		word = p.key
	}
	m.role, m.roleHash = roleOf(word)
	m.turn = m.role
	return true
}

// extra reads a member that is neither role nor content: tool calls, names, reasoning.
func (p *parser) extra(m *message, name []byte) bool {
	key := xxhash.Sum64(name)
	sum, ok := p.hash(MaxMaxDepth)
	if !ok {
		return false
	}
	if sum != 0 {
		m.extras += mix(key, sum)
		m.decoded += p.aux.pos
	}
	return true
}

func roleOf(word []byte) (Role, uint64) {
	switch string(word) {
	case "system":
		return RoleSystem, systemRole
	case "developer":
		return RoleDeveloper, developerRole
	case "user":
		return RoleUser, userRole
	case "assistant":
		return RoleAssistant, assistantRole
	case "tool":
		return RoleTool, toolRole
	case "function":
		return RoleTool, xxhash.Sum64(word)
	}
	return RoleOther, xxhash.Sum64(word)
}

// turnOf says who speaks in a Responses item that has no role.
func turnOf(raw []byte) Role {
	switch {
	case bytes.HasSuffix(raw, []byte(`_output"`)):
		return RoleTool
	case bytes.HasSuffix(raw, []byte(`_call"`)), string(raw) == `"reasoning"`:
		return RoleAssistant
	}
	return RoleOther
}

// startContent opens the content stream of a message. While only leading messages have
// been seen, the stream is cut at the registered lengths.
func (p *parser) startContent(m *message) {
	m.sumsAt = len(p.content.sums)
	var cuts []cut
	if p.lead && len(p.fixed) < maxDetailed {
		cuts = p.s.cuts
	}
	p.content.reset(cuts)
}

func (p *parser) endContent(m *message) {
	m.content, m.stream = p.content.sum(), p.content.pos
	m.sumsN = len(p.content.sums) - m.sumsAt
}

// settle places a finished message: in the static prefix, or behind it.
func (p *parser) settle(m *message) {
	r := p.r
	r.PromptBytes += m.decoded
	if p.lead && (m.role == RoleSystem || m.role == RoleDeveloper) {
		p.keep(m)
		return
	}
	p.lead = false
	p.content.sums = p.content.sums[:m.sumsAt]
	h := m.hash()
	if r.Turns == 0 {
		r.Root = h
	}
	r.Turns++
	p.chain = fold('b', p.chain, h)
	if len(r.Boundaries) == 2*p.s.maxBoundaries {
		n := copy(r.Boundaries, r.Boundaries[p.s.maxBoundaries:])
		r.Boundaries = r.Boundaries[:n]
	}
	r.Boundaries = append(r.Boundaries, Boundary{Hash: p.chain, End: p.i, Role: m.turn})
}

// keep adds a message to the static prefix.
func (p *parser) keep(m *message) {
	p.r.SystemBytes += m.decoded
	if len(p.fixed) < maxFixed {
		p.fixed = append(p.fixed, *m)
		return
	}
	p.fixedRest = fold('f', p.fixedRest, m.hash())
}

// system reads Anthropic's system or the Responses instructions: a system message of its
// own in front of all others, wherever the field stands in the body.
func (p *parser) system() bool {
	from := p.i
	m := message{role: RoleSystem, turn: RoleSystem, roleHash: systemRole}
	m.sumsAt = len(p.content.sums)
	p.content.reset(p.s.cuts)
	if !p.contentValue(&m) {
		return false
	}
	p.endContent(&m)
	if m.kind == contentNull {
		return true
	}
	p.r.System = Span{from, p.i}
	if m.stream == 0 {
		return true // engines add no message for an empty one
	}
	p.r.PromptBytes += m.decoded
	p.r.SystemBytes += m.decoded
	// In front, whatever has been read before: sums are addressed, not moved.
	p.fixed = append(p.fixed, message{})
	copy(p.fixed[1:], p.fixed)
	p.fixed[0] = m
	return true
}

// contentValue reads content in any of its shapes.
func (p *parser) contentValue(m *message) bool {
	switch {
	case p.at('"'):
		m.kind = contentText
		return p.text(m)
	case p.at('['):
		return p.parts(m)
	case p.at('n'):
		m.kind = contentNull
		return p.literal("null")
	}
	sum, ok := p.hash(0)
	m.kind = contentOther
	m.decoded += p.aux.pos
	p.mark(markOther, sum, 0)
	return ok
}

// text sends the string at i to the content stream.
func (p *parser) text(m *message) bool {
	from := p.i + 1
	p.out, p.run = &p.content, from
	decoded, ok := p.str()
	if ok {
		p.flush(p.i - 1)
		m.text = Span{from, p.i - 1}
	}
	p.run = -1
	m.decoded += decoded
	return ok
}
