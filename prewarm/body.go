package prewarm

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"time"

	"github.com/prefixring/prefixring/internal/dialect"
)

// member is one top-level field of a request body with its bytes as they were.
type member struct {
	name string
	raw  json.RawMessage
}

// members splits a JSON object into its fields without touching a byte of their values.
// A repeated name is refused: parsers disagree on which one counts.
func members(body []byte) ([]member, error) {
	bad := withRemedy("the request body is no JSON object", "record the body that a client sends")
	d := json.NewDecoder(bytes.NewReader(body))
	if t, err := d.Token(); err != nil || t != json.Delim('{') {
		return nil, bad
	}
	var out []member
	seen := map[string]bool{}
	for d.More() {
		t, err := d.Token()
		name, ok := t.(string)
		if err != nil || !ok {
			return nil, bad
		}
		if seen[name] {
			return nil, withRemedy("the request body has a field twice", "keep one of the two")
		}
		seen[name] = true
		var raw json.RawMessage
		if err := d.Decode(&raw); err != nil {
			return nil, bad
		}
		out = append(out, member{name, raw})
	}
	if _, err := d.Token(); err != nil {
		return nil, bad
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return nil, bad
	}
	return out, nil
}

// dropped are fields that no engine renders into the prompt. They are left out of a warm
// request because they are a customer's, cost work, switch the cache lookup off, or
// contradict max_tokens 1. Everything else stays as it is, known or not: a field we
// don't know may well change the rendering.
var dropped = map[string]bool{
	"stream": true, "stream_options": true, "n": true, "best_of": true, "use_beam_search": true,
	"logprobs": true, "top_logprobs": true, "prompt_logprobs": true, "return_token_ids": true, "echo": true,
	"logprob_start_len": true, "return_logprob": true, "suffix": true,
	"max_tokens": true, "max_completion_tokens": true, "max_output_tokens": true, "min_tokens": true,
	"temperature": true, "top_p": true, "top_k": true, "min_p": true, "seed": true, "stop": true, "stop_token_ids": true,
	"stop_sequences": true, "logit_bias": true, "frequency_penalty": true, "presence_penalty": true, "repetition_penalty": true,
	"user": true, "metadata": true, "safety_identifier": true, "prompt_cache_key": true, "prompt_cache_retention": true,
	"session_id": true, "session_params": true, "request_id": true, "rid": true, "priority": true, "service_tier": true,
	"store": true, "background": true, "conversation": true, "kv_transfer_params": true, "prewarm_only": true,
}

// head is a request body cut to what is the same for everybody. A request made from it is
// its fields with the turn's text between pre and post.
type head struct {
	protocol dialect.Protocol
	fields   []member // without model, salt and the field named turn
	model    string
	salt     string
	turn     string // the field that carries the turn: messages, input, prompt, or the cut system text
	pre      []byte
	post     []byte
	static   int    // bytes of the static part, about
	open     int    // decoded bytes of the last text before the turn when the turn continues it, else 0
	record   []byte // the recorded body it was cut from, nil when it was composed
}

// digest identifies the rendered static part with everything that changes it, salt and
// adapter excluded.
func (h *head) digest() string {
	var b bytes.Buffer
	b.WriteString(h.protocol.String())
	b.WriteString("\x00" + h.model + "\x00" + h.turn + "\x00")
	for _, f := range h.fields {
		b.WriteString(f.name + "\x00")
		b.Write(f.raw)
		b.WriteByte(0)
	}
	b.Write(h.pre)
	return sum(b.Bytes())
}

// wire is what differs from node to node in a warm request.
type wire struct {
	model    string // as the engine knows it
	salt     string
	priority *int
	turn     string // plain letters and digits
}

// limits are the fields that make a request of each protocol generate one token.
var limits = map[dialect.Protocol]string{
	// Reasoning models take max_completion_tokens; where both stand it wins.
	dialect.Chat:        `"max_tokens":1,"max_completion_tokens":1,"temperature":0,"stream":false`,
	dialect.Completions: `"max_tokens":1,"temperature":0,"stream":false`,
	dialect.Responses:   `"max_output_tokens":1,"temperature":0,"stream":false,"store":false`,
	dialect.Messages:    `"max_tokens":1,"temperature":0,"stream":false`,
}

// request composes the warm request.
func (h *head) request(w wire) []byte {
	b := h.compose(w)
	if w.priority != nil {
		b = append(b, `,"priority":`...)
		b = strconv.AppendInt(b, int64(*w.priority), 10)
	}
	b = append(b, ',')
	b = append(b, limits[h.protocol]...)
	return append(b, '}')
}

// compose is the request up to the fields that only bound the work.
func (h *head) compose(w wire) []byte {
	size := len(h.pre) + len(h.post) + 512
	for _, f := range h.fields {
		size += len(f.raw) + len(f.name) + 4
	}
	b := append(make([]byte, 0, size), `{"model":`...)
	b = appendString(b, w.model)
	for _, f := range h.fields {
		b = append(b, ',')
		b = appendString(b, f.name)
		b = append(b, ':')
		b = append(b, f.raw...)
	}
	b = append(b, ',')
	b = appendString(b, h.turn)
	b = append(b, ':')
	b = append(b, h.pre...)
	b = append(b, w.turn...)
	b = append(b, h.post...)
	if w.salt != "" {
		b = append(b, `,"cache_salt":`...)
		b = appendString(b, w.salt)
	}
	return b
}

// appendString appends s as a JSON string. Nothing is escaped beyond what JSON asks for.
func appendString(b []byte, s string) []byte {
	var buf bytes.Buffer
	e := json.NewEncoder(&buf)
	e.SetEscapeHTML(false)
	if err := e.Encode(s); err != nil {
		panic("BUG: a string is always valid JSON: " + err.Error())
	}
	return append(b, bytes.TrimRight(buf.Bytes(), "\n")...)
}

// head renders the entry at a moment.
func (e *Entry) head(at time.Time) (*head, error) {
	if e.source.kind == sourceRequest {
		h, err := cut(e.protocol, e.source.data, e.StaticBytes)
		if err != nil {
			return nil, err
		}
		if e.Model != "" {
			h.model = e.Model
		}
		if h.model == "" {
			return nil, withRemedy("the recorded request names no model", "give model:")
		}
		return h, nil
	}
	text, err := e.source.text(at.In(e.zone), e.Fields)
	if err != nil {
		return nil, err
	}
	if e.StaticBytes > len(text) {
		return nil, withRemedy(fmt.Sprintf("static_bytes is %d and the text has %d", e.StaticBytes, len(text)), "give the length of the static part")
	}
	return e.assemble(text)
}

// assemble writes the request that clients of the protocol would send around a text.
func (e *Entry) assemble(text string) (*head, error) {
	h := &head{protocol: e.protocol, model: e.Model}
	if e.tools != nil {
		h.fields = append(h.fields, member{"tools", e.tools})
		h.static += len(e.tools)
	}
	if len(e.TemplateArgs) > 0 {
		args, err := json.Marshal(plain(e.TemplateArgs))
		if err != nil {
			return nil, withRemedy("template_args cannot be written as JSON", "use texts, numbers, booleans and lists")
		}
		h.fields = append(h.fields, member{"chat_template_kwargs", args})
		h.static += len(args)
	}
	static := text
	if e.StaticBytes > 0 {
		static = text[:e.StaticBytes]
		if trimmed := validPrefix(static); trimmed != static {
			return nil, withRemedy("static_bytes ends within a character", "move it to a character's end")
		}
	}
	h.static += len(static)
	system := appendString(nil, static)
	open := e.StaticBytes > 0 && e.StaticBytes < len(text)
	if open || e.protocol == dialect.Completions {
		h.open = len(static)
	}
	h.place(system, open)
	return h, nil
}

// place puts a system text (a JSON string) and the turn where the protocol wants them.
// With open the turn continues the system text itself, as the changing tail does.
func (h *head) place(system []byte, open bool) {
	const user = `{"role":"user","content":"`
	unclosed := system[:len(system)-1]
	switch {
	case h.protocol == dialect.Completions:
		h.turn, h.pre, h.post = "prompt", unclosed, []byte(`"`)
	case h.protocol == dialect.Chat && len(system) == 2:
		h.turn, h.pre, h.post = "messages", []byte(`[`+user), []byte(`"}]`)
	case h.protocol == dialect.Chat && open:
		h.turn, h.pre = "messages", append([]byte(`[{"role":"system","content":`), unclosed...)
		h.post = []byte(`"},` + user + `hi"}]`)
	case h.protocol == dialect.Chat:
		h.turn, h.pre = "messages", append([]byte(`[{"role":"system","content":`), system...)
		h.pre = append(h.pre, `},`+user...)
		h.post = []byte(`"}]`)
	default:
		h.placeApart(system, unclosed, open)
	}
}

// placeApart is place for the protocols that carry the system text in its own field.
func (h *head) placeApart(system, unclosed []byte, open bool) {
	field, turns := "instructions", "input"
	pre, post := `"`, `"`
	if h.protocol == dialect.Messages {
		field, turns = "system", "messages"
		pre, post = `[{"role":"user","content":"`, `"}]`
	}
	if open {
		h.fields = append(h.fields, member{turns, json.RawMessage(pre + "hi" + post)})
		h.turn, h.pre, h.post = field, unclosed, []byte(`"`)
		return
	}
	if len(system) > 2 {
		h.fields = append(h.fields, member{field, system})
	}
	h.turn, h.pre, h.post = turns, []byte(pre), []byte(post)
}
