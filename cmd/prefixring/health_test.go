package main

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/prefixring/prefixring/internal/fakeengine"
)

// stateOf is the state of a node as status shows it.
func stateOf(t *testing.T, admin, node string) nodeView {
	t.Helper()
	for _, n := range fleetOf(t, admin).Nodes {
		if n.Name == node {
			return n
		}
	}
	t.Fatalf("no node %q", node)
	return nodeView{}
}

// Engines that say the same of themselves are judged by the thresholds of their own pool,
// and by the new ones after a reload, without losing what is known of them.
func TestEachPoolIsJudgedByItsOwnHealth(t *testing.T) {
	dir := t.TempDir()
	text := "limits: {drain_delay: 1ms}\npools:\n"
	for _, name := range []string{"a", "b"} {
		e, url := fakeengine.StartT(t, fakeengine.Options{Model: name, ReportCached: true})
		e.SetFault(fakeengine.Fault{Kind: fakeengine.FaultMetrics, Metrics: map[string]string{"vllm:kv_cache_usage_perc": "0.7"}})
		text += "  - {name: " + name + ", models: [" + name + "], engines: [{name: " + name + "1, url: '" + url + "'}], health: {interval: 100ms, kv_usage: " + name + "%%}}\n"
	}
	conf := func(a, b string) string {
		return strings.NewReplacer("a%%", a, "b%%", b).Replace(text)
	}
	put(t, dir, "router.yaml", conf("0.9", "0.6"))
	s := serveT(t, "--config", filepath.Join(dir, "router.yaml"), "--reload-interval", "5ms")
	is := func(a, b string) {
		t.Helper()
		until(t, "a1 is "+a+" and b1 is "+b, func() bool {
			return stateOf(t, s.admin, "a1").State == a && stateOf(t, s.admin, "b1").State == b
		})
	}
	is("ready", "saturated")
	put(t, dir, "router.yaml", conf("0.6", "0.9"))
	is("saturated", "ready")
	if n := stateOf(t, s.admin, "a1"); n.Epoch != 0 {
		t.Errorf("a reload of thresholds cost the cache: %+v", n)
	}
}
