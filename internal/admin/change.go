package admin

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
)

// maxChange bounds the body of a change, in bytes.
const maxChange = 64 << 10

// ErrNoNode is what Operate and Node return, wrapped, for a name that is no node's.
var ErrNoNode = errors.New("there is no such node")

// node shows one node. Its ETag covers what operators set, not its load: a change that
// was decided on that state can carry it as If-Match.
func (o *Options) node(w http.ResponseWriter, r *http.Request) {
	v, tag, err := o.Node(r.PathValue("node"))
	if err != nil {
		refuse(w, statusOf(err), err.Error())
		return
	}
	w.Header().Set("ETag", quoted(tag))
	answer(w, http.StatusOK, v)
}

// change applies an operator's wish to a node. changing makes the look at the ETag and
// the change one step.
func (o *Options) change(changing *sync.Mutex) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		action, node := r.PathValue("action"), r.PathValue("node")
		switch action {
		case "drain", "resume", "cordon":
		default:
			refuse(w, http.StatusNotFound, fmt.Sprintf("no action %q; there are drain, resume and cordon", action))
			return
		}
		if _, ok := readBody(w, r); !ok {
			return
		}
		changing.Lock()
		defer changing.Unlock()
		if !o.fresh(w, r, node) {
			return
		}
		if err := o.Operate(action, node); err != nil {
			refuse(w, statusOf(err), err.Error())
			return
		}
		if _, tag, err := o.Node(node); err == nil {
			w.Header().Set("ETag", quoted(tag))
		}
		answer(w, http.StatusOK, map[string]string{"node": node, "action": action})
	}
}

// fresh says that the node is as the client believes. It has answered when it says no.
func (o *Options) fresh(w http.ResponseWriter, r *http.Request, node string) bool {
	want := r.Header.Values("If-Match")
	if len(want) == 0 {
		return true
	}
	_, tag, err := o.Node(node)
	if err != nil {
		refuse(w, statusOf(err), err.Error())
		return false
	}
	for _, t := range strings.Split(strings.Join(want, ","), ",") {
		if t = strings.TrimSpace(t); t == "*" || t == quoted(tag) {
			return true
		}
	}
	w.Header().Set("ETag", quoted(tag))
	refuse(w, http.StatusPreconditionFailed, fmt.Sprintf("node %q has been changed by somebody else; look at it again", node))
	return false
}

// readBody reads what the guard has bounded. It has answered when it says no.
func readBody(w http.ResponseWriter, r *http.Request) ([]byte, bool) {
	body, err := io.ReadAll(r.Body)
	if tooLarge := (*http.MaxBytesError)(nil); errors.As(err, &tooLarge) {
		refuse(w, http.StatusRequestEntityTooLarge, fmt.Sprintf("the body is larger than %d bytes", tooLarge.Limit))
		return nil, false
	} else if err != nil {
		refuse(w, http.StatusBadRequest, "cannot read the body")
		return nil, false
	}
	return body, true
}

func statusOf(err error) int {
	if errors.Is(err, ErrNoNode) || strings.Contains(err.Error(), ErrNoNode.Error()) {
		return http.StatusNotFound
	}
	return http.StatusBadRequest
}

func quoted(tag string) string { return `"` + tag + `"` }
