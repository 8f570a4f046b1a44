package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"path/filepath"
	"strings"
	"testing"

	"github.com/prefixring/prefixring/internal/fakeengine"
)

// fleetOf asks a router for what it knows.
func fleetOf(t *testing.T, admin string) fleetView {
	t.Helper()
	resp, err := http.Get(admin + "/api/v1/fleet")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var v fleetView
	if err := json.NewDecoder(resp.Body).Decode(&v); err != nil {
		t.Fatal(err)
	}
	return v
}

// serving are the names of the nodes that take work.
func serving(t *testing.T, admin string) string {
	t.Helper()
	var names []string
	for _, n := range fleetOf(t, admin).Nodes {
		if n.State == "ready" {
			names = append(names, n.Name)
		}
	}
	return strings.Join(names, " ")
}

// page reads one page of the admin port.
func page(t *testing.T, at string) (int, string) {
	t.Helper()
	resp, err := http.Get(at)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(b)
}

// Engines of a pool come from a file that changes: they join and leave while the router
// runs, half a file and an empty one change nothing, and what is known shows.
func TestB61EnginesFromAFile(t *testing.T) {
	_, one := instant(t)
	second, two := instant(t)
	dir := t.TempDir()
	put(t, dir, "engines.yaml", "- {name: a, url: '"+one+"'}\n")
	put(t, dir, "router.yaml", "limits: {drain_delay: 1ms}\npools:\n  - discovery: {file: engines.yaml}\n")
	s := serveT(t, "--config", filepath.Join(dir, "router.yaml"))
	until(t, "a serves", func() bool { return serving(t, s.admin) == "a" })
	if status, _ := askAs(t, s.data, ""); status != 200 {
		t.Fatalf("status %d", status)
	}
	put(t, dir, "engines.yaml", "- {name: a, url: '"+one+"'}\n- {name: b, url: '"+two+"'}\n")
	until(t, "b serves, too", func() bool { return serving(t, s.admin) == "a b" })
	if _, metrics := page(t, s.admin+"/metrics"); !strings.Contains(metrics, `prefixring_node_in_flight{node="b"}`) {
		t.Error("an engine that came later has no gauges")
	} else if !strings.Contains(metrics, `prefixring_discovery_engines{pool="default"} 2`) {
		t.Error("the source has no gauges")
	}
	put(t, dir, "engines.yaml", "- {name: a, url: '") // half written
	put(t, dir, "engines.yaml", "- {name: b, url: '"+two+"'}\n")
	until(t, "a has left", func() bool { return serving(t, s.admin) == "b" })
	put(t, dir, "engines.yaml", "[]\n") // nothing: not believed for a while
	for range 20 {
		if status, code := askAs(t, s.data, ""); status != 200 {
			t.Fatalf("status %d %s beside an empty list", status, code)
		}
	}
	if second.Counters().Requests == 0 {
		t.Error("b was never asked")
	}
	v := fleetOf(t, s.admin).Discovery
	if len(v) != 1 || v[0].Source != "file engines.yaml" || v[0].Age == nil || v[0].Engines != 1 {
		t.Errorf("discovery %+v", v)
	}
	if code, out, _ := invoke(t, "status", "--router", s.admin); code != 0 || !strings.Contains(out, "file engines.yaml") {
		t.Errorf("status: %s", out)
	}
}

// podAPI answers lists and watches of pods as an API server does, each list with what
// pods holds.
func podAPI(t *testing.T, pods func() string) string {
	t.Helper()
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/api/v1/namespaces/shop/pods" || r.URL.Query().Get("labelSelector") != "app=vllm" {
			http.NotFound(w, r)
			return
		}
		if r.URL.Query().Get("watch") == "" {
			fmt.Fprintf(w, `{"kind":"PodList","metadata":{"resourceVersion":"7"},"items":[%s]}`, pods())
			return
		}
		w.(http.Flusher).Flush()
		<-r.Context().Done()
	}))
	t.Cleanup(api.Close)
	return api.URL
}

// Engines of a pool come from Kubernetes: a pod that is ready serves, one that is not
// does not.
func TestB61EnginesFromKubernetes(t *testing.T) {
	_, at := fakeengine.StartT(t, fakeengine.Options{Model: "m1", Preset: "instant", ReportCached: true})
	u, err := url.Parse(at)
	if err != nil {
		t.Fatal(err)
	}
	pod := func(name, ip, ready string) string {
		return fmt.Sprintf(`{"metadata":{"name":%q,"uid":%[1]q},"spec":{"containers":[{"ports":[{"name":"http","containerPort":%s}]}]},
			"status":{"phase":"Running","podIP":%[3]q,"podIPs":[{"ip":%[3]q}],"conditions":[{"type":"Ready","status":%[4]q}]}}`, name, u.Port(), ip, ready)
	}
	api := podAPI(t, func() string { return pod("vllm-0", "127.0.0.1", "True") + "," + pod("vllm-1", "127.0.0.9", "False") })
	cfg := write(t, "limits: {drain_delay: 1ms}\npools:\n  - discovery: {kubernetes: {api: '"+api+"', namespace: shop, selector: app=vllm, port: http}}\n")
	s := serveT(t, "--config", cfg)
	until(t, "vllm-0 serves", func() bool { return serving(t, s.admin) == "vllm-0" })
	if status, _ := askAs(t, s.data, ""); status != 200 {
		t.Errorf("status %d", status)
	}
	if n := len(fleetOf(t, s.admin).Nodes); n != 2 {
		t.Errorf("%d nodes are known, want 2", n)
	}
}

// A source that cannot be reached leaves the router up, not ready, and says why.
func TestUnreachableDiscovery(t *testing.T) {
	cfg := write(t, "limits: {drain_delay: 1ms}\npools:\n  - discovery: {kubernetes: {api: 'http://127.0.0.1:1', namespace: shop, service: vllm}}\n")
	s := serveT(t, "--config", cfg)
	until(t, "the failure shows", func() bool {
		v := fleetOf(t, s.admin).Discovery
		return len(v) == 1 && strings.Contains(v[0].Trouble, "refused")
	})
	if status, said := page(t, s.admin+"/readyz"); status != 503 || !strings.Contains(said, "0 engines") {
		t.Errorf("%d %s", status, said)
	}
	if status, code := askAs(t, s.data, ""); status != 503 || code != "no_engine" {
		t.Errorf("%d %s", status, code)
	}
}

// A source that does not work is refused by name, as is a pool with two kinds of engines.
func TestBadDiscovery(t *testing.T) {
	for text, says := range map[string]string{
		"{discovery: {file: a, dns: {name: b, port: 1}}}":                      "exclude each other",
		"{discovery: {file: a}, engines: [{url: 'http://a:1'}]}":               "one or the other",
		"{discovery: {dns: {port: 1}}}":                                        "pools[0].discovery.dns.name",
		"{discovery: {dns: {name: a}}}":                                        "1..65535",
		"{discovery: {dns: {name: a, srv: true, port: 1}}}":                    "their own port",
		"{discovery: {dns: {name: a, port: 1, scheme: ftp}}}":                  "pools[0].discovery.dns.scheme",
		"{discovery: {kubernetes: {service: a, selector: b}}}":                 "either service or selector",
		"{discovery: {kubernetes: {namespace: a}}}":                            "either service or selector",
		"{discovery: {kubernetes: {service: a, family: '5'}}}":                 "pools[0].discovery.kubernetes.family",
		"{discovery: {limit: 5s}}":                                             "there is no source",
		"{discovery: {file: a, limit: -5s}}":                                   "pools[0].discovery.limit",
		"{discovery: {kubernetes: {service: a, api: ':::'}}}":                  "pools[0].discovery.kubernetes.api",
		"{models: [m], discovery: {file: a, empty_grace: soon}}":               "soon",
		"{discovery: {kubernetes: {service: a/b}}}":                            "key of its own",
		"{discovery: {kubernetes: {service: a, sheme: https}}}":                "sheme",
		"{discovery: {dns: {name: a, port: 70000}}, name: x, dialect: sglang}": "70000",
	} {
		code, _, errs := invoke(t, "check", "--config", write(t, "pools:\n  - "+text+"\n"))
		if code != 2 || !strings.Contains(errs, says) {
			t.Errorf("%s: %d %s", text, code, errs)
		}
	}
}
