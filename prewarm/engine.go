package prewarm

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptrace"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/prefixring/prefixring/health"
	"github.com/prefixring/prefixring/internal/dialect"
)

// paths are where each protocol is spoken.
var paths = map[dialect.Protocol]string{
	dialect.Chat: "/v1/chat/completions", dialect.Completions: "/v1/completions",
	dialect.Responses: "/v1/responses", dialect.Messages: "/v1/messages",
}

// maxAnswer bounds what is read of one answer. A Responses answer repeats the whole
// instructions and a token list has some 7 bytes a token.
const maxAnswer = 64 << 20

// engine speaks to one node.
type engine struct {
	node   *Node
	client *http.Client
	clock  Clock
	ids    *atomic.Uint64
	run    string      // prefix of request ids
	mute   atomic.Bool // it has no tokenizer route
}

// newClient makes a client for one node. Idle connections are dropped after 3 s, before
// the engines' 5 s (engine_contracts 1): a POST on a connection that the engine closes
// at that moment could not be told from one that it had begun to work on.
func newClient(n *Node) *http.Client {
	return &http.Client{Transport: &http.Transport{
		TLSClientConfig:     n.TLS,
		IdleConnTimeout:     3 * time.Second,
		MaxIdleConnsPerHost: 2,
		TLSHandshakeTimeout: 10 * time.Second,
		DisableCompression:  true,
	}, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
}

// answer is one whole response.
type answer struct {
	status      int
	contentType string
	body        []byte
	first       time.Duration // until the first byte
}

// refusal is an answer that is no success.
type refusal struct {
	status int
	kind   string // the engine's own word for it, "" = none
	after  time.Duration
}

func (r *refusal) Error() string {
	if r.kind != "" {
		return fmt.Sprintf("the engine answered %d (%s)", r.status, r.kind)
	}
	return fmt.Sprintf("the engine answered %d", r.status)
}

// retryable reports whether the same request may work later: no connection, a full
// queue, a failing engine. Client errors never do.
func retryable(err error) bool {
	var w *refusalToWait
	if errors.As(err, &w) {
		return false
	}
	var r *refusal
	if errors.As(err, &r) {
		return r.status >= 500 && r.status != http.StatusNotImplemented || r.status == http.StatusTooManyRequests || r.status == http.StatusRequestTimeout
	}
	return !errors.Is(err, context.Canceled)
}

// call sends one request and reads its answer to the end.
func (e *engine) call(ctx context.Context, method, path string, body []byte, p dialect.Protocol) (*answer, error) {
	var first time.Duration
	begin := e.clock.Now()
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
		GotFirstResponseByte: func() { first = e.clock.Now().Sub(begin) },
	})
	req, err := http.NewRequestWithContext(ctx, method, strings.TrimRight(e.node.URL, "/")+path, bytes.NewReader(body))
	if err != nil {
		return nil, fmt.Errorf("cannot make request: %w", err)
	}
	e.dress(req, p)
	resp, err := e.client.Do(req)
	if err != nil {
		return nil, fmt.Errorf("cannot reach engine: %w", err)
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer+1))
	if err != nil {
		return nil, fmt.Errorf("cannot read answer: %w", err)
	}
	if len(data) > maxAnswer {
		return nil, fmt.Errorf("cannot read answer: more than %d bytes", maxAnswer)
	}
	if resp.StatusCode != http.StatusOK {
		return nil, refuse(resp, data)
	}
	return &answer{resp.StatusCode, resp.Header.Get("Content-Type"), data, first}, nil
}

func (e *engine) dress(req *http.Request, p dialect.Protocol) {
	if req.Method == http.MethodPost {
		req.Header.Set("Content-Type", "application/json")
		req.Header.Set("X-Request-Id", e.run+strconv.FormatUint(e.ids.Add(1), 36))
	}
	// Not for the engine: whoever reads its log sees that no user waited for this.
	req.Header.Set("User-Agent", "prefixring-prewarm")
	if e.node.APIKey != nil {
		if name, value := dialect.AuthHeader(p, e.node.Engine, e.node.APIKey()); name != "" {
			req.Header.Set(name, value)
		}
	}
	if e.node.Pinned && dialect.RankHonoured(e.node.Engine, p) {
		req.Header.Set(dialect.RankHeader(e.node.Engine), strconv.Itoa(e.node.Rank))
	}
}

// refuse reads an error answer. Its message may quote the prompt, so only the type, a
// word from the engine's own list, is kept.
func refuse(resp *http.Response, data []byte) error {
	r := &refusal{status: resp.StatusCode}
	var shape struct {
		Error json.RawMessage `json:"error"`
		Type  string          `json:"type"`
	}
	if json.Unmarshal(data, &shape) == nil {
		r.kind = shape.Type
		var inner struct {
			Type string `json:"type"`
		}
		if json.Unmarshal(shape.Error, &inner) == nil && inner.Type != "" {
			r.kind = inner.Type
		}
	}
	if len(r.kind) > 40 || strings.ContainsFunc(r.kind, func(c rune) bool {
		return !(c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c == '_')
	}) {
		r.kind = ""
	}
	if s, err := strconv.Atoi(resp.Header.Get("Retry-After")); err == nil && s > 0 {
		r.after = time.Duration(min(s, 60)) * time.Second
	}
	return r
}

// metrics reads the engine's metrics page.
func (e *engine) metrics(ctx context.Context) (*health.Signals, error) {
	a, err := e.call(ctx, http.MethodGet, "/metrics", nil, dialect.Opaque)
	if err != nil {
		return nil, err
	}
	var s health.Signals
	if err := health.ParseMetrics(a.body, e.node.Engine, &s); err != nil {
		return nil, fmt.Errorf("cannot read metrics: %w", err)
	}
	if s.Samples == 0 {
		return nil, errors.New("the metrics page is not this engine's")
	}
	s.At = e.clock.Now()
	return &s, nil
}

// sent is what one warm or proof request told.
type sent struct {
	usage dialect.Usage
	first time.Duration // until the first byte: with one token generated, about the TTFT
}

// send sends one request of a prefix and checks that it was really computed.
func (e *engine) send(ctx context.Context, p *Prefix, turn string) (sent, error) {
	w := wire{model: p.target.Model, salt: p.salt, turn: turn}
	if e.node.Yields {
		low := dialect.EnginePriority(e.node.Engine, lowest)
		w.priority = &low
	}
	a, err := e.call(ctx, http.MethodPost, paths[p.head.protocol], p.head.request(w), p.head.protocol)
	if err != nil {
		return sent{}, err
	}
	var tap dialect.Tap
	tap.Reset(p.head.protocol, a.status, a.contentType)
	tap.Write(a.body)
	o := tap.End(true)
	// One token is generated, so the engine rightly calls most answers cut by length.
	// An abort is Incomplete too, and has usually computed nothing.
	if o.Verdict != dialect.Success && (o.Verdict != dialect.Incomplete || o.Finish == "abort") {
		return sent{}, fmt.Errorf("the answer is no proof that the prompt was computed (%s %s)", o.Verdict, o.Finish)
	}
	if e.node.Engine == dialect.SGLang && p.head.protocol == dialect.Responses && o.Usage.Cached == 0 {
		// The field is mandatory in Responses, so that SGLang writes a zero there without
		// --enable-cache-report as well.
		o.Usage.Cached = dialect.Unknown
	}
	return sent{o.Usage, a.first}, nil
}

// lowest is the urgency of warm requests.
const lowest = -1000
