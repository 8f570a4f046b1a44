package proxy

import (
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/prefixring/prefixring/internal/dialect"
	"github.com/prefixring/prefixring/internal/fakeengine"
	"github.com/prefixring/prefixring/internal/residency"
)

// These run against the simulated engines: whole dialects, real prefix caches.

// fleet is a router in front of n simulated engines.
func fleet(t *testing.T, n int, o fakeengine.Options, s setup) (*router, []*fakeengine.Engine) {
	t.Helper()
	var engines []*fakeengine.Engine
	var urls []string
	o.Model, o.ReportCached = "m", true
	for i := range n {
		o.Name = fmt.Sprint("e", i)
		e, url := fakeengine.StartT(t, o)
		engines, urls = append(engines, e), append(urls, url)
	}
	up := s.upstream
	s.upstream = func(u *UpstreamOptions) {
		u.Engine = o.Dialect
		if up != nil {
			up(u)
		}
	}
	return newRouter(t, s, urls...), engines
}

// Every protocol of both engines, streaming and not, ends with evidence of success and
// with usage, and later requests of a prefix find it in cache.
func TestFleetProtocols(t *testing.T) {
	for _, engine := range []dialect.Engine{dialect.VLLM, dialect.SGLang} {
		r, _ := fleet(t, 3, fakeengine.Options{Dialect: engine, AnswerTokens: 4}, setup{opts: Options{InjectUsage: true}})
		system := strings.Repeat("long static prompt. ", 200)
		n := 0
		for _, stream := range []bool{false, true} {
			for path, body := range map[string]string{
				"/v1/chat/completions": `{"model":"m","max_tokens":4,"stream":%v,"messages":[{"role":"system","content":"%s"},{"role":"user","content":"u"}]}`,
				"/v1/completions":      `{"model":"m","max_tokens":4,"stream":%v,"prompt":"%s"}`,
				"/v1/responses":        `{"model":"m","max_output_tokens":4,"stream":%v,"instructions":"%s","input":"u"}`,
				"/v1/messages":         `{"model":"m","max_tokens":4,"stream":%v,"system":"%s","messages":[{"role":"user","content":"u"}]}`,
			} {
				for turn := range 3 {
					got := r.do(t, rawRequest(path, fmt.Sprintf(body, stream, system)))
					if got.status != 200 || got.bodyErr != nil || len(got.body) == 0 {
						t.Fatalf("%v %s stream=%v: %d %s %v", engine, path, stream, got.status, got.body, got.bodyErr)
					}
					n++
					rec := r.records.wait(t, n)[n-1]
					// An answer that is cut at its limit is incomplete, not failed.
					if rec.Verdict != dialect.Success && rec.Verdict != dialect.Incomplete {
						t.Errorf("%v %s stream=%v: verdict %v", engine, path, stream, rec.Verdict)
					}
					if rec.Usage.Prompt <= 0 || rec.Usage.Output <= 0 {
						t.Errorf("%v %s stream=%v: usage %+v", engine, path, stream, rec.Usage)
					}
					if turn > 0 && rec.Usage.Cached < rec.Usage.Prompt/2 {
						t.Errorf("%v %s stream=%v: repeat found %d of %d tokens in cache", engine, path, stream, rec.Usage.Cached, rec.Usage.Prompt)
					}
				}
			}
		}
	}
}

// A prefix is prefilled once in the fleet, whatever its requests come with.
func TestFleetPrefillsOnce(t *testing.T) {
	r, engines := fleet(t, 4, fakeengine.Options{Preset: "8b-tp1", Speed: 200, AnswerTokens: 2}, setup{
		pool: func(p *Pool) { p.Residency = residency.New(residency.Options{}) },
	})
	done := make(chan int, 40)
	for i := range 40 {
		go func() { done <- r.chat(t, fatBody("fleet", fmt.Sprint(i))).status }()
	}
	for range 40 {
		if s := <-done; s != 200 {
			t.Errorf("status %d", s)
		}
	}
	cold := int64(0)
	for _, e := range engines {
		cold += e.Counters().ColdPrefills
	}
	// Above the bound of one node (9 requests) one more may be warmed at a time.
	if cold < 1 || cold > 4 {
		t.Errorf("%d cold prefills", cold)
	}
	r.records.wait(t, 40)
}

// B09: the engine stops working for a client that left.
func TestFleetAbortReachesEngine(t *testing.T) {
	r, engines := fleet(t, 1, fakeengine.Options{Preset: "8b-tp1", AnswerTokens: 5000}, setup{})
	c := r.dial(t)
	io.WriteString(c, rawRequest("/v1/chat/completions", `{"model":"m","stream":true,"max_tokens":5000,"messages":[{"role":"user","content":"u"}]}`))
	if _, err := io.ReadFull(c, make([]byte, 600)); err != nil {
		t.Fatal(err)
	}
	c.Close()
	eventually(t, func() bool { return engines[0].Counters().Aborts == 1 }, "the engine aborts")
	r.records.wait(t, 1)
}

// The full queue of SGLang, which rides on a 200, goes to the next engine.
func TestFleetQueueFull(t *testing.T) {
	r, engines := fleet(t, 2, fakeengine.Options{Dialect: dialect.SGLang}, setup{})
	body := ownedBy(t, r, 0)
	first := engines[0]
	first.SetFault(fakeengine.Fault{Kind: fakeengine.FaultErrorEvent, Code: 503})
	got := r.chat(t, strings.Replace(body, `{"model"`, `{"stream":true,"model"`, 1))
	if got.status != 200 || strings.Contains(string(got.body), "error") || got.bodyErr != nil {
		t.Fatalf("%d %s", got.status, got.body)
	}
	if rec := r.records.wait(t, 1)[0]; rec.Tries != 2 || rec.Node != "pool-1" {
		t.Fatalf("record %+v", rec)
	}
}

// Engines that hang up after each answer, gzip, comment and split: octets arrive.
func TestFleetOddButLegal(t *testing.T) {
	for _, f := range []fakeengine.Fault{
		{Kind: fakeengine.FaultCloseAfter}, {Kind: fakeengine.FaultResetAfter}, {Kind: fakeengine.FaultGzip},
		{Kind: fakeengine.FaultComments}, {Kind: fakeengine.FaultSplit}, {Kind: fakeengine.FaultCoalesce}, {Kind: fakeengine.FaultNoDone},
	} {
		t.Run(string(f.Kind), func(t *testing.T) {
			r, engines := fleet(t, 1, fakeengine.Options{AnswerTokens: 20}, setup{})
			engines[0].SetFault(f)
			for i := range 6 {
				got := r.chat(t, strings.Replace(chatBody, `{"model"`, fmt.Sprintf(`{"stream":%v,"model"`, i%2 == 0), 1))
				if got.status != 200 || got.bodyErr != nil || len(got.body) == 0 {
					t.Fatalf("request %d: %d %q %v", i, got.status, got.body, got.bodyErr)
				}
			}
			for _, rec := range r.records.wait(t, 6) {
				if f.Kind != fakeengine.FaultGzip && rec.Verdict != dialect.Success && rec.Verdict != dialect.Incomplete {
					t.Errorf("record %+v", rec)
				}
			}
		})
	}
}
