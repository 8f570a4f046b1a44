package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prefixring/prefixring/internal/dialect"
	"github.com/prefixring/prefixring/internal/fakeengine"
)

func answerOK(w http.ResponseWriter, r *http.Request) {
	drain(r)
	sse(w)
	say(w, "%s%s%s%s%s", roleChunk, textChunk, stopChunk, usageChunk(100, 60, 3), doneEvent)
}

func TestResultHasTheKeysOfTheContract(t *testing.T) {
	res := serve(t, answerOK, once())
	raw, err := json.Marshal(res)
	if err != nil {
		t.Fatal(err)
	}
	var m map[string]any
	if err := json.Unmarshal(raw, &m); err != nil {
		t.Fatal(err)
	}
	for _, k := range []string{"planned", "sent", "succeeded", "errors", "achieved_rate", "max_send_lag_ms", "valid", "output_tokens", "cached_tokens", "hit_rate", "seed", "nonce", "definitions"} {
		if _, ok := m[k]; !ok {
			t.Errorf("key %q is missing", k)
		}
	}
	for _, k := range []string{"ttft_ms", "first_byte_ms", "tpot_ms", "e2e_ms"} {
		q, _ := m[k].(map[string]any)
		for _, p := range []string{"p50", "p90", "p99", "max"} {
			if _, ok := q[p].(float64); !ok {
				t.Errorf("%s.%s is missing", k, p)
			}
		}
	}
	if m["hit_rate"] != 0.6 || m["cached_tokens"] != float64(60) || m["output_tokens"] != float64(3) || m["valid"] != true {
		t.Errorf("hit rate %v, cached %v, output %v, valid %v", m["hit_rate"], m["cached_tokens"], m["output_tokens"], m["valid"])
	}
}

func TestCancelledRunStillReports(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPipes()
		srv := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			drain(r)
			sse(w)
			say(w, "%s%s", roleChunk, textChunk)
			select {
			case <-time.After(3 * time.Second):
			case <-r.Context().Done():
				return
			}
			say(w, "%s%s", stopChunk, doneEvent)
		})}
		ended := make(chan error, 1)
		go func() { ended <- srv.Serve(p) }()
		ctx, cancel := context.WithTimeout(t.Context(), 10500*time.Millisecond)
		defer cancel()
		o := Options{URL: "http://e.test", Model: "m", Dial: p.dial, SkipPreflight: true, Grace: time.Second,
			Arrivals: Arrivals{Kind: "constant", Rate: 10, Duration: time.Minute}, Workload: Workload{User: Exactly(3), Output: Exactly(2)}}
		begun := time.Now()
		res, err := Run(ctx, o)
		if err != nil {
			t.Fatal(err)
		}
		if took := time.Since(begun); took > 12*time.Second {
			t.Errorf("the run ended %v after its start", took)
		}
		// 105 were sent by then; those of the last two seconds could not end in the grace.
		if res.Planned != 600 || res.Sent != 105 || res.Errors["cancelled"] != 20 || res.Succeeded != 85 {
			t.Errorf("planned %d, sent %d, succeeded %d, errors %v", res.Planned, res.Sent, res.Succeeded, res.Errors)
		}
		if res.Valid || !strings.Contains(fmt.Sprint(res.InvalidFor), "interrupted") || res.TTFT == nil {
			t.Errorf("valid %v because %v", res.Valid, res.InvalidFor)
		}
		srv.Close()
		<-ended
	})
}

func TestHopelessEndpointsAreNamedBeforeTheLoad(t *testing.T) {
	o := once()
	o.Model = "m"
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	o.URL = "http://" + ln.Addr().String()
	ln.Close()
	if _, err := Run(t.Context(), o); !errors.Is(err, ErrUnreachable) {
		t.Errorf("a closed port gave %v", err)
	}
	var posts atomic.Int64
	var open atomic.Bool
	srv := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == "POST" {
			posts.Add(1)
		}
		if !open.Load() {
			w.WriteHeader(401)
			return
		}
		io.WriteString(w, `{"data":[{"id":"other"}]}`)
	})}
	if ln, err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- srv.Serve(ln) }()
	defer func() { srv.Close(); <-ended }()
	o.URL = "http://" + ln.Addr().String() + "/v1"
	if _, err := Run(t.Context(), o); !errors.Is(err, ErrRefused) || !strings.Contains(err.Error(), "401") {
		t.Errorf("a refused key gave %v", err)
	}
	open.Store(true)
	if _, err := Run(t.Context(), o); !errors.Is(err, ErrRefused) || !strings.Contains(err.Error(), "other") {
		t.Errorf("a wrong model gave %v", err)
	}
	if posts.Load() != 0 {
		t.Errorf("%d requests were sent all the same", posts.Load())
	}
	for name, bad := range map[string]Options{
		"no url": {Model: "m"}, "no model": {URL: "http://x"}, "ftp": {URL: "ftp://x", Model: "m", Arrivals: once().Arrivals},
		"newline": {URL: "http://x", Model: "m", Arrivals: once().Arrivals, APIKey: "a\r\nb"},
	} {
		if _, err := Run(t.Context(), bad); !errors.Is(err, ErrUsage) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestDeadPooledConnectionIsReplacedOnceAndNotCounted(t *testing.T) {
	var n atomic.Int64
	res := serve(t, func(w http.ResponseWriter, r *http.Request) {
		drain(r)
		if n.Add(1) == 2 { // the second request of the connection: hang up without a word
			c, _, err := http.NewResponseController(w).Hijack()
			if err == nil {
				c.Close()
			}
			return
		}
		answerOK(w, r)
	}, Options{Arrivals: Arrivals{Kind: "constant", Rate: 1, Duration: 3 * time.Second}, Workload: Workload{User: Exactly(3), Output: Exactly(3)}})
	if res.Succeeded != 3 || n.Load() != 4 {
		t.Errorf("%d succeeded with %d requests at the server, errors %v", res.Succeeded, n.Load(), res.Errors)
	}
}

func TestTimeoutsAndRefusalsHaveTheirKind(t *testing.T) {
	o := once()
	o.Timeout = 2 * time.Second
	res := serve(t, func(w http.ResponseWriter, r *http.Request) {
		drain(r)
		<-r.Context().Done()
	}, o)
	if res.Errors["timeout"] != 1 {
		t.Errorf("errors %v, want a timeout", res.Errors)
	}
	res = serve(t, func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(503)
	}, once())
	if res.Errors["http_503"] != 1 {
		t.Errorf("errors %v, want http_503", res.Errors)
	}
}

func TestGoodputCountsAllLimits(t *testing.T) {
	var n atomic.Int64
	o := Options{Arrivals: Arrivals{Kind: "constant", Rate: 1, Duration: 4 * time.Second}, Workload: Workload{User: Exactly(3), Output: Exactly(3)},
		SLO: SLO{TTFT: 500 * time.Millisecond, E2E: 2 * time.Second}}
	res := serve(t, func(w http.ResponseWriter, r *http.Request) {
		drain(r)
		i := n.Add(1)
		sse(w)
		if i == 1 {
			wait(600 * time.Millisecond)
		}
		say(w, "%s", textChunk)
		if i == 2 {
			wait(3 * time.Second)
		}
		say(w, "%s%s", stopChunk, doneEvent)
	}, o)
	if res.Goodput == nil || res.Goodput.Good != 2 || res.Goodput.Share != 0.5 {
		t.Errorf("goodput %+v, want 2 of 4", res.Goodput)
	}
}

func TestConversationsCarryTheRealAnswers(t *testing.T) {
	var bodies []string
	o := once()
	o.Workload = Workload{Prefixes: 1, Prefix: Exactly(20), Turns: Exactly(3), Think: 5 * time.Second, User: Exactly(4), Output: Exactly(3)}
	res := serve(t, func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		bodies = append(bodies, string(b)) // one request at a time
		wait(time.Second)
		sse(w)
		say(w, "%s", strings.Replace(textChunk, "hello", fmt.Sprintf(`turn \"%d\"`, len(bodies)), 1))
		say(w, "%s%s", stopChunk, doneEvent)
	}, o)
	if res.Planned != 3 || res.Succeeded != 3 {
		t.Fatalf("%d of %d turns", res.Succeeded, res.Planned)
	}
	near(t, "length of the run", res.Duration, 0.5+3+10, 0.1)
	for i := 1; i < 3; i++ {
		if !strings.HasPrefix(bodies[i], bodies[i-1][:strings.LastIndex(bodies[i-1], `],"max_tokens"`)]) {
			t.Errorf("turn %d does not begin with turn %d", i+1, i)
		}
		if !strings.Contains(bodies[i], fmt.Sprintf(`turn \"%d\"`, i)) {
			t.Errorf("turn %d has not the answer of turn %d: %s", i+1, i, bodies[i])
		}
	}
}

func TestOwnLinesAreSentAsTheyAre(t *testing.T) {
	lines, err := ReadLines(strings.NewReader(`{"at":0.5,"path":"/v1/completions","body":{"model":"m","prompt":"a"}}` + "\n" + `{"at":2,"body":{"model":"m","messages":[]}}`))
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	res := serve(t, func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		got = append(got, r.URL.Path+" "+string(b))
		answerOK(w, r)
	}, Options{Arrivals: Arrivals{Rate: 1, Duration: 3 * time.Second}, Workload: Workload{Lines: lines}})
	if res.Sent != 2 || got[0] != `/v1/completions {"model":"m","prompt":"a"}` || got[1] != `/v1/chat/completions {"model":"m","messages":[]}` {
		t.Errorf("sent %d: %q", res.Sent, got)
	}
	if res.Succeeded != 2 {
		t.Errorf("%d succeeded, errors %v", res.Succeeded, res.Errors)
	}
}

func TestRotationSharesTheLoadAndNamesTheNodes(t *testing.T) {
	var engines []string
	for i := range 2 {
		e, err := fakeengine.New(fakeengine.Options{Name: fmt.Sprint(i), Model: "m", Preset: "instant", ReportCached: true})
		if err != nil {
			t.Fatal(err)
		}
		u, err := e.Start("127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer e.Close()
		engines = append(engines, u)
	}
	res, err := Run(t.Context(), Options{Targets: engines, Model: "m", Counters: ScrapeCounters(engines),
		Arrivals: Arrivals{Kind: "constant", Rate: 100, Duration: 200 * time.Millisecond},
		Workload: Workload{Prefixes: 2, Prefix: Exactly(300), User: Exactly(10), Output: Exactly(4)}})
	if err != nil {
		t.Fatal(err)
	}
	if len(res.Nodes) != 2 || res.Nodes[0].Requests != 10 || res.Nodes[1].Requests != 10 || res.Succeeded != 20 {
		t.Errorf("nodes %+v, %d succeeded, errors %v", res.Nodes, res.Succeeded, res.Errors)
	}
	// The engines count what usage says.
	t2 := Total(res.Engines)
	if t2.PromptTokens != res.PromptTokens || t2.CachedTokens != *res.CachedTokens || t2.GenerationTokens != res.OutputTokens {
		t.Errorf("engines counted %+v, usage says prompt %d cached %d output %d", t2, res.PromptTokens, *res.CachedTokens, res.OutputTokens)
	}
}

func TestEveryProtocolAgainstTheSimulatedEngine(t *testing.T) {
	e, err := fakeengine.New(fakeengine.Options{Model: "m", Preset: "instant", ReportCached: true})
	if err != nil {
		t.Fatal(err)
	}
	u, err := e.Start("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	for _, proto := range []dialect.Protocol{dialect.Chat, dialect.Completions, dialect.Responses, dialect.Messages} {
		for _, whole := range []bool{false, true} {
			o := Options{URL: u, Model: "m", Protocol: proto, NoStream: whole, Requests: 5,
				Arrivals: Arrivals{Kind: "constant", Rate: 100, Duration: time.Second},
				Workload: Workload{Prefixes: 1, Prefix: Exactly(400), User: Exactly(10), Output: Exactly(6)}}
			cold := 0
			o.OnRecord = func(r *Record) {
				if r.Cached == 0 {
					cold++
				}
			}
			res, err := Run(t.Context(), o)
			if err != nil {
				t.Fatal(err)
			}
			if res.Succeeded != 5 || res.OutputTokens != 30 || (res.TTFT == nil) != whole {
				t.Errorf("%v, whole %v: %d succeeded, %d tokens, ttft %v, errors %v", proto, whole, res.Succeeded, res.OutputTokens, res.TTFT, res.Errors)
			}
			// A fresh nonce: the first request finds nothing of the run before (B72).
			if cold < 1 || cold > 2 || res.HitRate == nil || *res.HitRate < 0.5 {
				t.Errorf("%v, whole %v: %d cold, hit rate %v", proto, whole, cold, res.HitRate)
			}
		}
	}
}
