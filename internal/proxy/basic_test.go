package proxy

import (
	"bufio"
	"crypto/sha256"
	"fmt"
	"net"
	"net/http"
	"strings"
	"testing"

	"github.com/valyala/fasthttp"

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

// lendBody finds a request around its header. This fails when a version of fasthttp
// hands HeaderReceived anything but the header of the request about to be served.
func TestHeaderBelongsToRequest(t *testing.T) {
	var seen *fasthttp.RequestHeader
	s := &fasthttp.Server{
		HeaderReceived: func(h *fasthttp.RequestHeader) fasthttp.RequestConfig {
			seen = h
			return fasthttp.RequestConfig{}
		},
		ReduceMemoryUsage: true,
		Handler: func(ctx *fasthttp.RequestCtx) {
			if seen != &ctx.Request.Header || requestOf(seen) != &ctx.Request || ctxOf(seen) != ctx {
				ctx.SetStatusCode(500)
			}
		},
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- s.Serve(ln) }()
	for range 3 {
		resp, err := http.Post("http://"+ln.Addr().String(), "application/json", strings.NewReader(chatBody))
		if err != nil || resp.StatusCode != 200 {
			t.Fatalf("%v %v", resp, err)
		}
		resp.Body.Close()
	}
	http.DefaultClient.CloseIdleConnections()
	if err := s.Shutdown(); err != nil {
		t.Fatal(err)
	}
	<-done
}

func TestBodyClasses(t *testing.T) {
	for n := 1; n < 80<<20; n += n/7 + 1 {
		b := getBody(n)
		if cap(b) < n || len(b) != 0 {
			t.Fatalf("%d octets: got room for %d", n, cap(b))
		}
		if n > 1<<minBodyBits && n <= 1<<maxBodyBits && cap(b) > n+n/bodySteps+bodySteps {
			t.Fatalf("%d octets: got room for %d", n, cap(b))
		}
		putBody(b)
		putBody(make([]byte, 0, n))
		if b := getBody(n); cap(b) < n {
			t.Fatalf("%d octets: a buffer with room for %d came back", n, cap(b))
		}
	}
}
