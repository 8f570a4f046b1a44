// Package admin serves the operators' port: liveness, readiness, metrics and the API
// under /api/v1/. It shows facts that its caller supplies and holds no state; nothing
// that it shows contains prompt text, keys or tenants.
//
// Whoever may use it is known by a token or a client certificate; without either the
// port is meant for loopback and answers to addresses only, so that a web site cannot
// reach it through a browser on this machine. There are no cookies. Every change and
// every refusal of one is a line in the log.
package admin

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/pprof"
	"strings"
	"sync"
	"time"

	"github.com/prefixring/prefixring/internal/dialect"
)

// MaxExplain bounds the body that /api/v1/explain takes, in bytes.
const MaxExplain = 64 << 20

// Options are the facts and actions behind the port. All functions but Warnings are required and
// may be called from several goroutines at once.
type Options struct {
	Access Access
	// Ready returns nil when the router can serve, else why not, one reason a line.
	Ready func() error
	// Warnings are told beside "ready": what an operator should know, though it works.
	Warnings func() []string
	// Metrics writes the Prometheus text page.
	Metrics func(io.Writer)
	// Fleet returns the value shown, as JSON, at /api/v1/fleet.
	Fleet func() any
	// Node returns one node's value and a tag that changes with what operators set for it.
	// The tag has letters, digits, dots and dashes only.
	Node func(node string) (v any, tag string, err error)
	// Explain says where a request body would go and why. path is one of the data port.
	Explain func(path string, body []byte) (any, error)
	// Operate applies an operator's wish to a node: drain, resume or cordon.
	Operate func(action, node string) error
}

// endpoint is one route of the port.
type endpoint struct {
	method, path string
	serve        http.HandlerFunc
	open         bool  // no credential is asked for
	page         bool  // another site may link to it
	changes      bool  // needs to know who asks
	limit        int64 // bytes of the JSON body that it takes; 0 = it takes none
}

func (e *endpoint) pattern() string { return e.method + " " + e.path }

// endpoints are all routes.
func (o *Options) endpoints() []endpoint {
	var changing sync.Mutex
	explaining := make(chan struct{}, 4) // bodies may be large
	return []endpoint{
		{method: "GET", path: "/healthz", open: true, serve: o.healthz},
		{method: "GET", path: "/readyz", open: true, serve: o.readyz},
		{method: "GET", path: "/metrics", serve: o.metrics},
		{method: "GET", path: "/api/v1/fleet", serve: o.fleet},
		{method: "GET", path: "/api/v1/nodes/{node}", serve: o.node},
		{method: "POST", path: "/api/v1/nodes/{node}/{action}", changes: true, limit: maxChange, serve: o.change(&changing)},
		{method: "POST", path: "/api/v1/explain", limit: MaxExplain, serve: o.explain(explaining)},
		{method: "GET", path: "/debug/pprof/", serve: pprof.Index},
		{method: "GET", path: "/debug/pprof/cmdline", serve: pprof.Cmdline},
		{method: "GET", path: "/debug/pprof/profile", serve: pprof.Profile},
		{method: "GET", path: "/debug/pprof/symbol", serve: pprof.Symbol},
		{method: "GET", path: "/debug/pprof/trace", serve: pprof.Trace},
	}
}

// Handler returns the port.
func Handler(o Options) http.Handler {
	g := &guard{Access: o.Access, mux: http.NewServeMux(), routes: map[string]*endpoint{}, cross: http.NewCrossOriginProtection()}
	for _, e := range o.endpoints() {
		g.mux.HandleFunc(e.pattern(), e.serve)
		g.routes[e.pattern()] = &e
	}
	return g
}

func (o *Options) healthz(w http.ResponseWriter, _ *http.Request) {
	io.WriteString(w, "ok\n")
}

// readyz tells reasons and warnings only to those who may use the port: they name engines.
func (o *Options) readyz(w http.ResponseWriter, r *http.Request) {
	inside := askerOf(r.Context()).inside
	if err := o.Ready(); err != nil {
		w.WriteHeader(http.StatusServiceUnavailable)
		if !inside {
			io.WriteString(w, "not ready\n")
			return
		}
		fmt.Fprintln(w, err)
		return
	}
	io.WriteString(w, "ready\n")
	if o.Warnings != nil && inside {
		for _, warning := range o.Warnings() {
			fmt.Fprintf(w, "warning: %s\n", warning)
		}
	}
}

func (o *Options) metrics(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
	o.Metrics(w)
}

func (o *Options) fleet(w http.ResponseWriter, _ *http.Request) { answer(w, http.StatusOK, o.Fleet()) }

// explain reads a request body and answers what would be done with it. The query
// parameter path names the data port's path, by default /v1/chat/completions.
func (o *Options) explain(slots chan struct{}) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		path := r.URL.Query().Get("path")
		if path == "" {
			path = "/v1/chat/completions"
		}
		if _, ok := dialect.ProtocolOf(path); !ok {
			refuse(w, http.StatusBadRequest, fmt.Sprintf("path %q is not served on the data port", clip(path, 100)))
			return
		}
		select {
		case slots <- struct{}{}:
			defer func() { <-slots }()
		case <-r.Context().Done():
			return
		}
		body, ok := readBody(w, r)
		if !ok {
			return
		}
		v, err := o.Explain(path, body)
		if err != nil {
			refuse(w, http.StatusBadRequest, err.Error())
			return
		}
		answer(w, http.StatusOK, v)
	}
}

// Server returns a server with limits on slow and large requests.
func Server(h http.Handler) *http.Server {
	return &http.Server{
		Handler: h, ReadHeaderTimeout: 10 * time.Second, ReadTimeout: 2 * time.Minute, IdleTimeout: 75 * time.Second, MaxHeaderBytes: 64 << 10,
	}
}

func refuse(w http.ResponseWriter, status int, message string) {
	answer(w, status, map[string]string{"error": strings.ToValidUTF8(message, "?")})
}

func answer(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	enc.Encode(v) // the client may have left; there is nobody else to tell
}
