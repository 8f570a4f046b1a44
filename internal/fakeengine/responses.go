package fakeengine

import (
	"fmt"
	"net/http"
	"strings"

	"github.com/prefixring/prefixring/internal/dialect"
)

// stored is a response that can be continued with previous_response_id. The store
// lives in one process and one engine (engine_contracts 2).
type stored struct {
	messages []message
	body     []byte
}

// maxStored bounds the store.
const maxStored = 10_000

func (e *Engine) stores() bool { return e.opts.StoreResponses || e.opts.Dialect == dialect.SGLang }

func (e *Engine) responsesConversation(b value) (conversation, *apiError) {
	c := conversation{kwargs: b.get("chat_template_kwargs"), effort: b.get("reasoning").get("effort").text(), open: true, dialect: e.opts.Dialect}
	input := b.get("input")
	if !input.given() {
		return c, e.missing(b, "input")
	}
	if i := b.get("instructions"); i.given() {
		c.messages = append(c.messages, message{role: "system", content: i})
	}
	if id := b.get("previous_response_id").text(); id != "" {
		e.mu.Lock()
		old, ok := e.stored[id]
		e.mu.Unlock()
		if !ok {
			return c, &apiError{http.StatusNotFound, "invalid_request_error", fmt.Sprintf("Response with id '%s' not found.", id), "response_id"}
		}
		c.messages = append(c.messages, old.messages...)
	}
	if input.is('"') {
		c.messages = append(c.messages, message{role: "user", content: input})
	}
	input.each(func(_, item value) { c.messages = append(c.messages, itemMessage(item)) })
	b.get("tools").each(func(_, t value) {
		c.tools = append(c.tools, tool{name: t.get("name").text(), description: t.get("description"), parameters: t.get("parameters")})
	})
	return c, nil
}

func itemMessage(item value) message {
	switch item.get("type").text() {
	case "function_call":
		return message{role: "assistant", text: item.get("name").text() + item.get("arguments").text()}
	case "function_call_output":
		return message{role: "tool", content: item.get("output"), id: item.get("call_id").text()}
	}
	return message{role: item.get("role").text(), content: item.get("content")}
}

func (e *Engine) responses(x *wire) {
	g, err := e.readResponses(x)
	if err != nil {
		x.fail(err)
		return
	}
	ex := &exchange{g: g}
	e.run(x, ex, &responsesSpeaker{e: e, ex: ex, item: hexID(e.random())})
}

func (e *Engine) readResponses(x *wire) (*generation, *apiError) {
	if err := x.parse(); err != nil {
		return nil, err
	}
	conv, err := e.responsesConversation(x.body)
	if err != nil {
		return nil, err
	}
	g, err := e.begin(x, dialect.Responses)
	if err != nil {
		return nil, err
	}
	g.n = 1
	lim, err := e.limits(x.body, "max_output_tokens")
	if err != nil {
		return nil, err
	}
	lim.tool = calledTool(x.body, &conv)
	return g, e.renderInto(g, conv, lim)
}

// keep puts a whole response into the store.
func (e *Engine) keep(ex *exchange, body []byte) {
	if s := ex.g.body.get("store"); !e.stores() || s != nil && !s.yes() {
		return
	}
	c := ex.choices[0]
	m := append([]message(nil), ex.g.conv.messages...)
	if ex.g.body.get("instructions").given() {
		m = m[1:] // instructions belong to one request only
	}
	m = append(m, message{role: "assistant", text: c.tool + string(c.text)})
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(e.stored) < maxStored {
		e.stored[ex.g.id] = stored{m, append([]byte(nil), body...)}
	}
}

// storedResponse serves GET /v1/responses/{id} and POST .../cancel.
func (e *Engine) storedResponse(x *wire, id string) {
	id, cancel := strings.CutSuffix(id, "/cancel")
	e.mu.Lock()
	old, ok := e.stored[id]
	e.mu.Unlock()
	switch {
	case !ok:
		x.fail(&apiError{http.StatusNotFound, "invalid_request_error", fmt.Sprintf("Response with id '%s' not found.", id), "response_id"})
	case cancel:
		x.fail(&apiError{http.StatusBadRequest, "invalid_request_error", "Cannot cancel a synchronous response.", "response_id"})
	default:
		x.json(http.StatusOK, old.body)
	}
}

type responsesSpeaker struct {
	e        *Engine
	ex       *exchange
	item     string
	sequence int
}

// object writes the response object in the state it is in.
func (s *responsesSpeaker) object(b []byte, status string) []byte {
	g := s.ex.g
	done := status != "in_progress"
	b = fmt.Appendf(b, `{"id":"%s","created_at":%d,"incomplete_details":`, g.id, g.created)
	if status == "incomplete" {
		b = append(b, `{"reason":"max_output_tokens"}`...)
	} else {
		b = append(b, "null"...)
	}
	b = orNull(append(b, `,"instructions":`...), g.body.get("instructions"), "null")
	b = orNull(append(b, `,"metadata":`...), g.body.get("metadata"), "null")
	b = append(quote(append(b, `,"model":`...), g.model), `,"object":"response","output":[`...)
	if done {
		b = s.output(b, s.ex.choices[0], "completed")
	}
	choice := `"auto"`
	if len(g.conv.tools) == 0 {
		choice = `"none"`
	}
	b = orNull(append(b, `],"parallel_tool_calls":true,"temperature":1.0,"tool_choice":`...), g.body.get("tool_choice"), choice)
	b = orNull(append(b, `,"tools":`...), g.body.get("tools"), "[]")
	b = orNull(append(b, `,"top_p":1.0,"background":false,"max_output_tokens":`...), g.body.get("max_output_tokens"), "null")
	b = orNull(append(b, `,"max_tool_calls":null,"previous_response_id":`...), g.body.get("previous_response_id"), "null")
	b = append(b, `,"prompt":null,"reasoning":null,"service_tier":"auto","status":"`+status+`","text":null,"top_logprobs":null,"truncation":"disabled","usage":`...)
	if done {
		b = s.usage(b)
	} else {
		b = append(b, "null"...)
	}
	b = orNull(append(b, `,"user":`...), g.body.get("user"), "null")
	return append(b, `,"presence_penalty":0.0,"frequency_penalty":0.0,"kv_transfer_params":null,"ec_transfer_params":null,"input_messages":null,"output_messages":null}`...)
}

func orNull(b []byte, v value, otherwise string) []byte {
	if v.given() {
		return append(b, v...)
	}
	return append(b, otherwise...)
}

// usage: vLLM reports cached tokens here whatever the flag says.
func (s *responsesSpeaker) usage(b []byte) []byte {
	prompt, cached, output := s.ex.usage()
	if s.e.opts.Dialect == dialect.SGLang && !s.e.opts.ReportCached {
		cached = 0
	}
	return fmt.Appendf(b, `{"input_tokens":%d,"input_tokens_details":{"cached_tokens":%d,"cache_write_tokens":0,"input_tokens_per_turn":[],"cached_tokens_per_turn":[]},`+
		`"output_tokens":%d,"output_tokens_details":{"reasoning_tokens":0,"tool_output_tokens":0,"output_tokens_per_turn":[],"tool_output_tokens_per_turn":[]},"total_tokens":%d}`,
		prompt, cached, output, prompt+output)
}

func (s *responsesSpeaker) output(b []byte, c *choice, status string) []byte {
	if c.tool != "" {
		b = quote(append(b, `{"arguments":`...), c.text)
		b = quote(append(b, `,"call_id":`...), c.callID)
		b = quote(append(b, `,"name":`...), c.tool)
		return append(b, `,"type":"function_call","id":"fc_`+s.item+`","status":"`+status+`"}`...)
	}
	b = quote(append(b, `{"id":"msg_`+s.item+`","content":[{"annotations":[],"text":`...), c.text)
	return append(b, `,"type":"output_text","logprobs":null}],"role":"assistant","status":"`+status+`","type":"message","phase":null}`...)
}

// event wraps fields into one named event with its sequence number. The keys of an
// event are in alphabetical order, so some fields come after the number.
func (s *responsesSpeaker) event(x *wire, name string, fields []byte, after ...byte) {
	b := append([]byte("event: "+name+"\ndata: {"), fields...)
	b = fmt.Appendf(b, ",\"sequence_number\":%d%s,\"type\":\"%s\"}\n\n", s.sequence, after, name)
	s.sequence++
	x.event(b)
}

// open announces the response before anything is generated: vLLM sends these two
// events, with the whole instructions in each, while the prompt is still prefilled.
func (s *responsesSpeaker) open(x *wire) {
	for _, name := range []string{"response.created", "response.in_progress"} {
		s.event(x, name, s.object([]byte(`"response":`), "in_progress"))
	}
}

func (s *responsesSpeaker) first(x *wire) {
	c := s.ex.choices[0]
	if c.tool != "" {
		empty := *c.reply
		empty.text = nil
		b := s.output([]byte(`"item":`), &choice{reply: &empty}, "in_progress")
		s.event(x, "response.output_item.added", append(b, `,"output_index":0`...))
		return
	}
	s.event(x, "response.output_item.added", []byte(`"item":{"id":"msg_`+s.item+`","content":[],"role":"assistant","status":"in_progress","type":"message","phase":null},"output_index":0`))
	s.event(x, "response.content_part.added", []byte(`"content_index":0,"item_id":"msg_`+s.item+`","output_index":0,"part":{"annotations":[],"text":"","type":"output_text","logprobs":[]}`))
}

func (s *responsesSpeaker) tokens(x *wire, c *choice, from, to int) {
	piece := c.piece(from, to)
	if c.tool != "" {
		s.event(x, "response.function_call_arguments.delta", append(quote([]byte(`"delta":`), piece), `,"item_id":"fc_`+s.item+`","output_index":0`...))
	} else {
		b := quote([]byte(`"content_index":0,"delta":`), piece)
		s.event(x, "response.output_text.delta", append(b, `,"item_id":"msg_`+s.item+`","logprobs":[],"output_index":0`...))
	}
	if to == c.reply.tokens {
		s.close(x, c)
	}
}

func (s *responsesSpeaker) close(x *wire, c *choice) {
	if c.tool != "" {
		b := quote([]byte(`"arguments":`), c.text)
		b = quote(append(b, `,"item_id":"fc_`+s.item+`","name":`...), c.tool)
		s.event(x, "response.function_call_arguments.done", append(b, `,"output_index":0`...))
	} else {
		b := []byte(`"content_index":0,"item_id":"msg_` + s.item + `","logprobs":[],"output_index":0`)
		s.event(x, "response.output_text.done", b, quote([]byte(`,"text":`), c.text)...)
		b = []byte(`"content_index":0,"item_id":"msg_` + s.item + `","output_index":0,"part":{"annotations":[],"text":`)
		s.event(x, "response.content_part.done", append(quote(b, c.text), `,"type":"output_text","logprobs":null}`...))
	}
	s.event(x, "response.output_item.done", append(s.output([]byte(`"item":`), c, "completed"), `,"output_index":0`...))
}

// aborted: vLLM ends the stream with an error object and never with response.failed
// (engine_contracts 8); the end event is then left out.
func (s *responsesSpeaker) aborted(x *wire, _ *choice) {
	x.event(s.e.errorEvent(&apiError{http.StatusInternalServerError, "InternalServerError", "Internal server error", ""}, "/v1/responses"))
}

func (s *responsesSpeaker) status() string {
	switch s.ex.choices[0].finish {
	case "length":
		return "incomplete"
	case "abort":
		return "failed"
	}
	return "completed"
}

// end names the last event response.completed even when the status is incomplete
// (capture vllm_responses_stream).
func (s *responsesSpeaker) end(x *wire) {
	if s.status() == "failed" {
		return
	}
	body := s.object(nil, s.status())
	s.e.keep(s.ex, body)
	s.event(x, "response.completed", append([]byte(`"response":`), body...))
}

func (s *responsesSpeaker) whole(*wire) []byte {
	body := s.object(nil, s.status())
	s.e.keep(s.ex, body)
	return body
}
