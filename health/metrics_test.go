package health

import (
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/prefixring/prefixring/internal/dialect"
)

func parse(t *testing.T, text string, e dialect.Engine) *Signals {
	t.Helper()
	var s Signals
	if err := ParseMetrics([]byte(text), e, &s); err != nil {
		t.Fatalf("ParseMetrics: %v", err)
	}
	return &s
}

// same compares numbers with NaN equal to itself.
func same(a, b float64) bool { return a == b || math.IsNaN(a) && math.IsNaN(b) }

func want(t *testing.T, name string, got, want float64) {
	t.Helper()
	if !same(got, want) {
		t.Errorf("%s = %v, want %v", name, got, want)
	}
}

func TestParseCapturedVLLMPage(t *testing.T) {
	s := parse(t, string(page(t, "vllm_metrics_saturated.txt")), dialect.VLLM)
	want(t, "running", s.Running, 1)
	want(t, "waiting", s.Waiting, 9)
	want(t, "waiting for capacity", s.WaitingCapacity, 9)
	want(t, "KV usage", s.KVUsage, 0.1853281853281853)
	want(t, "prefix queries", s.PrefixQueries, 8204)
	want(t, "prefix hits", s.PrefixHits, 0)
	want(t, "preemptions", s.Preemptions, 0)
	want(t, "evictable", s.EvictableTokens, math.NaN())
	want(t, "start time", s.StartTime, 1.79599602355e+09)
	if s.KVTokens != 33280 || s.BlockSize != 128 || s.PrefixCaching != Yes || s.Sleep != Awake {
		t.Errorf("shape: KV tokens %d, block %d, caching %d, sleep %d", s.KVTokens, s.BlockSize, s.PrefixCaching, s.Sleep)
	}
	if len(s.Ranks) != 1 || s.Ranks[0].Label != "0" {
		t.Errorf("ranks = %+v, want the one of engine 0", s.Ranks)
	}
}

func TestParseSGLangPage(t *testing.T) {
	s := parse(t, string(page(t, "sglang_metrics.txt")), dialect.SGLang)
	want(t, "running without the priorities' series", s.Running, 37)
	want(t, "waiting without the priorities' series", s.Waiting, 4)
	want(t, "waiting for capacity", s.WaitingCapacity, 4)
	want(t, "KV usage", s.KVUsage, 0.42)
	want(t, "hits from the total, not total plus parts", s.PrefixHits, 5.3e6)
	want(t, "queries", s.PrefixQueries, 9.1e6)
	want(t, "preemptions", s.Preemptions, 3)
	want(t, "finished", s.Finished, 812)
	want(t, "queue seconds", s.QueueSeconds, 96.5)
	want(t, "evictable", s.EvictableTokens, 181000)
	if s.KVTokens != 467520 || s.BlockSize != 64 {
		t.Errorf("KV tokens %d, block size %d", s.KVTokens, s.BlockSize)
	}
}

func TestB42KVUsageUnderEveryName(t *testing.T) {
	const old, recent = "vllm:gpu_cache_usage_perc{model_name=\"m\"} ", "vllm:kv_cache_usage_perc{engine=\"0\"} "
	for _, c := range []struct {
		name, text string
		engine     dialect.Engine
		want       float64
	}{
		{"old name", old + "0.42\n", dialect.VLLM, 0.42},
		{"new name", recent + "0.42\n", dialect.VLLM, 0.42},
		{"both, new wins", old + "0.1\n" + recent + "0.42\n", dialect.VLLM, 0.42},
		{"both, the other order", recent + "0.42\n" + old + "0.9\n", dialect.VLLM, 0.42},
		{"neither is unknown", "vllm:num_requests_running 3\n", dialect.VLLM, math.NaN()},
		{"sglang", "sglang:token_usage{tp_rank=\"0\"} 0.42\n", dialect.SGLang, 0.42},
		{"percent", recent + "42\n", dialect.VLLM, math.NaN()},
		{"NaN", recent + "NaN\n", dialect.VLLM, math.NaN()},
		{"infinite", recent + "+Inf\n", dialect.VLLM, math.NaN()},
		{"negative", recent + "-0.1\n", dialect.VLLM, math.NaN()},
		{"rounded above one", recent + "1.0000001\n", dialect.VLLM, 1},
		{"zero is a number", recent + "0\n", dialect.VLLM, 0},
		{"nonsense under the new name does not fall back", old + "0.3\n" + recent + "42\n", dialect.VLLM, math.NaN()},
	} {
		t.Run(c.name, func(t *testing.T) {
			want(t, "KV usage", parse(t, c.text, c.engine).KVUsage, c.want)
		})
	}
}

func TestB55RanksOfOnePage(t *testing.T) {
	var b strings.Builder
	for i, kv := range []string{"0.2", "0.95", "0.1", "0.3"} {
		fmt.Fprintf(&b, "vllm:num_requests_running{model_name=\"m\",engine=\"%d\"} %d\n", i, i+1)
		fmt.Fprintf(&b, "vllm:num_requests_waiting{engine=\"%d\",model_name=\"m\"} 2\n", i)
		fmt.Fprintf(&b, "vllm:kv_cache_usage_perc{engine=\"%d\",model_name=\"m\"} %s\n", i, kv)
		fmt.Fprintf(&b, "vllm:cache_config_info{num_gpu_blocks=\"100\",block_size=\"16\",engine=\"%d\"} 1.0\n", i)
	}
	s := parse(t, b.String(), dialect.VLLM)
	want(t, "running is the sum", s.Running, 10)
	want(t, "waiting is the sum", s.Waiting, 8)
	want(t, "KV usage is the fullest", s.KVUsage, 0.95)
	if s.KVTokens != 6400 || len(s.Ranks) != 4 {
		t.Fatalf("KV tokens %d, %d ranks", s.KVTokens, len(s.Ranks))
	}
	one := s.ofRank("2")
	want(t, "running of rank 2", one.Running, 3)
	want(t, "KV usage of rank 2", one.KVUsage, 0.1)
	if one.KVTokens != 1600 {
		t.Errorf("KV tokens of rank 2 = %d", one.KVTokens)
	}
	none := s.ofRank("9")
	want(t, "running of a rank that is not there", none.Running, math.NaN())
}

// With DP attention each SGLang rank has its own range of tensor ranks, so that rank 1
// never shows tp_rank="0"; with metrics for all schedulers every tensor rank repeats.
func TestParseSGLangTensorRanks(t *testing.T) {
	text := `sglang:num_running_reqs{dp_rank="0",tp_rank="1"} 5
sglang:num_running_reqs{dp_rank="0",tp_rank="0"} 5
sglang:num_running_reqs{dp_rank="1",tp_rank="2"} 7
sglang:num_running_reqs{dp_rank="1",tp_rank="3"} 7
sglang:prompt_tokens_total 100
`
	s := parse(t, text, dialect.SGLang)
	want(t, "running", s.Running, 12)
	want(t, "prompt tokens", s.PromptTokens, 100)
	if len(s.Ranks) != 2 {
		t.Errorf("ranks = %+v, want 2: the front end's counters are no rank", s.Ranks)
	}
}

func TestParseIgnoresCreatedSeries(t *testing.T) {
	s := parse(t, "vllm:prompt_tokens_created 1.7e9\nvllm:prompt_tokens_total 5\nvllm:generation_tokens_created 1.7e9\n", dialect.VLLM)
	want(t, "prompt tokens", s.PromptTokens, 5)
	want(t, "generation tokens", s.GenerationTokens, math.NaN())
}

func TestParseNonsenseInOneRankSpoilsTheSum(t *testing.T) {
	s := parse(t, "vllm:num_requests_waiting{engine=\"0\"} 3\nvllm:num_requests_waiting{engine=\"1\"} NaN\n", dialect.VLLM)
	want(t, "waiting", s.Waiting, math.NaN())
	want(t, "waiting of rank 0", s.Ranks[0].Waiting, 3)
}

func TestParseSyntax(t *testing.T) {
	for _, c := range []struct {
		name, text string
		want       float64 // running
	}{
		{"no labels", "vllm:num_requests_running 3\n", 3},
		{"tabs and time stamp", "vllm:num_requests_running\t3\t1700000000000\n", 3},
		{"spaces everywhere", " vllm:num_requests_running { engine = \"0\" , } 3 \n", 3},
		{"carriage return", "vllm:num_requests_running{engine=\"0\"} 3\r\n", 3},
		{"braces and escapes in a value", `vllm:num_requests_running{model_name="a}\"b\\",engine="0"} 3` + "\n", 3},
		{"exponent", "vllm:num_requests_running 3e+0\n", 3},
		{"longer name", "vllm:num_requests_running_total 3\n", math.NaN()},
		{"cut label block", "vllm:num_requests_running{engine=\"0 3\n", math.NaN()},
		{"no value", "vllm:num_requests_running{engine=\"0\"}\n", math.NaN()},
		{"text for a value", "vllm:num_requests_running three\n", math.NaN()},
		{"a bad line does not spoil the next", "vllm:num_requests_running x\nvllm:num_requests_running 3\n", 3},
		{"comment", "# vllm:num_requests_running 4\nvllm:num_requests_running 3\n", 3},
	} {
		t.Run(c.name, func(t *testing.T) {
			want(t, "running", parse(t, c.text, dialect.VLLM).Running, c.want)
		})
	}
}

func TestParseRefusesBrokenPages(t *testing.T) {
	whole := string(page(t, "vllm_metrics.txt"))
	at := strings.Index(whole, "vllm:num_requests_running{") + 20
	for _, c := range []struct {
		name, text string
		want       error
	}{
		{"cut within a line", whole[:at], ErrTruncated},
		{"no final line feed", strings.TrimRight(whole, "\n"), ErrTruncated},
		{"HTML", "<html><body>502</body></html>\n", ErrNotMetrics},
		{"JSON", "{\"detail\":\"Not Found\"}\n", ErrNotMetrics},
		{"endless line", strings.Repeat("x", maxLine+1), ErrNotMetrics},
	} {
		t.Run(c.name, func(t *testing.T) {
			var s Signals
			if err := ParseMetrics([]byte(c.text), dialect.VLLM, &s); !errors.Is(err, c.want) {
				t.Errorf("error = %v, want %v", err, c.want)
			}
		})
	}
}

func TestParseOtherProgramsPageHasNoSamples(t *testing.T) {
	if s := parse(t, "go_goroutines 9\n", dialect.VLLM); s.Samples != 0 || !math.IsNaN(s.Running) {
		t.Errorf("samples = %d, running = %v", s.Samples, s.Running)
	}
	if s := parse(t, string(page(t, "sglang_metrics.txt")), dialect.VLLM); s.Samples != 0 {
		t.Errorf("an SGLang page read as vLLM's gave %d samples", s.Samples)
	}
}

func TestParseLoRANewestSampleWins(t *testing.T) {
	s := parse(t, `vllm:lora_requests_info{max_lora="4",running_lora_adapters="a,b",waiting_lora_adapters=""} 1.70e9
vllm:lora_requests_info{max_lora="4",running_lora_adapters="c",waiting_lora_adapters="d"} 1.71e9
vllm:lora_requests_info{max_lora="4",running_lora_adapters="",waiting_lora_adapters=""} 1.60e9
`, dialect.VLLM)
	if s.LoRARunning != "c" || s.LoRAWaiting != "d" || s.LoRAMax != 4 {
		t.Errorf("LoRA = %q, %q, %d", s.LoRARunning, s.LoRAWaiting, s.LoRAMax)
	}
}

func TestParseSleepState(t *testing.T) {
	line := func(engine, state string, v int) string {
		return fmt.Sprintf("vllm:engine_sleep_state{engine=%q,sleep_state=%q} %d.0\n", engine, state, v)
	}
	for _, c := range []struct {
		name, text string
		want       Sleep
	}{
		{"absent", "vllm:num_requests_running 0\n", SleepUnknown},
		{"awake", line("0", "awake", 1) + line("0", "discard_all", 0), Awake},
		{"offloaded", line("0", "weights_offloaded", 1) + line("0", "awake", 0), Sleeping},
		{"one rank of two", line("0", "awake", 1) + line("1", "awake", 0) + line("1", "discard_all", 1), Sleeping},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := parse(t, c.text, dialect.VLLM).Sleep; got != c.want {
				t.Errorf("sleep = %d, want %d", got, c.want)
			}
		})
	}
}

// Every name that the dialect package knows must be one that the parser reads, or one
// that is left out here for a reason.
func TestParserKnowsTheDialectsNames(t *testing.T) {
	unread := map[string]bool{"vllm:prompt_tokens_cached_total": true} // prefix hits tell the same
	for _, e := range []dialect.Engine{dialect.VLLM, dialect.SGLang} {
		for _, m := range dialect.MetricTable(e) {
			if lookup(e, []byte(m.Name)) == fNone && !unread[m.Name] {
				t.Errorf("%v: %s is not read", e, m.Name)
			}
		}
	}
}

func TestParseDoesNotAllocate(t *testing.T) {
	text := page(t, "vllm_metrics.txt")
	var s Signals
	if err := ParseMetrics(text, dialect.VLLM, &s); err != nil {
		t.Fatal(err)
	}
	if n := testing.AllocsPerRun(50, func() { _ = ParseMetrics(text, dialect.VLLM, &s) }); n != 0 {
		t.Errorf("%v allocations per page, want 0", n)
	}
}
