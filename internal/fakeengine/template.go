package fakeengine

import (
	"bytes"
	"fmt"
	"hash/fnv"

	"github.com/prefixring/prefixring/internal/dialect"
)

// conversation is a request of any protocol, ready for the chat template.
type conversation struct {
	tools    []tool
	kwargs   value // chat_template_kwargs
	effort   string
	messages []message
	open     bool // end with the header of the answer
	dialect  dialect.Engine
}

type tool struct {
	name        string
	raw         value // a whole OpenAI chat tool, else the fields below
	description value
	parameters  value
}

type message struct {
	role    string
	content value  // string or parts
	calls   value  // tool_calls of an assistant turn
	text    string // used when content is absent
	id      string // tool_call_id
}

func (m *message) system() bool { return m.role == "system" || m.role == "developer" }

// render applies the toy chat template. static is the length in bytes of the head
// that repeats across users: up to the first message that is not system or developer.
func (t *Template) render(dst []byte, c *conversation) (out []byte, static int) {
	thinking := c.kwargs.get("enable_thinking")
	dst = append(dst, "<|begin|>\n\n\n"...)
	if thinking.given() && !t.ThinkingLast {
		dst = pad(append(append(dst, "<|thinking|>"...), thinking...))
	}
	if c.effort != "" {
		dst = pad(append(append(dst, "Reasoning: "...), c.effort...))
	}
	if t.DateLine {
		dst = pad(t.Now().AppendFormat(append(dst, "Today Date: "...), "02 Jan 2006"))
	}
	if !t.ToolsLast {
		dst = renderTools(dst, c.tools)
	}
	last := -1
	if t.ToolsLast {
		for i := range c.messages {
			if c.messages[i].role == "user" {
				last = i
			}
		}
	}
	static = -1
	for i := range c.messages {
		m := &c.messages[i]
		if static < 0 && !m.system() {
			static = len(dst)
		}
		if i == last {
			dst = renderTools(dst, c.tools)
		}
		dst = renderMessage(dst, m, c.dialect)
	}
	if static < 0 {
		static = len(dst)
	}
	if thinking.given() && t.ThinkingLast {
		dst = pad(append(append(dst, "<|thinking|>"...), thinking...))
	}
	if c.open {
		dst = append(dst, "<|assistant|>\n\n\n"...)
	}
	return dst, static
}

func renderTools(dst []byte, tools []tool) []byte {
	if len(tools) == 0 {
		return dst
	}
	dst = append(dst, "<|tools|>\n\n\n"...)
	for i := range tools {
		dst = append(tools[i].append(dst), '\n')
	}
	return pad(append(dst, "<|end|>"...))
}

// append writes the tool as the chat protocol would have it, so that one tool is
// one text whichever protocol it came by.
func (t *tool) append(dst []byte) []byte {
	if t.raw != nil {
		return t.raw.appendCanonical(dst)
	}
	dst = append(dst, `{"type": "function", "function": {"name": `...)
	dst = quote(dst, t.name)
	if t.description != nil {
		dst = t.description.appendCanonical(append(dst, `, "description": `...))
	}
	if t.parameters != nil {
		dst = t.parameters.appendCanonical(append(dst, `, "parameters": `...))
	}
	return append(dst, "}}"...)
}

func renderMessage(dst []byte, m *message, e dialect.Engine) []byte {
	dst = append(dst, "<|"...)
	dst = append(dst, m.role...)
	dst = pad(append(dst, "|>"...))
	if m.id != "" {
		dst = pad(append(dst, m.id...))
	}
	switch {
	case m.content.is('"'):
		dst = m.content.appendText(dst)
	case m.content.is('['):
		m.content.each(func(_, part value) { dst = renderPart(dst, part, m, e) })
	default:
		dst = append(dst, m.text...)
	}
	dst = pad(dst)
	if m.calls.is('[') {
		dst = pad(m.calls.appendCanonical(append(dst, "<|calls|>"...)))
	}
	return append(dst, "<|end|>\n"...)
}

// billing is a per-request system block of some Anthropic clients. vLLM drops it
// before rendering, SGLang does not (engine_contracts 6.3).
const billing = "x-anthropic-billing-header"

func renderPart(dst []byte, part value, m *message, e dialect.Engine) []byte {
	switch kind := part.get("type").text(); kind {
	case "text", "input_text", "output_text", "refusal":
		text := part.get("text")
		if m.system() && e == dialect.VLLM && bytes.HasPrefix(text, []byte(`"`+billing)) {
			return dst
		}
		return text.appendText(dst)
	case "tool_use":
		dst = append(append(dst, "<|call|>"...), part.get("name").text()...)
		return part.get("input").appendCanonical(dst)
	case "tool_result":
		dst = append(append(dst, "<|result|>"...), part.get("tool_use_id").text()...)
		content := part.get("content")
		if content.is('[') {
			content.each(func(_, p value) { dst = renderPart(dst, p, m, e) })
			return dst
		}
		return content.appendText(dst)
	default: // images and the like: a digest stands for the pixels
		h := fnv.New64a()
		h.Write(part)
		return fmt.Appendf(dst, "<|%s %016x|>", kind, h.Sum64())
	}
}
