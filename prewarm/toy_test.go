package prewarm

import (
	"container/list"
	"context"
	"encoding/json"
	"fmt"
	"hash/fnv"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fakeClock moves only when somebody sleeps on it or a toy engine computes.
type fakeClock struct {
	mu  sync.Mutex
	now time.Time
}

var t0 = time.Date(2026, 11, 11, 11, 0, 0, 0, time.UTC) // 19:00 in Shanghai

func newFakeClock() *fakeClock { return &fakeClock{now: t0} }

func (c *fakeClock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *fakeClock) advance(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
}

func (c *fakeClock) Sleep(ctx context.Context, d time.Duration) error {
	c.advance(d)
	return ctx.Err()
}

// toy is an engine with a toy chat template, a tokenizer that takes words, and a real
// block cache with LRU eviction: what a proof has to be right about.
type toy struct {
	name     string
	model    string
	block    int
	capacity int // blocks
	report   bool
	sglang   bool
	tokenize bool
	metrics  bool
	hybrid   bool    // keeps a shared part only once two prompts have diverged from it
	dated    bool    // the template writes today's date in Shanghai first
	ranks    int     // data-parallel ranks behind this port, each with its own cache
	rate     float64 // tokens per second of prefill on the clock
	clock    *fakeClock

	mu       sync.Mutex
	lru      *list.List
	blocks   map[uint64]*list.Element
	queries  int
	hits     int
	waiting  int
	next     int // the rank of the next request
	running  int
	asleep   bool
	cold     int // prefills that found less than half of the prompt
	bodies   [][]byte
	headers  []http.Header
	before   func(path string) int // a status to answer with instead, 0 = none
	seen     [][]int32             // earlier prompts, for hybrid
	inFlight atomic.Int64
	most     atomic.Int64

	server *httptest.Server
}

func newToy(t *testing.T, name string, clock *fakeClock) *toy {
	t.Helper()
	e := &toy{
		name: name, model: "m", block: 16, capacity: 1 << 20, report: true, tokenize: true, metrics: true, rate: 10_000,
		clock: clock, lru: list.New(), blocks: map[uint64]*list.Element{},
	}
	e.server = httptest.NewServer(e)
	t.Cleanup(func() { e.server.CloseClientConnections(); e.server.Close() })
	return e
}

func (e *toy) node() Node {
	n := Node{Ranks: e.ranks, Name: e.name, URL: e.server.URL, BlockSize: int64(e.block), KVTokens: int64(e.block * e.capacity), PrefillRate: e.rate, APIKey: func() string { return "k-" + e.name }}
	if e.sglang {
		n.Engine = 1
	}
	return n
}

func (e *toy) restart() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.lru.Init()
	e.blocks = map[uint64]*list.Element{}
	e.queries, e.hits, e.cold = 0, 0, 0
}

func (e *toy) set(f func()) {
	e.mu.Lock()
	defer e.mu.Unlock()
	f()
}

func (e *toy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var body map[string]json.RawMessage
	raw := readAll(r)
	_ = json.Unmarshal(raw, &body)
	e.mu.Lock()
	before := e.before
	e.headers = append(e.headers, r.Header.Clone())
	e.mu.Unlock()
	if before != nil {
		if status := before(r.URL.Path); status != 0 {
			w.WriteHeader(status)
			fmt.Fprint(w, `{"error":{"message":"the prompt was: secret","type":"InternalServerError"}}`)
			return
		}
	}
	w.Header().Set("Content-Type", "application/json")
	switch r.URL.Path {
	case "/metrics":
		e.page(w)
	case "/v1/models":
		fmt.Fprintf(w, `{"object":"list","data":[{"id":%q,"object":"model"}]}`, e.model)
	case "/tokenize":
		if !e.tokenize {
			http.NotFound(w, r)
			return
		}
		tokens := e.render("chat", body)
		if body["prompt"] != nil {
			tokens = e.render("completions", body)
		}
		_ = json.NewEncoder(w).Encode(map[string]any{"count": len(tokens), "tokens": tokens})
	case "/v1/chat/completions":
		e.generate(w, raw, body, "chat", `{"id":"x","object":"chat.completion","choices":[{"index":0,"message":{"role":"assistant","content":"a"},"finish_reason":"length"}],"usage":{"prompt_tokens":%d,"total_tokens":%d,"completion_tokens":1%s}}`)
	case "/v1/completions":
		e.generate(w, raw, body, "completions", `{"id":"x","object":"text_completion","choices":[{"index":0,"text":"a","finish_reason":"length"}],"usage":{"prompt_tokens":%d,"total_tokens":%d,"completion_tokens":1%s}}`)
	default:
		http.NotFound(w, r)
	}
}

func readAll(r *http.Request) []byte {
	var b strings.Builder
	buf := make([]byte, 32<<10)
	for {
		n, err := r.Body.Read(buf)
		b.Write(buf[:n])
		if err != nil {
			return []byte(b.String())
		}
	}
}

func (e *toy) page(w http.ResponseWriter) {
	e.mu.Lock()
	defer e.mu.Unlock()
	w.Header().Set("Content-Type", "text/plain")
	if !e.metrics {
		w.WriteHeader(http.StatusNotFound)
		return
	}
	if e.sglang {
		fmt.Fprintf(w, "sglang:num_running_reqs{model_name=\"m\"} %d\nsglang:num_queue_reqs{model_name=\"m\"} %d\nsglang:token_usage{model_name=\"m\"} 0\nsglang:prompt_tokens_total{model_name=\"m\"} %d\nsglang:cached_tokens_total{model_name=\"m\",cache_source=\"total\"} %d\n", e.running, e.waiting, e.queries, e.hits)
		return
	}
	l := `{engine="0",model_name="m"}`
	asleep := 0
	if e.asleep {
		asleep = 1
	}
	fmt.Fprintf(w, "vllm:num_requests_running%s %d\nvllm:num_requests_waiting%s %d\nvllm:kv_cache_usage_perc%s 0\nvllm:prefix_cache_queries_total%s %d\nvllm:prefix_cache_hits_total%s %d\n", l, e.running, l, e.waiting, l, l, e.queries, l, e.hits)
	fmt.Fprintf(w, "vllm:engine_sleep_state{engine=\"0\",model_name=\"m\",sleep_state=\"awake\"} %d\nvllm:engine_sleep_state{engine=\"0\",model_name=\"m\",sleep_state=\"discard_all\"} %d\n", 1-asleep, asleep)
	fmt.Fprintf(w, "vllm:cache_config_info{block_size=\"%d\",engine=\"0\",num_gpu_blocks=\"%d\"} 1\n", e.block, e.capacity)
}

// render is the toy template: tools before the system text, a thinking header that
// moves everything, the turns, the generation prompt.
func (e *toy) render(wire string, body map[string]json.RawMessage) []int32 {
	var b strings.Builder
	if e.dated {
		b.WriteString(e.clock.Now().In(time.FixedZone("CST", 8*3600)).Format("Today:2006-01-02 "))
	}
	if wire == "completions" {
		var prompt string
		_ = json.Unmarshal(body["prompt"], &prompt)
		return words(prompt)
	}
	if args := string(body["chat_template_kwargs"]); strings.Contains(args, "true") {
		b.WriteString("<think> on ")
	}
	if tools := body["tools"]; tools != nil {
		b.WriteString("<tools> " + string(tools) + " ")
	}
	var messages []struct {
		Role    string          `json:"role"`
		Content json.RawMessage `json:"content"`
	}
	_ = json.Unmarshal(body["messages"], &messages)
	for _, m := range messages {
		b.WriteString("<" + m.Role + "> " + contentText(m.Content) + " ")
	}
	b.WriteString("<assistant>")
	return words(b.String())
}

func contentText(raw json.RawMessage) string {
	var s string
	if json.Unmarshal(raw, &s) == nil {
		return s
	}
	var parts []struct {
		Text string `json:"text"`
	}
	_ = json.Unmarshal(raw, &parts)
	for _, p := range parts {
		s += p.Text
	}
	return s
}

func words(s string) []int32 {
	var out []int32
	for _, w := range strings.Fields(s) {
		h := fnv.New32a()
		h.Write([]byte(w))
		out = append(out, int32(h.Sum32()>>1))
	}
	return out
}

// lookup finds the cached tokens of a prompt and then holds all its whole blocks.
func (e *toy) lookup(salt string, tokens []int32) int {
	h := fnv.New64a()
	h.Write([]byte(salt))
	cached, found := 0, true
	var mine []uint64
	for i := 0; i+e.block <= len(tokens); i += e.block {
		for _, t := range tokens[i : i+e.block] {
			fmt.Fprintf(h, "%d,", t)
		}
		key := h.Sum64()
		mine = append(mine, key)
		// The last token is always computed, so a full last block does not hit whole.
		if _, ok := e.blocks[key]; ok && found && i+e.block < len(tokens) {
			cached += e.block
		} else {
			found = false
		}
	}
	for _, key := range slices.Backward(mine) { // the tail is the first to go
		if el, ok := e.blocks[key]; ok {
			e.lru.MoveToFront(el)
		} else {
			e.blocks[key] = e.lru.PushFront(key)
		}
	}
	for len(e.blocks) > e.capacity {
		last := e.lru.Back()
		delete(e.blocks, last.Value.(uint64))
		e.lru.Remove(last)
	}
	return cached
}

// junction is the longest start of the prompt at which two earlier ones have parted.
func (e *toy) junction(tokens []int32) int {
	best := 0
	for i, a := range e.seen {
		for _, b := range e.seen[:i] {
			best = max(best, int(min(common(a, b), common(a, tokens))))
		}
	}
	e.seen = append(e.seen, tokens)
	return best / e.block * e.block
}

func (e *toy) generate(w http.ResponseWriter, raw []byte, body map[string]json.RawMessage, wire, shape string) {
	now := e.inFlight.Add(1)
	defer e.inFlight.Add(-1)
	for m := e.most.Load(); now > m && !e.most.CompareAndSwap(m, now); m = e.most.Load() {
	}
	var salt string
	_ = json.Unmarshal(body["cache_salt"], &salt)
	tokens := e.render(wire, body)
	e.mu.Lock()
	e.bodies = append(e.bodies, raw)
	if e.ranks > 1 {
		salt += fmt.Sprint("\x00", e.next%e.ranks)
		e.next++
	}
	cached := e.lookup(salt, tokens)
	if e.hybrid {
		cached = min(cached, e.junction(tokens))
	}
	e.queries += len(tokens)
	e.hits += cached
	if cached*2 < len(tokens) {
		e.cold++
	}
	report, sglang := e.report, e.sglang
	e.mu.Unlock()
	e.clock.advance(time.Duration(float64(len(tokens)-cached) / e.rate * float64(time.Second)))
	details := ""
	if report && (!sglang || cached > 0) {
		details = fmt.Sprintf(`,"prompt_tokens_details":{"cached_tokens":%d}`, cached)
	} else if !sglang {
		details = `,"prompt_tokens_details":null`
	}
	fmt.Fprintf(w, shape, len(tokens), len(tokens)+1, details)
}

// traffic sends a customer's request straight to the engine and returns its cached share.
func (e *toy) traffic(t *testing.T, body string) (prompt, cached int) {
	t.Helper()
	var m map[string]json.RawMessage
	if err := json.Unmarshal([]byte(body), &m); err != nil {
		t.Fatal(err)
	}
	var salt string
	_ = json.Unmarshal(m["cache_salt"], &salt)
	tokens := e.render("chat", m)
	e.mu.Lock()
	defer e.mu.Unlock()
	cached = e.lookup(salt, tokens)
	e.queries += len(tokens)
	e.hits += cached
	return len(tokens), cached
}

// policy is a system text of n words that starts with the given one.
func policy(first string, n int) string {
	var b strings.Builder
	b.WriteString(first)
	for i := 1; i < n; i++ {
		fmt.Fprintf(&b, " %s%d", first, i)
	}
	return b.String()
}

func manifest(t *testing.T, files map[string]string) *Manifest {
	t.Helper()
	m, err := LoadManifest(write(t, files))
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// write puts files into a directory and returns the path of manifest.yaml.
func write(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return filepath.Join(dir, "manifest.yaml")
}

func closedPort(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return "http://" + l.Addr().String()
}
