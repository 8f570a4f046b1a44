package proxy

import (
	"strings"
	"sync"
	"testing"

	"github.com/prefixring/prefixring/internal/session"
)

// storing is an engine that keeps its responses, as vLLM does with its store on.
func storing(name string) func(*engineCall) {
	var mu sync.Mutex
	kept := map[string]bool{}
	return func(x *engineCall) {
		mu.Lock()
		defer mu.Unlock()
		line, _, _ := strings.Cut(x.head, "\r\n")
		if path, ok := strings.CutPrefix(line, "GET /v1/responses/"); ok {
			id, _, _ := strings.Cut(path, " ")
			if kept[id] {
				x.json(200, `{"id":"`+id+`"}`)
			} else {
				x.json(404, `{"error":{"message":"no such response","code":404}}`)
			}
			return
		}
		if _, prev, ok := strings.Cut(string(x.body), `"previous_response_id":"`); ok {
			if id, _, _ := strings.Cut(prev, `"`); !kept[id] {
				x.json(404, `{"error":{"message":"no such response","code":404}}`)
				return
			}
		}
		id := "resp_" + name + itoa(len(kept))
		kept[id] = true
		x.json(200, `{"id":"`+id+`","object":"response","status":"completed","output":[]}`)
	}
}

// A response is found where it was made: by the memory of the router, and without it
// by asking around.
func TestStoredResponses(t *testing.T) {
	for _, remember := range []bool{true, false} {
		var engines []*scripted
		var urls []string
		for _, n := range []string{"a", "b", "c", "d"} {
			e := newEngine(t, storing(n))
			engines, urls = append(engines, e), append(urls, e.url())
		}
		r := newRouter(t, setup{opts: Options{Explain: true}, pool: func(p *Pool) {
			if remember {
				store, err := session.New(session.Options{})
				if err != nil {
					t.Fatal(err)
				}
				p.Bindings = store
			}
		}}, urls...)
		calls := func() (n int64) {
			for _, e := range engines {
				n += e.calls.Load()
			}
			return n
		}
		var ids []string
		for i := range 8 {
			got := r.do(t, rawRequest("/v1/responses", `{"model":"m","instructions":"`+itoa(i)+`","input":"u"}`))
			ids = append(ids, string(responseID(got.body)))
		}
		r.records.wait(t, 8)
		for _, id := range ids {
			before := calls()
			got := r.do(t, "GET /v1/responses/"+id+" HTTP/1.1\r\nHost: a\r\n\r\n")
			if got.status != 200 || string(got.body) != `{"id":"`+id+`"}` {
				t.Fatalf("remember=%v: %s: %d %s", remember, id, got.status, got.body)
			}
			if remember && calls() != before+1 {
				t.Fatalf("%s: %d engines were asked", id, calls()-before)
			}
			if remember {
				// Another prefix would lead elsewhere; the earlier response leads back.
				got := r.do(t, rawRequest("/v1/responses", `{"model":"m","instructions":"other","previous_response_id":"`+id+`","input":"u"}`))
				if got.status != 200 || got.header.Get("X-Prefixring-Reason") != "binding" {
					t.Fatalf("%s: %d %v", id, got.status, got.header)
				}
			}
		}
		if got := r.do(t, "GET /v1/responses/resp_none HTTP/1.1\r\nHost: a\r\n\r\n"); got.status != 404 || !strings.Contains(string(got.body), "no such response") {
			t.Fatalf("unknown response: %d %s", got.status, got.body)
		}
	}
}
