// Package admin serves the operators' port: liveness, readiness, metrics and the API
// under /api/v1/. It shows facts that its caller supplies and holds no state; nothing
// that it shows contains prompt text, keys or tenants. It has no authentication yet:
// bind it to loopback or to a network that only operators reach.
package admin

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"

	"github.com/prefixring/prefixring/internal/dialect"
)

// MaxExplain bounds the body that /api/v1/explain takes, in bytes.
const MaxExplain = 64 << 20

// Options are the facts and actions behind the port. All functions but Warnings are required and
// may be called from several goroutines at once.
type Options struct {
	// Ready returns nil when the router can serve, else why not, one reason a line.
	Ready func() error
	// Warnings are told beside "ready": what an operator should know, though it works.
	Warnings func() []string
	// Metrics writes the Prometheus text page.
	Metrics func(io.Writer)
	// Fleet returns the value shown, as JSON, at /api/v1/fleet.
	Fleet func() any
	// Explain says where a request body would go and why. path is one of the data port.
	Explain func(path string, body []byte) (any, error)
	// Operate applies an operator's wish to a node: drain, resume or cordon.
	Operate func(action, node string) error
}

// Handler returns the port's routes.
func Handler(o Options) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		io.WriteString(w, "ok\n")
	})
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		if err := o.Ready(); err != nil {
			w.WriteHeader(http.StatusServiceUnavailable)
			fmt.Fprintln(w, err)
			return
		}
		io.WriteString(w, "ready\n")
		if o.Warnings != nil {
			for _, warning := range o.Warnings() {
				fmt.Fprintf(w, "warning: %s\n", warning)
			}
		}
	})
	mux.HandleFunc("GET /metrics", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
		o.Metrics(w)
	})
	mux.HandleFunc("GET /api/v1/fleet", func(w http.ResponseWriter, _ *http.Request) {
		answer(w, http.StatusOK, o.Fleet())
	})
	mux.HandleFunc("POST /api/v1/explain", o.explain)
	mux.HandleFunc("POST /api/v1/nodes/{node}/{action}", o.operate)
	return mux
}

// explain reads a request body and answers what would be done with it. The query
// parameter path names the data port's path, by default /v1/chat/completions.
func (o *Options) explain(w http.ResponseWriter, r *http.Request) {
	path := r.URL.Query().Get("path")
	if path == "" {
		path = "/v1/chat/completions"
	}
	if _, ok := dialect.ProtocolOf(path); !ok {
		refuse(w, http.StatusBadRequest, fmt.Sprintf("path %q is not served on the data port", path))
		return
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, MaxExplain))
	if tooLarge := (*http.MaxBytesError)(nil); errors.As(err, &tooLarge) {
		refuse(w, http.StatusRequestEntityTooLarge, fmt.Sprintf("the body is larger than %d bytes", tooLarge.Limit))
		return
	} else if err != nil {
		refuse(w, http.StatusBadRequest, "cannot read the body")
		return
	}
	v, err := o.Explain(path, body)
	if err != nil {
		refuse(w, http.StatusBadRequest, err.Error())
		return
	}
	answer(w, http.StatusOK, v)
}

// operate drains, resumes or cordons a node. A browser's cross-site form cannot set
// the header that is asked for, so that a page an operator visits can do nothing here.
func (o *Options) operate(w http.ResponseWriter, r *http.Request) {
	action, node := r.PathValue("action"), r.PathValue("node")
	if r.Header.Get("X-Prefixring-Operator") == "" {
		refuse(w, http.StatusForbidden, "the header X-Prefixring-Operator is missing; set it to your name")
		return
	}
	switch action {
	case "drain", "resume", "cordon":
	default:
		refuse(w, http.StatusNotFound, fmt.Sprintf("no action %q; there are drain, resume and cordon", action))
		return
	}
	if err := o.Operate(action, node); err != nil {
		status := http.StatusBadRequest
		if strings.Contains(err.Error(), "no such node") {
			status = http.StatusNotFound
		}
		refuse(w, status, err.Error())
		return
	}
	answer(w, http.StatusOK, map[string]string{"node": node, "action": action})
}

func refuse(w http.ResponseWriter, status int, message string) {
	answer(w, status, map[string]string{"error": message})
}

func answer(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	enc.Encode(v) // the client may have left; there is nobody else to tell
}
