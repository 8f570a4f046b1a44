package fingerprint

import (
	"bytes"

	"github.com/cespare/xxhash/v2"

	"github.com/prefixring/prefixring/internal/dialect"
)

// found is what one scan gathers before it is combined in canonical order.
type found struct {
	args       [argCount]uint64
	tools      uint64
	toolBytes  int
	extraBytes int // rendered bytes of documents

	fixed     []message // leading system and developer messages: instructions first
	fixedRest uint64    // folded hashes of those beyond maxFixed
	lead      bool      // messages so far are all leading ones
	chain     uint64    // over the messages behind them
	prompt    message   // of a raw completion
	hasPrompt bool
	maxTokens uint8 // preference of the field that MaxTokens was read from
}

const maxFixed = 64

func (p *parser) begin(s *Scanner, r *Result, body []byte) {
	p.s, p.r, p.b, p.i, p.run, p.depth = s, r, body, 0, -1, 0
	p.cuts = s.cuts
	p.field, p.err = "", nil
	p.names, p.content.sums = p.names[:0], p.content.sums[:0]
	p.table = p.table[:0]
	p.found = found{fixed: p.fixed[:0], lead: true}
}

// top reads the whole body.
func (p *parser) top() {
	p.space()
	if !p.at('{') {
		switch {
		case p.r.Protocol == dialect.Opaque:
		case p.i >= len(p.b):
			p.fail(p.i, ReasonEmpty)
		case bytes.HasPrefix(p.b, []byte("\xef\xbb\xbf")):
			p.fail(0, ReasonBOM)
		default:
			p.fail(p.i, ReasonObject)
		}
		return
	}
	p.r.JSON = true
	p.open()
	for first := true; ; first = false {
		p.field = ""
		at := p.i
		name, more := p.member(first)
		if !more {
			break
		}
		if !p.unique(xxhash.Sum64(name)) {
			p.fail(at, ReasonDuplicate)
			return
		}
		if !p.dispatch(name) {
			return
		}
	}
	if p.err != nil {
		return
	}
	if p.space(); p.i < len(p.b) {
		p.fail(p.i, ReasonTrailing)
	}
}

// unique notes a top-level name and reports whether it is new.
func (p *parser) unique(h uint64) bool {
	const few = 64
	if len(p.table) == 0 {
		for _, n := range p.names {
			if n == h {
				return false
			}
		}
		p.names = append(p.names, h)
		if len(p.names) > few {
			p.rehash(8 * few)
		}
		return true
	}
	if !insert(p.table, h) {
		return false
	}
	p.names = append(p.names, h)
	if len(p.names) > len(p.table)/2 {
		p.rehash(4 * len(p.table))
	}
	return true
}

// rehash makes the table of names anew, so that a body with a hundred thousand fields
// costs no square.
func (p *parser) rehash(size int) {
	if cap(p.table) < size {
		p.table = make([]uint64, size)
	}
	p.table = p.table[:size]
	clear(p.table)
	for _, n := range p.names {
		insert(p.table, n)
	}
}

// insert adds h to an open-addressed table whose length is a power of two.
func insert(table []uint64, h uint64) bool {
	mask := uint64(len(table) - 1)
	h |= 1 // 0 marks a free slot
	for i := h >> 1 & mask; ; i = (i + 1) & mask {
		switch table[i] {
		case 0:
			table[i] = h
			return true
		case h:
			return false
		}
	}
}

// dispatch reads the value of a top-level field.
func (p *parser) dispatch(name []byte) bool {
	r := p.r
	switch string(name) {
	case "model":
		return p.span("model", &r.Model)
	case "cache_salt":
		return p.spanArg("cache_salt", &r.CacheSalt, argSalt)
	case "lora_path":
		return p.spanArg("lora_path", &r.Adapter, argAdapter)
	case "stream":
		return p.span("stream", &r.Stream) && p.truth(r.Stream, &r.StreamOn)
	case "stream_options":
		p.field = "stream_options"
		return p.streamOptions()
	}
	if r.Protocol == dialect.Opaque {
		_, ok := p.skip()
		return ok
	}
	if known, ok := p.promptField(name); known {
		return ok
	}
	if known, ok := p.argField(name); known {
		return ok
	}
	return p.plainField(name)
}

// promptField reads the fields that hold the prompt itself.
func (p *parser) promptField(name []byte) (known, ok bool) {
	chat, responses, messages := p.r.Protocol == dialect.Chat, p.r.Protocol == dialect.Responses, p.r.Protocol == dialect.Messages
	switch string(name) {
	case "messages":
		if chat || messages {
			p.field = "messages"
			return true, p.messages(&p.r.Messages)
		}
	case "input":
		if responses {
			p.field = "input"
			return true, p.messages(&p.r.Messages)
		}
	case "instructions":
		if responses {
			p.field = "instructions"
			return true, p.system()
		}
	case "system":
		if messages {
			p.field = "system"
			return true, p.system()
		}
	case "prompt":
		if p.r.Protocol == dialect.Completions {
			p.field = "prompt"
			return true, p.completion()
		}
	case "tools":
		p.field = "tools"
		return true, p.toolList()
	}
	return false, false
}

// plainField reads the fields of which only the span matters, and skips the others.
func (p *parser) plainField(name []byte) bool {
	r := p.r
	switch string(name) {
	case "user":
		if r.Protocol != dialect.Messages {
			return p.span("user", &r.User)
		}
	case "prompt_cache_key":
		return p.span("prompt_cache_key", &r.PromptCacheKey)
	case "previous_response_id":
		return p.span("previous_response_id", &r.PreviousResponseID)
	case "session_id":
		var id Span
		ok := p.span("session_id", &id)
		if id.Present() {
			r.SessionID = id
		}
		return ok
	case "conversation":
		return p.inner("conversation", "id", &r.Conversation)
	case "session_params":
		var id Span
		ok := p.inner("session_params", "id", &id)
		if !r.SessionID.Present() {
			r.SessionID = id
		}
		return ok
	case "metadata":
		if r.Protocol == dialect.Messages {
			return p.inner("metadata", "user_id", &r.User)
		}
	case "priority":
		return p.span("priority", &r.Priority)
	case "n":
		return p.span("n", &r.N)
	case "max_tokens":
		return p.limit("max_tokens", 1)
	case "max_output_tokens":
		return p.limit("max_output_tokens", 2)
	case "max_completion_tokens":
		return p.limit("max_completion_tokens", 3)
	}
	_, ok := p.skip()
	return ok
}

func (p *parser) span(field string, out *Span) (ok bool) {
	p.field = field
	*out, ok = p.skip()
	return ok
}

func (p *parser) limit(field string, preference uint8) bool {
	var s Span
	if !p.span(field, &s) {
		return false
	}
	if s.Present() && preference > p.maxTokens {
		p.r.MaxTokens, p.maxTokens = s, preference
	}
	return true
}

// inner reads a field that is a string, or an object with the string under key.
func (p *parser) inner(field, key string, out *Span) bool {
	p.field = field
	if !p.at('{') {
		s, ok := p.skip()
		if s.Present() && p.b[s.Start] == '"' {
			*out = s
		}
		return ok
	}
	if !p.open() {
		return false
	}
	for first := true; ; first = false {
		name, more := p.member(first)
		if !more {
			return p.err == nil
		}
		wanted := string(name) == key
		s, ok := p.skip()
		if !ok {
			return false
		}
		if wanted && s.Present() && p.b[s.Start] == '"' {
			*out = s
		}
	}
}

func (p *parser) streamOptions() bool {
	if !p.at('{') {
		return p.span("stream_options", &p.r.StreamOptions)
	}
	from := p.i
	if !p.open() {
		return false
	}
	for first := true; ; first = false {
		name, more := p.member(first)
		if !more {
			p.r.StreamOptions = Span{from, p.i}
			return p.err == nil
		}
		wanted := string(name) == "include_usage"
		s, ok := p.skip()
		if !ok {
			return false
		}
		if wanted && s.Present() {
			var on bool
			p.truth(s, &on)
			p.r.IncludeUsage = False
			if on {
				p.r.IncludeUsage = True
			}
		}
	}
}

// truth reads a switch as loosely as the engines' request models do: they take 1, 1.0
// and the words true, t, yes, y, on for true.
func (p *parser) truth(s Span, out *bool) bool {
	raw := p.b[s.Start:s.End]
	if string(raw) == "true" || string(raw) == "false" {
		*out = raw[0] == 't'
		return true
	}
	raw = bytes.Trim(raw, `"`)
	switch len(raw) {
	case 1:
		*out = raw[0] == '1' || raw[0]|0x20 == 't' || raw[0]|0x20 == 'y'
	case 2:
		*out = bytes.EqualFold(raw, []byte("on"))
	case 3:
		*out = bytes.EqualFold(raw, []byte("yes")) || string(raw) == "1.0"
	case 4:
		*out = bytes.EqualFold(raw, []byte("true"))
	}
	return true
}
