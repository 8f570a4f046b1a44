package fakeengine

import (
	"bytes"
	"strings"

	"github.com/prefixring/prefixring/internal/dialect"
	"github.com/prefixring/prefixring/internal/fakeengine/core"
)

// generation is one accepted request of any protocol, ready to be scheduled.
type generation struct {
	proto   dialect.Protocol
	id      string // response id
	model   string // as the client spelled it
	created int64
	body    value

	stream       bool
	includeUsage bool
	usageAlways  bool // stream_options.continuous_usage_stats
	prompts      []prompt
	n            int // answers per prompt
	priority     int64
	rank         int // pinned data-parallel rank, -1 = none
	conv         conversation
}

// prompt is one rendered prompt and the answers that it will get.
type prompt struct {
	core    core.Prompt
	bytes   int
	answers []reply
}

// reply is one predetermined answer: what the model "will say".
type reply struct {
	text   []byte // plain text, or the arguments of a tool call
	tokens int
	tool   string // name of the called tool
	callID string
	finish string // stop, length, tool_calls
	match  string // the stop string that ended it
}

// limits are the sampling fields that decide length and end of an answer.
type limits struct {
	max       int // 0 = as far as the context allows
	min       int
	ignoreEOS bool
	stops     []string
	tool      string // call this tool instead of talking
}

// plan renders nothing: it takes rendered bytes and fixes what is answered.
func (e *Engine) plan(g *generation, rendered []byte, static int, lim limits, root uint64) prompt {
	p := prompt{bytes: len(rendered)}
	tokens := tokensOf(len(rendered))
	block := e.blockSize * tokenBytes
	room := max(e.maxModelLen-tokens, 1)
	limit := room
	if lim.max > 0 {
		limit = min(limit, lim.max)
	}
	hashes := core.AppendHashes(make([]uint64, 0, len(rendered)/block+1), root, rendered, block)
	key := e.opts.Seed ^ core.AppendHashes(nil, root, tail(rendered, block), block)[0]
	for i := range g.n {
		p.answers = append(p.answers, e.answerOf(key+uint64(i)*0x51ed, limit, lim))
	}
	p.core = core.Prompt{Tokens: tokens, Static: static / tokenBytes, Tail: hashes}
	if g.n == 1 && len(rendered)%tokenBytes == 0 { // the answer's own blocks can be hit by the next turn
		from := len(hashes) * block
		rest := append(append([]byte(nil), rendered[from:]...), p.answers[0].text...)
		if len(hashes) > 0 {
			root = hashes[len(hashes)-1]
		}
		p.core.Tail = core.AppendHashes(hashes, root, rest, block)
	}
	return p
}

// tail is the last block of b, padded with its length so that prompts shorter
// than a block draw different answers too.
func tail(b []byte, block int) []byte {
	t := make([]byte, block)
	copy(t, b[max(0, len(b)-block):])
	if len(b) < block {
		t[block-1] ^= byte(len(b))
	}
	return t
}

func (e *Engine) answerOf(key uint64, limit int, lim limits) reply {
	if lim.tool != "" {
		return toolReply(key, limit, lim.tool)
	}
	want := max(e.opts.AnswerTokens, lim.min)
	r := reply{finish: "stop"}
	if lim.ignoreEOS || want > limit {
		want, r.finish = limit, "length"
	}
	r.text = answer(make([]byte, 0, want*tokenBytes), key, want)
	for _, s := range lim.stops {
		from := min(lim.min*tokenBytes, len(r.text))
		if at := bytes.Index(r.text[from:], []byte(s)); s != "" && at >= 0 {
			r.text, r.finish, r.match = r.text[:from+at], "stop", s
		}
	}
	r.tokens = max(tokensOf(len(r.text)), 1)
	return r
}

func toolReply(key uint64, limit int, name string) reply {
	word := strings.TrimSpace(string(answer(nil, key, 1)))
	args := `{"query": "` + word + `"}`
	r := reply{text: []byte(args), tool: name, finish: "tool_calls", callID: "call_" + hexID(key)}
	r.tokens = tokensOf(len(args))
	if r.tokens > limit {
		r.tokens, r.finish, r.text = limit, "length", r.text[:limit*tokenBytes]
	}
	return r
}

// piece is the text of tokens [from,to).
func (r *reply) piece(from, to int) []byte {
	return r.text[min(from*tokenBytes, len(r.text)):min(to*tokenBytes, len(r.text))]
}
