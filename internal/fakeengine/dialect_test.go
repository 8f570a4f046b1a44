package fakeengine

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"math/big"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/prefixring/prefixring/internal/dialect"
)

func TestSGLangShapes(t *testing.T) {
	_, c := start(t, Options{Dialect: dialect.SGLang, ReportCached: true})
	body := chatBody(policy(320), "hi", `,"max_tokens":3`)
	c.ok("/v1/chat/completions", body)
	choice := "{index:n,message:{role:s,content:s,reasoning_content:null,tool_calls:null},logprobs:null,finish_reason:s,matched_stop:null}"
	usage := "{prompt_tokens:n,total_tokens:n,completion_tokens:n,prompt_tokens_details:{cached_tokens:n},reasoning_tokens:n}"
	if got, want := shape(value(c.ok("/v1/chat/completions", body))), "{id:s,object:s,created:n,model:s,choices:["+choice+"],usage:"+usage+",metadata:{weight_version:s}}"; got != want {
		t.Errorf("chat\n got %s\nwant %s", got, want)
	}
	head := "{id:s,object:s,created:n,model:s,choices:[{index:n,delta:"
	want := []string{
		head + "{role:s,content:s,reasoning_content:null,tool_calls:null},logprobs:null,finish_reason:null,matched_stop:null}],usage:null}",
		head + "{role:null,content:s,reasoning_content:null,tool_calls:null},logprobs:null,finish_reason:null,matched_stop:null}],usage:null}",
		head + "{role:null,content:null,reasoning_content:null,tool_calls:null},logprobs:null,finish_reason:s,matched_stop:null}],usage:null}",
		"{id:s,object:s,created:n,model:s,choices:[],usage:" + usage + "}", "[DONE]",
	}
	stream := c.ok("/v1/chat/completions", chatBody(policy(320), "hi", `,"max_tokens":3,"stream":true,"stream_options":{"include_usage":true}`))
	if got := shapes(stream); !slices.Equal(got, want) {
		t.Errorf("chat stream\n got %s\nwant %s", strings.Join(got, "\n     "), strings.Join(want, "\n     "))
	}
	if text := c.ok("/v1/completions", `{"model":"anything","prompt":"x","max_tokens":2}`); !strings.Contains(text, `"matched_stop":null}],"usage":{`) {
		t.Errorf("completions: %s", text)
	}
	if text := c.ok("/v1/models/tiny", ""); field(t, text, "owned_by") != "sglang" {
		t.Errorf("model: %s", text)
	}
	if resp, _ := c.do("/v1/models/none", ""); resp.StatusCode != 404 {
		t.Errorf("an unknown model is %d", resp.StatusCode)
	}
}

func TestSGLangNativeGenerate(t *testing.T) {
	_, c := start(t, Options{Dialect: dialect.SGLang})
	text := c.ok("/generate", `{"text":"`+policy(320)+`","sampling_params":{"max_new_tokens":0}}`)
	if field(t, text, "text") != "" || field(t, text, "meta_info", "completion_tokens") != 0.0 {
		t.Errorf("prefill only: %s", text)
	}
	text = c.ok("/generate", `{"text":"`+policy(320)+`","stream":true,"sampling_params":{"max_new_tokens":3}}`)
	lines := strings.Split(strings.TrimSpace(text), "\n\n")
	if len(lines) != 4 || lines[3] != "data: [DONE]" {
		t.Fatalf("stream: %s", text)
	}
	one, three := strings.TrimPrefix(lines[0], "data: "), strings.TrimPrefix(lines[2], "data: ")
	if a, b := field(t, one, "text").(string), field(t, three, "text").(string); len(a) != 4 || len(b) != 12 || !strings.HasPrefix(b, a) {
		t.Errorf("the text is not cumulative: %q then %q", a, b)
	}
	if field(t, three, "meta_info", "cached_tokens") != 304.0 || field(t, three, "meta_info", "finish_reason", "type") != "length" {
		t.Errorf("last: %s", three)
	}
	_, v := start(t, Options{})
	text = v.ok("/inference/v1/generate", `{"model":"tiny","token_ids":[1,2,3],"sampling_params":{"max_tokens":2}}`)
	if ids := field(t, text, "choices", "0", "token_ids").([]any); len(ids) != 2 {
		t.Errorf("vllm: %s", text)
	}
}

// number reads one series.
func number(t *testing.T, page, series string) float64 {
	t.Helper()
	_, rest, ok := strings.Cut(page, "\n"+series+" ")
	if !ok {
		t.Fatalf("no series %s", series)
	}
	line, _, _ := strings.Cut(rest, "\n")
	v, err := strconv.ParseFloat(line, 64)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

func TestMetricsAgreeWithTheOracle(t *testing.T) {
	e, c := start(t, Options{})
	for i := range 5 {
		c.ok("/v1/chat/completions", chatBody(policy(320), fmt.Sprint("question ", i), `,"max_tokens":7`))
	}
	n, page := e.Counters(), c.ok("/metrics", "")
	const l = `{engine="0",model_name="tiny"}`
	for series, want := range map[string]int64{
		"vllm:prefix_cache_queries_total" + l: n.PromptTokens,
		"vllm:prefix_cache_hits_total" + l:    n.CachedTokens,
		"vllm:prompt_tokens_total" + l:        n.PromptTokens,
		"vllm:prompt_tokens_cached_total" + l: n.CachedTokens,
		`vllm:prompt_tokens_by_source_total{engine="0",model_name="tiny",source="local_compute"}`: n.ComputedTokens,
		"vllm:generation_tokens_total" + l:                                                      n.GeneratedTokens,
		`vllm:request_success_total{engine="0",finished_reason="length",model_name="tiny"}`:     n.Finished,
		"vllm:time_to_first_token_seconds_count" + l:                                            5,
		"vllm:inter_token_latency_seconds_count" + l:                                            30,
		"vllm:e2e_request_latency_seconds_count" + l:                                            5,
		"vllm:request_prefill_kv_computed_tokens_sum" + l:                                       n.ComputedTokens,
		`vllm:iteration_tokens_total_bucket{engine="0",le="+Inf",model_name="tiny"}`:            35,
		"vllm:iteration_tokens_total_sum" + l:                                                   n.ComputedTokens + 30,
		`vllm:request_generation_tokens_bucket{engine="0",le="5.0",model_name="tiny"}`:          0,
		`vllm:request_generation_tokens_bucket{engine="0",le="10.0",model_name="tiny"}`:         5,
		"vllm:num_requests_running" + l:                                                         0,
		"vllm:kv_cache_usage_perc" + l:                                                          0, // whatever is cached
		`vllm:prompt_tokens_cached_by_source_total{engine="0",model_name="tiny",source="host"}`: 0,
	} {
		if got := number(t, page, series); got != float64(want) {
			t.Errorf("%s is %v, the truth is %d", series, got, want)
		}
	}
	if n.Requests != 5 || n.ColdPrefills != 1 || n.GeneratedTokens != 35 || n.CachedTokens == 0 {
		t.Errorf("the oracle says %+v", n)
	}
	if _, off := start(t, Options{NoMetrics: true}); strings.Contains(off.ok("/metrics", ""), "vllm:") {
		t.Error("--disable-log-stats leaves vllm series")
	}
}

func TestSGLangGaugesGoStaleAndLoadsDoNot(t *testing.T) {
	e, c := start(t, Options{Dialect: dialect.SGLang, Cost: slow, DecodeInterval: 1000})
	const l = `{engine_type="unified",model_name="tiny",moe_ep_rank="0",pp_rank="0",tp_rank="0"}`
	conn := dial(t, c.url, "/v1/chat/completions", chatBody(policy(320), "b", `,"max_tokens":5000,"ignore_eos":true`))
	eventually(t, "the gauge rises with the prefill batch", func() bool { return number(t, c.ok("/metrics", ""), "sglang:num_running_reqs"+l) == 1 })
	if n := field(t, c.ok("/v1/loads", ""), "loads", "0", "num_running_reqs"); n != 1.0 {
		t.Errorf("/v1/loads: %v", n)
	}
	if resp, _ := c.do("/flush_cache", ""); resp.StatusCode != 400 {
		t.Errorf("the cache is flushed under a running request: %d", resp.StatusCode)
	}
	conn.Close()
	eventually(t, "the engine is idle", func() bool { return e.Counters().Running == 0 })
	if n := number(t, c.ok("/metrics", ""), "sglang:num_running_reqs"+l); n != 1 {
		t.Errorf("the gauge says %v at once, the real one lags", n)
	}
	if n := field(t, c.ok("/v1/loads", ""), "loads", "0", "num_running_reqs"); n != 0.0 {
		t.Errorf("/v1/loads lags: %v", n)
	}
	if text := c.ok("/v1/loads?format=prometheus", ""); !strings.Contains(text, `sglang_num_running_reqs{dp_rank="0"} 0`) {
		t.Errorf("/v1/loads as text: %s", text)
	}
	if e.Counters().IdleBlocks == 0 {
		t.Error("nothing is cached")
	}
	c.ok("/flush_cache", "")
	if n := e.Counters().IdleBlocks; n != 0 {
		t.Errorf("%d blocks survived the flush", n)
	}
}

func TestSGLangDiscoveryAndCounters(t *testing.T) {
	_, c := start(t, Options{Dialect: dialect.SGLang, Priority: true, QueueLimit: 7})
	info := c.ok("/server_info", "")
	if field(t, info, "page_size") != 16.0 || field(t, info, "max_queued_requests") != 7.0 || field(t, info, "kv_events") != nil {
		t.Errorf("/server_info: %s", info)
	}
	c.ok("/v1/chat/completions", chatBody(policy(320), "b", `,"max_tokens":4`))
	c.ok("/v1/chat/completions", chatBody(policy(320), "b", `,"max_tokens":4`))
	page := c.ok("/metrics", "")
	const front = `{engine_type="unified",model_name="tiny"}`
	if number(t, page, "sglang:num_requests_total"+front) != 2 || number(t, page, "sglang:generation_tokens_total"+front) != 8 ||
		number(t, page, `sglang:cached_tokens_total{cache_source="device",engine_type="unified",model_name="tiny"}`) != 336 {
		t.Error("the counters are wrong")
	}
	if n := strings.Count(page, "\nsglang:num_queue_reqs{"); n != 2 {
		t.Errorf("%d series of the queue gauge under priority scheduling, want the total and one more", n)
	}
	_, off := start(t, Options{Dialect: dialect.SGLang, NoMetrics: true})
	if resp, _ := off.do("/metrics", ""); resp.StatusCode != 404 {
		t.Errorf("/metrics without the flag is %d", resp.StatusCode)
	}
}

func TestAdaptersAtRunTime(t *testing.T) {
	for d, prefix := range map[dialect.Engine]string{dialect.VLLM: "/v1", dialect.SGLang: ""} {
		_, c := start(t, Options{Dialect: d, RuntimeLoRA: true})
		ids := func() string { return c.ok("/v1/models", "") }
		c.ok(prefix+"/load_lora_adapter", `{"lora_name":"x","lora_path":"/p"}`)
		if !strings.Contains(ids(), `"id":"x"`) {
			t.Errorf("%v: %s", d, ids())
		}
		c.ok(prefix+"/unload_lora_adapter", `{"lora_name":"x"}`)
		if strings.Contains(ids(), `"id":"x"`) {
			t.Errorf("%v: it is still there", d)
		}
		if resp, _ := c.do(prefix+"/unload_lora_adapter", `{"lora_name":"x"}`); resp.StatusCode != 404 {
			t.Errorf("%v: unloading it again is %d", d, resp.StatusCode)
		}
	}
	_, c := start(t, Options{})
	if resp, _ := c.do("/v1/load_lora_adapter", `{"lora_name":"x"}`); resp.StatusCode != 404 {
		t.Errorf("without the switch it is %d", resp.StatusCode)
	}
}

func TestLoadInPlainReplies(t *testing.T) {
	_, c := start(t, Options{LoadTracking: true})
	resp, _ := c.do("/v1/chat/completions", chatBody("a", "b", ""), "Endpoint-Load-Metrics-Format", "JSON")
	if h := resp.Header.Get("Endpoint-Load-Metrics"); !strings.HasPrefix(h, `JSON {"named_metrics": {"kv_cache_usage_perc": 0`) {
		t.Errorf("header %q", h)
	}
	e, l := start(t, Options{LoadTracking: true, Cost: slow})
	for range 3 {
		dial(t, l.url, "/v1/chat/completions", chatBody("a", "b", `,"max_tokens":5000,"ignore_eos":true`))
	}
	eventually(t, "three run", func() bool { return e.Counters().Running == 3 })
	if text := l.ok("/load", ""); text != `{"server_load":3}` {
		t.Errorf("/load: %s", text)
	}
}

func TestEmbeddingsAndUploads(t *testing.T) {
	_, c := start(t, Options{})
	text := c.ok("/v1/embeddings", `{"model":"tiny","input":["a","b"]}`)
	if n := len(field(t, text, "data").([]any)); n != 2 {
		t.Errorf("%d vectors: %s", n, text)
	}
	resp, _ := c.do("/v1/audio/transcriptions", "--x\r\n\r\n--x--", "Content-Type", "multipart/form-data; boundary=x")
	if resp.StatusCode != 200 {
		t.Errorf("upload: %d", resp.StatusCode)
	}
}

func TestOnRequestSeesTheBytes(t *testing.T) {
	var got Received
	_, c := start(t, Options{OnRequest: func(r Received) { r.Body = slices.Clone(r.Body); got = r }})
	body := ` {"model" : "tiny",  "messages":[] , "x":{"a":[1,null]}}`
	c.ok("/v1/chat/completions", body, "X-Mine", "1")
	if string(got.Body) != body || got.Header.Get("X-Mine") != "1" || got.Path != "/v1/chat/completions" {
		t.Errorf("%+v", got)
	}
}

func TestB64TLS(t *testing.T) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	tpl := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), DNSNames: []string{"engine-0.svc"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}}
	der, err := x509.CreateCertificate(rand.Reader, tpl, tpl, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	e, c := start(t, Options{TLS: &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}}})
	if _, _, err := c.try("/health", ""); err == nil {
		t.Error("an unknown authority was accepted")
	}
	pool := x509.NewCertPool()
	pool.AddCert(cert)
	c.http.Transport.(*http.Transport).TLSClientConfig = &tls.Config{RootCAs: pool}
	c.ok("/v1/chat/completions", chatBody("a", "b", ""))
	e.SetFault(Fault{Kind: FaultReset})
	if _, _, err := c.try("/v1/chat/completions", chatBody("a", "b", "")); err == nil {
		t.Error("the fault does not work under TLS")
	}
}

func BenchmarkHTTP240KB(b *testing.B) {
	e, err := New(Options{Model: "tiny", Preset: "instant"})
	if err != nil {
		b.Fatal(err)
	}
	defer e.Close()
	url, err := e.Start("")
	if err != nil {
		b.Fatal(err)
	}
	body := chatBody(policy(60_000), "what is the refund policy?", `,"max_tokens":16,"stream":true`)
	client := &http.Client{}
	defer client.CloseIdleConnections()
	b.SetBytes(int64(len(body)))
	for b.Loop() {
		resp, err := client.Post(url+"/v1/chat/completions", "application/json", strings.NewReader(body))
		if err != nil {
			b.Fatal(err)
		}
		for buf := make([]byte, 4096); ; {
			if _, err := resp.Body.Read(buf); err != nil {
				break
			}
		}
		resp.Body.Close()
	}
}
