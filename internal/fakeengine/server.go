package fakeengine

import (
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"unicode/utf8"

	"github.com/prefixring/prefixring/internal/dialect"
)

// maxBody limits a request's body; far above any context.
const maxBody = 256 << 20

type endpoint func(x *wire)

// Handler is the engine's HTTP surface. Faults below HTTP (resets, unannounced
// closes) need Start or Serve and are plain closes without them.
func (e *Engine) Handler() http.Handler {
	table := e.routes()
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		x := &wire{e: e, w: w, r: r, rc: http.NewResponseController(w)}
		defer func() {
			if p := recover(); p != nil && p != errEnded {
				panic(p)
			}
		}()
		if e.admin(x) {
			return
		}
		body, err := readBody(r)
		if err != nil {
			x.drop() // the client left in the middle of its body
		}
		if e.opts.OnRequest != nil {
			e.opts.OnRequest(Received{r.Method, r.URL.Path, r.RemoteAddr, r.Header, body})
		}
		x.body = body
		x.faults = e.strike(r.URL.Path)
		if generationPath(r.URL.Path) {
			e.inFlight.Add(1)
			defer e.inFlight.Add(-1)
		}
		if x.before() {
			return
		}
		if !e.authorized(r) {
			x.refused = true
			x.json(http.StatusUnauthorized, []byte(`{"error":"Unauthorized"}`))
			return
		}
		e.dispatch(x, table)
	})
}

func (e *Engine) dispatch(x *wire, table map[string]endpoint) {
	path := x.r.URL.Path
	method := x.r.Method
	if method == http.MethodHead {
		method = http.MethodGet
	}
	if h := table[method+" "+path]; h != nil {
		h(x)
		return
	}
	for _, m := range []string{http.MethodGet, http.MethodPost, http.MethodPut} {
		if table[m+" "+path] != nil {
			x.w.Header().Set("Allow", m)
			x.json(http.StatusMethodNotAllowed, []byte(`{"detail":"Method Not Allowed"}`))
			return
		}
	}
	if id, ok := strings.CutPrefix(path, "/v1/responses/"); ok {
		e.storedResponse(x, id)
		return
	}
	if id, ok := strings.CutPrefix(path, "/v1/models/"); ok && e.opts.Dialect == dialect.SGLang {
		e.oneModel(x, id)
		return
	}
	x.json(http.StatusNotFound, []byte(`{"detail":"Not Found"}`))
}

func readBody(r *http.Request) ([]byte, error) {
	if n := r.ContentLength; n > 0 && n <= maxBody {
		b := make([]byte, n)
		_, err := io.ReadFull(r.Body, b)
		if err == nil { // the reader notices a client that leaves only once it has seen the end
			_, _ = r.Body.Read(make([]byte, 1))
		}
		return b, err
	}
	return io.ReadAll(io.LimitReader(r.Body, maxBody))
}

// generationPath says whether the path makes the engine work.
func generationPath(path string) bool {
	switch path {
	case "/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages", "/v1/embeddings",
		"/v1/audio/transcriptions", "/generate", "/inference/v1/generate":
		return true
	}
	return false
}

// authorized checks the key where the dialect checks it: vLLM under /v1, /v2 and
// /inference only, SGLang everywhere but /health and /metrics. Only a Bearer counts:
// the x-api-key of Anthropic clients is refused (capture vllm_messages_xapikey).
func (e *Engine) authorized(r *http.Request) bool {
	e.mu.Lock()
	key := e.key
	e.mu.Unlock()
	if key == "" || r.Method == http.MethodOptions {
		return true
	}
	p := r.URL.Path
	guarded := strings.HasPrefix(p, "/v1") || strings.HasPrefix(p, "/v2") || strings.HasPrefix(p, "/inference")
	if e.opts.Dialect == dialect.SGLang {
		guarded = !strings.HasPrefix(p, "/health") && !strings.HasPrefix(p, "/metrics")
	}
	return !guarded && !e.opts.GuardAll || r.Header.Get("Authorization") == "Bearer "+key
}

// parse checks that the body is a JSON object sent as JSON.
func (x *wire) parse() *apiError {
	if t := x.r.Header.Get("Content-Type"); !strings.HasPrefix(strings.ToLower(t), "application/json") {
		return invalid("", "1 validation error:\n  Unsupported Media Type: Only 'application/json' is allowed")
	}
	err := validate(x.body)
	if err == nil && !utf8.Valid(x.body) {
		err = &syntaxError{0, "invalid utf-8"}
	}
	if err != nil {
		return x.e.badJSON(err)
	}
	x.body = x.body[space(x.body, 0):]
	if !x.body.is('{') {
		return invalid("body", "1 validation error:\n  {'type': 'model_attributes_type', 'loc': 'body', 'msg': 'Input should be a valid dictionary or object to extract fields from'}")
	}
	return nil
}

// admin serves the paths that no real engine has: faults and the oracle.
func (e *Engine) admin(x *wire) bool {
	w, r := x.w, x.r
	switch {
	case r.URL.Path == "/oracle" && r.Method == http.MethodGet:
		e.answer(w, struct {
			Name    string `json:"name"`
			Dialect string `json:"dialect"`
			Model   string `json:"model"`
			Counters
		}{e.opts.Name, e.opts.Dialect.String(), e.opts.Model, e.Counters()})
	case r.URL.Path != "/fault":
		return false
	case r.Method == http.MethodGet:
		e.answer(w, e.Faults())
	case r.Method == http.MethodDelete:
		if name := r.URL.Query().Get("name"); name != "" {
			if !e.RemoveFault(name) {
				http.Error(w, "no fault of that name is set", http.StatusNotFound)
				return true
			}
		} else {
			e.ClearFaults()
		}
		w.WriteHeader(http.StatusNoContent)
	case r.Method == http.MethodPost:
		e.postFault(w, r)
	default:
		http.Error(w, "method not allowed", http.StatusMethodNotAllowed)
	}
	return true
}

func (e *Engine) postFault(w http.ResponseWriter, r *http.Request) {
	b, err := io.ReadAll(io.LimitReader(r.Body, 1<<20))
	if err != nil {
		http.Error(w, "cannot read the fault: "+err.Error(), http.StatusBadRequest)
		return
	}
	list := []Fault{}
	if value(b[space(b, 0):]).is('[') {
		err = strict(b, &list)
	} else {
		list = append(list, Fault{})
		err = strict(b, &list[0])
	}
	if err != nil {
		http.Error(w, "cannot read the fault: "+err.Error(), http.StatusBadRequest)
		return
	}
	for _, f := range list {
		if err := e.TrySetFault(f); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
	}
	e.answer(w, e.Faults())
}

// strict decodes JSON and refuses fields that do not exist: a misspelt fault must not be an empty one.
func strict(b []byte, into any) error {
	d := json.NewDecoder(strings.NewReader(string(b)))
	d.DisallowUnknownFields()
	return d.Decode(into)
}

func (e *Engine) answer(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(v) // plain data of our own; a client that left loses nothing
}
