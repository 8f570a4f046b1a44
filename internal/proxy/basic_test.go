package proxy

import (
	"bufio"
	"crypto/sha256"
	"fmt"
	"strings"
	"testing"

	"github.com/prefixring/prefixring/internal/dialect"
)

func TestPlainRequest(t *testing.T) {
	e := newEngine(t, func(x *engineCall) { x.json(200, okJSON) })
	r := newRouter(t, setup{opts: Options{Explain: true}}, e.url())
	got := r.chat(t, chatBody)
	if got.status != 200 || string(got.body) != okJSON || got.bodyErr != nil {
		t.Fatalf("got %d %q %v", got.status, got.body, got.bodyErr)
	}
	if string(e.lastBody()) != chatBody {
		t.Fatalf("engine got %q", e.lastBody())
	}
	rec := r.records.wait(t, 1)[0]
	if rec.Verdict != dialect.Success || rec.Usage.Prompt != 5 || rec.Node != "pool-0" || rec.Status != 200 {
		t.Fatalf("record %+v", rec)
	}
	if got.header.Get("X-Prefixring-Engine") != "pool-0" || got.header.Get("X-Prefixring-Reason") != "only" {
		t.Fatalf("explain headers %v", got.header)
	}
}

func TestStreamedRequest(t *testing.T) {
	events := []string{delta("a"), delta("b"), stopEvent, usageEvent, doneEvent}
	e := newEngine(t, func(x *engineCall) { x.sse(events...) })
	r := newRouter(t, setup{}, e.url())
	got := r.chat(t, streamBody)
	if got.status != 200 || string(got.body) != strings.Join(events, "") || got.bodyErr != nil {
		t.Fatalf("got %d %q %v", got.status, got.body, got.bodyErr)
	}
	rec := r.records.wait(t, 1)[0]
	if rec.Verdict != dialect.Success || rec.Usage.Cached != 4 || rec.FirstToken == 0 || !rec.Stream {
		t.Fatalf("record %+v", rec)
	}
}

func TestKeepAliveBothSides(t *testing.T) {
	e := newEngine(t, func(x *engineCall) { x.json(200, okJSON) })
	r := newRouter(t, setup{}, e.url())
	c := r.dial(t)
	br := bufio.NewReader(c)
	for range 20 {
		if got := exchangeOn(t, c, br, rawRequest("/v1/chat/completions", chatBody)); got.status != 200 {
			t.Fatalf("got %d", got.status)
		}
	}
	if n := e.opened.Load(); n != 1 {
		t.Fatalf("20 requests used %d engine connections", n)
	}
	r.records.wait(t, 20)
}

// B14, B17a: what the engine gets is what the client sent, to the octet.
func TestB14BodyForwardedByteForByte(t *testing.T) {
	e := newEngine(t, func(x *engineCall) { x.json(200, okJSON) })
	r := newRouter(t, setup{}, e.url())
	body := "{ \"model\" : \"m\",\t\"tools\":[{\"z\":1,\"a\":{\"y\":2,\"b\":3}}],\"chat_template_kwargs\":{\"enable_thinking\":false},\n" +
		`"return_token_ids":true,"top_k":5,"min_p":0.10,"vllm_xargs":{},"cache_salt":"s","x_future_field":{"a":[1,null]},  "messages":[{"role":"user","content":"\u8de8 <b>&"}]}`
	for range 50 {
		if got := r.chat(t, body); got.status != 200 {
			t.Fatalf("got %d %s", got.status, got.body)
		}
		if sha256.Sum256(e.lastBody()) != sha256.Sum256([]byte(body)) {
			t.Fatalf("engine got %q", e.lastBody())
		}
	}
}

// B12: large bodies pass under the default limit on every route.
func TestB12LargeBodies(t *testing.T) {
	e := newEngine(t, func(x *engineCall) { x.json(200, okJSON) })
	r := newRouter(t, setup{}, e.url())
	for _, path := range []string{"/v1/chat/completions", "/v1/completions", "/v1/responses"} {
		for _, size := range []int{127 << 10, 129 << 10, 1945 << 10, 2150 << 10, 4200 << 10, 12 << 20} {
			field := map[string]string{"/v1/chat/completions": `"messages":[{"role":"user","content":"%s"}]`, "/v1/completions": `"prompt":"%s"`, "/v1/responses": `"input":"%s"`}[path]
			body := fmt.Sprintf(`{"model":"m",`+field+`}`, strings.Repeat("x", size))
			got := r.do(t, rawRequest(path, body))
			if got.status != 200 {
				t.Fatalf("%s with %d bytes: %d %s", path, size, got.status, got.body)
			}
			if sha256.Sum256(e.lastBody()) != sha256.Sum256([]byte(body)) {
				t.Fatalf("%s with %d bytes: the engine got other bytes", path, size)
			}
		}
	}
}
