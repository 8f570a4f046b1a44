package fingerprint

import (
	"github.com/cespare/xxhash/v2"

	"github.com/prefixring/prefixring/internal/dialect"
)

// Template arguments: everything beside tools and messages that reaches the chat
// template or splits the engines' caches. The order is part of the version.
const (
	argTemplate   = iota // chat_template
	argKwargs            // chat_template_kwargs
	argDocuments         // documents
	argEffort            // reasoning_effort, reasoning.effort
	argGeneration        // add_generation_prompt, unless true
	argContinue          // continue_final_message, unless false
	argChoice            // tool_choice, when it can hide tools
	argAdapter           // lora_path
	argExtraKey          // extra_key
	argThinking          // thinking
	argSpecial           // add_special_tokens
	argTruncate          // truncate_prompt_tokens
	argMedia             // mm_processor_kwargs
	argFunctions         // functions
	argSalt              // cache_salt
	argCount
)

// argField reads the template arguments.
func (p *parser) argField(name []byte) (known, ok bool) {
	switch string(name) {
	case "chat_template":
		return true, p.arg("chat_template", argTemplate)
	case "chat_template_kwargs":
		p.field = "chat_template_kwargs"
		p.args[argKwargs], _, ok = p.unordered()
		return true, ok
	case "documents":
		ok = p.arg("documents", argDocuments)
		if p.args[argDocuments] != 0 {
			p.extraBytes += p.aux.pos
		}
		return true, ok
	case "reasoning_effort":
		if p.r.Protocol != dialect.Responses {
			return true, p.arg("reasoning_effort", argEffort)
		}
	case "reasoning":
		if p.r.Protocol == dialect.Responses {
			p.field = "reasoning"
			return true, p.reasoning()
		}
	case "add_generation_prompt":
		return true, p.argUnless("add_generation_prompt", argGeneration, "true")
	case "continue_final_message":
		return true, p.argUnless("continue_final_message", argContinue, "false")
	case "tool_choice":
		p.field = "tool_choice"
		return true, p.toolChoice()
	case "extra_key":
		return true, p.arg("extra_key", argExtraKey)
	case "thinking":
		return true, p.arg("thinking", argThinking)
	case "add_special_tokens":
		return true, p.arg("add_special_tokens", argSpecial)
	case "truncate_prompt_tokens":
		return true, p.arg("truncate_prompt_tokens", argTruncate)
	case "mm_processor_kwargs":
		return true, p.arg("mm_processor_kwargs", argMedia)
	case "functions":
		return true, p.arg("functions", argFunctions)
	}
	return false, false
}

func (p *parser) arg(field string, slot int) (ok bool) {
	p.field = field
	from := p.i
	if p.args[slot], ok = p.hash(0); !ok {
		return false
	}
	if empty(p.b[from:p.i]) {
		p.args[slot] = 0
	}
	return true
}

// empty reports whether raw is an empty object or array: like null, it adds nothing to
// a prompt.
func empty(raw []byte) bool {
	return (raw[0] == '[' || raw[0] == '{') && spaces(raw, 1) == len(raw)-1
}

func (p *parser) spanArg(field string, out *Span, slot int) bool {
	from := p.i
	if !p.arg(field, slot) {
		return false
	}
	if p.b[from] != 'n' {
		*out = Span{from, p.i}
	}
	return true
}

// argUnless is arg for a switch whose default is def: giving the default changes
// nothing.
func (p *parser) argUnless(field string, slot int, def string) bool {
	from := p.i
	if !p.arg(field, slot) {
		return false
	}
	if string(p.b[from:p.i]) == def {
		p.args[slot] = 0
	}
	return true
}

// mix hashes a pair such that sums of mixes do not depend on the order of pairs.
func mix(a, b uint64) uint64 { return fold('m', a, b) }

// unordered hashes an object whose members are named variables: their order does not
// reach the template. toolType is whether a member type has a value that selects no
// single tool.
func (p *parser) unordered() (sum uint64, neutral, ok bool) {
	if !p.at('{') {
		sum, ok = p.hash(0)
		return sum, false, ok
	}
	if !p.open() {
		return 0, false, false
	}
	for first := true; ; first = false {
		name, more := p.member(first)
		if !more {
			return sum, neutral, p.err == nil
		}
		key, isType, from := xxhash.Sum64(name), string(name) == "type", p.i
		v, ok := p.hash(0)
		if !ok {
			return 0, false, false
		}
		sum += mix(key, v)
		if isType {
			neutral = anyTool(p.b[from:p.i])
		}
	}
}

// anyTool reports whether a tool choice leaves all tools in the prompt: both engines
// take tools out for "none", and SGLang keeps a chosen one only; "auto", "required" and
// Anthropic's "any" steer decoding and not rendering.
func anyTool(raw []byte) bool {
	switch string(raw) {
	case `"auto"`, `"required"`, `"any"`:
		return true
	}
	return false
}

func (p *parser) toolChoice() (ok bool) {
	from := p.i
	sum, neutral, ok := p.unordered()
	if ok && !neutral && !anyTool(p.b[from:p.i]) {
		p.args[argChoice] = sum
	}
	return ok
}

// reasoning reads the Responses object whose effort is what chat calls
// reasoning_effort; its other members shape the answer only.
func (p *parser) reasoning() bool {
	if !p.at('{') {
		_, ok := p.skip()
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
		if string(name) == "effort" {
			if !p.arg("reasoning", argEffort) {
				return false
			}
		} else if _, ok := p.skip(); !ok {
			return false
		}
	}
}

// toolList hashes tools in the client's order, members included, because templates dump
// them in that order; only white space and escape style are free.
func (p *parser) toolList() (ok bool) {
	from := p.i
	const toolMembers = 2 // the array, the tool
	if p.tools, ok = p.hash(toolMembers); !ok {
		return false
	}
	if p.b[from] != 'n' {
		p.r.Tools = Span{from, p.i}
	}
	if empty(p.b[from:p.i]) {
		p.tools = 0
	}
	if p.tools != 0 {
		p.toolBytes = p.aux.pos
	}
	return true
}
