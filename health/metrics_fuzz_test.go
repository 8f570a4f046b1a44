package health

import (
	"bytes"
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/prefixring/prefixring/internal/dialect"
)

func oracle(text []byte) (map[string]*dto.MetricFamily, error) {
	p := expfmt.NewTextParser(model.UTF8Validation)
	return p.TextToMetricFamilies(bytes.NewReader(text))
}

func BenchmarkParseExpfmt(b *testing.B) {
	text := page(b, "vllm_metrics.txt")
	b.SetBytes(int64(len(text)))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := oracle(text); err != nil {
			b.Fatal(err)
		}
	}
}

// FuzzParseNeverTrips feeds anything: no panic, no nonsense in the result, and the same
// result however the page is split over reads.
func FuzzParseNeverTrips(f *testing.F) {
	// Whole pages would make the fuzzer spend its time on shrinking them.
	text := page(f, "vllm_metrics_saturated.txt")
	at := bytes.Index(text, []byte("# HELP vllm:num_requests_running"))
	f.Add(text[at:at+2000], uint16(7), false)
	f.Add(page(f, "sglang_metrics.txt")[:1500], uint16(1), true)
	f.Add([]byte("vllm:num_requests_running{engine=\"0\",} 3\nvllm:kv_cache_usage_perc 42\n"), uint16(3), false)
	f.Add([]byte("vllm:cache_config_info{num_gpu_blocks=\"1e400\",block_size=\"-1\"} 1\n"), uint16(3), false)
	f.Fuzz(func(t *testing.T, text []byte, size uint16, sglang bool) {
		e := dialect.VLLM
		if sglang {
			e = dialect.SGLang
		}
		var whole, split Signals
		err := ParseMetrics(text, e, &whole)
		var p parser
		p.reset(e, &split)
		var err2 error
		n := int(size)%97 + 1
		for rest := text; len(rest) > 0 && err2 == nil; rest = rest[min(n, len(rest)):] {
			err2 = p.write(rest[:min(n, len(rest))])
		}
		if err2 == nil {
			err2 = p.end()
		}
		if (err == nil) != (err2 == nil) && len(text) < maxLine {
			t.Fatalf("whole page: %v, split page: %v", err, err2)
		}
		if err != nil || err2 != nil {
			return
		}
		a, b := fmt.Sprintf("%+v", whole), fmt.Sprintf("%+v", split)
		if a != b {
			t.Fatalf("split page differs:\n%s\n%s", a, b)
		}
		for name, v := range map[string]float64{
			"running": whole.Running, "waiting": whole.Waiting, "queries": whole.PrefixQueries, "load": whole.Load(),
		} {
			if v < 0 || math.IsInf(v, -1) {
				t.Fatalf("%s = %v", name, v)
			}
		}
		if whole.KVUsage < 0 || whole.KVUsage > 1 || whole.KVTokens < 0 || whole.BlockSize < 0 {
			t.Fatalf("KV %v, tokens %d, block %d", whole.KVUsage, whole.KVTokens, whole.BlockSize)
		}
	})
}

// FuzzParseAgainstExpfmt makes pages of known and unknown families in random order,
// with random label orders and values, and compares with a full parser's sums.
func FuzzParseAgainstExpfmt(f *testing.F) {
	for i := range uint64(20) {
		f.Add(i)
	}
	f.Fuzz(func(t *testing.T, seed uint64) {
		text := randomPage(rand.New(rand.NewPCG(seed, 1)))
		families, err := oracle([]byte(text))
		if err != nil {
			t.Fatalf("the made page is not valid: %v\n%s", err, text)
		}
		var s Signals
		if err := ParseMetrics([]byte(text), dialect.VLLM, &s); err != nil {
			t.Fatal(err)
		}
		for name, got := range map[string]float64{
			"vllm:num_requests_running": s.Running, "vllm:num_requests_waiting": s.Waiting,
			"vllm:prompt_tokens_total": s.PromptTokens, "vllm:generation_tokens_total": s.GenerationTokens,
			"vllm:num_preemptions_total": s.Preemptions, "vllm:request_success_total": s.Finished,
		} {
			if want := sumOf(families[name]); !same(got, want) && math.Abs(got-want) > 1e-9*math.Abs(want) {
				t.Errorf("%s = %v, expfmt says %v\n%s", name, got, want, text)
			}
		}
		if want := maxOf(families["vllm:kv_cache_usage_perc"]); !same(s.KVUsage, want) {
			t.Errorf("KV usage = %v, expfmt says %v\n%s", s.KVUsage, want, text)
		}
	})
}

func valueOf(m *dto.Metric) float64 {
	switch {
	case m.Gauge != nil:
		return m.Gauge.GetValue()
	case m.Counter != nil:
		return m.Counter.GetValue()
	}
	return m.Untyped.GetValue()
}

func sumOf(f *dto.MetricFamily) float64 {
	if f == nil {
		return math.NaN()
	}
	total := 0.0
	for _, m := range f.Metric {
		v := valueOf(m)
		if v < 0 || math.IsInf(v, 0) {
			v = math.NaN()
		}
		total += v
	}
	return total
}

func maxOf(f *dto.MetricFamily) float64 {
	best := math.NaN()
	if f == nil {
		return best
	}
	for _, m := range f.Metric {
		if v := valueOf(m); v >= 0 && v <= 1 && !(best >= v) {
			best = v
		}
	}
	return best
}

func randomPage(r *rand.Rand) string {
	names := []struct{ name, kind string }{
		{"vllm:num_requests_running", "gauge"}, {"vllm:num_requests_waiting", "gauge"},
		{"vllm:prompt_tokens_total", "counter"}, {"vllm:generation_tokens_total", "counter"},
		{"vllm:num_preemptions_total", "counter"}, {"vllm:request_success_total", "counter"},
		{"vllm:kv_cache_usage_perc", "gauge"}, {"vllm:num_requests_running_max", "gauge"},
		{"vllm:prompt_tokens_created", "gauge"}, {"python_info", "gauge"}, {"http_requests_total", "counter"},
	}
	r.Shuffle(len(names), func(i, j int) { names[i], names[j] = names[j], names[i] })
	var b strings.Builder
	for _, n := range names[:1+r.IntN(len(names))] {
		if r.IntN(3) > 0 {
			fmt.Fprintf(&b, "# HELP %s Some {help} \"text\" 1.0\n# TYPE %s %s\n", n.name, n.name, n.kind)
		}
		for rank := range 1 + r.IntN(4) {
			b.WriteString(n.name)
			if labels := randomLabels(r, rank); r.IntN(8) > 0 || rank > 0 {
				fmt.Fprintf(&b, "{%s}", labels)
			}
			fmt.Fprintf(&b, "%s%s", strings.Repeat(" ", 1+r.IntN(2)), randomValue(r))
			if r.IntN(6) == 0 {
				b.WriteString(" 1700000000000")
			}
			b.WriteByte('\n')
		}
	}
	return b.String()
}

func randomLabels(r *rand.Rand, rank int) string {
	all := []string{
		fmt.Sprintf("engine=\"%d\"", rank), `model_name="a/b:c"`, `odd="x}\",engine=\"7"`,
		`path="C:\\"`, fmt.Sprintf("n = \"%d\"", r.IntN(9)),
	}
	r.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	s := strings.Join(all, []string{",", ", "}[r.IntN(2)])
	if r.IntN(4) == 0 {
		s += ","
	}
	return s
}

func randomValue(r *rand.Rand) string {
	return []string{
		"0", "0.0", "1", fmt.Sprint(r.IntN(1000)), fmt.Sprint(r.Float64()), fmt.Sprintf("%e", r.Float64()*1e9),
		"NaN", "+Inf", "-Inf", "-3", "1e+06", "0.42",
	}[r.IntN(12)]
}
