package fakeengine

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/prefixring/prefixring/internal/dialect"
	"github.com/prefixring/prefixring/internal/fakeengine/core"
)

// slow is a cost with which a request of 1,000 tokens lives for many seconds.
var slow = &core.Cost{Fixed: 0.01}

// dial opens a raw connection and sends one request.
func dial(t *testing.T, url, path, body string) *net.TCPConn {
	t.Helper()
	conn, err := net.Dial("tcp", strings.TrimPrefix(url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", path, len(body), body)
	return conn.(*net.TCPConn)
}

func TestB09AClientThatLeavesFreesTheEngineAtOnce(t *testing.T) {
	for _, d := range []dialect.Engine{dialect.VLLM, dialect.SGLang} {
		for _, leave := range []struct {
			name string
			f    func(c *net.TCPConn)
		}{
			{"close", func(c *net.TCPConn) { c.Close() }},
			{"half-close", func(c *net.TCPConn) { _ = c.CloseWrite() }}, // treated as gone: never half-close towards an engine
		} {
			for _, stream := range []string{"", `,"stream":true`} {
				t.Run(fmt.Sprint(d, leave.name, stream), func(t *testing.T) {
					e, c := start(t, Options{Dialect: d, Cost: slow})
					conn := dial(t, c.url, "/v1/chat/completions", chatBody(policy(320), "x", `,"max_tokens":5000,"ignore_eos":true`+stream))
					eventually(t, "the request runs", func() bool { return e.Counters().Running == 1 })
					if e.Counters().UsedBlocks == 0 {
						t.Fatal("a running request holds no KV")
					}
					begin := time.Now()
					leave.f(conn)
					eventually(t, "its KV is free", func() bool { n := e.Counters(); return n.Running == 0 && n.UsedBlocks == 0 && n.Aborts == 1 })
					if d := time.Since(begin); d > 2*time.Second {
						t.Errorf("that took %v", d)
					}
					page := c.ok("/metrics", "")
					if d == dialect.VLLM && !strings.Contains(page, `finished_reason="abort",model_name="tiny"} 0.0`) {
						t.Error("vLLM counts an abort, the real one does not")
					}
					if d == dialect.SGLang && !strings.Contains(page, `num_aborted_requests_total{engine_type="unified",model_name="tiny"} 1.0`) {
						t.Error("SGLang does not count the abort")
					}
					if leave.name == "half-close" && stream == "" {
						if b, _ := io.ReadAll(conn); len(b) != 0 {
							t.Errorf("a half-closed client is answered: %q", b)
						}
					}
				})
			}
		}
	}
}

func TestAnIdleConnectionIsClosed(t *testing.T) {
	_, c := start(t, Options{KeepAlive: 50 * time.Millisecond})
	conn := dial(t, c.url, "/v1/chat/completions", chatBody("a", "b", ""))
	begin := time.Now()
	if _, err := io.ReadAll(conn); err != nil {
		t.Fatal(err)
	}
	if d := time.Since(begin); d < 40*time.Millisecond {
		t.Errorf("it was closed after %v, before the idle limit", d)
	}
	var o Options
	if err := o.fill(); err != nil || o.KeepAlive != 5*time.Second {
		t.Errorf("the default limit is %v, want the 5 s of uvicorn", o.KeepAlive)
	}
}

func TestWallTimeFollowsTheModel(t *testing.T) {
	cost := core.Cost{Token: 20e-6, Fixed: 5e-3, FrontFixed: 10e-3}
	for _, speed := range []float64{1, 20} {
		e, c := start(t, Options{Cost: &cost, Speed: speed})
		begin := time.Now()
		c.ok("/v1/completions", `{"model":"tiny","prompt":"`+policy(8000)+`","max_tokens":41,"ignore_eos":true}`)
		got := time.Since(begin).Seconds() * speed
		want := e.Counters().BusySeconds + 10e-3
		// 8,000 tokens at 20 us, 41 steps of 5 ms and 40 tokens: 0.366 s.
		if want < 0.36 || want > 0.38 {
			t.Errorf("simulated time is %.4f s, the equation says 0.376", want)
		}
		if got < want-1e-3 {
			t.Errorf("speed %v: answered after %.4f simulated seconds, sooner than the model's %.4f", speed, got, want)
		}
		if late := (got - want) / speed; late > 0.25 {
			t.Errorf("speed %v: answered %.3f s late", speed, late)
		}
	}
}

func TestTokensLeaveWhenTheyAreGenerated(t *testing.T) {
	_, c := start(t, Options{Cost: &core.Cost{Fixed: 20e-3}})
	conn := dial(t, c.url, "/v1/completions", `{"model":"tiny","prompt":"x","max_tokens":10,"stream":true}`)
	begin := time.Now()
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	lines := bufio.NewScanner(resp.Body)
	n := 0
	for lines.Scan() {
		if strings.Contains(lines.Text(), `"text":"`) {
			n++
			if due := time.Duration(n) * 20 * time.Millisecond; time.Since(begin) < due-15*time.Millisecond {
				t.Errorf("token %d came %v after the start, due at %v", n, time.Since(begin), due)
			}
		}
	}
	if n != 10 {
		t.Errorf("%d tokens", n)
	}
}

func TestB55RanksBehindOnePort(t *testing.T) {
	e, c := start(t, Options{Ranks: 4, ReportCached: true})
	body := chatBody(policy(1600), "x", `,"max_tokens":1`)
	for i := range 8 {
		got := cachedOf(t, c.ok("/v1/chat/completions", body)).(float64)
		if (got > 0) != (i >= 4) {
			t.Errorf("request %d finds %v tokens: each of four ranks must be cold once", i, got)
		}
	}
	if n := e.Counters(); n.ColdPrefills != 4 || n.ResidentPrefixes != 4 {
		t.Errorf("cold %d, resident %d; want the prefix in all four ranks", n.ColdPrefills, n.ResidentPrefixes)
	}
	pinned := chatBody("Other. "+policy(1600), "x", `,"max_tokens":1`)
	for i := range 5 {
		if got := cachedOf(t, c.ok("/v1/chat/completions", pinned, "X-data-parallel-rank", "2")).(float64); (got > 0) != (i > 0) {
			t.Errorf("pinned request %d finds %v tokens", i, got)
		}
	}
	if resp, _ := c.do("/v1/chat/completions", pinned, "X-data-parallel-rank", "4"); resp.StatusCode != 400 {
		t.Errorf("a rank out of range gets %d", resp.StatusCode)
	}
	c.ok("/v1/chat/completions", pinned, "X-data-parallel-rank", "two") // ignored on vLLM
	page := c.ok("/metrics", "")
	for i := range 4 {
		if !strings.Contains(page, fmt.Sprintf(`vllm:num_requests_running{engine="%d",model_name="tiny"} 0.0`, i)) {
			t.Errorf("no series of rank %d", i)
		}
	}
	_, s := start(t, Options{Ranks: 2, Dialect: dialect.SGLang})
	s.ok("/v1/chat/completions", chatBody("a", "b", `,"routed_dp_rank":1`))
	for _, bad := range []string{`,"routed_dp_rank":2`, `,"routed_dp_rank":"x"`} {
		if resp, _ := s.do("/v1/chat/completions", chatBody("a", "b", bad)); resp.StatusCode != 400 {
			t.Errorf("%s gets %d", bad, resp.StatusCode)
		}
	}
}

func TestQueueLimit(t *testing.T) {
	for _, row := range []struct {
		d      dialect.Engine
		stream bool
		status int
		want   string
	}{
		{dialect.VLLM, false, 503, `{"error":{`},
		{dialect.VLLM, true, 503, `{"error":{`},
		{dialect.SGLang, false, 503, `{"object":"error","message":"The request queue is full.","type":"503","param":null,"code":503}`},
		{dialect.SGLang, true, 200, "data: {\"error\":{\"object\":\"error\",\"message\":\"The request queue is full.\",\"type\":\"SERVICE_UNAVAILABLE\",\"param\":null,\"code\":503}}\n\ndata: [DONE]\n\n"},
	} {
		e, c := start(t, Options{Dialect: row.d, Cost: slow, MaxSeqs: 1, QueueLimit: 1})
		body := chatBody("a", "b", `,"max_tokens":5000,"ignore_eos":true`)
		dial(t, c.url, "/v1/chat/completions", body)
		eventually(t, "one runs", func() bool { return e.Counters().Running == 1 })
		if row.d == dialect.SGLang {
			dial(t, c.url, "/v1/chat/completions", body)
			eventually(t, "one waits", func() bool { return e.Counters().Waiting == 1 })
		}
		resp, text := c.do("/v1/chat/completions", chatBody("a", "b", fmt.Sprintf(`,"stream":%t`, row.stream)))
		if resp.StatusCode != row.status || !strings.HasPrefix(text, row.want) {
			t.Errorf("%v stream %t: %d %s", row.d, row.stream, resp.StatusCode, text)
		}
		if n := e.Counters(); n.Refused != 1 {
			t.Errorf("%v: %d refusals counted", row.d, n.Refused)
		}
	}
}

func TestSleepDropsTheCacheAndHoldsRequests(t *testing.T) {
	e, c := start(t, Options{DevMode: true, ReportCached: true})
	body := chatBody(policy(320), "x", `,"max_tokens":1`)
	c.ok("/v1/chat/completions", body)
	c.ok("/sleep?level=1", "{}")
	if got := c.ok("/is_sleeping", ""); got != `{"is_sleeping":true}` {
		t.Errorf("asleep: %s", got)
	}
	if page := c.ok("/metrics", ""); !strings.Contains(page, `sleep_state="weights_offloaded"} 1.0`) || !strings.Contains(page, `sleep_state="awake"} 0.0`) {
		t.Error("the sleep state is not in the metrics")
	}
	done := make(chan string, 1)
	go func() {
		_, text, err := c.try("/v1/chat/completions", body)
		if err != nil {
			text = err.Error()
		}
		done <- text
	}()
	eventually(t, "the request waits", func() bool { return e.Counters().Waiting == 1 })
	c.ok("/wake_up", "{}")
	if text := <-done; cachedOf(t, text) != 0.0 {
		t.Errorf("the cache survived the sleep: %s", text)
	}
	c.ok("/v1/chat/completions", body)
	if got := c.ok("/reset_prefix_cache", "{}"); got != `{"success":true}` {
		t.Errorf("reset: %s", got)
	}
	if got := cachedOf(t, c.ok("/v1/chat/completions", body)); got != 0.0 {
		t.Errorf("%v tokens cached after a reset", got)
	}
}

func TestRestartIsColdAndCountsFromZero(t *testing.T) {
	e, c := start(t, Options{ReportCached: true})
	body := chatBody(policy(320), "x", `,"max_tokens":4`)
	c.ok("/v1/chat/completions", body)
	c.ok("/v1/chat/completions", body)
	before := e.Counters()
	if err := e.Restart(); err != nil {
		t.Fatal(err)
	}
	if page := c.ok("/metrics", ""); !strings.Contains(page, `vllm:prompt_tokens_total{engine="0",model_name="tiny"} 0.0`) {
		t.Error("counters did not begin at zero")
	}
	after := e.Counters()
	if after.Epoch != 1 || after.PromptTokens != before.PromptTokens || after.GeneratedTokens != 8 || after.ResidentPrefixes != 0 {
		t.Errorf("the oracle forgot: %+v then %+v", before, after)
	}
	if got := cachedOf(t, c.ok("/v1/chat/completions", body)); got != 0.0 {
		t.Errorf("%v tokens cached after a restart", got)
	}
}

func TestKillRefusesAndReviveComesBackOnTheSamePort(t *testing.T) {
	e, c := start(t, Options{Cost: slow, ReportCached: true})
	conn := dial(t, c.url, "/v1/chat/completions", chatBody("a", "b", `,"max_tokens":5000,"ignore_eos":true,"stream":true`))
	eventually(t, "it runs", func() bool { return e.Counters().Running == 1 })
	e.Kill()
	if b, _ := io.ReadAll(conn); strings.Contains(string(b), "[DONE]") || strings.Contains(string(b), "0\r\n\r\n") {
		t.Errorf("a killed engine ended its stream properly: %q", b)
	}
	if _, _, err := c.try("/health", ""); err == nil {
		t.Error("a killed engine accepts connections")
	}
	if err := e.Revive(); err != nil {
		t.Fatal(err)
	}
	c.ok("/health", "")
	if err := e.Revive(); err == nil {
		t.Error("it can be revived twice")
	}
}

func TestShutdownAbortsOnVLLM(t *testing.T) {
	e, c := start(t, Options{Cost: slow})
	conn := dial(t, c.url, "/v1/chat/completions", chatBody("a", "b", `,"max_tokens":5000,"ignore_eos":true,"stream":true`))
	eventually(t, "tokens flow", func() bool { return e.Counters().GeneratedTokens > 2 })
	if err := e.Shutdown(context.Background()); err != nil {
		t.Fatal(err)
	}
	b, _ := io.ReadAll(conn)
	if !strings.Contains(string(b), `"finish_reason":"abort"`) || !strings.Contains(string(b), "[DONE]") {
		t.Errorf("SIGTERM ends the stream with %q", b[max(0, len(b)-300):])
	}
	if _, err := e.Start(""); err == nil {
		t.Error("a closed engine starts again")
	}
	_ = c
}

func TestShutdownDrainsWhenAllowed(t *testing.T) {
	for _, o := range []Options{{Cost: slow, ShutdownTimeout: 10 * time.Second}, {Cost: slow, Dialect: dialect.SGLang}} {
		e, c := start(t, o)
		conn := dial(t, c.url, "/v1/chat/completions", chatBody("a", "b", `,"max_tokens":30,"ignore_eos":true,"stream":true`))
		eventually(t, "tokens flow", func() bool { return e.Counters().GeneratedTokens > 2 })
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		err := e.Shutdown(ctx)
		cancel()
		if err != nil {
			t.Fatal(err)
		}
		b, _ := io.ReadAll(conn)
		if !strings.Contains(string(b), `"finish_reason":"length"`) {
			t.Errorf("%v cut its stream: %q", o.Dialect, b[max(0, len(b)-300):])
		}
	}
}

func TestSGLangHealthWaitsForASignOfLife(t *testing.T) {
	e, c := start(t, Options{Dialect: dialect.SGLang, HealthDelay: 30 * time.Millisecond})
	begin := time.Now()
	c.ok("/health", "")
	if d := time.Since(begin); d < 30*time.Millisecond {
		t.Errorf("/health answers after %v", d)
	}
	e.SetFault(Fault{Kind: FaultStall})
	begin = time.Now()
	if resp, _ := c.do("/health", ""); resp.StatusCode != 503 || time.Since(begin) < 500*time.Millisecond {
		t.Errorf("a hung core: %d after %v, want 503 after twenty delays", resp.StatusCode, time.Since(begin))
	}
	if resp, _ := c.do("/ping", ""); resp.StatusCode != 200 {
		t.Error("/ping is a constant")
	}
}

func TestHeadWaitsForTheFirstTokenOnSGLangOnly(t *testing.T) {
	for d, early := range map[dialect.Engine]bool{dialect.VLLM: true, dialect.SGLang: false} {
		e, c := start(t, Options{Dialect: d, Cost: slow})
		e.SetFault(Fault{Kind: FaultStall})
		conn := dial(t, c.url, "/v1/chat/completions", chatBody("a", "b", `,"stream":true`))
		eventually(t, "it waits", func() bool { return e.Counters().Waiting == 1 })
		_ = conn.SetReadDeadline(time.Now().Add(100 * time.Millisecond))
		n, err := conn.Read(make([]byte, 100))
		if early && n == 0 || !early && !errors.Is(err, error(netTimeout(err))) {
			t.Errorf("%v: %d bytes (%v) while the prompt is prefilled", d, n, err)
		}
	}
}

func netTimeout(err error) error {
	var n net.Error
	if errors.As(err, &n) && n.Timeout() {
		return err
	}
	return errors.New("no timeout")
}

func TestOptionsAreChecked(t *testing.T) {
	for _, o := range []Options{{Speed: -1}, {Preset: "9b"}, {Ranks: -1}, {Noise: 3}, {Budget: 10, MaxSeqs: 20}, {KVTokens: 8}} {
		if e, err := New(o); err == nil {
			e.Close()
			t.Errorf("%+v was accepted", o)
		}
	}
}
