package fakeengine

import (
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/prefixring/prefixring/internal/dialect"
	"github.com/prefixring/prefixring/internal/fakeengine/core"
)

func (e *Engine) version(x *wire) {
	x.json(http.StatusOK, append(quote([]byte(`{"version":`), e.opts.Version), '}'))
}

// ping is a constant on SGLang, even while it drains (engine_contracts 3).
func (e *Engine) ping(x *wire) {
	if e.opts.Dialect == dialect.SGLang {
		x.reply(http.StatusOK, "", nil)
		return
	}
	e.health(x)
}

// health is a flag read on vLLM: it says 200 over a core that hangs. SGLang waits
// for a sign of life of the scheduler, makes one token itself when idle, and gives
// up after twenty times the delay.
func (e *Engine) health(x *wire) {
	if e.opts.Dialect == dialect.VLLM {
		if e.opts.HealthDelay > 0 {
			x.wait(e.opts.HealthDelay, nil)
		}
		x.reply(http.StatusOK, "", nil)
		return
	}
	e.mu.Lock()
	draining := e.draining
	e.mu.Unlock()
	if draining {
		x.reply(http.StatusServiceUnavailable, "", nil)
		return
	}
	if e.opts.HealthDelay > 0 {
		x.wait(e.opts.HealthDelay, nil)
		if e.frozen() {
			x.wait(19*e.opts.HealthDelay, nil)
		}
	}
	if e.frozen() {
		x.reply(http.StatusServiceUnavailable, "", nil)
		return
	}
	x.reply(http.StatusOK, "", nil)
}

func (e *Engine) frozen() bool {
	for _, r := range e.ranks {
		r.mu.Lock()
		stalled := r.stalled
		r.mu.Unlock()
		if stalled {
			return true
		}
	}
	return false
}

// serverLoad is vLLM's /load: requests in this process, constant without the flag.
func (e *Engine) serverLoad(x *wire) {
	n := int64(0)
	if e.opts.LoadTracking {
		n = e.inFlight.Load()
	}
	x.json(http.StatusOK, fmt.Appendf(nil, `{"server_load":%d}`, n))
}

func (e *Engine) models(x *wire) {
	b := []byte(`{"object":"list","data":[`)
	for i, name := range e.modelNames() {
		if i > 0 {
			b = append(b, ',')
		}
		b = e.modelCard(b, name, i > 0)
	}
	x.json(http.StatusOK, append(b, "]}"...))
}

func (e *Engine) oneModel(x *wire, id string) {
	if !slices.Contains(e.modelNames(), id) {
		x.fail(&apiError{http.StatusNotFound, "invalid_request_error", fmt.Sprintf("The model '%s' does not exist", id), "model"})
		return
	}
	x.json(http.StatusOK, e.modelCard(nil, id, id != e.opts.Model))
}

func (e *Engine) modelCard(b []byte, name string, lora bool) []byte {
	owner := "vllm"
	if e.opts.Dialect == dialect.SGLang {
		owner = "sglang"
	}
	b = quote(append(b, `{"id":`...), name)
	b = fmt.Appendf(b, `,"object":"model","created":%d,"owned_by":"%s","root":`, time.Now().Unix(), owner)
	b = append(quote(b, "/models/"+name), `,"parent":`...)
	if lora {
		b = quote(b, e.opts.Model)
	} else {
		b = append(b, "null"...)
	}
	if lora && e.opts.Dialect == dialect.VLLM {
		b = append(b, `,"max_model_len":null`...)
	} else {
		b = fmt.Appendf(b, `,"max_model_len":%d`, e.maxModelLen)
	}
	if e.opts.Dialect == dialect.VLLM {
		b = fmt.Appendf(b, `,"permission":[{"id":"modelperm-%s","object":"model_permission","created":%d,"allow_create_engine":false,"allow_sampling":true,"allow_logprobs":true,"allow_search_indices":false,"allow_view":true,"allow_fine_tuning":false,"organization":"*","group":null,"is_blocking":false}]`,
			hexID(e.random()), time.Now().Unix())
	}
	return append(b, '}')
}

// tokenize takes a prompt, or messages with all that the template reads.
func (e *Engine) tokenize(x *wire) {
	if err := x.parse(); err != nil {
		x.fail(err)
		return
	}
	var text []byte
	if p := x.body.get("prompt"); p.is('"') {
		text = p.appendText(nil)
	} else {
		conv, err := e.conversationOf(x.body)
		if err != nil {
			x.fail(err)
			return
		}
		if v := x.body.get("add_generation_prompt"); v.given() {
			conv.open = v.yes()
		}
		text, _ = e.opts.Template.render(nil, &conv)
	}
	ids := tokenIDs(text)
	list := []byte{'['}
	for i, id := range ids {
		if i > 0 {
			list = append(list, ',')
		}
		list = strconv.AppendUint(list, uint64(id), 10)
	}
	list = append(list, ']')
	if e.opts.Dialect == dialect.SGLang {
		x.json(http.StatusOK, fmt.Appendf(nil, `{"tokens":%s,"count":%d,"max_model_len":%d}`, list, len(ids), e.maxModelLen))
		return
	}
	x.json(http.StatusOK, fmt.Appendf(nil, `{"count":%d,"max_model_len":%d,"tokens":%s,"token_strs":null}`, len(ids), e.maxModelLen, list))
}

// detokenize answers `text` on SGLang where vLLM answers `prompt`.
func (e *Engine) detokenize(x *wire) {
	if err := x.parse(); err != nil {
		x.fail(err)
		return
	}
	var ids []uint32
	for _, v := range x.body.get("tokens").list() {
		n, _ := v.integer()
		ids = append(ids, uint32(n))
	}
	field := "prompt"
	if e.opts.Dialect == dialect.SGLang {
		field = "text"
	}
	x.json(http.StatusOK, append(quote([]byte(`{"`+field+`":`), detokenize(ids)), '}'))
}

func (e *Engine) goToSleep(x *wire) {
	level, err := strconv.Atoi(x.r.URL.Query().Get("level"))
	if err != nil {
		level = 1
	}
	e.Sleep(level)
	x.reply(http.StatusOK, "", nil)
}

func (e *Engine) wakeUp(x *wire) {
	e.Wake()
	x.reply(http.StatusOK, "", nil)
}

func (e *Engine) sleepLevel() int {
	r := e.ranks[0]
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.asleep
}

func (e *Engine) isSleeping(x *wire) {
	x.json(http.StatusOK, fmt.Appendf(nil, `{"is_sleeping":%t}`, e.sleepLevel() > 0))
}

// ResetPrefixCache empties the cache and reports whether no block was in use.
func (e *Engine) ResetPrefixCache() bool {
	all := true
	for _, r := range e.ranks {
		r.mu.Lock()
		if r.core.Stats().UsedBlocks > 0 {
			all = false // the real one drops nothing while any block is held
		} else {
			r.core.Reset()
		}
		r.mu.Unlock()
	}
	return all
}

func (e *Engine) resetCache(x *wire) {
	x.json(http.StatusOK, fmt.Appendf(nil, `{"success":%t}`, e.ResetPrefixCache()))
}

// flushCache refuses while anything runs or waits (engine_contracts 3).
func (e *Engine) flushCache(x *wire) {
	if e.busy() || !e.ResetPrefixCache() {
		x.reply(http.StatusBadRequest, "text/plain; charset=utf-8", []byte("Failed to flush cache: there are running or waiting requests.\n"))
		return
	}
	x.reply(http.StatusOK, "text/plain; charset=utf-8", []byte("Cache flushed.\nPlease check backend logs for more details. (When there are running or waiting requests, the operation will not be performed.)\n"))
}

func (e *Engine) loadAdapter(x *wire) {
	if err := x.parse(); err != nil {
		x.fail(err)
		return
	}
	name := x.body.get("lora_name").text()
	if name == "" {
		x.fail(badRequest("", "Both 'lora_name' and 'lora_path' must be provided."))
		return
	}
	if e.opts.Dialect == dialect.VLLM && e.identity(name) != "" && !x.body.get("load_inplace").yes() {
		x.fail(&apiError{http.StatusBadRequest, "InvalidUserInput", fmt.Sprintf("The lora adapter '%s' has already been loaded.", name), ""})
		return
	}
	e.LoadAdapter(name)
	if e.opts.Dialect == dialect.SGLang {
		x.json(http.StatusOK, append(quote([]byte(`{"success":true,"error_message":"","loaded_adapters":{`), name), `:""}}`...))
		return
	}
	x.reply(http.StatusOK, "text/plain; charset=utf-8", fmt.Appendf(nil, "Success: LoRA adapter '%s' added successfully.", name))
}

// LoadAdapter makes a LoRA adapter known; loading it again replaces it.
func (e *Engine) LoadAdapter(name string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.load(name)
}

// UnloadAdapter forgets one and reports whether it was there.
func (e *Engine) UnloadAdapter(name string) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	n := len(e.adapters)
	e.adapters = slices.DeleteFunc(e.adapters, func(a adapter) bool { return a.name == name })
	return len(e.adapters) < n
}

func (e *Engine) unloadAdapter(x *wire) {
	if err := x.parse(); err != nil {
		x.fail(err)
		return
	}
	name := x.body.get("lora_name").text()
	if !e.UnloadAdapter(name) {
		x.fail(notFound("", "The lora adapter '%s' cannot be found.", name))
		return
	}
	if e.opts.Dialect == dialect.SGLang {
		x.json(http.StatusOK, []byte(`{"success":true,"error_message":"","loaded_adapters":{}}`))
		return
	}
	x.reply(http.StatusOK, "text/plain; charset=utf-8", fmt.Appendf(nil, "Success: LoRA adapter '%s' removed successfully.", name))
}

// embeddings answers at once: small vectors drawn from the text.
func (e *Engine) embeddings(x *wire) {
	if err := x.parse(); err != nil {
		x.fail(err)
		return
	}
	input := x.body.get("input")
	if !input.given() {
		x.fail(e.missing(x.body, "input"))
		return
	}
	g := &generation{body: x.body, proto: dialect.Opaque}
	if err := e.resolveModel(g); err != nil {
		x.fail(err)
		return
	}
	tokens := 0
	b := fmt.Appendf(nil, `{"id":"embd-%s","object":"list","created":%d,"model":`, hexID(e.random()), time.Now().Unix())
	b = append(quote(b, g.model), `,"data":[`...)
	for i, text := range promptTexts(input) {
		if i > 0 {
			b = append(b, ',')
		}
		tokens += tokensOf(len(text))
		b = fmt.Appendf(b, `{"index":%d,"object":"embedding","embedding":[`, i)
		for k, h := range core.SeedChain(core.AppendHashes(nil, 0, tail(text, 64), 64)[0], 8).Hashes() {
			if k > 0 {
				b = append(b, ',')
			}
			b = strconv.AppendFloat(b, float64(int64(h))/(1<<63), 'f', 6, 64)
		}
		b = append(b, "]}"...)
	}
	e.requests.Add(1)
	x.json(http.StatusOK, fmt.Appendf(b, `],"usage":{"prompt_tokens":%d,"total_tokens":%d,"completion_tokens":0,"prompt_tokens_details":null}}`, tokens, tokens))
}
