package bench

import (
	"encoding/json"
	"fmt"
	"strconv"

	"github.com/prefixring/prefixring/internal/dialect"
)

// composer makes request bodies. What a prefix has in common is built once and shared
// by all its requests: a 240 KB request costs the client one small splice and no copy.
type composer struct {
	proto  dialect.Protocol
	work   *Workload
	nonce  uint64
	named  string // the nonce in words, first in every prompt
	open   []byte // everything before the system text
	heads  [][]byte
	tools  []byte
	stream bool
	eos    bool
	seed   uint64
}

// message is one turn of a conversation's history, as raw JSON strings without quotes.
type message struct{ user, answer []byte }

// parts is a body in pieces to be written one after the other.
type parts struct {
	head []byte // shared, never written to
	rest []byte // owned by the call
}

func newComposer(o *Options) *composer {
	c := &composer{
		proto: o.protocol(), work: &o.Workload, nonce: seedOfString(o.Nonce), named: o.Nonce,
		stream: !o.NoStream, eos: o.IgnoreEOS, seed: o.Seed,
	}
	c.tools = c.toolText(o.Workload.Tools)
	model, _ := json.Marshal(o.Model) // a string always marshals
	c.open = fmt.Appendf(nil, `{"model":%s,`, model)
	switch c.proto {
	case dialect.Completions:
		c.open = append(c.open, `"prompt":"`...)
	case dialect.Responses:
		c.open = append(append(c.open, c.tools...), `"instructions":"`...)
	case dialect.Messages:
		c.open = append(append(c.open, c.tools...), `"system":"`...)
	default:
		c.open = append(append(c.open, c.tools...), `"messages":[{"role":"system","content":"`...)
	}
	for i := range o.Workload.Prefixes {
		c.heads = append(c.heads, c.head(uint64(i)))
	}
	return c
}

// head is the shared beginning of all bodies with one prefix. Each prefix has its own
// length, drawn from its own stream, so that it is the same in every run of a seed.
func (c *composer) head(prefix uint64) []byte {
	n := c.work.PrefixTokens(c.seed, int(prefix))
	b := make([]byte, 0, len(c.open)+(n+c.work.Shared)*BytesPerToken+64)
	b = append(b, c.open...)
	b = fmt.Appendf(b, "run %s ", c.named)
	b = appendText(b, seedOf(c.nonce, 1), c.work.Shared)
	b = fmt.Appendf(b, "prefix %d ", prefix)
	return appendText(b, seedOf(c.nonce, c.seed, 2, prefix), n)
}

// PrefixTokens is the length of one prefix.
func (w *Workload) PrefixTokens(seed uint64, prefix int) int {
	return w.Prefix.draw(newRand(seedOf(seed, 3, uint64(prefix))))
}

// body puts one request together. n numbers the request (or conversation) in the run
// and turn its turn; history holds the turns before.
func (c *composer) body(s *Shot, n, turn int, history []message, scratch []byte) parts {
	var p parts
	b := scratch[:0]
	unique := uint64(n)
	if s.Prefix >= 0 {
		p.head = c.heads[s.Prefix]
	} else {
		b = append(b, c.open...)
		b = fmt.Appendf(b, "run %s request %d ", c.named, n)
		b = appendText(b, seedOf(c.nonce, c.seed, 4, unique), c.work.PrefixTokens(c.seed, n))
	}
	if s.Own > 0 {
		b = append(b, ' ')
		b = appendText(b, seedOf(c.nonce, c.seed, 5, unique), int(s.Own))
	}
	if s.Tail > 0 {
		b = fmt.Appendf(b, " now %d.%d ", n, turn)
		b = appendText(b, seedOf(c.nonce, c.seed, 6, unique, uint64(turn)), int(s.Tail))
	}
	b = c.conversation(b, s, n, turn, history)
	p.rest = c.settings(b, int(s.Output))
	return p
}

// user is the text of one user turn.
func (c *composer) user(dst []byte, s *Shot, n, turn int) []byte {
	if s.Prompt >= 0 {
		dst = fmt.Appendf(dst, "question %d ", s.Prompt)
		return appendText(dst, seedOf(c.nonce, c.seed, 7, uint64(uint32(s.Prefix)), uint64(s.Prompt), uint64(turn)), int(s.User))
	}
	dst = fmt.Appendf(dst, "question %d.%d ", n, turn)
	return appendText(dst, seedOf(c.nonce, c.seed, 8, uint64(n), uint64(turn)), int(s.User))
}

// conversation closes the system text and adds history and the new user turn.
func (c *composer) conversation(b []byte, s *Shot, n, turn int, history []message) []byte {
	switch c.proto {
	case dialect.Completions:
		for _, m := range history {
			b = append(append(append(b, `\n`...), m.user...), `\n`...)
			b = append(b, m.answer...)
		}
		b = append(b, `\n`...)
		return append(c.user(b, s, n, turn), '"')
	case dialect.Responses:
		b = append(b, `","input":[`...)
	case dialect.Messages:
		b = append(b, `","messages":[`...)
	default:
		b = append(b, `"},`...)
	}
	for _, m := range history {
		b = append(append(b, `{"role":"user","content":"`...), m.user...)
		b = append(append(b, `"},{"role":"assistant","content":"`...), m.answer...)
		b = append(b, `"},`...)
	}
	b = append(b, `{"role":"user","content":"`...)
	b = c.user(b, s, n, turn)
	return append(b, `"}]`...)
}

// settings ends the body.
func (c *composer) settings(b []byte, output int) []byte {
	if c.proto == dialect.Responses {
		b = append(b, `,"max_output_tokens":`...)
	} else {
		b = append(b, `,"max_tokens":`...)
	}
	b = strconv.AppendInt(b, int64(output), 10)
	if c.eos {
		b = append(b, `,"ignore_eos":true`...)
	}
	if c.stream {
		b = append(b, `,"stream":true`...)
		if c.proto == dialect.Chat || c.proto == dialect.Completions {
			b = append(b, `,"stream_options":{"include_usage":true}`...)
		}
	}
	return append(b, '}')
}

// toolText is the tools array, the same in all requests of a run: about 40 tokens each.
func (c *composer) toolText(n int) []byte {
	if n == 0 || c.proto == dialect.Completions {
		return nil
	}
	const schema = `{"type":"object","properties":{"id":{"type":"string","description":"what to look for"}},"required":["id"]}`
	b := []byte(`"tools":[`)
	for i := range n {
		if i > 0 {
			b = append(b, ',')
		}
		// Templates put tools in front of everything, so the nonce has to be in them, too.
		name := fmt.Sprintf("t%016x_%d", c.nonce, i)
		about := string(appendText(nil, seedOf(c.nonce, 9, uint64(i)), 12))
		switch c.proto {
		case dialect.Messages:
			b = fmt.Appendf(b, `{"name":"%s","description":"%s","input_schema":%s}`, name, about, schema)
		case dialect.Responses:
			b = fmt.Appendf(b, `{"type":"function","name":"%s","description":"%s","parameters":%s}`, name, about, schema)
		default:
			b = fmt.Appendf(b, `{"type":"function","function":{"name":"%s","description":"%s","parameters":%s}}`, name, about, schema)
		}
	}
	return append(b, "],"...)
}

// path is the protocol's own path.
func pathOf(p dialect.Protocol) string {
	switch p {
	case dialect.Completions:
		return "/v1/completions"
	case dialect.Responses:
		return "/v1/responses"
	case dialect.Messages:
		return "/v1/messages"
	default:
		return "/v1/chat/completions"
	}
}
