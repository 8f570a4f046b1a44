package fingerprint

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"strings"
	"unicode/utf8"

	"github.com/cespare/xxhash/v2"

	"github.com/prefixring/prefixring/internal/dialect"
)

// The oracle: the fingerprint as docs/fingerprint.md states it, computed the slow way.
// encoding/json takes the body apart into a tree that keeps the order of members and the
// raw spelling; every stream is then written out as a byte slice and hashed once. It
// shares fold, the field table and nothing else with the scanner.

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
	top    *tree
	r      *Result
	args   [argCount]uint64
	tools  uint64
	weight int // tools and documents
	chain  uint64
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
