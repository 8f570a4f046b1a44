package fingerprint

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/cespare/xxhash/v2"

	"github.com/prefixring/prefixring/internal/dialect"
)

// The oracle: the fingerprint as docs/fingerprint.md states it, computed the slow way.
// encoding/json takes the body apart into a tree that keeps the order of members and the
// raw spelling; every stream is then written out as a byte slice and hashed once. It
// shares fold, the field table and nothing else with the scanner.

type tree struct {
	kind  byte // { [ " 0 t f n
	raw   []byte
	span  Span
	names []string // canonical
	items []*tree
}

// grow parses the one value at the start of body[from:].
func grow(body []byte, from int) *tree {
	dec := json.NewDecoder(bytes.NewReader(body[from:]))
	var raw json.RawMessage
	if err := dec.Decode(&raw); err != nil {
		panic(err)
	}
	at := from + int(dec.InputOffset()) - len(raw)
	t := &tree{kind: raw[0], raw: raw, span: Span{at, at + len(raw)}}
	if raw[0] != '{' && raw[0] != '[' {
		return t
	}
	dec = json.NewDecoder(bytes.NewReader(raw))
	if _, err := dec.Token(); err != nil {
		panic(err)
	}
	for dec.More() {
		if raw[0] == '{' {
			before := dec.InputOffset()
			if _, err := dec.Token(); err != nil {
				panic(err)
			}
			name := bytes.TrimLeft(raw[before:dec.InputOffset()], " \t\r\n,")
			t.names = append(t.names, spell(name))
		}
		var item json.RawMessage
		if err := dec.Decode(&item); err != nil {
			panic(err)
		}
		t.items = append(t.items, grow(body, at+int(dec.InputOffset())-len(item)))
	}
	return t
}

func (t *tree) get(name string) *tree {
	for i, n := range t.names {
		if n == name {
			return t.items[i]
		}
	}
	return nil
}

// units decodes a raw JSON string into UTF-16 code units and whole runes: a lone
// surrogate stays itself.
func units(raw []byte) (out []rune) {
	raw = raw[1 : len(raw)-1]
	for len(raw) > 0 {
		if raw[0] != '\\' {
			r, n := utf8.DecodeRune(raw)
			out, raw = append(out, r), raw[n:]
			continue
		}
		if raw[1] != 'u' {
			c := strings.IndexByte(`"\/bfnrt`, raw[1])
			out, raw = append(out, rune("\"\\/\b\f\n\r\t"[c])), raw[2:]
			continue
		}
		v, err := strconv.ParseUint(string(raw[2:6]), 16, 16)
		if err != nil {
			panic(err)
		}
		r := rune(v)
		raw = raw[6:]
		if n := len(out); n > 0 && utf16.IsSurrogate(out[n-1]) {
			// Only two escapes in a row pair up, and the first of them must not have
			// been the second of a pair.
			if full := utf16.DecodeRune(out[n-1], r); full != utf8.RuneError {
				out[n-1] = full
				continue
			}
		}
		out = append(out, r)
	}
	return out
}

// spell writes a raw JSON string in canonical spelling, without quotes.
func spell(raw []byte) string {
	var b strings.Builder
	for _, r := range units(raw) {
		switch {
		case r == '"' || r == '\\':
			b.WriteByte('\\')
			b.WriteRune(r)
		case strings.ContainsRune("\b\f\n\r\t", r):
			b.WriteByte('\\')
			b.WriteByte("bfnrt"[strings.IndexRune("\b\f\n\r\t", r)])
		case r < 0x20 || utf16.IsSurrogate(r):
			fmt.Fprintf(&b, "\\u%04x", r)
		default:
			b.WriteRune(r)
		}
	}
	return b.String()
}

func decodedSize(raw []byte) (n int) {
	for _, r := range units(raw) {
		if utf16.IsSurrogate(r) {
			n += 3
		} else {
			n += utf8.RuneLen(r)
		}
	}
	return n
}

// compact writes a value without white space, in canonical spelling, leaving out
// cache_control in objects down to depth marks.
func (t *tree) compact(marks int) string {
	switch t.kind {
	case '"':
		return `"` + spell(t.raw) + `"`
	case '{', '[':
		var parts []string
		for i, item := range t.items {
			if t.kind == '[' {
				parts = append(parts, item.compact(marks-1))
			} else if t.names[i] != "cache_control" || marks < 1 {
				parts = append(parts, `"`+t.names[i]+`":`+item.compact(marks-1))
			}
		}
		return string(t.kind) + strings.Join(parts, ",") + string(t.kind+2)
	}
	return string(t.raw)
}

func (t *tree) hash(marks int) uint64 {
	if t == nil || t.kind == 'n' {
		return 0
	}
	return xxhash.Sum64String(t.compact(marks))
}

func (t *tree) is(words ...string) bool {
	for _, w := range words {
		if string(t.raw) == w {
			return true
		}
	}
	return false
}

// reference computes what Scan must say; ok is whether it must accept the body.
func reference(proto dialect.Protocol, body []byte, maxDepth int) (r Result, ok bool) {
	r = Result{Protocol: proto, Named: -1}
	o := oracle{r: &r}
	r.Prefix = fold('p', o.base(), 0)
	r.Key = r.Prefix
	trimmed := bytes.TrimLeft(body, " \t\r\n")
	if len(trimmed) == 0 || trimmed[0] != '{' {
		return r, proto == dialect.Opaque
	}
	if !json.Valid(body) || !utf8.Valid(body) || nesting(body) > maxDepth {
		return r, false
	}
	top := grow(body, 0)
	seen := map[string]bool{}
	for _, n := range top.names {
		if seen[n] {
			return r, false
		}
		seen[n] = true
	}
	r.JSON = true
	o.top = top
	o.plain()
	if proto == dialect.Opaque {
		r.Prefix = fold('p', o.base(), 0)
		r.Key = r.Prefix
		return r, true
	}
	o.prompt()
	return r, true
}

func nesting(body []byte) (deepest int) {
	depth, in := 0, false
	for i := 0; i < len(body); i++ {
		switch c := body[i]; {
		case in && c == '\\':
			i++
		case c == '"':
			in = !in
		case in:
		case c == '{' || c == '[':
			depth++
			deepest = max(deepest, depth)
		case c == '}' || c == ']':
			depth--
		}
	}
	return deepest
}

type oracle struct {
	top     *tree
	r       *Result
	args    [argCount]uint64
	tools   uint64
	weight  int // tools and documents
	statics []uint64
	chain   uint64
}

func (o *oracle) span(t *tree) Span {
	if t == nil || t.kind == 'n' {
		return Span{}
	}
	return t.span
}

func text(t *tree) Span {
	if t == nil || t.kind != '"' {
		return Span{}
	}
	return t.span
}

func (o *oracle) plain() {
	r, top := o.r, o.top
	r.Model, r.CacheSalt, r.Adapter = o.span(top.get("model")), o.span(top.get("cache_salt")), o.span(top.get("lora_path"))
	r.Stream, r.StreamOptions = o.span(top.get("stream")), o.span(top.get("stream_options"))
	r.StreamOn = truthy(top.get("stream"))
	if so := top.get("stream_options"); so != nil && so.kind == '{' {
		for i, n := range so.names {
			if n == "include_usage" && so.items[i].kind != 'n' {
				r.IncludeUsage = False
				if truthy(so.items[i]) {
					r.IncludeUsage = True
				}
			}
		}
	}
	o.args[argSalt], o.args[argAdapter] = o.arg("cache_salt"), o.arg("lora_path")
	if r.Protocol == dialect.Opaque {
		return
	}
	r.PromptCacheKey = o.span(top.get("prompt_cache_key"))
	r.PreviousResponseID, r.SessionID = o.span(top.get("previous_response_id")), o.span(top.get("session_id"))
	r.Priority, r.N = o.span(top.get("priority")), o.span(top.get("n"))
	for _, n := range []string{"max_completion_tokens", "max_output_tokens", "max_tokens"} {
		if s := o.span(top.get(n)); s.Present() {
			r.MaxTokens = s
			break
		}
	}
	last := func(name, key string, out *Span) {
		t := top.get(name)
		if t == nil {
			return
		}
		if s := text(t); s.Present() {
			*out = s
		}
		for i, n := range t.names {
			if s := text(t.items[i]); n == key && s.Present() {
				*out = s
			}
		}
	}
	last("conversation", "id", &r.Conversation)
	if !r.SessionID.Present() {
		last("session_params", "id", &r.SessionID)
	}
	if r.Protocol == dialect.Messages {
		last("metadata", "user_id", &r.User)
	} else {
		r.User = o.span(top.get("user"))
	}
}

func truthy(t *tree) bool {
	if t == nil {
		return false
	}
	switch strings.ToLower(strings.Trim(string(t.raw), `"`)) {
	case "true", "1", "1.0", "t", "y", "yes", "on":
		return true
	}
	return false
}

func (o *oracle) arg(name string) uint64 {
	t := o.top.get(name)
	if t == nil || (t.kind == '[' || t.kind == '{') && len(t.items) == 0 {
		return 0
	}
	return t.hash(0)
}

func unorderedHash(t *tree) (sum uint64) {
	if t == nil || t.kind != '{' {
		return t.hash(0)
	}
	for i, n := range t.names {
		sum += fold('m', xxhash.Sum64String(n), t.items[i].hash(0))
	}
	return sum
}

func (o *oracle) arguments() {
	for slot, name := range map[int]string{argTemplate: "chat_template", argDocuments: "documents", argExtraKey: "extra_key",
		argThinking: "thinking", argSpecial: "add_special_tokens", argTruncate: "truncate_prompt_tokens",
		argMedia: "mm_processor_kwargs", argFunctions: "functions", argGeneration: "add_generation_prompt",
		argContinue: "continue_final_message"} {
		o.args[slot] = o.arg(name)
	}
	if t := o.top.get("add_generation_prompt"); t != nil && t.is("true") {
		o.args[argGeneration] = 0
	}
	if t := o.top.get("continue_final_message"); t != nil && t.is("false") {
		o.args[argContinue] = 0
	}
	if o.args[argDocuments] != 0 {
		o.weight += len(o.top.get("documents").compact(0))
	}
	o.args[argKwargs] = unorderedHash(o.top.get("chat_template_kwargs"))
	if o.r.Protocol != dialect.Responses {
		o.args[argEffort] = o.arg("reasoning_effort")
	} else if t := o.top.get("reasoning"); t != nil {
		for i, n := range t.names {
			if n == "effort" {
				o.args[argEffort] = (&oracle{top: &tree{names: []string{"e"}, items: t.items[i : i+1]}}).arg("e")
			}
		}
	}
	if t := o.top.get("tool_choice"); t != nil && !t.is(`"auto"`, `"required"`, `"any"`) {
		free := false
		for i, n := range t.names {
			if n == "type" {
				free = t.items[i].is(`"auto"`, `"required"`, `"any"`)
			}
		}
		if !free {
			o.args[argChoice] = unorderedHash(t)
		}
	}
	if t := o.top.get("tools"); t != nil {
		o.r.Tools = o.span(t)
		if !((t.kind == '[' || t.kind == '{') && len(t.items) == 0) {
			o.tools = t.hash(2)
		}
		if o.tools != 0 {
			o.weight += len(t.compact(2))
		}
	}
}

func (o *oracle) base() uint64 {
	b := []byte{Version}
	for i, h := range append(o.args[:], o.tools) {
		if h != 0 {
			b = append(b, byte(i))
			b = binary.LittleEndian.AppendUint64(b, h)
		}
	}
	return xxhash.Sum64(b)
}

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
