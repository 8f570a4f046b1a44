package bench

import (
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

func TestB68TimeToFirstTokenIsNotFirstByte(t *testing.T) {
	res := serve(t, func(w http.ResponseWriter, r *http.Request) {
		drain(r)
		wait(50 * time.Millisecond) // the bubble's clock, not the wall's
		sse(w)
		w.(http.Flusher).Flush()
		wait(10 * time.Millisecond)
		say(w, "%s", roleChunk)
		wait(440 * time.Millisecond)
		say(w, ": ping\n\n")
		wait(400 * time.Millisecond)
		say(w, "%s", emptyChunk)
		wait(1090 * time.Millisecond)
		say(w, "%s", textChunk[:40])
		wait(10 * time.Millisecond)
		say(w, "%s", textChunk[40:])
		wait(100 * time.Millisecond)
		say(w, "%s%s%s", stopChunk, usageChunk(100, 0, 7), doneEvent)
	}, once())
	if res.Succeeded != 1 {
		t.Fatalf("not one success: %+v", res.Errors)
	}
	near(t, "ttft", res.TTFT.P50, 2000, 20)
	near(t, "first byte", res.FirstByte.P50, 50, 10)
	near(t, "first chunk", res.TTFTChunk.P50, 60, 2)
	near(t, "e2e", res.E2E.P50, 2100, 20)
	near(t, "tpot", res.TPOT.P50, 100.0/6, 1)
	if res.OutputTokens != 7 {
		t.Errorf("output tokens %d, want the 7 of the usage", res.OutputTokens)
	}
}

func TestB68FirstDeltaBeingAToolCallIsAToken(t *testing.T) {
	res := serve(t, func(w http.ResponseWriter, r *http.Request) {
		drain(r)
		sse(w)
		say(w, "%s", roleChunk)
		wait(300 * time.Millisecond)
		say(w, "%s", `data: {"choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"id":"c","type":"function","function":{"name":"f","arguments":""}}]},"finish_reason":null}]}`+"\n\n")
		wait(100 * time.Millisecond)
		say(w, "%s%s", strings.Replace(stopChunk, "stop", "tool_calls", 1), doneEvent)
	}, once())
	if res.Succeeded != 1 || res.TTFT == nil {
		t.Fatalf("a tool call is an answer: %+v", res)
	}
	near(t, "ttft", res.TTFT.P50, 300, 5)
}

func TestB68StreamWithoutTokenGivesNoSample(t *testing.T) {
	res := serve(t, func(w http.ResponseWriter, r *http.Request) {
		drain(r)
		sse(w)
		say(w, "%s%s%s", roleChunk, stopChunk, doneEvent)
	}, once())
	if res.Succeeded != 0 || res.Errors["empty"] != 1 || res.TTFT != nil || res.E2E != nil {
		t.Errorf("want one empty answer and no samples, got %+v ttft %v", res.Errors, res.TTFT)
	}
}

func TestB70TokensAreNotChunks(t *testing.T) {
	stream := func(usage bool) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			drain(r)
			sse(w)
			say(w, "%s", roleChunk)
			for range 100 {
				wait(40 * time.Millisecond)
				say(w, "%s", textChunk)
			}
			say(w, "%s", stopChunk)
			if usage {
				say(w, "%s", usageChunk(10, 0, 400))
			}
			say(w, "%s", doneEvent)
		}
	}
	res := serve(t, stream(true), once())
	if res.OutputTokens != 400 || res.OutputBasis != "usage" {
		t.Errorf("%d tokens by %q, want 400 by usage", res.OutputTokens, res.OutputBasis)
	}
	near(t, "time per token", res.TPOT.P50, 10, 0.5)
	near(t, "gap between events", res.ITL.P50, 40, 0.5)
	if res.PeakTokens < res.TokenRate || res.TokenRate <= 0 {
		t.Errorf("peak %v is below the mean %v", res.PeakTokens, res.TokenRate)
	}
	res = serve(t, stream(false), once())
	if res.OutputTokens != 100 || res.OutputBasis != "chunks, not tokens" {
		t.Errorf("%d tokens by %q, want a label that says chunks", res.OutputTokens, res.OutputBasis)
	}
}

func TestB71StallStaysInThePercentiles(t *testing.T) {
	var begun atomic.Pointer[time.Time]
	freeze := func(w http.ResponseWriter, r *http.Request) {
		now := time.Now()
		begun.CompareAndSwap(nil, &now)
		at := now.Sub(*begun.Load())
		drain(r)
		wait(20 * time.Millisecond) // without it a closed loop never lets the bubble's clock move
		if at >= 20*time.Second && at < 30*time.Second {
			wait(30*time.Second - at)
		}
		sse(w)
		say(w, "%s%s%s%s", roleChunk, textChunk, stopChunk, doneEvent)
	}
	o := Options{Arrivals: Arrivals{Kind: "constant", Rate: 50, Duration: time.Minute}, Workload: Workload{User: Exactly(5), Output: Exactly(1)}}
	res := serve(t, freeze, o)
	if res.Planned != 3000 || res.Sent != 3000 || res.Succeeded != 3000 {
		t.Fatalf("planned %d, sent %d, succeeded %d, want 3,000 of each", res.Planned, res.Sent, res.Succeeded)
	}
	if res.E2E.P99 < 8000 {
		t.Errorf("p99 is %v ms: the stall of 10 s is gone", res.E2E.P99)
	}
	near(t, "achieved rate", res.AchievedRate, 50, 0.5)
	if res.MaxSendLagMS > 100 || !res.Valid || res.Mode != "open-loop" {
		t.Errorf("lag %v ms, valid %v (%v), mode %q", res.MaxSendLagMS, res.Valid, res.InvalidFor, res.Mode)
	}

	begun.Store(nil)
	o.Closed, o.Requests = 4, 0
	res = serve(t, freeze, o)
	if !strings.HasPrefix(res.Mode, "closed-loop") {
		t.Errorf("a closed loop must say so, mode is %q", res.Mode)
	}
	if res.E2E.P99 > 8000 {
		t.Error("the closed loop shows the stall in p99: then this test shows no difference")
	}
}

func TestB71ToolAsBottleneckMakesTheRunInvalid(t *testing.T) {
	r := runner{o: &Options{}}
	for _, c := range []struct {
		res  Result
		says string
	}{
		{Result{Sent: 10, MaxSendLagMS: 250}, "250 ms late"},
		{Result{Sent: 10, OwnCPU: 0.95 * usableCores()}, "cores"},
		{Result{Sent: 10, Errors: map[string]int64{"connect": 10}}, "no request reached"},
	} {
		r.judge(&c.res)
		if len(c.res.InvalidFor) != 1 || !strings.Contains(c.res.InvalidFor[0], c.says) {
			t.Errorf("want one reason with %q, got %v", c.says, c.res.InvalidFor)
		}
	}
	good := Result{Sent: 10, MaxSendLagMS: 20, OwnCPU: 0.5}
	if r.judge(&good); len(good.InvalidFor) != 0 {
		t.Errorf("a good run is called invalid: %v", good.InvalidFor)
	}
}

func TestB72ErrorsAreCountedByKindAndGiveNoSamples(t *testing.T) {
	var n atomic.Int64
	o := once()
	o.Arrivals.Rate = 200
	res := serve(t, func(w http.ResponseWriter, r *http.Request) {
		drain(r)
		i := n.Add(1) % 20
		wait(30 * time.Millisecond)
		if i < 2 { // 10 %
			http.Error(w, `{"error":{"message":"broken"}}`, 500)
			return
		}
		sse(w)
		say(w, "%s", roleChunk)
		switch {
		case i < 8: // 30 %
			say(w, "%s%s", stopChunk, doneEvent)
		case i < 9: // 5 %
			say(w, "%s", textChunk)
			panic(http.ErrAbortHandler)
		default:
			say(w, "%s%s%s%s", textChunk, stopChunk, usageChunk(100, 50, 5), doneEvent)
		}
	}, o)
	want := map[string]int64{"http_500": 20, "empty": 60, "truncated": 10}
	if res.Succeeded != 110 || len(res.Errors) != 3 {
		t.Errorf("succeeded %d with errors %v, want 110 and %v", res.Succeeded, res.Errors, want)
	}
	for k, v := range want {
		if res.Errors[k] != v {
			t.Errorf("%d errors of kind %s, want %d", res.Errors[k], k, v)
		}
	}
	if res.TTFT.Count != 110 || res.E2E.Count != 110 || res.TTFT.P50 < 30 {
		t.Errorf("percentiles over %d and %d samples with p50 %v, want the 110 successes", res.TTFT.Count, res.E2E.Count, res.TTFT.P50)
	}
	if res.HitRate == nil || *res.HitRate != 0.5 {
		t.Errorf("hit rate %v, want 0.5", res.HitRate)
	}
}

func TestB72ErrorEventInsideA200IsAnError(t *testing.T) {
	res := serve(t, func(w http.ResponseWriter, r *http.Request) {
		drain(r)
		sse(w)
		say(w, "%s%s", `data: {"error": {"object":"error","message":"The request queue is full.","type":"Service Unavailable","code":503}}`+"\n\n", doneEvent)
	}, once())
	if res.Errors["error_event"] != 1 || res.Succeeded != 0 {
		t.Errorf("errors %v, want one error_event", res.Errors)
	}
}

func TestB67AbsentCacheCountIsUnknownNotZero(t *testing.T) {
	for _, usage := range []string{
		`{"prompt_tokens":100,"completion_tokens":1}`,
		`{"prompt_tokens":100,"completion_tokens":1,"prompt_tokens_details":null}`,
		`{"prompt_tokens":100,"completion_tokens":1,"prompt_tokens_details":{"cached_tokens":null}}`,
	} {
		res := serve(t, func(w http.ResponseWriter, r *http.Request) {
			drain(r)
			sse(w)
			say(w, "%s%s%s%s", textChunk, stopChunk, "data: {\"choices\":[],\"usage\":"+usage+"}\n\n", doneEvent)
		}, once())
		if res.HitRate != nil || res.CachedTokens != nil || res.UnknownCache != 1 || res.OutputTokens != 1 {
			t.Errorf("usage %s: hit rate %v, cached %v, unknown %d", usage, res.HitRate, res.CachedTokens, res.UnknownCache)
		}
	}
}
