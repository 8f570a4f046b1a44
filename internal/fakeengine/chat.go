package fakeengine

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/prefixring/prefixring/internal/dialect"
)

// conversationOf reads a chat request into a conversation.
func (e *Engine) conversationOf(b value) (conversation, *apiError) {
	c := conversation{kwargs: b.get("chat_template_kwargs"), effort: b.get("reasoning_effort").text(), open: true, dialect: e.opts.Dialect}
	messages := b.get("messages")
	if messages == nil {
		return c, e.missing(b, "messages")
	}
	if !messages.is('[') {
		return c, invalid("body.messages", "1 validation error:\n  {'type': 'list_type', 'loc': 'body.messages', 'msg': 'Input should be a valid list'}")
	}
	messages.each(func(_, m value) {
		c.messages = append(c.messages, message{role: m.get("role").text(), content: m.get("content"), calls: m.get("tool_calls"), id: m.get("tool_call_id").text()})
	})
	b.get("tools").each(func(_, t value) {
		c.tools = append(c.tools, tool{name: t.get("function").get("name").text(), raw: t})
	})
	return c, nil
}

// calledTool decides whether the model calls a tool: when it is made to, or when
// the last user text says "use tool".
func calledTool(b value, c *conversation) string {
	if len(c.tools) == 0 {
		return ""
	}
	choice := b.get("tool_choice")
	switch kind := choice.text(); {
	case kind == "none":
		return ""
	case kind == "required" || kind == "any":
		return c.tools[0].name
	case choice.is('{'):
		for _, name := range []value{choice.get("function").get("name"), choice.get("name")} {
			if name.is('"') {
				return name.text()
			}
		}
		switch choice.get("type").text() {
		case "none":
			return ""
		case "any":
			return c.tools[0].name
		}
	}
	for i := len(c.messages) - 1; i >= 0; i-- {
		if m := &c.messages[i]; m.role == "user" {
			text := string(renderMessage(nil, m, c.dialect))
			if strings.Contains(strings.ToLower(text), "use tool") && !strings.Contains(text, "<|result|>") {
				return c.tools[0].name
			}
			return ""
		}
	}
	return ""
}

func (e *Engine) chat(x *wire) {
	g, err := e.readChat(x)
	if err != nil {
		x.fail(err)
		return
	}
	ex := &exchange{g: g}
	e.run(x, ex, &chatSpeaker{e, ex})
}

func (e *Engine) readChat(x *wire) (*generation, *apiError) {
	if err := x.parse(); err != nil {
		return nil, err
	}
	conv, err := e.conversationOf(x.body)
	if err != nil {
		return nil, err
	}
	g, err := e.begin(x, dialect.Chat)
	if err != nil {
		return nil, err
	}
	lim, err := e.limits(x.body, "max_completion_tokens", "max_tokens")
	if err != nil {
		return nil, err
	}
	lim.tool = calledTool(x.body, &conv)
	return g, e.renderInto(g, conv, lim)
}

// renderInto applies the template and plans the answers.
func (e *Engine) renderInto(g *generation, conv conversation, lim limits) *apiError {
	g.conv = conv
	text, static := e.opts.Template.render(make([]byte, 0, len(g.body)+1024), &conv)
	if err := e.fits(tokensOf(len(text)), lim); err != nil {
		return err
	}
	g.prompts = []prompt{e.plan(g, text, static, lim, e.root(g))}
	return nil
}

type chatSpeaker struct {
	e  *Engine
	ex *exchange
}

func (s *chatSpeaker) open(*wire) {}

// chunkHead is the part all chunks share.
func (s *chatSpeaker) chunkHead() []byte {
	g := s.ex.g
	b := append([]byte(`data: {"id":"`), g.id...)
	b = append(b, `","object":"chat.completion.chunk","created":`...)
	b = strconv.AppendInt(b, g.created, 10)
	return quote(append(b, `,"model":`...), g.model)
}

// chunk writes one event with one choice. extra goes behind finish_reason, rest
// behind the choices.
func (s *chatSpeaker) chunk(x *wire, index int, delta []byte, finish, extra, rest string) {
	b := s.chunkHead()
	b = append(b, `,"choices":[{"index":`...)
	b = strconv.AppendInt(b, int64(index), 10)
	b = append(append(b, `,"delta":`...), delta...)
	b = append(append(b, `,"logprobs":null,"finish_reason":`...), finish...)
	b = append(append(b, extra...), "}]"...)
	if s.ex.g.usageAlways {
		b = append(append(b, `,"usage":`...), s.usage(false)...)
	} else if s.sglang() {
		b = append(b, `,"usage":null`...)
	}
	b = append(b, rest...)
	x.event(append(b, "}\n\n"...))
}

func (s *chatSpeaker) sglang() bool { return s.e.opts.Dialect == dialect.SGLang }

func (s *chatSpeaker) first(x *wire) {
	for _, c := range s.ex.choices {
		if s.sglang() {
			s.chunk(x, c.index, []byte(`{"role":"assistant","content":"","reasoning_content":null,"tool_calls":null}`), "null", `,"matched_stop":null`, "")
		} else {
			s.chunk(x, c.index, []byte(`{"role":"assistant","content":""}`), "null", "", `,"prompt_token_ids":null,"prompt_text":null`)
		}
	}
}

func (s *chatSpeaker) tokens(x *wire, c *choice, from, to int) {
	last := to == c.reply.tokens
	delta := s.delta(c, from, to)
	if s.sglang() {
		s.chunk(x, c.index, delta, "null", `,"matched_stop":null`, "")
		if last {
			s.chunk(x, c.index, []byte(`{"role":null,"content":null,"reasoning_content":null,"tool_calls":null}`), `"`+c.finish+`"`, `,"matched_stop":`+matched(c), "")
		}
		return
	}
	if last {
		s.chunk(x, c.index, delta, `"`+c.finish+`"`, `,"stop_reason":`+stopReason(c)+`,"token_ids":null`, "")
		return
	}
	s.chunk(x, c.index, delta, "null", `,"token_ids":null`, "")
}

func (s *chatSpeaker) delta(c *choice, from, to int) []byte {
	piece := c.piece(from, to)
	if c.tool == "" {
		if s.sglang() {
			return append(quote([]byte(`{"role":null,"content":`), piece), `,"reasoning_content":null,"tool_calls":null}`...)
		}
		return append(quote([]byte(`{"content":`), piece), '}')
	}
	var call []byte
	if from == 0 {
		call = quote([]byte(`{"id":`), c.callID)
		call = quote(append(call, `,"type":"function","index":0,"function":{"name":`...), c.tool)
		call = quote(append(call, `,"arguments":`...), piece)
	} else {
		call = quote([]byte(`{"index":0,"function":{"arguments":`), piece)
	}
	call = append(call, "}}"...)
	if s.sglang() {
		return fmt.Appendf(nil, `{"role":null,"content":null,"reasoning_content":null,"tool_calls":[%s]}`, call)
	}
	return fmt.Appendf(nil, `{"tool_calls":[%s]}`, call)
}

func (s *chatSpeaker) aborted(x *wire, c *choice) {
	if s.sglang() {
		s.chunk(x, c.index, []byte(`{"role":null,"content":"","reasoning_content":null,"tool_calls":null}`), `"abort"`, `,"matched_stop":null`, "")
		return
	}
	s.chunk(x, c.index, []byte(`{"content":""}`), `"abort"`, `,"stop_reason":null,"token_ids":null`, "")
}

func (s *chatSpeaker) end(x *wire) {
	if s.ex.g.includeUsage {
		b := append(s.chunkHead(), `,"choices":[],"usage":`...)
		b = append(b, s.usage(true)...)
		if !s.sglang() {
			b = append(b, `,"system_fingerprint":"`+s.e.fingerprint()+`"`...)
		}
		x.event(append(b, "}\n\n"...))
	}
	done(x)
}

// done ends a chat or completions stream.
func done(x *wire) {
	if x.faults[FaultNoDone] == nil {
		x.event([]byte("data: [DONE]\n\n"))
	}
}

// usage is the usage object of a chunk; final is the one of the last chunk.
func (s *chatSpeaker) usage(final bool) []byte {
	prompt, cached, output := s.ex.usage()
	b := fmt.Appendf(nil, `{"prompt_tokens":%d,"total_tokens":%d,"completion_tokens":%d`, prompt, prompt+output, output)
	switch {
	case s.sglang():
		b = append(b, `,"prompt_tokens_details":`+s.e.sglangDetails(cached)+`,"reasoning_tokens":0`...)
	case !final:
		b = append(b, `,"completion_tokens_details":null`...)
	case s.e.opts.ReportCached:
		b = fmt.Appendf(b, `,"prompt_tokens_details":{"cached_tokens":%d,"created_cache_tokens":%d}`, cached, s.ex.created(s.e.blockSize))
	}
	return append(b, '}')
}

// sglangDetails leaves cached tokens out when they are zero (engine_contracts 6.1).
func (e *Engine) sglangDetails(cached int) string {
	if !e.opts.ReportCached || cached == 0 {
		return "null"
	}
	return fmt.Sprintf(`{"cached_tokens":%d}`, cached)
}

func (e *Engine) fingerprint() string { return "vllm-" + e.opts.Version + "-" + e.instance }

func stopReason(c *choice) string {
	if c.match == "" {
		return "null"
	}
	return string(quote(nil, c.match))
}

// matched is SGLang's matched_stop: the stop string, or the token that ended the text.
func matched(c *choice) string {
	if c.match == "" && (c.finish == "stop" || c.finish == "tool_calls") {
		return "2"
	}
	return stopReason(c)
}

func (s *chatSpeaker) whole(*wire) []byte {
	g := s.ex.g
	b := append([]byte(`{"id":"`), g.id...)
	b = fmt.Appendf(b, `","object":"chat.completion","created":%d,"model":`, g.created)
	b = append(quote(b, g.model), `,"choices":[`...)
	for i, c := range s.ex.choices {
		if i > 0 {
			b = append(b, ',')
		}
		b = s.wholeChoice(b, c)
	}
	prompt, cached, output := s.ex.usage()
	if s.sglang() {
		b = append(b, `],"usage":`...)
		return append(append(b, s.usage(true)...), `,"metadata":{"weight_version":"default"}}`...)
	}
	b = fmt.Appendf(b, `],"service_tier":null,"system_fingerprint":"%s","usage":{"prompt_tokens":%d,"total_tokens":%d,"completion_tokens":%d,"prompt_tokens_details":`,
		s.e.fingerprint(), prompt, prompt+output, output)
	if s.e.opts.ReportCached {
		b = fmt.Appendf(b, `{"cached_tokens":%d,"created_cache_tokens":%d,"multimodal_tokens":null}`, cached, s.ex.created(s.e.blockSize))
	} else {
		b = append(b, "null"...)
	}
	return append(b, `,"completion_tokens_details":null},"prompt_logprobs":null,"prompt_token_ids":null,"prompt_text":null,"kv_transfer_params":null,"ec_transfer_params":null,"metrics":null}`...)
}

func (s *chatSpeaker) wholeChoice(b []byte, c *choice) []byte {
	b = fmt.Appendf(b, `{"index":%d,"message":{"role":"assistant","content":`, c.index)
	if c.tool == "" {
		b = quote(b, c.text)
	} else {
		b = append(b, "null"...)
	}
	if s.sglang() {
		b = append(b, `,"reasoning_content":null,"tool_calls":`...)
		if c.tool == "" {
			b = append(b, "null"...)
		} else {
			b = wholeCall(b, c, true)
		}
		b = fmt.Appendf(b, `},"logprobs":null,"finish_reason":"%s","matched_stop":%s}`, c.finish, matched(c))
		return b
	}
	b = append(b, `,"refusal":null,"annotations":null,"audio":null,"function_call":null`...)
	if c.tool != "" {
		b = wholeCall(append(b, `,"tool_calls":`...), c, false)
	}
	return fmt.Appendf(b, `,"reasoning":null},"logprobs":null,"finish_reason":"%s","stop_reason":%s,"token_ids":null,"routed_experts":null}`, c.finish, stopReason(c))
}

func wholeCall(b []byte, c *choice, index bool) []byte {
	b = quote(append(b, `[{"id":`...), c.callID)
	if index {
		b = append(b, `,"index":0`...)
	}
	b = quote(append(b, `,"type":"function","function":{"name":`...), c.tool)
	return append(quote(append(b, `,"arguments":`...), c.text), "}}]"...)
}
