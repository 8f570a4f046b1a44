package dialect

import (
	"bytes"
	"encoding/json"
	"strconv"
	"strings"
)

// This file is a slow second implementation of what Tap and UsageStripper are
// meant to find, on encoding/json and on whole bodies. The fuzz tests compare.

// block is one event of a stream: its raw bytes with the empty line, and fields.
type block struct {
	raw  string
	name string
	data string
	has  bool // a data field was there
	open bool // the stream ended before the empty line
}

// blocks cuts a stream into events by the rules of the HTML standard. A comment
// line before the first field of an event is a block of its own.
func blocks(s string) []block {
	var out []block
	cur := block{open: true}
	begun := false
	for s != "" {
		n := strings.IndexAny(s, "\r\n")
		line, raw := s, s
		if n >= 0 {
			line, raw = s[:n], s[:n+1]
			if s[n] == '\r' && n+1 < len(s) && s[n+1] == '\n' {
				raw = s[:n+2]
			}
		}
		s = s[len(raw):]
		cur.raw += raw
		field, value, _ := strings.Cut(line, ":")
		value = strings.TrimPrefix(value, " ")
		switch {
		case line == "" && n >= 0:
			cur.open = false
			out, cur, begun = append(out, cur), block{open: true}, false
		case strings.HasPrefix(line, ":") && !begun && n >= 0:
			out, cur = append(out, block{raw: cur.raw}), block{open: true}
		default:
			begun = true
			cur.take(line, field, value)
		}
	}
	if cur.raw != "" {
		out = append(out, cur)
	}
	return out
}

func (b *block) take(line, field, value string) {
	if !strings.Contains(line, ":") {
		return
	}
	switch field {
	case "event":
		b.name = value
	case "data":
		if b.has {
			b.data += "\n"
		}
		b.data += value
		b.has = true
	}
}

func decode(s string) (any, bool) {
	d := json.NewDecoder(strings.NewReader(s))
	d.UseNumber()
	var v any
	if d.Decode(&v) != nil {
		return nil, false
	}
	rest, _ := json.Marshal(strings.TrimSpace(s[d.InputOffset():]))
	return v, string(rest) == `""`
}

func obj(v any, path ...string) (map[string]any, bool) {
	m, ok := v.(map[string]any)
	for _, k := range path {
		if !ok {
			return nil, false
		}
		m, ok = m[k].(map[string]any)
	}
	return m, ok
}

func str(m map[string]any, key string) string {
	s, _ := m[key].(string)
	return s
}

func num(m map[string]any, key string, to *int64) {
	n, ok := m[key].(json.Number)
	if !ok {
		return
	}
	if v, err := strconv.ParseInt(n.String(), 10, 64); err == nil && v >= 0 && v <= maxCount && n.String() != "-0" {
		*to = v
	}
}

// filled reports generated text: not null, not empty, no number.
func filled(v any) bool {
	switch x := v.(type) {
	case string:
		return x != ""
	case []any:
		return len(x) > 0
	case map[string]any:
		return true
	}
	return false
}

func truthy(v any) bool {
	switch x := v.(type) {
	case nil:
		return false
	case bool:
		return x
	case string:
		return x != ""
	}
	return true
}

// oracle is what the reference has understood so far.
type oracle struct {
	protocol Protocol
	stream   bool
	events   int64
	token    bool
	done     bool
	failed   bool
	code     int
	ended    bool
	final    Verdict
	finish   string
	choices  map[int64]string
	wire     counts
}

func verdictOf(finish string) Verdict {
	switch finish {
	case "stop", "tool_calls", "function_call", "end_turn", "stop_sequence", "tool_use":
		return Success
	case "length", "max_tokens", "max_output_tokens", "content_filter", "refusal", "pause_turn",
		"model_context_window_exceeded", "abort", "repetition":
		return Incomplete
	case "error":
		return Failed
	}
	return Unproven
}

func label(finish string) string {
	if finish == "" || verdictOf(finish) == Unproven {
		return "other"
	}
	return finish
}

func (o *oracle) usage(v any) {
	m, ok := v.(map[string]any)
	if !ok {
		return
	}
	num(m, "prompt_tokens", &o.wire.in)
	num(m, "input_tokens", &o.wire.in)
	num(m, "completion_tokens", &o.wire.out)
	num(m, "output_tokens", &o.wire.out)
	num(m, "cache_read_input_tokens", &o.wire.read)
	num(m, "cache_creation_input_tokens", &o.wire.create)
	num(m, "reasoning_tokens", &o.wire.reason)
	for _, k := range []string{"prompt_tokens_details", "input_tokens_details"} {
		if d, ok := obj(m, k); ok {
			num(d, "cached_tokens", &o.wire.cached)
			num(d, "created_cache_tokens", &o.wire.write)
			num(d, "cache_write_tokens", &o.wire.write)
		}
	}
	for _, k := range []string{"completion_tokens_details", "output_tokens_details"} {
		if d, ok := obj(m, k); ok {
			num(d, "reasoning_tokens", &o.wire.reason)
		}
	}
	if d, ok := obj(m, "cache_creation"); ok {
		num(d, "ephemeral_1h_input_tokens", &o.wire.create1h)
	}
}

func codeOf(v any) int {
	switch x := v.(type) {
	case json.Number:
		if n, err := strconv.Atoi(x.String()); err == nil && n >= 400 && n <= 599 {
			return n
		}
	case string:
		return errorStatus([]byte(x))
	}
	return 0
}

// fail notes the first failure; its status is what an error object says, else
// what a code beside one says.
func (o *oracle) fail(holders ...map[string]any) {
	o.failed = true
	for _, h := range holders {
		e, _ := h["error"].(map[string]any)
		if o.code == 0 {
			o.code = codeOf(e["code"])
		}
		if s, ok := e["type"].(string); ok && o.code == 0 {
			o.code = errorStatus([]byte(s))
		}
	}
	for _, h := range holders {
		if o.code == 0 {
			o.code = codeOf(h["code"])
		}
	}
}

func (o *oracle) message(root any, name string) {
	m, ok := root.(map[string]any)
	if !ok {
		if name == "error" {
			o.failed = true
		}
		return
	}
	kind := name
	if s, ok := m["type"].(string); ok && s != "" && o.protocol != Chat && o.protocol != Completions && o.protocol != Opaque &&
		(o.stream || o.protocol == Messages) {
		kind = s
	}
	inner := map[string]any{}
	if o.protocol == Responses && o.stream {
		inner, _ = obj(m, "response")
	}
	if kind == "error" || name == "error" || truthy(m["error"]) || truthy(inner["error"]) ||
		str(m, "object") == "error" || str(inner, "object") == "error" {
		o.fail(m, inner)
	}
	switch o.protocol {
	case Responses:
		o.responses(m, kind)
	case Messages:
		o.messages(m, kind)
	default:
		o.chat(m)
	}
}

func (o *oracle) chat(m map[string]any) {
	o.usage(m["usage"])
	list, _ := m["choices"].([]any)
	for _, v := range list {
		c, ok := v.(map[string]any)
		if !ok {
			continue
		}
		var index int64
		num(c, "index", &index)
		if _, ok := o.choices[index]; !ok {
			o.choices[index] = ""
		}
		if f, ok := c["finish_reason"].(string); ok {
			f = label(f)
			o.choices[index] = f
			if o.finish == "" || rank(f) > rank(o.finish) {
				o.finish = f
			}
		}
		o.token = o.token || filled(c["text"])
		if d, ok := obj(c, "delta"); ok {
			for _, k := range []string{"content", "tool_calls", "reasoning", "reasoning_content", "refusal", "function_call", "audio"} {
				o.token = o.token || filled(d[k])
			}
		}
	}
}

func rank(finish string) int {
	return map[Verdict]int{Success: 0, Incomplete: 1, Unproven: 2, Failed: 3}[verdictOf(finish)]
}

func (o *oracle) responses(m map[string]any, kind string) {
	r := m
	if o.stream {
		if strings.HasSuffix(kind, ".delta") && len(kind) > len(".delta") && filled(m["delta"]) {
			o.token = true
		}
		r, _ = obj(m, "response")
	}
	o.usage(r["usage"])
	if d, ok := obj(r, "incomplete_details"); ok {
		if s, ok := d["reason"].(string); ok {
			o.finish = label(s)
		}
	}
	status := str(r, "status")
	if o.stream {
		switch kind {
		case "response.completed", "response.incomplete", "response.failed", "response.cancelled":
			o.ended = true
		default:
			return
		}
	}
	switch {
	case kind == "response.failed" || status == "failed":
		o.final = Failed
	case kind == "response.incomplete" || status == "incomplete":
		o.final = Incomplete
	case kind == "response.cancelled" || status == "cancelled":
		o.final = Cancelled
	case status == "completed":
		o.final = Success
	default:
		o.final = Unproven
	}
}

func (o *oracle) messages(m map[string]any, kind string) {
	if start, ok := obj(m, "message"); ok {
		o.usage(start["usage"])
	}
	o.usage(m["usage"])
	if s, ok := m["stop_reason"].(string); ok {
		o.finish = label(s)
	}
	if d, ok := obj(m, "delta"); ok {
		if s, ok := d["stop_reason"].(string); ok {
			o.finish = label(s)
		}
		for _, k := range []string{"text", "partial_json", "thinking"} {
			o.token = o.token || filled(d[k])
		}
	}
	if b, ok := obj(m, "content_block"); ok {
		o.token = o.token || filled(b["text"]) || str(b, "type") == "tool_use"
	}
	if kind == "message_stop" {
		o.ended = true
	}
}

// judge runs the reference over a whole stream or body.
func judge(p Protocol, stream bool, body string, eof bool) (Outcome, TapState) {
	o := &oracle{protocol: p, stream: stream, choices: map[int64]string{}, wire: noCounts}
	whole := true
	if stream {
		for _, b := range blocks(body) {
			data := strings.Trim(b.data, " \t\r\n")
			v, ok := decode(b.data)
			if b.open && !ok && data != "[DONE]" {
				continue
			}
			switch {
			case data == "[DONE]":
				o.done = true
			case data != "":
				o.events++
				if ok {
					o.message(v, b.name)
				} else if b.name == "error" {
					o.failed = true
				}
			}
		}
	} else {
		var v any
		if v, whole = decode(body); whole {
			o.events = 1
			o.message(v, "")
			o.token = false
		}
	}
	out := Outcome{Usage: o.wire.usage(p), Finish: o.finish, Events: o.events, Verdict: o.verdict(eof, whole)}
	return out, TapState{FirstToken: o.token, ErrorEvent: o.failed, ErrorCode: o.code}
}

func (o *oracle) verdict(eof, whole bool) Verdict {
	switch {
	case o.failed:
		return Failed
	case !o.stream && (!whole || o.events == 0):
		return Unproven
	case o.protocol == Responses:
		return o.final
	case o.protocol == Messages:
		if o.stream && !o.ended {
			return Unproven
		}
		return verdictOf(o.finish)
	case len(o.choices) == 0:
		if o.protocol == Opaque && !o.stream {
			return Success
		}
		return Unproven
	case o.stream && !o.done && !eof:
		return Unproven
	}
	for _, f := range o.choices {
		if f == "" {
			return Unproven
		}
	}
	return verdictOf(o.finish)
}

// strip is the reference of UsageStripper.
func strip(body string) string {
	var out bytes.Buffer
	for _, b := range blocks(body) {
		if !usageOnly(b) {
			out.WriteString(b.raw)
			continue
		}
		for rest := b.raw; rest != ""; {
			n := strings.IndexAny(rest, "\r\n") + 1
			if n == 0 {
				n = len(rest)
			} else if rest[n-1] == '\r' && n < len(rest) && rest[n] == '\n' {
				n++
			}
			if rest[0] == ':' {
				out.WriteString(rest[:n])
			}
			rest = rest[n:]
		}
	}
	return out.String()
}

func usageOnly(b block) bool {
	if len(b.raw) > MaxHold {
		return false
	}
	v, ok := decode(b.data)
	m, isObj := v.(map[string]any)
	if !ok || !isObj || truthy(m["error"]) || str(m, "object") == "error" || truthy(m["sglext"]) {
		return false
	}
	list, isList := m["choices"].([]any)
	_, hasUsage := m["usage"].(map[string]any)
	return isList && len(list) == 0 && hasUsage
}
