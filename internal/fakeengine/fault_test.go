package fakeengine

import (
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/prefixring/prefixring/internal/dialect"
)

const streamed = `,"max_tokens":5,"stream":true`

// raw reads all bytes of one exchange until the engine closes, and how it closed.
func raw(t *testing.T, url, path, body string) (string, error) {
	t.Helper()
	conn := dial(t, url, path, body)
	_ = conn.SetReadDeadline(time.Now().Add(5 * time.Second))
	b, err := io.ReadAll(conn)
	return string(b), err
}

func TestFaultsOfASingleRequest(t *testing.T) {
	reset := func(err error) bool { return errors.Is(err, syscall.ECONNRESET) }
	clean := func(err error) bool { return err == nil }
	for _, row := range []struct {
		name   string
		f      Fault
		more   string
		events int // data lines on the wire
		end    func(error) bool
		has    string
		hasNot string
	}{
		{"close", Fault{Kind: FaultClose}, streamed, 0, clean, "", "HTTP/1.1"},
		{"reset before the head", Fault{Kind: FaultReset}, streamed, 0, reset, "", "HTTP/1.1"},
		{"reset after 3", Fault{Kind: FaultReset, After: 3}, streamed, 3, reset, "200 OK", "[DONE]"},
		{"cut after 2", Fault{Kind: FaultCut, After: 2}, streamed, 2, clean, "200 OK", "\r\n0\r\n"},
		{"cut at once", Fault{Kind: FaultCut}, streamed, 0, clean, "200 OK", "\r\n0\r\n"},
		{"cut in an event", Fault{Kind: FaultCutMid, After: 2}, streamed, 3, clean, "200 OK", "\r\n0\r\n"},
		{"cut a plain body", Fault{Kind: FaultCut}, "", 0, clean, `{"id"`, `"metrics":null}`},
		{"reset a plain body", Fault{Kind: FaultReset, After: 1}, "", 0, reset, "", `"metrics":null}`},
		{"error first", Fault{Kind: FaultErrorEvent, Code: 429}, streamed, 2, nil, `data: {"error":{"message":"scripted fault","type":"InternalServerError","param":null,"code":429}}`, `"delta"`},
		{"error after 2", Fault{Kind: FaultErrorEvent, After: 2}, streamed, 4, nil, `"code":500`, `"finish_reason":"length"`},
		{"empty stream", Fault{Kind: FaultEmpty}, streamed, 0, nil, "text/event-stream", "data:"},
		{"empty body", Fault{Kind: FaultEmpty}, "", 0, nil, "Content-Length: 0", "id"},
		{"no done", Fault{Kind: FaultNoDone}, streamed, 6, nil, `"finish_reason":"length"`, "[DONE]"},
		{"comments", Fault{Kind: FaultComments}, streamed, 7, nil, "\n: keep-alive\n\n", ""},
		{"status", Fault{Kind: FaultStatus, Status: 503}, streamed, 0, nil, `"code":503`, "data:"},
		{"status and body", Fault{Kind: FaultStatus, Status: 422, Body: "no", ContentType: "text/plain"}, "", 0, nil, "text/plain", "error"},
		{"headers", Fault{Kind: FaultHeaders, Headers: http.Header{"X-Big": {strings.Repeat("h", 10_000)}, "Keep-Alive": {"timeout=5"}, "Te": {"trailers"}}}, "", 0, nil, "Keep-Alive: timeout=5", ""},
	} {
		t.Run(row.name, func(t *testing.T) {
			e, c := start(t, Options{KeepAlive: 50 * time.Millisecond})
			e.SetFault(row.f)
			text, err := raw(t, c.url, "/v1/chat/completions", chatBody("a", "b", `,"max_tokens":5`+row.more))
			if n := strings.Count(text, "data: "); n != row.events {
				t.Errorf("%d events on the wire, want %d: %q", n, row.events, text)
			}
			if end := row.end; end != nil && !end(err) {
				t.Errorf("it ended with %v", err)
			}
			if !strings.Contains(text, row.has) || row.hasNot != "" && strings.Contains(text, row.hasNot) {
				t.Errorf("want %q and not %q in %q", row.has, row.hasNot, text)
			}
			if hits := e.Faults()[0].Hits; hits != 1 {
				t.Errorf("%d hits", hits)
			}
			eventually(t, "nothing runs any more", func() bool { n := e.Counters(); return n.Running+n.Waiting == 0 && n.UsedBlocks == 0 })
			e.ClearFaults()
			c.ok("/v1/chat/completions", chatBody("a", "b", ""))
		})
	}
}

func TestErrorEventsHaveTheProtocolsShape(t *testing.T) {
	for _, row := range []struct {
		d          dialect.Engine
		path, body string
		want       string
	}{
		{dialect.VLLM, "/v1/messages", `{"model":"tiny","max_tokens":5,"stream":true,"messages":[{"role":"user","content":"x"}]}`, "event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"InternalServerError\",\"message\":\"scripted fault\"}}\n\n"},
		{dialect.SGLang, "/v1/messages", `{"model":"tiny","max_tokens":5,"stream":true,"messages":[{"role":"user","content":"x"}]}`, "\"api_error\",\"message\":\"scripted fault\"}}\n\nevent: message_stop\ndata: {\"type\":\"message_stop\"}\n\n"},
		{dialect.VLLM, "/v1/responses", `{"model":"tiny","stream":true,"input":"x"}`, "data: {\"error\":{\"message\":\"scripted fault\",\"type\":\"InternalServerError\",\"param\":null,\"code\":500}}\n\n"},
		{dialect.SGLang, "/v1/chat/completions", chatBody("a", "b", streamed), "data: {\"error\":{\"object\":\"error\",\"message\":\"scripted fault\""},
	} {
		e, c := start(t, Options{Dialect: row.d})
		e.SetFault(Fault{Kind: FaultErrorEvent, After: 2})
		if text := c.ok(row.path, row.body); !strings.Contains(text, row.want) {
			t.Errorf("%v %s: %s", row.d, row.path, text)
		}
	}
}

func TestHangEndsWhenTheFaultOrTheClientGoes(t *testing.T) {
	e, c := start(t, Options{})
	for _, f := range []Fault{{Kind: FaultHang}, {Kind: FaultPause, After: 2}} {
		e.SetFault(f)
		conn := dial(t, c.url, "/v1/chat/completions", chatBody("a", "b", streamed))
		eventually(t, "the fault strikes", func() bool { return e.Faults()[0].Hits == 1 })
		conn.Close()
		dial(t, c.url, "/v1/chat/completions", chatBody("a", "b", streamed))
		eventually(t, "the fault strikes again", func() bool { return e.Faults()[0].Hits == 2 })
		if !e.RemoveFault(string(f.Kind)) {
			t.Error("the fault is not there")
		}
		eventually(t, "nothing is in flight", func() bool { return e.inFlight.Load() == 0 })
	}
}

func TestDelayAndPauseTakeTheirTime(t *testing.T) {
	for _, f := range []Fault{{Kind: FaultDelay, Delay: Duration(60 * time.Millisecond)}, {Kind: FaultPause, After: 3, Delay: Duration(60 * time.Millisecond)}} {
		e, c := start(t, Options{})
		e.SetFault(f)
		begin := time.Now()
		if text := c.ok("/v1/chat/completions", chatBody("a", "b", streamed)); !strings.Contains(text, "[DONE]") {
			t.Errorf("%s: %s", f.Kind, text)
		}
		if d := time.Since(begin); d < 60*time.Millisecond {
			t.Errorf("%s took %v", f.Kind, d)
		}
	}
}

func TestB02ByteAtATimeAndCoalesced(t *testing.T) {
	e, c := start(t, Options{Seed: 4, KeepAlive: 50 * time.Millisecond})
	body := chatBody("a", "b", streamed)
	plain := c.ok("/v1/chat/completions", body, "X-Request-Id", "r")
	for _, row := range []struct {
		f      Fault
		chunks func(n int) bool
	}{
		{Fault{Kind: FaultSplit}, func(n int) bool { return n == len(plain) }},
		{Fault{Kind: FaultSplit, Bytes: 100}, func(n int) bool { return n > 10 && n < len(plain)/50 }},
		{Fault{Kind: FaultCoalesce}, func(n int) bool { return n == 1 }},
	} {
		e.ClearFaults()
		e.SetFault(row.f)
		text, err := raw(t, c.url, "/v1/chat/completions", strings.Replace(body, "{", `{"request_id":"r",`, 1))
		if err != nil {
			t.Fatal(err)
		}
		_, wire, _ := strings.Cut(text, "\r\n\r\n")
		n, joined := dechunk(wire)
		if !row.chunks(n) {
			t.Errorf("%+v: %d chunks for %d bytes", row.f, n, len(plain))
		}
		if at := strings.Index(plain, `"created":`); joined[:at] != plain[:at] || len(joined) != len(plain) {
			t.Errorf("%+v: the bytes changed:\n%s\n%s", row.f, joined, plain)
		}
	}
}

func dechunk(s string) (n int, joined string) {
	for {
		var size int
		if _, err := fmt.Sscanf(s, "%x\r\n", &size); err != nil || size == 0 {
			return n, joined
		}
		_, s, _ = strings.Cut(s, "\r\n")
		joined += s[:size]
		s = s[size+2:]
		n++
	}
}

func TestB22Gzip(t *testing.T) {
	e, c := start(t, Options{})
	e.SetFault(Fault{Kind: FaultGzip})
	for _, more := range []string{"", streamed} {
		resp, text := c.do("/v1/chat/completions", chatBody("a", "b", more))
		if resp.Header.Get("Content-Encoding") != "gzip" {
			t.Fatal("no label")
		}
		z, err := gzip.NewReader(strings.NewReader(text))
		if err != nil {
			t.Fatal(err)
		}
		b, err := io.ReadAll(z)
		if err != nil || !bytes.Contains(b, []byte("finish_reason")) {
			t.Errorf("%v %s", err, b)
		}
	}
}

func TestB48ClosesRightAfterAResponseThatPromisedToStay(t *testing.T) {
	for kind, polite := range map[FaultKind]bool{FaultCloseAfter: true, FaultResetAfter: false} {
		for _, more := range []string{"", streamed} {
			e, c := start(t, Options{})
			e.SetFault(Fault{Kind: kind})
			text, err := raw(t, c.url, "/v1/chat/completions", chatBody("a", "b", more))
			if strings.Contains(text, "Connection: close") {
				t.Errorf("%s: the head announces it", kind)
			}
			if polite && (err != nil || !strings.HasSuffix(text, "}") && !strings.HasSuffix(text, "0\r\n\r\n")) {
				t.Errorf("%s: %v after %q", kind, err, text)
			}
			if !polite && err != nil && !errors.Is(err, syscall.ECONNRESET) {
				t.Errorf("%s: %v", kind, err)
			}
		}
	}
}

func TestLyingMetrics(t *testing.T) {
	e, c := start(t, Options{})
	e.SetFault(Fault{Kind: FaultMetrics, Metrics: map[string]string{"vllm:kv_cache_usage_perc": "0.97", "vllm:num_requests_running": "NaN"},
		Remove: []string{"vllm:num_requests_waiting"}, Rename: map[string]string{"vllm:prefix_cache_hits_total": "vllm:gpu_prefix_cache_hits_total"}})
	page := c.ok("/metrics", "")
	for want, there := range map[string]bool{
		"vllm:kv_cache_usage_perc{engine=\"0\",model_name=\"tiny\"} 0.97\n": true,
		"vllm:num_requests_running{engine=\"0\",model_name=\"tiny\"} NaN\n": true,
		"vllm:num_requests_waiting{":                                        false,
		"vllm:gpu_prefix_cache_hits_total{":                                 true,
		"vllm:prefix_cache_hits_total{":                                     false,
		"vllm:num_requests_waiting_by_reason{":                              true,
	} {
		if strings.Contains(page, want) != there {
			t.Errorf("%q is there: %t, want %t", want, !there, there)
		}
	}
	e.ClearFaults()
	e.SetFault(Fault{Kind: FaultMetrics, Freeze: true})
	before := c.ok("/metrics", "")
	c.ok("/v1/chat/completions", chatBody("a", "b", ""))
	if c.ok("/metrics", "") != before {
		t.Error("the page moved although it is frozen")
	}
	e.ClearFaults()
	if c.ok("/metrics", "") == before {
		t.Error("the page is still frozen")
	}
}

func TestCountProbabilityAndPath(t *testing.T) {
	e, c := start(t, Options{Seed: 3})
	e.SetFault(Fault{Kind: FaultStatus, Status: 500, Count: 2})
	fails := func(n int, path, body string) (k int) {
		for range n {
			if resp, _ := c.do(path, body); resp.StatusCode == 500 {
				k++
			}
		}
		return k
	}
	body := chatBody("a", "b", "")
	if n := fails(5, "/v1/chat/completions", body); n != 2 {
		t.Errorf("count 2 struck %d times", n)
	}
	e.SetFault(Fault{Kind: FaultStatus, Status: 500, Probability: 0.3})
	if n := fails(200, "/v1/chat/completions", body); n < 40 || n > 80 {
		t.Errorf("probability 0.3 struck %d of 200", n)
	}
	e.SetFault(Fault{Kind: FaultStatus, Status: 500, Path: "/health"})
	if fails(2, "/v1/chat/completions", body) != 0 || fails(2, "/health", "") != 2 {
		t.Error("the path is not respected")
	}
	e.SetFault(Fault{Kind: FaultStatus, Status: 500, Path: "/v1/*"})
	if fails(1, "/v1/models", "") != 1 || fails(1, "/health", "") != 0 {
		t.Error("the path prefix is not respected")
	}
}

func TestFaultsOverHTTP(t *testing.T) {
	e, c := start(t, Options{APIKey: "k"})
	if text := c.ok("/fault", `{"kind":"delay","delay":"5ms","count":3}`); !strings.Contains(text, `"delay":"5ms"`) {
		t.Errorf("set: %s", text)
	}
	c.ok("/fault", `[{"kind":"status","status":503},{"name":"b","kind":"status","status":500,"path":"/health"}]`)
	if n := len(e.Faults()); n != 3 {
		t.Errorf("%d faults are set", n)
	}
	for _, bad := range []string{`{"kind":"dealy"}`, `{"kind":"delay","dely":"1s"}`, `{"kind":"delay","delay":1}`, `{`, `{"kind":"status"}`, `{"kind":"hang","probability":2}`} {
		if resp, text := c.do("/fault", bad); resp.StatusCode != 400 {
			t.Errorf("%s: %d %s", bad, resp.StatusCode, text)
		}
	}
	del := func(q string) int {
		req, _ := http.NewRequest(http.MethodDelete, c.url+"/fault"+q, nil)
		resp, err := c.http.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		return resp.StatusCode
	}
	if del("?name=b") != 204 || del("?name=b") != 404 || len(e.Faults()) != 2 {
		t.Error("removing by name")
	}
	if del("") != 204 || len(e.Faults()) != 0 {
		t.Error("removing all")
	}
	if text := c.ok("/fault", ""); text != "[]\n" {
		t.Errorf("list: %q", text)
	}
}

func TestB40StallFreezesTheCoreBehindALiveHealth(t *testing.T) {
	e, c := start(t, Options{Cost: slow})
	dial(t, c.url, "/v1/chat/completions", chatBody("a", "b", `,"max_tokens":3000,"ignore_eos":true,"stream":true`))
	eventually(t, "it runs", func() bool { return e.Counters().GeneratedTokens > 2 })
	e.SetFault(Fault{Kind: FaultStall})
	// The step in progress still ends; after it nothing moves.
	eventually(t, "no token comes", func() bool {
		n := e.Counters().GeneratedTokens
		timer := time.NewTimer(40 * time.Millisecond)
		<-timer.C
		return e.Counters().GeneratedTokens == n
	})
	if page := c.ok("/metrics", ""); !strings.Contains(page, `num_requests_running{engine="0",model_name="tiny"} 1.0`) {
		t.Error("the gauge does not say that a request runs")
	}
	c.ok("/health", "")
	e.ClearFaults()
	n := e.Counters().GeneratedTokens
	eventually(t, "tokens flow again", func() bool { return e.Counters().GeneratedTokens > n+2 })
	e.SetFault(Fault{Kind: FaultStall, Delay: Duration(30 * time.Millisecond)})
	eventually(t, "a limited stall ends", func() bool { return len(e.Faults()) == 0 })
}

func TestScriptedKillAndRestart(t *testing.T) {
	e, c := start(t, Options{})
	c.ok("/v1/chat/completions", chatBody(policy(320), "b", ""))
	// A kill cuts the connection that asked for it as well: the answer may be lost.
	_, _, _ = c.try("/fault", `{"kind":"kill","delay":"50ms"}`)
	eventually(t, "it refuses", func() bool { _, _, err := c.try("/health", ""); return err != nil })
	eventually(t, "it is back", func() bool { _, _, err := c.try("/health", ""); return err == nil })
	if n := e.Counters(); n.Epoch != 1 || n.IdleBlocks != 0 {
		t.Errorf("after a kill: %+v", n)
	}
	_, _, _ = c.try("/fault", `{"kind":"restart"}`) // cuts this connection, too
	eventually(t, "it restarted", func() bool { return e.Counters().Epoch == 2 })
	_, _, _ = c.try("/fault", `{"kind":"cut_all"}`)
	c.ok("/health", "")
	_, _, _ = c.try("/fault", `{"kind":"kill","delay":"1h"}`)
	eventually(t, "it is dead", func() bool { _, _, err := c.try("/health", ""); return err != nil })
	// Close, when the test ends, must not wait for the hour.
}
