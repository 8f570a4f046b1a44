package discovery

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// api is an API server for one kind of objects, with the faults that real ones have.
type api struct {
	*httptest.Server

	mu      sync.Mutex
	cond    *sync.Cond
	version int
	objects map[string]map[string]any
	events  []event         // all, in order
	oldest  int             // watches from before this version get 410
	mute    bool            // watches stay open and say nothing
	drop    int             // how often watches have been cut
	tokens  map[string]bool // Authorization values seen
	path    string          // of the last request
	fail    int             // status for every request, 0 = none
	lists   int
	watches int
	page    int // objects per page of a list, 0 = all
}

type event struct {
	version int
	kind    string
	object  map[string]any
}

func newAPI(t *testing.T) *api {
	a := &api{tokens: map[string]bool{}, objects: map[string]map[string]any{}, version: 100}
	a.cond = sync.NewCond(&a.mu)
	a.Server = httptest.NewServer(a)
	t.Cleanup(func() {
		a.set(func() { a.drop++ })
		a.Close()
	})
	return a
}

// set changes something and wakes all watches.
func (a *api) set(f func()) { a.mu.Lock(); defer a.mu.Unlock(); f(); a.cond.Broadcast() }

// put adds or changes an object and tells watches, unless they are mute.
func (a *api) put(name string, object map[string]any) { a.change(name, object, false) }

// lose is put or delete without an event, as when it falls between two watches.
func (a *api) lose(name string, object map[string]any) { a.change(name, object, true) }

func (a *api) change(name string, object map[string]any, silent bool) {
	a.set(func() {
		a.version++
		kind := "MODIFIED"
		if _, ok := a.objects[name]; !ok {
			kind = "ADDED"
		}
		if object == nil {
			kind, object = "DELETED", a.objects[name]
			delete(a.objects, name)
		} else {
			object["metadata"].(map[string]any)["resourceVersion"] = strconv.Itoa(a.version)
			a.objects[name] = object
		}
		if !silent {
			a.events = append(a.events, event{a.version, kind, object})
		}
	})
}

func (a *api) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	a.mu.Lock()
	fail := a.fail
	a.tokens[r.Header.Get("Authorization")] = true
	a.path = r.URL.Path
	a.mu.Unlock()
	switch {
	case fail != 0:
		w.WriteHeader(fail)
		fmt.Fprintf(w, `{"kind":"Status","code":%d,"message":"scripted"}`, fail)
	case r.URL.Query().Get("watch") != "":
		a.watch(w, r)
	default:
		a.list(w, r)
	}
}

func (a *api) list(w http.ResponseWriter, r *http.Request) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.lists++
	names := make([]string, 0, len(a.objects))
	for name := range a.objects {
		names = append(names, name)
	}
	slices.Sort(names)
	meta := map[string]any{"resourceVersion": strconv.Itoa(a.version)}
	from, _ := strconv.Atoi(r.URL.Query().Get("continue"))
	if names = names[from:]; a.page > 0 && len(names) > a.page {
		names = names[:a.page]
		meta["continue"] = strconv.Itoa(from + a.page)
	}
	items := []any{}
	for _, name := range names {
		items = append(items, a.objects[name])
	}
	_ = json.NewEncoder(w).Encode(map[string]any{"metadata": meta, "items": items})
}

func (a *api) watch(w http.ResponseWriter, r *http.Request) {
	from, _ := strconv.Atoi(r.URL.Query().Get("resourceVersion"))
	// A watch that nobody reads any more must not wait for an event.
	stop := context.AfterFunc(r.Context(), func() { a.set(func() {}) })
	defer stop()
	a.mu.Lock()
	defer a.mu.Unlock()
	a.watches++
	drop := a.drop
	enc := json.NewEncoder(w)
	w.WriteHeader(200)
	w.(http.Flusher).Flush()
	if from < a.oldest {
		_ = enc.Encode(map[string]any{"type": "ERROR", "object": map[string]any{"kind": "Status", "code": 410, "message": "too old"}})
		return
	}
	_ = enc.Encode(map[string]any{"type": "BOOKMARK", "object": map[string]any{"metadata": map[string]any{"resourceVersion": strconv.Itoa(a.version)}}})
	for r.Context().Err() == nil && drop == a.drop {
		for _, e := range a.events {
			if e.version > from && !a.mute {
				_ = enc.Encode(map[string]any{"type": e.kind, "object": e.object})
				from = e.version
			}
		}
		w.(http.Flusher).Flush()
		a.cond.Wait()
	}
}

// podObject is a running pod; change may alter it.
func podObject(name, ip string, change ...func(map[string]any)) map[string]any {
	p := map[string]any{
		"metadata": map[string]any{"name": name, "creationTimestamp": "2031-01-01T00:00:00Z"},
		"spec": map[string]any{"containers": []any{
			map[string]any{"ports": []any{map[string]any{"name": "metrics", "containerPort": 9000}}},
			map[string]any{"ports": []any{map[string]any{"name": "http", "containerPort": 8000}}},
		}},
		"status": map[string]any{"phase": "Running", "podIP": ip, "podIPs": []any{map[string]any{"ip": ip}},
			"conditions": []any{map[string]any{"type": "Ready", "status": "True"}}},
	}
	for _, f := range change {
		f(p)
	}
	return p
}

// sub walks into an object.
func sub(o map[string]any, key string) map[string]any { return o[key].(map[string]any) }

// sliceObject is an EndpointSlice of the given endpoints.
func sliceObject(name, family string, endpoints ...map[string]any) map[string]any {
	list := []any{}
	for _, e := range endpoints {
		list = append(list, e)
	}
	return map[string]any{
		"metadata": map[string]any{"name": name}, "addressType": family, "endpoints": list,
		"ports": []any{map[string]any{"name": "http", "port": 8000}, map[string]any{"name": "metrics", "port": 9000}},
	}
}

func endpointOf(pod, ip string, conditions map[string]any) map[string]any {
	return map[string]any{"addresses": []any{ip}, "conditions": conditions, "targetRef": map[string]any{"kind": "Pod", "name": pod}}
}

// watchSets runs a source until the test ends and returns its sets.
func watchSets(t *testing.T, s Source) <-chan []Endpoint {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	out := make(chan []Endpoint)
	done := make(chan error, 1)
	go func() {
		err := s.Run(ctx, out)
		if err != nil && ctx.Err() == nil {
			t.Errorf("Run: %v", err)
		}
		done <- err
	}()
	t.Cleanup(func() {
		cancel()
		select {
		case <-done:
		case <-time.After(10 * time.Second):
			t.Error("Run does not end")
		}
	})
	return out
}

// show writes a set so that tests can compare it.
func show(set []Endpoint) string {
	var parts []string
	for _, e := range set {
		s := e.Name + "=" + e.URL
		if e.Terminating {
			s += " terminating"
		} else if !e.Ready {
			s += " unready"
		}
		parts = append(parts, s)
	}
	return strings.Join(parts, ", ")
}

// until reads sets until one looks as wanted. Nothing here depends on how long that
// takes; the deadline only ends a test that has failed.
func until(t *testing.T, sets <-chan []Endpoint, want string) {
	t.Helper()
	deadline := time.After(10 * time.Second)
	last := "nothing"
	for {
		select {
		case set := <-sets:
			if last = show(set); last == want {
				return
			}
		case <-deadline:
			t.Fatalf("last set: %s\nwant:     %s", last, want)
		}
	}
}
