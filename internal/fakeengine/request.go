package fakeengine

import (
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/prefixring/prefixring/internal/dialect"
	"github.com/prefixring/prefixring/internal/fakeengine/core"
)

// hexID spells 16 hex digits.
func hexID(n uint64) string { return fmt.Sprintf("%016x", n) }

func (e *Engine) random() uint64 {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.rng.Uint64()
}

// begin reads what all protocols have in common.
func (e *Engine) begin(x *wire, p dialect.Protocol) (*generation, *apiError) {
	b := x.body
	g := &generation{proto: p, body: b, created: time.Now().Unix(), n: 1, rank: -1}
	g.stream = b.get("stream").yes()
	if o := b.get("stream_options"); o.given() {
		if !g.stream && e.opts.Dialect == dialect.VLLM {
			return nil, invalid("body", "1 validation error:\n  {'type': 'value_error', 'loc': 'body', 'msg': 'Value error, Stream options can only be defined when `stream=True`.'}")
		}
		g.includeUsage = o.get("include_usage").yes()
		g.usageAlways = g.includeUsage && o.get("continuous_usage_stats").yes()
	}
	if v := b.get("n"); v.given() {
		n, ok := v.integer()
		if !ok || n < 1 || n > 128 {
			return nil, badRequest("n", "n must be at least 1, got %s. (parameter=n, value=%s)", v, v)
		}
		g.n = int(n)
	}
	if v := b.get("cache_salt"); v != nil && e.opts.Dialect == dialect.VLLM && !v.null() && len(v.text()) == 0 {
		return nil, invalid("body.cache_salt", "1 validation error:\n  {'type': 'string_too_short', 'loc': 'body.cache_salt', 'msg': 'Value error, Parameter `cache_salt` must be a non-empty string if provided.'}")
	}
	if err := e.resolveModel(g); err != nil {
		return nil, err
	}
	if err := e.resolveRank(x.r, g); err != nil {
		return nil, err
	}
	e.resolvePriority(x.r, g)
	g.id = e.responseID(x, g)
	return g, nil
}

// resolveModel checks the model name. On vLLM an adapter's name is a model; SGLang
// takes base:adapter and answers to any base name.
func (e *Engine) resolveModel(g *generation) *apiError {
	g.model = g.body.get("model").text()
	if g.model == "" {
		g.model = e.opts.Model
	}
	if e.opts.Dialect == dialect.SGLang {
		if base, name, ok := strings.Cut(g.model, ":"); ok {
			if e.identity(name) == "" {
				return badRequest("", "Got LoRA adapter that has never been loaded: %s (base model %s)", name, base)
			}
		}
		return nil
	}
	if g.model != e.opts.Model && e.identity(g.model) == "" {
		return notFound("model", "The model `%s` does not exist. Valid aliases: %s.", g.model, strings.Join(e.modelNames(), ", "))
	}
	return nil
}

// identity is what separates an adapter's cache from others; "" = not loaded.
func (e *Engine) identity(name string) string {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, a := range e.adapters {
		if a.name == name {
			return a.identity
		}
	}
	return ""
}

func (e *Engine) modelNames() []string {
	e.mu.Lock()
	defer e.mu.Unlock()
	names := []string{e.opts.Model}
	for _, a := range e.adapters {
		names = append(names, a.name)
	}
	return names
}

// root is the parent of the prompt's first block: adapter and salt separate caches.
func (e *Engine) root(g *generation) uint64 {
	name := g.model
	salt := g.body.get("cache_salt").text()
	if e.opts.Dialect == dialect.SGLang {
		_, name, _ = strings.Cut(g.model, ":")
		salt += g.body.get("extra_key").text()
		if g.proto == dialect.Messages {
			salt = "" // SGLang's Messages route has no salt (engine_contracts 6.1)
		}
	}
	return core.Root(e.identity(name), salt)
}

// resolveRank reads the pinned data-parallel rank. vLLM ignores a value that is no
// number and does not read the header on Responses; SGLang refuses it.
func (e *Engine) resolveRank(r *http.Request, g *generation) *apiError {
	text := r.Header.Get("X-Data-Parallel-Rank")
	if e.opts.Dialect == dialect.SGLang && text == "" {
		for _, name := range []string{"routed_dp_rank", "data_parallel_rank"} {
			if v := g.body.get(name); v.given() {
				text = string(v)
				break
			}
		}
	}
	if text == "" || e.opts.Dialect == dialect.VLLM && g.proto == dialect.Responses {
		return nil
	}
	n, err := strconv.Atoi(text)
	if err != nil {
		if e.opts.Dialect == dialect.SGLang {
			return badRequest("", "Invalid data parallel rank: %s", text)
		}
		return nil
	}
	if n < 0 || n >= len(e.ranks) {
		return badRequest("", "data_parallel_rank %d is out of range [0, %d).", n, len(e.ranks))
	}
	g.rank = n
	return nil
}

// resolvePriority turns the engine's own number into the core's: lower first.
func (e *Engine) resolvePriority(r *http.Request, g *generation) {
	n, _ := g.body.get("priority").integer()
	if e.opts.Dialect == dialect.SGLang {
		g.priority = -n
		return
	}
	if h, err := strconv.ParseInt(r.Header.Get("X-Vllm-Priority"), 10, 64); err == nil {
		n = h
	}
	g.priority = n
}

// responseID takes the client's request id where the engine does.
func (e *Engine) responseID(x *wire, g *generation) string {
	id := g.body.get("rid").text()
	if e.opts.Dialect == dialect.VLLM {
		if id = x.r.Header.Get("X-Request-Id"); id == "" {
			id = g.body.get("request_id").text()
		}
		if e.opts.RequestIDHeaders && id != "" {
			x.w.Header().Set("X-Request-Id", id)
		}
	}
	prefix := ""
	switch {
	case g.proto == dialect.Responses:
		return "resp_" + hexID(e.random()) // always the engine's own: it is the key of the store
	case e.opts.Dialect == dialect.VLLM && g.proto == dialect.Completions:
		prefix = "cmpl-"
	case e.opts.Dialect == dialect.VLLM:
		prefix = "chatcmpl-"
	case g.proto == dialect.Messages:
		prefix = "msg_"
	}
	if id != "" {
		return prefix + id
	}
	if e.opts.Dialect == dialect.VLLM {
		return prefix + hexID(e.random())
	}
	return prefix + hexID(e.random()) + hexID(e.random())
}

// limit reads the sampling fields. names are the fields that cap the answer, the
// strongest first.
func (e *Engine) limits(b value, names ...string) (limits, *apiError) {
	var l limits
	for _, name := range names {
		v := b.get(name)
		if !v.given() {
			continue
		}
		n, ok := v.integer()
		if !ok {
			return l, invalid("body."+name, fmt.Sprintf("1 validation error:\n  {'type': 'int_parsing', 'loc': 'body.%s', 'msg': 'Input should be a valid integer'}", name))
		}
		if n < 1 {
			if e.opts.Dialect == dialect.SGLang {
				return l, badRequest("", "max_new_tokens must be at least 1, got %d.", n)
			}
			return l, badRequest("max_tokens", "max_tokens must be at least 1, got %d. (parameter=max_tokens, value=%d)", n, n)
		}
		l.max = int(min(n, 1<<30))
		break
	}
	if n, ok := b.get("min_tokens").integer(); ok && n > 0 {
		l.min = int(min(n, 1<<30))
	}
	l.ignoreEOS = b.get("ignore_eos").yes()
	stop := b.get("stop")
	if stop == nil {
		stop = b.get("stop_sequences")
	}
	if stop.is('"') {
		l.stops = []string{stop.text()}
	}
	stop.each(func(_, s value) { l.stops = append(l.stops, s.text()) })
	return l, nil
}

// fits refuses a prompt that leaves no room for one token, and an answer that
// would not fit behind it (captures vllm_err_toolong).
func (e *Engine) fits(prompt int, lim limits) *apiError {
	if e.opts.Dialect == dialect.SGLang {
		if prompt >= e.maxModelLen {
			return badRequest("", "The input (%d tokens) is longer than the model's context length (%d tokens).", prompt, e.maxModelLen)
		}
		if lim.max > 0 && prompt+lim.max > e.maxModelLen {
			return badRequest("", "Requested token count exceeds the model's maximum context length of %d tokens. You requested a total of %d tokens: %d tokens from the input messages and %d tokens for the completion.",
				e.maxModelLen, prompt+lim.max, prompt, lim.max)
		}
		return nil
	}
	if prompt >= e.maxModelLen {
		return badRequest("input_tokens", "This model's maximum context length is %d tokens. However, your prompt contains at least %d input tokens, which exceeds this limit even without any output tokens. Please reduce the length of the input prompt. (parameter=input_tokens, value=%d)",
			e.maxModelLen, e.maxModelLen+1, e.maxModelLen+1)
	}
	if lim.max > 0 && prompt+lim.max > e.maxModelLen {
		return badRequest("max_tokens", "'max_tokens' or 'max_completion_tokens' is too large: %d. This model's maximum context length is %d tokens and your request has %d input tokens (%d > %d - %d). (parameter=max_tokens, value=%d)",
			lim.max, e.maxModelLen, prompt, lim.max, e.maxModelLen, prompt, lim.max)
	}
	return nil
}
