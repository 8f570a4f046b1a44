package main

import (
	"fmt"
	"net/http/httptest"
	"strings"
	"testing"
)

// The built router serves a route by name, splices each tier's model, lists and counts it.
func TestServeRoutes(t *testing.T) {
	var engines [2]recorder
	file := "limits: {drain_delay: 1ms}\ntelemetry: {access_log: false}\npools:\n"
	for i := range engines {
		s := httptest.NewServer(&engines[i])
		t.Cleanup(s.Close)
		file += fmt.Sprintf("  - name: p%d\n    models: [m]\n    engines: [{name: e%d, url: %q}]\n", i, i, s.URL)
	}
	file = strings.Replace(file, "models: [m]", "models: [m, m-long]", 1)
	file = strings.Replace(file, "name: p1\n    models: [m]", "name: p1\n    models: [spare]", 1)
	file += "routes:\n  - name: auto\n    tiers:\n      - members: [{pool: p0, model: m}]\n      - members: [{pool: p1}]\n"
	r := serveT(t, "--config", write(t, file))
	// The second pool's engine lists only m, so it never becomes ready: one of two.
	awaitReady(t, r, 1)
	code, answer, _ := post(t, r.data+"/v1/chat/completions", `{"model":"auto","messages":[{"role":"user","content":"q"}]}`)
	if code != 200 || !strings.Contains(engines[0].log.String(), `{"model":"m","messages"`) {
		t.Errorf("%d %s; engine got %s", code, answer, engines[0].log.String())
	}
	if models := get(t, r.data+"/v1/models"); !strings.Contains(models, `"id":"auto"`) {
		t.Errorf("models: %s", models)
	}
	want := `prefixring_route_requests_total{route="auto",tier="1",pool="p0",model="m"} 1`
	if page := get(t, r.admin+"/metrics"); !strings.Contains(page, want) || !strings.Contains(page, `tier="2",pool="p1",model="spare"} 0`) {
		t.Errorf("metrics lack %s:\n%s", want, page)
	}
	if _, out, _ := invoke(t, "status", "--router", r.admin); !strings.Contains(out, "route auto, tier 1: p0 as m, 1 requests") {
		t.Errorf("status: %s", out)
	}
}
