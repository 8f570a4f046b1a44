package discovery

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"
)

// Kubernetes finds engines as the pods of a service or of a label selector.
//
// It lists and watches over plain HTTP instead of through client-go, which would add
// 20 MB to the binary (docs/health.md has the measurement) for two kinds of objects.
// The semantics are those of an informer, with one difference: every Relist the list
// is read anew and the watch starts again from it, so that an event that was lost, and
// a watch that has gone mute without an error, cost at most that long (field case B61).
//
// The account needs list and watch on endpointslices (Service set) or pods (Selector
// set) in the namespace.
type Kubernetes struct {
	API        string       // base URL of the API server; "" = the one of the pod we run in
	TokenFile  string       // read before each request, as tokens are renewed; "" = the pod's, or none with API set
	CAFile     string       // authorities of an https API server; "" = the pod's, or the system's with API set
	Client     *http.Client // instead of CAFile
	Namespace  string       // "" = the pod's own
	Service    string       // name of the service whose EndpointSlices are read, or
	Selector   string       // label selector of the pods
	Port       string       // name or number of the port; "" = the only one
	Scheme     string       // default http
	Family     string       // "4", "6", or "" for IPv4 and, where there is none, IPv6
	ServerName string       // for https; a pod is reached by its address

	Relist time.Duration // default 30 s
	Logger *slog.Logger  // nil means slog.Default()
}

// account is where a pod finds its own access to the API server; only tests change it.
var account = "/var/run/secrets/kubernetes.io/serviceaccount/"

// Run implements Source. An error of the API server is returned, for the keeper to
// wait and run again; what had been sent stays true until then.
func (k *Kubernetes) Run(ctx context.Context, out chan<- []Endpoint) error {
	w, err := k.watcher()
	if err != nil {
		return err
	}
	defer w.client.CloseIdleConnections()
	for ctx.Err() == nil {
		if err := w.cycle(ctx, out); err != nil && ctx.Err() == nil {
			return err
		}
	}
	return nil
}

// watcher fills the defaults.
func (k *Kubernetes) watcher() (*watcher, error) {
	w := &watcher{k: *k, client: k.Client, log: k.Logger}
	if (k.Service == "") == (k.Selector == "") {
		return nil, errors.New("cannot watch Kubernetes: exactly one of service and selector must be set")
	}
	if w.k.Relist <= 0 {
		w.k.Relist = 30 * time.Second
	}
	if w.log == nil {
		w.log = slog.Default()
	}
	if w.k.API == "" {
		host, port := os.Getenv("KUBERNETES_SERVICE_HOST"), os.Getenv("KUBERNETES_SERVICE_PORT")
		if host == "" || port == "" {
			return nil, errors.New("cannot watch Kubernetes: no API server is configured and this is no pod")
		}
		w.k.API = at("https", host, port)
		if w.k.TokenFile == "" {
			w.k.TokenFile = account + "token"
		}
	}
	if w.k.Namespace == "" {
		b, err := os.ReadFile(account + "namespace")
		if err != nil {
			return nil, fmt.Errorf("cannot watch Kubernetes: no namespace is configured: %w", err)
		}
		w.k.Namespace = strings.TrimSpace(string(b))
	}
	if w.client == nil {
		ca := k.CAFile
		if ca == "" && k.API == "" {
			ca = account + "ca.crt"
		}
		c, err := apiClient(ca)
		if err != nil {
			return nil, err
		}
		w.client = c
	}
	if k.Service != "" {
		w.kind = sliceKind{}
		w.path = "/apis/discovery.k8s.io/v1/namespaces/" + url.PathEscape(w.k.Namespace) + "/endpointslices"
		w.query = url.Values{"labelSelector": {"kubernetes.io/service-name=" + k.Service}}
	} else {
		w.kind = podKind{}
		w.path = "/api/v1/namespaces/" + url.PathEscape(w.k.Namespace) + "/pods"
		w.query = url.Values{"labelSelector": {k.Selector}}
	}
	return w, nil
}

// kind is a kind of object that endpoints are made of.
type kind interface {
	// read decodes an object; the key tells it apart from others.
	read(raw json.RawMessage) (key string, o any, err error)
	// endpoints makes one set of all objects.
	endpoints(k *Kubernetes, objects map[string]any) ([]Endpoint, error)
}

// watcher is one run of a Kubernetes source.
type watcher struct {
	k       Kubernetes
	client  *http.Client
	log     *slog.Logger
	kind    kind
	path    string
	query   url.Values
	objects map[string]any
	last    []Endpoint
}

// errExpired says that the server no longer has the version that a watch asked for.
var errExpired = errors.New("resource version is too old")

// cycle lists, then watches from there until it is time to list again.
func (w *watcher) cycle(ctx context.Context, out chan<- []Endpoint) error {
	next, cancel := context.WithTimeout(ctx, w.k.Relist)
	defer cancel()
	version, err := w.list(next)
	if err != nil {
		return err
	}
	if err := w.tell(ctx, out, true); err != nil {
		return err
	}
	for next.Err() == nil {
		start := time.Now()
		version, err = w.watch(next, version, func() error { return w.tell(ctx, out, false) })
		switch {
		case next.Err() != nil:
		case errors.Is(err, errExpired):
			return nil // list at once
		case err != nil:
			return err
		case time.Since(start) < time.Second:
			// A server that ends every watch at once is asked once a second, not in a loop.
			select {
			case <-next.Done():
			case <-time.After(time.Second - time.Since(start)):
			}
		}
	}
	return nil
}

// tell sends the set if it has changed, or anyway to confirm it.
func (w *watcher) tell(ctx context.Context, out chan<- []Endpoint, always bool) error {
	set, err := w.kind.endpoints(&w.k, w.objects)
	if err != nil {
		return err
	}
	set = order(set)
	if !always && equal(set, w.last) {
		return nil
	}
	w.last = set
	return send(ctx, out, set)
}

// list reads all objects, page by page, and returns their version.
func (w *watcher) list(ctx context.Context) (version string, err error) {
	objects := map[string]any{}
	q := url.Values{"limit": {"500"}}
	for {
		var page struct {
			Metadata struct {
				ResourceVersion string `json:"resourceVersion"`
				Continue        string `json:"continue"`
			} `json:"metadata"`
			Items []json.RawMessage `json:"items"`
		}
		body, err := w.get(ctx, q)
		if err != nil {
			return "", err
		}
		err = json.NewDecoder(io.LimitReader(body, 256<<20)).Decode(&page)
		body.Close()
		if err != nil {
			return "", fmt.Errorf("cannot list %s: %w", w.path, err)
		}
		for _, raw := range page.Items {
			key, o, err := w.kind.read(raw)
			if err != nil {
				return "", fmt.Errorf("cannot list %s: %w", w.path, err)
			}
			objects[key] = o
		}
		if page.Metadata.Continue == "" {
			w.objects = objects
			return page.Metadata.ResourceVersion, nil
		}
		q.Set("continue", page.Metadata.Continue)
	}
}

// watch follows events from version on until the server ends the watch, and returns
// the version that was reached.
func (w *watcher) watch(ctx context.Context, version string, changed func() error) (string, error) {
	body, err := w.get(ctx, url.Values{"watch": {"1"}, "allowWatchBookmarks": {"true"}, "resourceVersion": {version}})
	if err != nil {
		return version, err
	}
	defer body.Close()
	d := json.NewDecoder(body)
	for {
		var e struct {
			Type   string          `json:"type"`
			Object json.RawMessage `json:"object"`
		}
		if err := d.Decode(&e); err != nil {
			// Watches end: by time, by a dropped connection, by a new leader. What was missed
			// comes from the version on, or with the next list.
			return version, nil
		}
		if e.Type == "ERROR" {
			return version, statusError(e.Object)
		}
		var meta struct {
			Metadata struct {
				ResourceVersion string `json:"resourceVersion"`
			} `json:"metadata"`
		}
		if err := json.Unmarshal(e.Object, &meta); err != nil {
			return version, fmt.Errorf("cannot watch %s: %w", w.path, err)
		}
		version = meta.Metadata.ResourceVersion
		if e.Type == "BOOKMARK" {
			continue
		}
		key, o, err := w.kind.read(e.Object)
		if err != nil {
			return version, fmt.Errorf("cannot watch %s: %w", w.path, err)
		}
		if e.Type == "DELETED" {
			delete(w.objects, key)
		} else {
			w.objects[key] = o
		}
		if err := changed(); err != nil {
			return version, err
		}
	}
}

// statusError turns a Status object into an error.
func statusError(raw []byte) error {
	var s struct {
		Code    int    `json:"code"`
		Message string `json:"message"`
	}
	_ = json.Unmarshal(raw, &s)
	if s.Code == http.StatusGone {
		return errExpired
	}
	return fmt.Errorf("cannot watch Kubernetes: status %d: %s", s.Code, s.Message)
}
