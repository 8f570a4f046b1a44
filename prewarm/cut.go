package prewarm

import (
	"bytes"
	"encoding/json"
	"fmt"
	"unicode/utf8"

	"github.com/prefixring/prefixring/internal/dialect"
	"github.com/prefixring/prefixring/internal/fingerprint"
)

// turnField is the field of each protocol that carries the turns.
var turnField = map[dialect.Protocol]string{
	dialect.Chat: "messages", dialect.Completions: "prompt", dialect.Responses: "input", dialect.Messages: "messages",
}

// systemField is the field that carries a system text outside the turns.
var systemField = map[dialect.Protocol]string{dialect.Responses: "instructions", dialect.Messages: "system"}

// cut takes a recorded request body apart: what everybody shares stays byte for byte,
// the customer's turns and everything that does not change the rendering go. static is
// the length in decoded bytes of the shared part of the leading texts, 0 for all.
func cut(p dialect.Protocol, body []byte, static int) (*head, error) {
	body, err := stripBilling(p, body)
	if err != nil {
		return nil, err
	}
	all, err := members(body)
	if err != nil {
		return nil, err
	}
	h := &head{protocol: p, record: body}
	var turns, system json.RawMessage
	for _, f := range all {
		switch {
		case f.name == "model":
			_ = json.Unmarshal(f.raw, &h.model)
		case f.name == "cache_salt":
			_ = json.Unmarshal(f.raw, &h.salt)
		case f.name == "previous_response_id" && !isNull(f.raw):
			return nil, withRemedy("the request continues a stored response", "record the first request of a conversation")
		case f.name == turnField[p]:
			turns = f.raw
		case f.name == systemField[p] && systemField[p] != "":
			system = f.raw
		case dropped[f.name]:
		default:
			h.fields = append(h.fields, f)
			if f.name == "tools" || f.name == "functions" {
				h.static += len(f.raw)
			}
		}
	}
	if turns == nil {
		return nil, withRemedy("the request has no "+turnField[p], "check protocol:")
	}
	if p == dialect.Completions {
		return h, h.cutPrompt(turns, static)
	}
	return h, h.cutTurns(turns, system, static)
}

// stripBilling removes the billing block that Anthropic clients put first into system:
// it is another one in each request, vLLM drops it, and the router takes it out for
// engines that don't. Here it would make an entry that nobody reads (field case B58).
func stripBilling(p dialect.Protocol, body []byte) ([]byte, error) {
	if p != dialect.Messages {
		return body, nil
	}
	s, err := fingerprint.NewScanner(fingerprint.Options{})
	if err != nil {
		return nil, err
	}
	var r fingerprint.Result
	if err := s.Scan(p, body, &r); err != nil {
		return nil, withRemedy("the request body cannot be read: "+err.Error(), "record the body that a client sends")
	}
	var out []byte
	at := 0
	for _, cut := range r.Strip {
		out = append(out, body[at:cut.Start]...)
		at = cut.End
	}
	return append(out, body[at:]...), nil
}

func isNull(raw json.RawMessage) bool { return bytes.Equal(bytes.TrimSpace(raw), []byte("null")) }

func (h *head) cutPrompt(prompt json.RawMessage, static int) error {
	var text string
	if err := json.Unmarshal(prompt, &text); err != nil {
		return withRemedy("the prompt is not one text", "token ids and lists of prompts cannot be cut")
	}
	if static <= 0 {
		return withRemedy("a raw prompt has no system part", "give static_bytes: the length of its shared part")
	}
	if static > len(text) || validPrefix(text[:static]) != text[:static] {
		return withRemedy(fmt.Sprintf("static_bytes is %d and the prompt has %d or a character is cut", static, len(text)), "give the length of the static part")
	}
	h.static, h.open = static, static
	h.place(appendString(nil, text[:static]), true)
	return nil
}

// cutTurns keeps the leading run of system and developer messages.
func (h *head) cutTurns(turns, system json.RawMessage, static int) error {
	var items []json.RawMessage
	var plainText string
	if json.Unmarshal(turns, &plainText) != nil {
		if err := json.Unmarshal(turns, &items); err != nil {
			return withRemedy("the "+turnField[h.protocol]+" are no list", "record the body that a client sends")
		}
	}
	if system != nil && isNull(system) {
		system = nil
	}
	lead := 0
	if h.protocol != dialect.Messages {
		for _, m := range items {
			if !isSystem(m) {
				break
			}
			lead++
		}
	}
	h.static += len(system)
	for _, m := range items[:lead] {
		h.static += len(m)
	}
	if h.static == 0 {
		return withRemedy("the request has neither a system text nor tools", "nothing in it repeats from user to user")
	}
	if static > 0 {
		return h.cutOpen(items[:lead], system, static)
	}
	if system != nil {
		h.fields = append(h.fields, member{systemField[h.protocol], system})
	}
	h.closeTurns(items[:lead])
	return nil
}

// closeTurns sets pre and post so that one user turn follows the given messages.
func (h *head) closeTurns(lead []json.RawMessage) {
	h.turn = turnField[h.protocol]
	h.pre = []byte{'['}
	for _, m := range lead {
		h.pre = append(append(h.pre, m...), ',')
	}
	h.pre = append(h.pre, `{"role":"user","content":"`...)
	h.post = []byte(`"}]`)
}

func isSystem(message json.RawMessage) bool {
	var m struct {
		Role string `json:"role"`
	}
	return json.Unmarshal(message, &m) == nil && (m.Role == "system" || m.Role == "developer")
}

// cutOpen cuts the last leading text at static bytes and lets the turn follow there, as
// the changing tail of the real requests does. The router registers named prefixes with
// the same rule. Only a plain text can be cut.
func (h *head) cutOpen(lead []json.RawMessage, system json.RawMessage, static int) error {
	last := system
	var m struct {
		Role    string          `json:"role"`
		Content json.RawMessage `json:"content"`
	}
	if len(lead) > 0 {
		if json.Unmarshal(lead[len(lead)-1], &m) != nil {
			panic("BUG: a leading message was read before")
		}
		last = m.Content
	}
	var text string
	switch {
	case last == nil:
		return withRemedy("static_bytes is given and there is no system text", "leave it out")
	case json.Unmarshal(last, &text) != nil:
		return withRemedy("the system text is a list of parts", "static_bytes works on one plain text")
	case static > len(text) || validPrefix(text[:static]) != text[:static]:
		return withRemedy(fmt.Sprintf("static_bytes is %d and the system text has %d or a character is cut", static, len(text)), "give the length of the static part")
	}
	h.static, h.open = h.static+static-len(last), static
	shared := appendString(nil, text[:static])
	if len(lead) == 0 {
		h.place(shared, true)
		return nil
	}
	if system != nil {
		h.fields = append(h.fields, member{systemField[h.protocol], system})
	}
	h.closeTurns(lead[:len(lead)-1])
	const user = `{"role":"user","content":"`
	h.pre = append(bytes.TrimSuffix(h.pre, []byte(user)), `{"role":"`+m.Role+`","content":`...)
	h.pre = append(h.pre, shared[:len(shared)-1]...)
	h.post = []byte(`"},` + user + `hi"}]`)
	return nil
}

// validPrefix is s without a character that its end has cut.
func validPrefix(s string) string {
	for i := 0; i < utf8.UTFMax && len(s) > 0; i++ {
		if r, size := utf8.DecodeLastRuneInString(s); r != utf8.RuneError || size != 1 {
			return s
		}
		s = s[:len(s)-1]
	}
	return s
}

// plain turns what the YAML library decodes into what encoding/json takes.
func plain(v any) any {
	switch v := v.(type) {
	case map[string]any:
		out := make(map[string]any, len(v))
		for k, x := range v {
			out[k] = plain(x)
		}
		return out
	case map[any]any:
		out := make(map[string]any, len(v))
		for k, x := range v {
			out[fmt.Sprint(k)] = plain(x)
		}
		return out
	case []any:
		for i := range v {
			v[i] = plain(v[i])
		}
	}
	return v
}
