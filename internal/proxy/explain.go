package proxy

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/prefixring/prefixring/internal/dialect"
	"github.com/prefixring/prefixring/internal/fingerprint"
	"github.com/prefixring/prefixring/ring"
)

// Explanation says what the data plane would do with a body, and why.
type Explanation struct {
	Protocol     string            `json:"protocol"`
	Pool         string            `json:"pool,omitempty"`
	Model        string            `json:"model,omitempty"` // as the engines know it
	Alias        bool              `json:"alias,omitempty"`
	Stream       bool              `json:"stream"`
	Spans        []FieldSpan       `json:"spans,omitempty"`
	Key          string            `json:"key"` // what the request is keyed by
	Fingerprint  uint64            `json:"fingerprint,omitempty"`
	Named        string            `json:"named,omitempty"`
	Learned      *LearnedKey       `json:"learned,omitempty"`
	Churn        *ChurnHint        `json:"churn,omitempty"`
	PromptTokens int64             `json:"prompt_tokens_estimate"`
	StaticTokens int64             `json:"static_tokens_estimate"`
	Fat          bool              `json:"fat"` // guarded by the warm gate
	Work         int64             `json:"work"`
	Turns        int               `json:"turns"`
	Binding      string            `json:"binding,omitempty"` // the node that a live binding names
	Warmth       map[string]string `json:"warmth,omitempty"`  // by node
	Ring         ring.Explanation  `json:"ring"`
	Error        string            `json:"error,omitempty"` // code, when the request would be refused
	Message      string            `json:"message,omitempty"`
}

// FieldSpan is where a field's value lies in the body; never what it says.
type FieldSpan struct {
	Field string `json:"field"`
	Start int    `json:"start"`
	End   int    `json:"end"`
}

// LearnedKey is how the key of a prefix that nobody has registered was made.
type LearnedKey struct {
	Depth    string `json:"depth"` // whole, head, none
	Bytes    int    `json:"bytes"` // of system text that the key, or the next one, covers
	Next     string `json:"next,omitempty"`
	Volatile bool   `json:"volatile,omitempty"` // the text in [from, to) of message changes with each request
	Message  int    `json:"message,omitempty"`
	From     int    `json:"from,omitempty"`
	To       int    `json:"to,omitempty"`
}

// ChurnHint is why a prefix is new, without text.
type ChurnHint struct {
	Change     string  `json:"change"`
	Hint       string  `json:"hint"`
	AgeSeconds float64 `json:"age_seconds"` // of the prefix that it is compared with
	Message    int     `json:"message"`
	From       int     `json:"from"`
	To         int     `json:"to"`
}

// NewChurnHint is a diagnosis as JSON shows it.
func NewChurnHint(d *fingerprint.Diagnosis) *ChurnHint {
	return &ChurnHint{
		Change: d.Change.String(), Hint: d.String(), AgeSeconds: d.Age.Round(time.Second).Seconds(),
		Message: d.Message, From: d.From, To: d.To,
	}
}

// Explain answers where a body would go, without asking an engine or reserving
// anything. path is the request path; contentType may be empty for JSON.
func (p *Proxy) Explain(path, contentType string, body []byte) (Explanation, error) {
	r, ok := dialect.RouteOf(path)
	if !ok || r.Local || r.Stored {
		return Explanation{}, errors.New("cannot explain this path: it is not sent to an engine by its body")
	}
	c := &call{p: p}
	c.peeking = true
	c.ex = &exchange{c: c}
	c.head.route, c.protocol = r, r.Protocol
	c.table, c.body, c.scan = p.table.Load(), body, newScan()
	defer scans.Put(c.scan)
	e := Explanation{Protocol: c.protocol.String()}
	if c.table == nil || len(c.table.pools) == 0 {
		return refusedExplanation(e, &failNoEngine), nil
	}
	if contentType == "" {
		contentType = "application/json"
	}
	if f := c.understand([]byte(contentType)); f != nil {
		return refusedExplanation(e, f), nil
	}
	c.recall()
	pool := c.route.pool
	e.Pool, e.Model, e.Alias, e.Stream = pool.Name, c.route.model, c.route.alias, c.stream
	e.Key, e.Named, e.Fingerprint = c.record.Kind, c.record.Named, c.key
	e.PromptTokens, e.StaticTokens, e.Work, e.Fat = c.tokens, c.static, c.work, c.fat()
	if c.scanned {
		e.Turns = c.scan.Turns
		e.Spans = fieldSpans(c.scan)
		c.explainLearned(&e)
	}
	if c.bound.node != nil {
		e.Binding = c.bound.node.Name()
	}
	e.Ring = pool.Ring.Explain(c.explainedQuery())
	if pool.Residency != nil && c.key != 0 {
		e.Warmth = map[string]string{}
		for _, n := range pool.Ring.Nodes() {
			w, _ := pool.Residency.Warmth(n.ID(), c.key)
			e.Warmth[n.Name()] = w.String()
		}
	}
	return e, nil
}

// explainedQuery is the query of a first attempt, without the gate and without counting the
// request as load of its key.
func (c *call) explainedQuery() *ring.Query {
	pool := c.route.pool
	if c.key == 0 {
		return &ring.Query{K: len(pool.Ring.Nodes()), Work: c.work}
	}
	q := &ring.Query{Key: c.key, Second: c.second, K: 1, Next: c.learned.next, Work: c.work, Bound: c.bound.node, BoundWork: c.boundWork()}
	if pool.OwnersNow != nil {
		q.K = max(pool.OwnersNow(c.key), 1)
	}
	return q
}

// explainLearned tells what the learner and the diagnosis of churn make of the prefix.
func (c *call) explainLearned(e *Explanation) {
	if l := &c.learned; l.on {
		e.Learned = &LearnedKey{
			Depth: l.Depth.String(), Bytes: l.Bytes, Volatile: l.Volatile, Message: l.Message, From: l.From, To: l.To,
		}
		if l.next != 0 {
			e.Learned.Next = fmt.Sprintf("%016x", l.next)
		}
	}
	if churn := c.route.pool.Churn; churn != nil {
		if d, ok := churn.Peek(c.route.model, c.body, c.scan); ok {
			e.Churn = NewChurnHint(&d)
		}
	}
}

// fieldSpans lists the fields that the scan found, in the order of the body.
func fieldSpans(r *fingerprint.Result) []FieldSpan {
	var out []FieldSpan
	for name, s := range map[string]fingerprint.Span{
		"model": r.Model, "cache_salt": r.CacheSalt, "adapter": r.Adapter, "user": r.User,
		"prompt_cache_key": r.PromptCacheKey, "previous_response_id": r.PreviousResponseID,
		"conversation": r.Conversation, "session_id": r.SessionID, "stream": r.Stream,
		"stream_options": r.StreamOptions, "max_tokens": r.MaxTokens, "priority": r.Priority, "n": r.N,
		"tools": r.Tools, "system": r.System, "messages": r.Messages,
	} {
		if s.Present() {
			out = append(out, FieldSpan{name, s.Start, s.End})
		}
	}
	slices.SortFunc(out, func(a, b FieldSpan) int {
		return cmp.Or(cmp.Compare(a.Start, b.Start), cmp.Compare(b.End, a.End), cmp.Compare(a.Field, b.Field))
	})
	return out
}

func refusedExplanation(e Explanation, f *failure) Explanation {
	e.Error, e.Message = f.code, f.message
	return e
}
