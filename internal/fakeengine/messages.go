package fakeengine

import (
	"fmt"

	"github.com/prefixring/prefixring/internal/dialect"
)

// anthropicConversation reads a Messages request.
func (e *Engine) anthropicConversation(b value) (conversation, *apiError) {
	c := conversation{kwargs: b.get("chat_template_kwargs"), open: true, dialect: e.opts.Dialect}
	for _, field := range []string{"model", "messages", "max_tokens"} {
		if b.get(field) == nil {
			return c, e.missing(b, field)
		}
	}
	if system := b.get("system"); system.given() {
		c.messages = append(c.messages, message{role: "system", content: system})
	}
	b.get("messages").each(func(_, m value) {
		c.messages = append(c.messages, message{role: m.get("role").text(), content: m.get("content")})
	})
	b.get("tools").each(func(_, t value) {
		c.tools = append(c.tools, tool{name: t.get("name").text(), description: t.get("description"), parameters: t.get("input_schema")})
	})
	return c, nil
}

func (e *Engine) messages(x *wire) {
	g, err := e.readMessages(x)
	if err != nil {
		x.fail(err)
		return
	}
	ex := &exchange{g: g}
	e.run(x, ex, &messagesSpeaker{e, ex})
}

func (e *Engine) readMessages(x *wire) (*generation, *apiError) {
	if err := x.parse(); err != nil {
		return nil, err
	}
	conv, err := e.anthropicConversation(x.body)
	if err != nil {
		return nil, err
	}
	g, err := e.begin(x, dialect.Messages)
	if err != nil {
		return nil, err
	}
	lim, err := e.limits(x.body, "max_tokens")
	if err != nil {
		return nil, err
	}
	lim.tool = calledTool(x.body, &conv)
	return g, e.renderInto(g, conv, lim)
}

// countTokens is /v1/messages/count_tokens.
func (e *Engine) countTokens(x *wire) {
	if err := x.parse(); err != nil {
		x.fail(err)
		return
	}
	b := append(value(`{"max_tokens":1,`), x.body[space(x.body, 1):]...)
	conv, err := e.anthropicConversation(b)
	if err != nil {
		x.fail(err)
		return
	}
	text, _ := e.opts.Template.render(nil, &conv)
	x.json(200, fmt.Appendf(nil, `{"input_tokens":%d}`, tokensOf(len(text))))
}

type messagesSpeaker struct {
	e  *Engine
	ex *exchange
}

func (s *messagesSpeaker) open(*wire) {}

// first sends message_start: its input_tokens is the full prompt and it says
// nothing of the cache (capture vllm_messages_stream).
func (s *messagesSpeaker) first(x *wire) {
	prompt, _, _ := s.ex.usage()
	b := fmt.Appendf(nil, "event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"id\":\"%s\",\"type\":\"message\",\"role\":\"assistant\",\"content\":[],\"model\":", s.ex.g.id)
	b = quote(b, s.ex.g.model)
	x.event(fmt.Appendf(b, ",\"stop_reason\":null,\"stop_sequence\":null,\"usage\":{\"input_tokens\":%d,\"output_tokens\":0}}}\n\n", prompt))
}

func (s *messagesSpeaker) tokens(x *wire, c *choice, from, to int) {
	if from == 0 {
		x.event(s.blockStart(c))
	}
	b := []byte("event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"delta\":{\"type\":")
	if c.tool == "" {
		b = append(b, `"text_delta","text":`...)
	} else {
		b = append(b, `"input_json_delta","partial_json":`...)
	}
	b = quote(b, c.piece(from, to))
	x.event(append(b, "},\"index\":0}\n\n"...))
	if to == c.reply.tokens {
		s.stop(x, c)
	}
}

func (s *messagesSpeaker) blockStart(c *choice) []byte {
	b := []byte("event: content_block_start\ndata: {\"type\":\"content_block_start\",\"content_block\":{\"type\":")
	if c.tool == "" {
		b = append(b, `"text","text":""`...)
	} else {
		b = quote(append(b, `"tool_use","id":`...), c.callID)
		b = append(quote(append(b, `,"name":`...), c.tool), `,"input":{}`...)
	}
	return append(b, "},\"index\":0}\n\n"...)
}

func (s *messagesSpeaker) stop(x *wire, c *choice) {
	x.event([]byte("event: content_block_stop\ndata: {\"type\":\"content_block_stop\",\"index\":0}\n\n"))
	reason, sequence := stopOf(c)
	b := fmt.Appendf(nil, "event: message_delta\ndata: {\"type\":\"message_delta\",\"delta\":{\"stop_reason\":\"%s\",\"stop_sequence\":%s},\"usage\":", reason, sequence)
	b = append(b, s.usage(c.sent)...)
	x.event(append(b, "}\n\n"...))
}

func stopOf(c *choice) (reason, sequence string) {
	switch {
	case c.match != "":
		return "stop_sequence", stopReason(c)
	case c.finish == "length":
		return "max_tokens", "null"
	case c.finish == "tool_calls":
		return "tool_use", "null"
	case c.finish == "abort":
		return "abort", "null"
	}
	return "end_turn", "null"
}

func (s *messagesSpeaker) aborted(x *wire, c *choice) {
	if c.sent == 0 {
		s.first(x)
		x.event(s.blockStart(c))
	}
	s.stop(x, c)
}

func (s *messagesSpeaker) end(x *wire) {
	x.event([]byte("event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n"))
}

// usage takes cached tokens out of input_tokens, if it reports them at all.
func (s *messagesSpeaker) usage(output int) []byte {
	prompt, cached, _ := s.ex.usage()
	if !s.e.opts.ReportCached || s.e.opts.Dialect == dialect.SGLang && cached == 0 {
		return fmt.Appendf(nil, `{"input_tokens":%d,"output_tokens":%d}`, prompt, output)
	}
	created := 0
	if s.e.opts.Dialect == dialect.VLLM {
		created = s.ex.created(s.e.blockSize)
	}
	return fmt.Appendf(nil, `{"input_tokens":%d,"output_tokens":%d,"cache_creation_input_tokens":%d,"cache_read_input_tokens":%d}`,
		prompt-cached-created, output, created, cached)
}

func (s *messagesSpeaker) whole(*wire) []byte {
	c := s.ex.choices[0]
	b := fmt.Appendf(nil, `{"id":"%s","type":"message","role":"assistant","content":[{"type":`, s.ex.g.id)
	if c.tool == "" {
		b = quote(append(b, `"text","text":`...), c.text)
	} else {
		b = quote(append(b, `"tool_use","id":`...), c.callID)
		b = quote(append(b, `,"name":`...), c.tool)
		args := value(c.text)
		if validate(args) != nil {
			args = value(`{}`) // cut off by the limit
		}
		b = append(append(b, `,"input":`...), args...)
	}
	reason, sequence := stopOf(c)
	b = append(b, `}],"model":`...)
	b = append(quote(b, s.ex.g.model), `,"stop_reason":"`+reason+`"`...)
	if c.match != "" {
		b = append(b, `,"stop_sequence":`+sequence...)
	}
	return append(append(append(b, `,"usage":`...), s.usage(c.sent)...), '}')
}
