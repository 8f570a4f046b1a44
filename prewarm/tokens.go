package prewarm

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"sync"

	"github.com/prefixring/prefixring/internal/dialect"
)

// counted is how many tokens an engine's tokenizer sees in a prefix.
type counted struct {
	static int64 // tokens that two requests with different turns have in common from the start
	total  int64 // of the request with the first turn; it must equal what the engine reports
	ok     bool
}

// counter asks each model's tokenizer once per prefix; all nodes of a run share it.
type counter struct {
	mu   sync.Mutex // guards byID
	byID map[string]*countOnce
}

type countOnce struct {
	mu   sync.Mutex // held while one asks; the others wait for its answer
	done bool
	c    counted
}

// count returns the prefix's token counts. An engine without a tokenizer route, or one
// that refuses the request, is no error: the counts are then unknown. Only a context
// that ended is.
func (c *counter) count(ctx context.Context, e *engine, p *Prefix, a, b string) (counted, error) {
	c.mu.Lock()
	if c.byID == nil {
		c.byID = map[string]*countOnce{}
	}
	o := c.byID[p.Digest]
	if o == nil {
		o = &countOnce{}
		c.byID[p.Digest] = o
	}
	c.mu.Unlock()
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.done {
		return o.c, nil
	}
	if e.mute.Load() {
		return counted{}, nil
	}
	x, err := e.tokenize(ctx, p, a)
	if err == nil {
		var y []int32
		if y, err = e.tokenize(ctx, p, b); err == nil {
			o.c, o.done = counted{static: common(x, y), total: int64(len(x)), ok: true}, true
			return o.c, nil
		}
	}
	var r *refusal
	if errors.As(err, &r) && r.status == http.StatusNotFound {
		e.mute.Store(true) // this engine has no such route; another one may
	}
	return counted{}, ctx.Err()
}

func common(a, b []int32) int64 {
	n := min(len(a), len(b))
	for i := range n {
		if a[i] != b[i] {
			return int64(i)
		}
	}
	return int64(n)
}

// tokenize asks the engine for the tokens of the prefix's request with a turn. Both
// engines take a prompt, or messages with tools and template arguments
// (engine_contracts 2 and 3).
func (e *engine) tokenize(ctx context.Context, p *Prefix, turn string) ([]int32, error) {
	body, err := p.head.tokenizable(wire{model: p.target.Model, turn: turn})
	if err != nil {
		return nil, err
	}
	a, err := e.call(ctx, http.MethodPost, "/tokenize", body, dialect.Opaque)
	if err != nil {
		return nil, err
	}
	var out struct {
		Tokens []int32 `json:"tokens"`
		Count  int     `json:"count"`
	}
	if err := json.Unmarshal(a.body, &out); err != nil || len(out.Tokens) == 0 || out.Count != 0 && out.Count != len(out.Tokens) {
		return nil, &refusal{status: http.StatusNotImplemented}
	}
	return out.Tokens, nil
}

// tokenizable is the request in the form that /tokenize takes. Responses and Messages
// are written as the chat messages that engines make of them; whether that was right
// shows when the total is compared with what the engine reports.
func (h *head) tokenizable(w wire) ([]byte, error) {
	switch h.protocol {
	case dialect.Chat, dialect.Completions:
		return append(h.compose(w), '}'), nil
	}
	all, err := members(append(h.compose(w), '}'))
	if err != nil {
		return nil, err
	}
	chat := []byte(`{"model":`)
	chat = appendString(chat, w.model)
	var system, turns json.RawMessage
	for _, f := range all {
		switch f.name {
		case systemField[h.protocol]:
			system = f.raw
		case turnField[h.protocol]:
			turns = f.raw
		case "chat_template_kwargs":
			chat = append(append(chat, `,"chat_template_kwargs":`...), f.raw...)
		case "tools":
			// Both protocols write tools in another shape than chat does.
			return nil, &refusal{status: http.StatusNotImplemented}
		}
	}
	chat = append(chat, `,"messages":[`...)
	if system != nil {
		chat = append(append(append(chat, `{"role":"system","content":`...), system...), `},`...)
	}
	return append(append(chat, asMessages(turns)...), `]}`...), nil
}

// asMessages is the inside of a list of turns; a plain text becomes one user turn.
func asMessages(turns json.RawMessage) []byte {
	if len(turns) > 1 && turns[0] == '[' {
		return turns[1 : len(turns)-1]
	}
	return append(append([]byte(`{"role":"user","content":`), turns...), '}')
}
