//go:build k8s

package discovery

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"
)

var watchRules = map[string]map[string]any{
	"pods":           {"apiGroups": []string{""}, "resources": []string{"pods"}, "verbs": []string{"list", "watch"}},
	"endpointslices": {"apiGroups": []string{"discovery.k8s.io"}, "resources": []string{"endpointslices"}, "verbs": []string{"list", "watch"}},
}

// pod creates or changes an engine's pod with its status, as a kubelet would write it.
func (c *cluster) pod(name, ip string, ready bool) {
	c.t.Helper()
	const pods = "/api/v1/namespaces/shop/pods"
	labels := map[string]any{"app": "engine"}
	ports := []any{map[string]any{"name": "http", "containerPort": 8000}, map[string]any{"name": "metrics", "containerPort": 9000}}
	if !c.has(pods + "/" + name) {
		c.do("POST", pods, map[string]any{"metadata": map[string]any{"name": name, "labels": labels},
			"spec": map[string]any{"nodeName": "node-1", "containers": []any{map[string]any{"name": "vllm", "image": "vllm", "ports": ports}}}})
	}
	state := map[bool]string{true: "True", false: "False"}[ready]
	ips := []any{}
	if ip != "" {
		ips = append(ips, map[string]any{"ip": ip})
	}
	c.do("PATCH", pods+"/"+name+"/status", map[string]any{"status": map[string]any{
		"phase": "Running", "podIP": ip, "podIPs": ips, "conditions": []any{map[string]any{"type": "Ready", "status": state}}}})
}

func (c *cluster) has(path string) bool {
	items := c.do("GET", path[:strings.LastIndex(path, "/")], nil)["items"].([]any)
	for _, i := range items {
		if sub(i.(map[string]any), "metadata")["name"] == path[strings.LastIndex(path, "/")+1:] {
			return true
		}
	}
	return false
}

// end deletes a pod: with a grace time its object stays, with a deletion time.
func (c *cluster) end(name string, grace int) {
	c.t.Helper()
	c.do("DELETE", "/api/v1/namespaces/shop/pods/"+name, map[string]any{"gracePeriodSeconds": grace})
}

// slice writes an EndpointSlice of the service "engines", as the controller would.
func (c *cluster) slice(name, family string, endpoints ...map[string]any) {
	c.t.Helper()
	const slices = "/apis/discovery.k8s.io/v1/namespaces/shop/endpointslices"
	o := sliceObject(name, family, endpoints...)
	sub(o, "metadata")["labels"] = map[string]any{"kubernetes.io/service-name": "engines"}
	if c.has(slices + "/" + name) {
		c.do("PATCH", slices+"/"+name, map[string]any{"endpoints": o["endpoints"]})
		return
	}
	c.do("POST", slices, o)
}

// podSource finds engines as pods; relist 0 is the default of 30 s.
func podSource(relist time.Duration) *Kubernetes {
	return &Kubernetes{Selector: "app=engine", Port: "http", Relist: relist}
}

func sliceSource(relist time.Duration) *Kubernetes {
	return &Kubernetes{Service: "engines", Port: "http", Relist: relist}
}

// One cluster for all: starting it takes most of the time.
func TestK8s(t *testing.T) {
	c := startCluster(t)
	for _, tc := range []struct {
		name string
		test func(t *testing.T, c *cluster)
	}{
		{"pods come, change and go", k8sPods},
		{"B38 terminating endpoints", k8sSlices},
		{"B61 watch dropped", k8sDropped},
		{"B61 watch mute", k8sMute},
		{"B61 410 Gone", k8sGone},
		{"B61 address cleared and reused", k8sReuse},
		{"B62 dual stack", k8sDual},
		{"rights", k8sRights},
		{"many pods", k8sMany},
	} {
		t.Run(tc.name, func(t *testing.T) {
			sub := *c
			sub.t = t
			tc.test(t, &sub)
			sub.do("DELETE", "/api/v1/namespaces/shop/pods", map[string]any{"gracePeriodSeconds": 0})
			sub.do("DELETE", "/apis/discovery.k8s.io/v1/namespaces/shop/endpointslices", nil)
		})
	}
}

func k8sPods(t *testing.T, c *cluster) {
	c.account("pods", c.addr, watchRules["pods"])
	c.pod("e-0", "10.0.0.1", true)
	sets := watchSets(t, podSource(long))
	until(t, sets, "e-0=http://10.0.0.1:8000")
	c.pod("e-1", "10.0.0.2", false)
	until(t, sets, "e-0=http://10.0.0.1:8000, e-1=http://10.0.0.2:8000 unready")
	c.pod("e-1", "10.0.0.2", true)
	until(t, sets, "e-0=http://10.0.0.1:8000, e-1=http://10.0.0.2:8000")
	c.end("e-0", 30) // Ready for as long as its grace lasts, and on its way out
	until(t, sets, "e-0=http://10.0.0.1:8000 terminating, e-1=http://10.0.0.2:8000")
	c.end("e-0", 0)
	until(t, sets, "e-1=http://10.0.0.2:8000")
	c.end("e-1", 0)
	until(t, sets, "")
}

func k8sSlices(t *testing.T, c *cluster) {
	c.account("slices", c.addr, watchRules["endpointslices"])
	serving := map[string]any{"ready": true, "serving": true, "terminating": false}
	c.slice("s1", "IPv4", endpointOf("e-0", "10.0.0.1", serving), endpointOf("e-1", "10.0.0.2", map[string]any{}))
	sets := watchSets(t, sliceSource(long))
	until(t, sets, "e-0=http://10.0.0.1:8000, e-1=http://10.0.0.2:8000")
	c.slice("s1", "IPv4", endpointOf("e-0", "10.0.0.1", map[string]any{"ready": false, "serving": true, "terminating": true}),
		endpointOf("e-1", "10.0.0.2", map[string]any{"ready": false}))
	until(t, sets, "e-0=http://10.0.0.1:8000 terminating, e-1=http://10.0.0.2:8000 unready")
	c.slice("s1", "IPv4", endpointOf("e-1", "10.0.7.7", serving)) // a StatefulSet's pod at a new address
	until(t, sets, "e-1=http://10.0.7.7:8000")
}

// A dropped watch goes on where it was: what happened in between is not lost.
func k8sDropped(t *testing.T, c *cluster) {
	l := newLink(t, c.addr)
	c.account("dropped", l.addr(), watchRules["pods"])
	c.pod("e-0", "10.0.0.1", true)
	c.pod("e-1", "10.0.0.2", true)
	sets := watchSets(t, keptAlive(podSource(long)))
	until(t, sets, "e-0=http://10.0.0.1:8000, e-1=http://10.0.0.2:8000")
	l.cut(true)
	c.end("e-1", 0)
	l.cut(false)
	until(t, sets, "e-0=http://10.0.0.1:8000")
}

// A connection that passes nothing any more, without an error, is found dead by its pings
// before the next list is due, which would go over the same one.
func k8sMute(t *testing.T, c *cluster) {
	l := newLink(t, c.addr)
	c.account("mute", l.addr(), watchRules["pods"])
	c.pod("e-0", "10.0.0.1", true)
	c.pod("e-1", "10.0.0.2", true)
	sets := watchSets(t, keptAlive(podSource(0)))
	until(t, sets, "e-0=http://10.0.0.1:8000, e-1=http://10.0.0.2:8000")
	before := l.connections()
	l.silence()
	c.end("e-1", 0)
	start := time.Now()
	untilWithin(t, sets, "e-0=http://10.0.0.1:8000", 22*time.Second)
	t.Logf("seen %.1f s after the link went mute, over connection %d", time.Since(start).Seconds(), l.connections())
	if l.connections() <= before {
		t.Error("no new connection was made")
	}
}

// A watch from a version that etcd has compacted away answers 410 and lists at once.
func k8sGone(t *testing.T, c *cluster) {
	l := newLink(t, c.addr)
	c.account("gone", l.addr(), watchRules["pods"])
	c.pod("e-0", "10.0.0.1", true)
	sets := watchSets(t, keptAlive(podSource(long)))
	until(t, sets, "e-0=http://10.0.0.1:8000")
	l.cut(true)
	c.pod("e-1", "10.0.0.2", true)
	for i := range 8 { // compaction keeps what is younger than its interval of 1 s
		c.pod("e-1", "10.0.0.2", i%2 == 0)
		<-time.After(time.Second)
	}
	c.pod("e-1", "10.0.0.2", true)
	c.expired("/api/v1/namespaces/shop/pods")
	l.cut(false)
	until(t, sets, "e-0=http://10.0.0.1:8000, e-1=http://10.0.0.2:8000")
}

// expired proves that the server has really forgotten old versions.
func (c *cluster) expired(path string) {
	c.t.Helper()
	k := podSource(long)
	k.API, k.Client, k.Namespace = c.url, c.client, "shop"
	k.TokenFile = c.path("admin")
	c.file("admin", []byte(adminToken))
	w, err := k.watcher()
	if err != nil {
		c.t.Fatal(err)
	}
	w.objects = map[string]any{}
	if _, err := w.watch(context.Background(), "2", func() error { return nil }); err != errExpired {
		c.t.Fatalf("a watch from version 2 ends with %v, want 410", err)
	}
}

func k8sReuse(t *testing.T, c *cluster) {
	c.account("reuse", c.addr, watchRules["pods"])
	c.pod("e-0", "10.0.0.1", true)
	c.pod("e-1", "10.0.0.2", true)
	sets := watchSets(t, podSource(long))
	until(t, sets, "e-0=http://10.0.0.1:8000, e-1=http://10.0.0.2:8000")
	c.pod("e-1", "", false) // an eviction clears the address and keeps the pod
	until(t, sets, "e-0=http://10.0.0.1:8000")
	<-time.After(1100 * time.Millisecond) // creation times have whole seconds
	c.pod("e-9", "10.0.0.1", true)
	until(t, sets, "e-9=http://10.0.0.1:8000")
}

func k8sDual(t *testing.T, c *cluster) {
	c.account("dual", c.addr, watchRules["endpointslices"])
	c.slice("s4", "IPv4", endpointOf("e-0", "10.0.0.1", nil))
	c.slice("s6", "IPv6", endpointOf("e-0", "fd00::1", nil), endpointOf("e-1", "fd00::2", nil))
	until(t, watchSets(t, sliceSource(long)), "e-0=http://10.0.0.1:8000, e-1=http://[fd00::2]:8000")
	six := sliceSource(long)
	six.Family = "6"
	until(t, watchSets(t, six), "e-0=http://[fd00::1]:8000, e-1=http://[fd00::2]:8000")
}

// Without its rights the account is told so; once they are granted, discovery goes on by
// itself. A token that is not valid is told apart.
func k8sRights(t *testing.T, c *cluster) {
	c.account("poor", c.addr)
	c.slice("s1", "IPv4", endpointOf("e-0", "10.0.0.1", nil))
	out := make(chan []Endpoint, 1)
	err := sliceSource(long).Run(t.Context(), out)
	if err == nil || !strings.Contains(err.Error(), "403") || !strings.Contains(err.Error(), "endpointslices") || !strings.Contains(err.Error(), "poor") {
		t.Errorf("without rights: %v", err)
	}
	keeper := NewKeeper("kubernetes", sliceSource(long), KeeperOptions{RetryMax: 300 * time.Millisecond})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); _ = keeper.Run(ctx) }()
	defer func() { cancel(); <-done }()
	within(t, func() bool { err := keeper.Check(); return err != nil && strings.Contains(err.Error(), "403") })
	c.grant("poor", watchRules["endpointslices"])
	within(t, func() bool { set, _ := keeper.Set(); return len(set) == 1 && keeper.Check() == nil })

	k := sliceSource(long)
	k.TokenFile = c.path("bad")
	c.file("bad", []byte("not.a.token"))
	if err := k.Run(t.Context(), out); err == nil || !strings.Contains(err.Error(), "401") {
		t.Errorf("with a bad token: %v", err)
	}
}

// A list of more than a page comes whole.
func k8sMany(t *testing.T, c *cluster) {
	c.account("many", c.addr, watchRules["endpointslices"])
	var want []string
	for i := range 12 {
		var part []map[string]any
		for j := range 50 {
			n := i*50 + j
			name, ip := "e-"+pad(n), "10.1."+itoa(n/250)+"."+itoa(1+n%250)
			part = append(part, endpointOf(name, ip, nil))
			want = append(want, name+"=http://"+ip+":8000")
		}
		c.slice("s"+pad(i), "IPv4", part...)
	}
	start := time.Now()
	until(t, watchSets(t, sliceSource(long)), strings.Join(want, ", "))
	t.Logf("600 endpoints of 12 slices in %v", time.Since(start).Round(time.Millisecond))
}

// keptAlive is a source that is run again when it fails, as a keeper does.
func keptAlive(k *Kubernetes) Source { return persistent{k} }

type persistent struct{ source Source }

func (p persistent) Run(ctx context.Context, out chan<- []Endpoint) error {
	for ctx.Err() == nil {
		_ = p.source.Run(ctx, out)
		select {
		case <-ctx.Done():
		case <-time.After(100 * time.Millisecond):
		}
	}
	return nil
}

func untilWithin(t *testing.T, sets <-chan []Endpoint, want string, limit time.Duration) {
	t.Helper()
	deadline := time.After(limit)
	last := "nothing"
	for {
		select {
		case set := <-sets:
			if last = show(set); last == want {
				return
			}
		case <-deadline:
			t.Fatalf("last set after %v: %s\nwant: %s", limit, last, want)
		}
	}
}

func within(t *testing.T, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(10 * time.Second); !ok(); <-tick.C {
		if time.Now().After(deadline) {
			t.Fatal("not within 10 s")
		}
	}
}

func itoa(n int) string { return strconv.Itoa(n) }

func pad(n int) string { return fmt.Sprintf("%03d", n) }
