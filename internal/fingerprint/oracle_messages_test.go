package fingerprint

import (
	"bytes"
	"encoding/binary"
	"strings"

	"github.com/cespare/xxhash/v2"

	"github.com/prefixring/prefixring/internal/dialect"
)

// line is a message as the oracle sees it.
type line struct {
	role     string // canonical, without quotes
	roleHash uint64
	speaker  Role
	kind     byte
	stream   []byte
	odd      uint64 // hash of a message that is no object
	extras   uint64
	size     int
	end      int
}

func (l *line) hash() uint64 {
	head := fold('h', l.roleHash, l.extras)
	content := xxhash.Sum64(l.stream)
	if l.kind == contentOther && len(l.stream) == 0 {
		content = l.odd
	}
	return fold('c', head, fold(l.kind, content, uint64(len(l.stream))))
}

func (o *oracle) prompt() {
	o.arguments()
	r, top := o.r, o.top
	var fixed, turns []uint64
	switch r.Protocol {
	case dialect.Completions:
		o.completion()
		return
	case dialect.Responses, dialect.Messages:
		name := map[dialect.Protocol]string{dialect.Responses: "instructions", dialect.Messages: "system"}[r.Protocol]
		if t := top.get(name); t != nil && t.kind != 'n' {
			r.System = t.span
			l := line{roleHash: xxhash.Sum64String("system")}
			o.content(&l, t, r.Protocol == dialect.Messages)
			if len(l.stream) > 0 {
				fixed = append(fixed, l.hash())
				r.SystemBytes += l.size
				r.PromptBytes += l.size
			}
		}
	}
	t := top.get("messages")
	if r.Protocol == dialect.Responses {
		t = top.get("input")
	}
	leading := true
	if t != nil && t.kind != 'n' {
		r.Messages = t.span
	}
	for _, l := range o.lines(t) {
		r.PromptBytes += l.size
		h := l.hash()
		leading = leading && (l.role == "system" || l.role == "developer")
		if leading {
			fixed = append(fixed, h)
			r.SystemBytes += l.size
			continue
		}
		turns = append(turns, h)
		o.chain = fold('b', o.chain, h)
		r.Boundaries = append(r.Boundaries, Boundary{Hash: o.chain, End: l.end, Role: l.speaker})
	}
	r.Turns = len(turns)
	if len(turns) > 0 {
		r.Root = turns[0]
	}
	o.key(fixed)
}

func (o *oracle) key(fixed []uint64) {
	r := o.r
	chain := o.base()
	for _, h := range fixed {
		chain = fold('s', chain, h)
	}
	r.Prefix = fold('p', chain, 0)
	r.Key = r.Prefix
	r.PromptBytes += o.weight
	explicit := r.PromptCacheKey
	if !explicit.Present() {
		explicit = r.Conversation
	}
	if !explicit.Present() {
		explicit = r.SessionID
	}
	switch {
	case r.Kind == KindLead:
	case r.SystemBytes > 0 || o.tools != 0:
		r.Kind = KindPrefix
		r.StaticBytes = r.SystemBytes + o.weight
	case explicit.Present():
		r.Kind = KindSession
		for _, t := range []string{"prompt_cache_key", "conversation", "session_id", "session_params"} {
			o.find(o.top.get(t), explicit, func(t *tree) { r.Key = fold('e', r.Prefix, t.hash(0)) })
		}
	case r.Turns > 0:
		r.Kind = KindSession
		r.Key = fold('r', r.Prefix, r.Root)
	}
}

func (o *oracle) find(t *tree, s Span, found func(*tree)) {
	if t == nil {
		return
	}
	if t.span == s {
		found(t)
	}
	for _, item := range t.items {
		o.find(item, s, found)
	}
}

func (o *oracle) lines(t *tree) (out []*line) {
	switch {
	case t == nil:
	case t.kind == '"':
		l := &line{roleHash: xxhash.Sum64String("user"), speaker: RoleUser, end: t.span.End}
		o.content(l, t, false)
		out = append(out, l)
	case t.kind == '[':
		for _, item := range t.items {
			l := &line{end: item.span.End}
			if item.kind != '{' {
				l.kind, l.odd = contentOther, item.hash(0)
				out = append(out, l)
				continue
			}
			o.message(l, item)
			out = append(out, l)
		}
	}
	return out
}

func (o *oracle) message(l *line, t *tree) {
	for i, item := range t.items {
		switch name := t.names[i]; name {
		case "role":
			l.role, l.speaker, l.roleHash = "\x00", RoleOther, fold('r', item.hash(0), 0)
			if item.kind == '"' {
				l.role = spell(item.raw)
				l.roleHash = xxhash.Sum64String(l.role)
				l.speaker = map[string]Role{"system": RoleSystem, "developer": RoleDeveloper, "user": RoleUser,
					"assistant": RoleAssistant, "tool": RoleTool, "function": RoleTool}[l.role]
			}
		case "content":
			o.content(l, item, false)
		case "cache_control":
		case "type":
			if item.kind != 'n' && !item.is(`"message"`) {
				l.extras += fold('m', xxhash.Sum64String(name), item.hash(0))
				if l.roleHash == 0 {
					switch s := strings.Trim(string(item.raw), `"`); {
					case strings.HasSuffix(s, "_output"):
						l.speaker = RoleTool
					case strings.HasSuffix(s, "_call"), s == "reasoning":
						l.speaker = RoleAssistant
					default:
						l.speaker = RoleOther
					}
				}
			}
		default:
			if h := item.hash(1 << 20); h != 0 {
				l.extras += fold('m', xxhash.Sum64String(name), h)
				l.size += len(item.compact(1 << 20))
			}
		}
	}
}

func mark(l *line, c byte, a, b uint64) {
	l.stream = append(l.stream, c)
	l.stream = binary.LittleEndian.AppendUint64(l.stream, a)
	l.stream = binary.LittleEndian.AppendUint64(l.stream, b)
}

func (o *oracle) content(l *line, t *tree, anthropicSystem bool) {
	switch t.kind {
	case '"':
		l.kind = contentText
		l.stream = append(l.stream, spell(t.raw)...)
		l.size += decodedSize(t.raw)
	case 'n':
		l.kind = contentNull
	case '[':
		o.parts(l, t, anthropicSystem)
	default:
		l.kind = contentOther
		l.size += len(t.compact(0))
		mark(l, markOther, t.hash(0), 0)
	}
}

func (o *oracle) parts(l *line, t *tree, anthropicSystem bool) {
	l.kind = contentEmpty
	n := 0
	for _, item := range t.items {
		before := len(l.stream)
		if n > 0 {
			l.stream = append(l.stream, markPart)
		}
		pure, dropped := o.part(l, item, anthropicSystem)
		if dropped {
			l.stream = l.stream[:before]
			continue
		}
		l.kind = contentParts
		if n == 0 && pure {
			l.kind = contentText
		}
		n++
	}
}

func (o *oracle) part(l *line, t *tree, anthropicSystem bool) (pure, dropped bool) {
	if t.kind != '{' {
		mark(l, markExtra, 0, t.hash(1<<20))
		l.size += len(t.compact(1 << 20))
		return false, false
	}
	var typ, extras uint64
	texts, weight, media := 0, 0, false
	for i, item := range t.items {
		switch name := t.names[i]; {
		case name == "cache_control":
		case name == "text" && item.kind == '"':
			if anthropicSystem && bytes.HasPrefix(item.raw, []byte(`"x-anthropic-billing-header`)) {
				dropped = true
				continue
			}
			if texts > 0 {
				mark(l, markOther, 0, 0)
			}
			texts++
			l.stream = append(l.stream, spell(item.raw)...)
			l.size += decodedSize(item.raw)
		case name == "type":
			if !item.is(`"text"`, `"input_text"`, `"output_text"`, "null") {
				typ = item.hash(0)
				media = item.is(`"image_url"`, `"input_image"`, `"image"`, `"audio_url"`, `"input_audio"`,
					`"video_url"`, `"video"`, `"file"`, `"input_file"`, `"document"`)
			}
		default:
			if h := item.hash(1 << 20); h != 0 {
				extras += fold('m', xxhash.Sum64String(name), h)
				weight += len(item.compact(1 << 20))
			}
		}
	}
	if dropped && texts == 0 {
		return false, true
	}
	if media {
		weight = pictureBytes
		o.r.Media = true
	}
	l.size += weight
	if typ == 0 && extras == 0 && texts == 1 {
		return true, false
	}
	mark(l, markExtra, typ, extras)
	return false, false
}

func (o *oracle) completion() {
	r, t := o.r, o.top.get("prompt")
	var stream []byte
	role, has := "", false
	var walk func(t *tree, top bool)
	tokens := func(t *tree) {
		if !has {
			role, has = "\x00tokens", true
			s := t.compact(0)
			stream = []byte(s[1 : len(s)-1])
		}
		r.PromptBytes += 4 * len(t.items)
	}
	walk = func(t *tree, top bool) {
		switch {
		case t.kind == '"':
			if !has {
				role, has = "\x00prompt", true
				stream = []byte(spell(t.raw))
			}
			r.PromptBytes += decodedSize(t.raw)
		case t.kind == '[' && !top:
			tokens(t)
		case t.kind == '[' && len(t.items) > 0 && (t.items[0].kind == '-' || t.items[0].kind >= '0' && t.items[0].kind <= '9'):
			tokens(t)
		case t.kind == '[':
			for _, item := range t.items {
				walk(item, false)
			}
		}
	}
	if t != nil {
		walk(t, true)
	}
	if has && len(stream) > 0 {
		r.Kind = KindLead
		o.key(nil)
		context := fold('n', o.base(), fold('h', xxhash.Sum64String(role), 0))
		if len(stream) >= DefaultCompletionsLead {
			stream = stream[:DefaultCompletionsLead]
			r.StaticBytes = DefaultCompletionsLead
		}
		r.Key = fold('l', context, xxhash.Sum64(stream))
		return
	}
	o.key(nil)
}
