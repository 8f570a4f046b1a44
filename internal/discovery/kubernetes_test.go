package discovery

import (
	"encoding/pem"
	"net"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// long is a re-list period that no test lives to see: what changes within it came by
// the watch.
const long = time.Hour

func podsOf(a *api, relist time.Duration) *Kubernetes {
	return &Kubernetes{API: a.URL, Client: a.Client(), Namespace: "ns", Selector: "app=engine", Port: "http", Relist: relist}
}

func slicesOf(a *api, relist time.Duration) *Kubernetes {
	return &Kubernetes{API: a.URL, Client: a.Client(), Namespace: "ns", Service: "engines", Port: "http", Relist: relist}
}

func TestKubernetesPodsComeChangeAndGo(t *testing.T) {
	a := newAPI(t)
	a.put("e-0", podObject("e-0", "10.0.0.1"))
	sets := watchSets(t, podsOf(a, long))
	until(t, sets, "e-0=http://10.0.0.1:8000")
	a.put("e-1", podObject("e-1", "10.0.0.2", func(p map[string]any) {
		sub(p, "status")["conditions"] = []any{map[string]any{"type": "Ready", "status": "False"}}
	}))
	until(t, sets, "e-0=http://10.0.0.1:8000, e-1=http://10.0.0.2:8000 unready")
	a.put("e-1", podObject("e-1", "10.0.0.2"))
	until(t, sets, "e-0=http://10.0.0.1:8000, e-1=http://10.0.0.2:8000")
	a.put("e-0", nil)
	until(t, sets, "e-1=http://10.0.0.2:8000")
	a.put("e-1", nil)
	until(t, sets, "")
}

func TestB38TerminatingPodIsTold(t *testing.T) {
	a := newAPI(t)
	a.put("e-0", podObject("e-0", "10.0.0.1"))
	a.put("e-1", podObject("e-1", "10.0.0.2"))
	sets := watchSets(t, podsOf(a, long))
	until(t, sets, "e-0=http://10.0.0.1:8000, e-1=http://10.0.0.2:8000")
	start := time.Now()
	a.put("e-1", podObject("e-1", "10.0.0.2", func(p map[string]any) { // still Ready=True
		sub(p, "metadata")["deletionTimestamp"] = "2031-01-01T00:00:30Z"
	}))
	until(t, sets, "e-0=http://10.0.0.1:8000, e-1=http://10.0.0.2:8000 terminating")
	if d := time.Since(start); d > 200*time.Millisecond {
		t.Errorf("told after %v, want 200 ms at most", d)
	}
}

func TestB38TerminatingEndpointIsTold(t *testing.T) {
	a := newAPI(t)
	yes, no := true, false
	a.put("s1", sliceObject("s1", "IPv4", endpointOf("e-0", "10.0.0.1", map[string]any{"ready": yes, "serving": yes, "terminating": no}),
		endpointOf("e-1", "10.0.0.2", map[string]any{}))) // absent conditions mean ready
	sets := watchSets(t, slicesOf(a, long))
	until(t, sets, "e-0=http://10.0.0.1:8000, e-1=http://10.0.0.2:8000")
	a.put("s1", sliceObject("s1", "IPv4", endpointOf("e-0", "10.0.0.1", map[string]any{"ready": no, "serving": yes, "terminating": yes}),
		endpointOf("e-1", "10.0.0.2", map[string]any{"ready": no})))
	until(t, sets, "e-0=http://10.0.0.1:8000 terminating, e-1=http://10.0.0.2:8000 unready")
}

func TestB61WatchDroppedAndAnEventLost(t *testing.T) {
	a := newAPI(t)
	a.put("e-0", podObject("e-0", "10.0.0.1"))
	a.put("e-1", podObject("e-1", "10.0.0.2"))
	sets := watchSets(t, podsOf(a, 500*time.Millisecond))
	until(t, sets, "e-0=http://10.0.0.1:8000, e-1=http://10.0.0.2:8000")
	a.set(func() { a.drop++ })
	a.lose("e-1", nil)
	until(t, sets, "e-0=http://10.0.0.1:8000")
}

func TestB61WatchDroppedGoesOnWhereItWas(t *testing.T) {
	a := newAPI(t)
	a.put("e-0", podObject("e-0", "10.0.0.1"))
	sets := watchSets(t, podsOf(a, long))
	until(t, sets, "e-0=http://10.0.0.1:8000")
	a.set(func() { a.drop++ })
	a.put("e-1", podObject("e-1", "10.0.0.2")) // between two watches
	until(t, sets, "e-0=http://10.0.0.1:8000, e-1=http://10.0.0.2:8000")
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.lists != 1 {
		t.Errorf("%d lists, want 1: the watch resumes", a.lists)
	}
}

func TestB61AddressClearedByEviction(t *testing.T) {
	a := newAPI(t)
	a.put("e-0", podObject("e-0", "10.0.0.1"))
	a.put("e-1", podObject("e-1", "10.0.0.2"))
	sets := watchSets(t, podsOf(a, long))
	until(t, sets, "e-0=http://10.0.0.1:8000, e-1=http://10.0.0.2:8000")
	a.put("e-1", podObject("e-1", "", func(p map[string]any) { sub(p, "status")["podIPs"] = []any{} }))
	until(t, sets, "e-0=http://10.0.0.1:8000")
}

func TestB61MuteWatchIsOutlivedByTheNextList(t *testing.T) {
	a := newAPI(t)
	a.put("e-0", podObject("e-0", "10.0.0.1"))
	a.put("e-1", podObject("e-1", "10.0.0.2"))
	sets := watchSets(t, podsOf(a, 300*time.Millisecond))
	until(t, sets, "e-0=http://10.0.0.1:8000, e-1=http://10.0.0.2:8000")
	a.set(func() { a.mute = true })
	a.put("e-1", nil)
	until(t, sets, "e-0=http://10.0.0.1:8000")
}

func TestB61Gone410ListsAnew(t *testing.T) {
	a := newAPI(t)
	a.put("e-0", podObject("e-0", "10.0.0.1"))
	sets := watchSets(t, podsOf(a, long))
	until(t, sets, "e-0=http://10.0.0.1:8000")
	a.set(func() { a.oldest = a.version + 1 })
	a.lose("e-1", podObject("e-1", "10.0.0.2"))
	a.set(func() { a.drop++ })
	until(t, sets, "e-0=http://10.0.0.1:8000, e-1=http://10.0.0.2:8000")
}

func TestB61ReusedAddressBelongsToTheYoungerPod(t *testing.T) {
	a := newAPI(t)
	a.put("e-0", podObject("e-0", "10.0.0.1"))
	sets := watchSets(t, podsOf(a, long))
	until(t, sets, "e-0=http://10.0.0.1:8000")
	a.put("e-9", podObject("e-9", "10.0.0.1", func(p map[string]any) { // the end of e-0 was missed
		sub(p, "metadata")["creationTimestamp"] = "2031-01-01T01:00:00Z"
	}))
	until(t, sets, "e-9=http://10.0.0.1:8000")
}

func TestB62DualStackPodIsOneEngineUnderItsName(t *testing.T) {
	dual := func(p map[string]any) {
		sub(p, "status")["podIPs"] = []any{map[string]any{"ip": "fd00::1"}, map[string]any{"ip": "10.0.0.1"}}
	}
	a := newAPI(t)
	a.put("e-0", podObject("e-0", "fd00::1", dual))
	a.put("e-1", podObject("e-1", "fd00::2"))
	until(t, watchSets(t, podsOf(a, long)), "e-0=http://10.0.0.1:8000, e-1=http://[fd00::2]:8000")
	six := podsOf(a, long)
	six.Family = "6"
	until(t, watchSets(t, six), "e-0=http://[fd00::1]:8000, e-1=http://[fd00::2]:8000")

	b := newAPI(t)
	b.put("s4", sliceObject("s4", "IPv4", endpointOf("e-0", "10.0.0.1", nil)))
	b.put("s6", sliceObject("s6", "IPv6", endpointOf("e-0", "fd00::1", nil), endpointOf("e-1", "fd00::2", nil)))
	until(t, watchSets(t, slicesOf(b, long)), "e-0=http://10.0.0.1:8000, e-1=http://[fd00::2]:8000")
}

func TestB62NameStaysWhenTheAddressChanges(t *testing.T) {
	a := newAPI(t)
	a.put("s1", sliceObject("s1", "IPv4", endpointOf("e-0", "10.0.0.1", nil)))
	sets := watchSets(t, slicesOf(a, long))
	until(t, sets, "e-0=http://10.0.0.1:8000")
	a.put("s1", sliceObject("s1", "IPv4", endpointOf("e-0", "10.0.7.7", nil)))
	until(t, sets, "e-0=http://10.0.7.7:8000")
}

func TestKubernetesPorts(t *testing.T) {
	a := newAPI(t)
	a.put("e-0", podObject("e-0", "10.0.0.1"))
	b := newAPI(t)
	b.put("s1", sliceObject("s1", "IPv4", endpointOf("e-0", "10.0.0.1", nil)))
	for port, want := range map[string]string{
		"http": "e-0=http://10.0.0.1:8000", "metrics": "e-0=http://10.0.0.1:9000",
		"9000": "e-0=http://10.0.0.1:9000", "nothing": "", "": "",
	} {
		p, s := podsOf(a, long), slicesOf(b, long)
		p.Port, s.Port = port, port
		until(t, watchSets(t, p), want)
		until(t, watchSets(t, s), want)
	}
}

func TestKubernetesReadsListsPageByPage(t *testing.T) {
	a := newAPI(t)
	a.page = 2
	want := []string{}
	for _, n := range []string{"1", "2", "3", "4", "5"} {
		a.put("e-"+n, podObject("e-"+n, "10.0.0."+n))
		want = append(want, "e-"+n+"=http://10.0.0."+n+":8000")
	}
	until(t, watchSets(t, podsOf(a, long)), strings.Join(want, ", "))
}

func TestKubernetesRenewedTokenIsUsed(t *testing.T) {
	a := newAPI(t)
	file := filepath.Join(t.TempDir(), "token")
	write := func(token string) {
		if err := os.WriteFile(file+".new", []byte(token+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(file+".new", file); err != nil {
			t.Fatal(err)
		}
	}
	write("one")
	a.put("e-0", podObject("e-0", "10.0.0.1"))
	k := podsOf(a, 100*time.Millisecond)
	k.TokenFile = file
	sets := watchSets(t, k)
	until(t, sets, "e-0=http://10.0.0.1:8000")
	write("two")
	for seen := false; !seen; {
		until(t, sets, "e-0=http://10.0.0.1:8000")
		a.set(func() {
			seen = a.tokens["Bearer two"]
			if !a.tokens["Bearer one"] || len(a.tokens) > 2 {
				t.Fatalf("tokens seen: %v", a.tokens)
			}
		})
	}
}

func TestKubernetesFromWithinAPod(t *testing.T) {
	a := newAPI(t)
	a.put("e-0", podObject("e-0", "10.0.0.1"))
	secure := httptest.NewTLSServer(a)
	t.Cleanup(func() { a.set(func() { a.drop++ }); secure.Close() })
	dir := t.TempDir() + "/"
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: secure.Certificate().Raw})
	for name, text := range map[string]string{"ca.crt": string(ca), "token": "mine\n", "namespace": "shop\n"} {
		if err := os.WriteFile(dir+name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	host, port, err := net.SplitHostPort(secure.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("KUBERNETES_SERVICE_HOST", host)
	t.Setenv("KUBERNETES_SERVICE_PORT", port)
	old := account
	account = dir
	t.Cleanup(func() { account = old })
	until(t, watchSets(t, &Kubernetes{Selector: "app=engine", Port: "http", Relist: long}), "e-0=http://10.0.0.1:8000")
	a.set(func() {
		if !a.tokens["Bearer mine"] || !strings.HasPrefix(a.path, "/api/v1/namespaces/shop/pods") {
			t.Errorf("tokens %v, path %s", a.tokens, a.path)
		}
	})
}

func TestKubernetesErrorsAreReturnedAndSent(t *testing.T) {
	a := newAPI(t)
	a.fail = 403
	out := make(chan []Endpoint)
	err := podsOf(a, long).Run(t.Context(), out)
	if err == nil || !strings.Contains(err.Error(), "403") || !strings.Contains(err.Error(), "scripted") {
		t.Errorf("error = %v, want status and message", err)
	}
	for name, k := range map[string]*Kubernetes{
		"neither service nor selector": {API: a.URL, Namespace: "ns"},
		"both":                         {API: a.URL, Namespace: "ns", Service: "s", Selector: "a=b"},
		"no pod and no API":            {Service: "s"},
	} {
		if err := k.Run(t.Context(), out); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}
