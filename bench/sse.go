package bench

import (
	"bytes"
	"time"

	"github.com/tidwall/gjson"

	"github.com/prefixring/prefixring/internal/dialect"
)

// answer observes one response as its bytes arrive. It works on events, never on
// network chunks: an event that comes in two writes counts when its end is here.
type answer struct {
	proto dialect.Protocol
	keep  bool   // collect the text for the next turn's history
	text  []byte // raw JSON string content, still escaped
	carry []byte // an event whose end has not come
	seen  int    // bytes of carry already searched

	events     int // events of any kind
	tokens     int // events that carried a token
	firstEvent time.Time
	firstToken time.Time
	ticks      []time.Time // each token event

	done   bool // terminal evidence: [DONE], message_stop, response.completed, a finish reason
	failed bool // an error event, or a finish reason that is an error
	usage  dialect.Usage
}

func (a *answer) reset(p dialect.Protocol, keep bool) {
	*a = answer{proto: p, keep: keep, text: a.text[:0], carry: a.carry[:0], ticks: a.ticks[:0], usage: dialect.NoUsage}
}

// feed takes the next bytes of an event stream, which arrived at the given time.
func (a *answer) feed(b []byte, at time.Time) {
	whole := b
	if len(a.carry) > 0 {
		a.carry = append(a.carry, b...)
		whole = a.carry
	}
	from := max(0, a.seen-3) // a blank line may straddle the border
	for {
		n, next := eventEnd(whole, from)
		if n < 0 {
			break
		}
		a.event(whole[:n], at)
		whole, from = whole[next:], 0
	}
	a.carry = append(a.carry[:0], whole...)
	a.seen = len(a.carry)
}

// eventEnd finds the blank line that ends the first event: the event is b[:n] and the
// next one starts at next.
func eventEnd(b []byte, from int) (n, next int) {
	for i := from; ; {
		j := bytes.IndexByte(b[i:], '\n')
		if j < 0 {
			return -1, 0
		}
		i += j + 1
		switch {
		case i < len(b) && b[i] == '\n':
			return i, i + 1
		case i+1 < len(b) && b[i] == '\r' && b[i+1] == '\n':
			return i, i + 2
		case i == 1, i == 2 && b[0] == '\r': // a blank line in front
			return 0, i
		}
	}
}

// event handles the lines of one event.
func (a *answer) event(b []byte, at time.Time) {
	var data []byte
	lines := 0
	for len(b) > 0 {
		line := b
		if i := bytes.IndexByte(b, '\n'); i >= 0 {
			line, b = b[:i], b[i+1:]
		} else {
			b = nil
		}
		line = bytes.TrimSuffix(line, []byte("\r"))
		rest, ok := bytes.CutPrefix(line, []byte("data:"))
		if !ok {
			continue // comments (": ping"), event names (also in the data) and ids carry nothing for us
		}
		rest = bytes.TrimPrefix(rest, []byte(" "))
		if lines++; lines == 1 {
			data = rest
		} else {
			data = append(append(data[:len(data):len(data)], '\n'), rest...)
		}
	}
	if lines > 0 {
		a.data(data, at)
	}
}

func (a *answer) data(b []byte, at time.Time) {
	if a.events++; a.events == 1 {
		a.firstEvent = at
	}
	if len(b) < 16 && string(bytes.TrimSpace(b)) == "[DONE]" {
		a.done = true
		return
	}
	a.evidence(b)
	n := len(a.text)
	if !a.token(b) {
		return
	}
	if !a.keep {
		a.text = a.text[:n]
	}
	if a.tokens++; a.tokens == 1 {
		a.firstToken = at
	}
	a.ticks = append(a.ticks, at)
}

// token says whether the event carries generated text, reasoning or part of a call.
func (a *answer) token(b []byte) bool {
	switch a.proto {
	case dialect.Completions:
		return a.grab(b, `"text"`)
	case dialect.Responses:
		return bytes.Contains(b, []byte(`.delta"`)) && a.grab(b, `"delta"`)
	case dialect.Messages:
		if !bytes.Contains(b, []byte(`content_block_delta`)) {
			return false
		}
		return a.grab(b, `"text"`) || a.grab(b, `"partial_json"`) || a.grab(b, `"thinking"`)
	default:
		return a.grab(b, `"content"`) || a.grab(b, `"reasoning_content"`) || a.grab(b, `"reasoning"`) ||
			notEmptyList(b, `"tool_calls"`) || a.grab(b, `"refusal"`)
	}
}

// grab looks for a key whose value is a string that is not empty, and keeps the text.
// A quoted key followed by a colon cannot occur inside a JSON string, where every
// quote is escaped, so no parser is needed to be sure.
func (a *answer) grab(b []byte, key string) bool {
	v := valueOf(b, key)
	if len(v) < 2 || v[0] != '"' || v[1] == '"' {
		return false
	}
	v = v[1:]
	for i := 0; i < len(v); i++ {
		switch v[i] {
		case '\\':
			i++
		case '"':
			a.text = append(a.text, v[:i]...)
			return true
		}
	}
	return true // cut string: the event was not whole JSON, but it did carry text
}

// valueOf returns the bytes from the key's value on, nil if the key is not there.
func valueOf(b []byte, key string) []byte {
	for {
		i := bytes.Index(b, []byte(key))
		if i < 0 {
			return nil
		}
		b = bytes.TrimLeft(b[i+len(key):], " \t\r\n")
		if len(b) > 0 && b[0] == ':' {
			return bytes.TrimLeft(b[1:], " \t\r\n")
		}
	}
}

func notEmptyList(b []byte, key string) bool {
	v := valueOf(b, key)
	if len(v) < 2 || v[0] != '[' {
		return false
	}
	v = bytes.TrimLeft(v[1:], " \t\r\n")
	return len(v) > 0 && v[0] != ']'
}

// evidence looks for the end, for errors and for usage.
func (a *answer) evidence(b []byte) {
	if v := valueOf(b, `"finish_reason"`); len(v) > 1 && v[0] == '"' {
		a.done = true
		if bytes.HasPrefix(v, []byte(`"error"`)) || bytes.HasPrefix(v, []byte(`"abort"`)) {
			a.failed = true
		}
	}
	if v := valueOf(b, `"error"`); len(v) > 0 && (v[0] == '{' || v[0] == '"') {
		a.failed = true
	}
	switch a.proto {
	case dialect.Responses:
		// The event named response.completed may hold the status "incomplete" (a length
		// stop, which a load tool asks for); failed is failed whatever it is called.
		switch gjson.GetBytes(b, "type").Str {
		case "response.completed", "response.incomplete":
			a.done = true
			a.failed = a.failed || gjson.GetBytes(b, "response.status").Str == "failed"
		case "response.failed", "error":
			a.failed = true
		}
	case dialect.Messages:
		a.done = a.done || bytes.Contains(b, []byte(`"message_stop"`))
	}
	if v := valueOf(b, `"usage"`); len(v) > 0 && v[0] == '{' {
		a.readUsage(b)
	}
}

// whole handles an answer that is not a stream.
func (a *answer) whole(b []byte) {
	if !gjson.ValidBytes(b) {
		return
	}
	root := gjson.ParseBytes(b)
	a.done = true
	e := root.Get("error")
	a.failed = e.IsObject() || e.Type == gjson.String || root.Get("object").Str == "error"
	for _, p := range []string{
		"choices.0.message.content", "choices.0.message.reasoning", "choices.0.message.reasoning_content",
		"choices.0.message.tool_calls.0", "choices.0.text", "content.0", "output.0",
	} {
		if v := root.Get(p); v.Exists() && v.Raw != "null" && v.Raw != `""` {
			a.tokens = 1
			if a.keep && v.Type == gjson.String {
				a.text = append(a.text, v.Raw[1:len(v.Raw)-1]...)
			}
			break
		}
	}
	a.readUsage(b)
}

// readUsage takes what is told and leaves the rest Unknown (B67). A later report
// replaces an earlier one: Anthropic's message_start counts before the cache is known.
func (a *answer) readUsage(b []byte) {
	for _, at := range []string{"usage", "response.usage", "message.usage"} {
		u := gjson.GetBytes(b, at)
		if !u.IsObject() {
			continue
		}
		if a.proto == dialect.Messages {
			read, made := count(u.Get("cache_read_input_tokens")), count(u.Get("cache_creation_input_tokens"))
			if in := count(u.Get("input_tokens")); in >= 0 {
				a.usage.Prompt = in + max(0, read) + max(0, made) // input_tokens leaves the cached ones out
			}
			set(&a.usage.Cached, read)
			set(&a.usage.Output, count(u.Get("output_tokens")))
			return
		}
		for _, k := range []string{"prompt_tokens", "input_tokens"} {
			set(&a.usage.Prompt, count(u.Get(k)))
			set(&a.usage.Cached, count(u.Get(k+"_details.cached_tokens")))
		}
		for _, k := range []string{"completion_tokens", "output_tokens"} {
			set(&a.usage.Output, count(u.Get(k)))
		}
		return
	}
}

func count(v gjson.Result) int64 {
	if v.Type != gjson.Number {
		return dialect.Unknown
	}
	return v.Int()
}

func set(dst *int64, n int64) {
	if n >= 0 {
		*dst = n
	}
}
