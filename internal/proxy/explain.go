package proxy

import (
	"errors"

	"github.com/prefixring/prefixring/internal/dialect"
	"github.com/prefixring/prefixring/ring"
)

// Explanation says what the data plane would do with a body, and why.
type Explanation struct {
	Protocol     string            `json:"protocol"`
	Pool         string            `json:"pool,omitempty"`
	Model        string            `json:"model,omitempty"` // as the engines know it
	Alias        bool              `json:"alias,omitempty"`
	Stream       bool              `json:"stream"`
	Key          string            `json:"key"` // what the request is keyed by
	Fingerprint  uint64            `json:"fingerprint,omitempty"`
	Named        string            `json:"named,omitempty"`
	PromptTokens int64             `json:"prompt_tokens_estimate"`
	StaticTokens int64             `json:"static_tokens_estimate"`
	Fat          bool              `json:"fat"` // guarded by the warm gate
	Work         int64             `json:"work"`
	Turns        int               `json:"turns"`
	Warmth       map[string]string `json:"warmth,omitempty"` // by node
	Ring         ring.Explanation  `json:"ring"`
	Error        string            `json:"error,omitempty"` // code, when the request would be refused
	Message      string            `json:"message,omitempty"`
}

// Explain answers where a body would go, without asking an engine or reserving
// anything. path is the request path; contentType may be empty for JSON.
func (p *Proxy) Explain(path, contentType string, body []byte) (Explanation, error) {
	r, ok := dialect.RouteOf(path)
	if !ok || r.Local || r.Stored {
		return Explanation{}, errors.New("cannot explain this path: it is not sent to an engine by its body")
	}
	c := &call{p: p}
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
	pool := c.route.pool
	e.Pool, e.Model, e.Alias, e.Stream = pool.Name, c.route.model, c.route.alias, c.stream
	e.Key, e.Named, e.Fingerprint = c.record.Kind, c.record.Named, c.key
	e.PromptTokens, e.StaticTokens, e.Work, e.Fat = c.tokens, c.static, c.work, c.fat()
	q := ring.Query{Key: c.key, K: 1, Work: c.work}
	if c.scanned {
		e.Turns = c.scan.Turns
		q.Second = nonzero(mix(c.key, c.scan.Root))
	}
	e.Ring = pool.Ring.Explain(&q)
	if pool.Residency != nil && c.key != 0 {
		e.Warmth = map[string]string{}
		for _, n := range pool.Ring.Nodes() {
			w, _ := pool.Residency.Warmth(n.ID(), c.key)
			e.Warmth[n.Name()] = w.String()
		}
	}
	return e, nil
}

func refusedExplanation(e Explanation, f *failure) Explanation {
	e.Error, e.Message = f.code, f.message
	return e
}
