package bench

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prefixring/prefixring/internal/dialect"
)

func mooncake(t *testing.T, name string) *Trace {
	t.Helper()
	tr, err := OpenTrace("mooncake", "testdata/"+name, 2, ClaudeOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return tr
}

func TestTracesAreOpenedByKind(t *testing.T) {
	tr, err := OpenTrace("azure", "testdata/azure_llm_2023_code.csv.gz", 0, ClaudeOptions{})
	if err != nil || len(tr.Requests) != 8819 || tr.Ceiling() != 0 {
		t.Errorf("azure: %v", err)
	}
	dir := t.TempDir()
	one := `{"id":"a","block_size":64,"tool_tokens":64,"system_tokens":64,"requests":[{"t":0,"in":192,"out":3,"hash_ids":[1,2,3]}]}`
	for i, id := range []string{"a", "b"} {
		if err := os.WriteFile(filepath.Join(dir, fmt.Sprintf("trace_%d.json", i)), []byte(strings.Replace(one, `"a"`, `"`+id+`"`, 1)), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	tr, err = OpenTrace("claude", dir, 0, ClaudeOptions{Variants: 1})
	if err != nil || len(tr.Requests) != 2 || tr.Requests[0].System != 2 {
		t.Fatalf("claude: %v %+v", err, tr)
	}
	// Two of three blocks are the tools and system text that both conversations share.
	near(t, "ceiling", tr.Ceiling(), 2.0/6, 1e-9)
	for kind, path := range map[string]string{"mooncake": "testdata/none", "claude": "testdata/none", "nonsense": dir} {
		if _, err := OpenTrace(kind, path, 0, ClaudeOptions{}); err == nil {
			t.Errorf("%s %s was read", kind, path)
		}
	}
}

// NVIDIA states 36.64 % for this trace, and 64.0 % is known for the synthetic one: the
// reader and the ceiling are right if both come out.
func TestMooncakeCeilingIsThePublishedOne(t *testing.T) {
	conv, synth := mooncake(t, "mooncake_conversation_trace.jsonl.gz"), mooncake(t, "mooncake_synthetic_trace.jsonl.gz")
	if len(conv.Requests) != 12031 || len(synth.Requests) != 3993 {
		t.Fatalf("%d and %d requests, want 12,031 and 3,993", len(conv.Requests), len(synth.Requests))
	}
	near(t, "conversation ceiling", 100*conv.Ceiling(), 36.64, 0.5)
	near(t, "synthetic ceiling", 100*synth.Ceiling(), 64.0, 0.5)
}

func TestEqualBlocksAreEqualBytesAndConversationsHaveTurns(t *testing.T) {
	tr, err := mooncake(t, "mooncake_synthetic_trace.jsonl.gz").Shape(ReplayOptions{})
	if err != nil {
		t.Fatal(err)
	}
	o := Options{Model: "m", Nonce: "n"}
	c := newComposer(&o)
	checked := 0
	for i := range tr.Requests {
		q := &tr.Requests[i]
		if len(q.Turns) == 0 || checked == 20 {
			continue
		}
		checked++
		var body struct {
			Messages []struct{ Role, Content string }
		}
		if err := json.Unmarshal(c.traceBody(tr, q, nil).rest, &body); err != nil {
			t.Fatal(err)
		}
		if want := 2 + 2*len(q.Turns); len(body.Messages) != want {
			t.Fatalf("request %d has %d messages, want %d", i, len(body.Messages), want)
		}
		words := 0
		for j, m := range body.Messages {
			words += len(m.Content) / BytesPerToken
			if role := []string{"user", "assistant"}[(j+1)%2]; j > 0 && m.Role != role {
				t.Fatalf("message %d is of %s, want %s", j, m.Role, role)
			}
		}
		near(t, "words in the prompt", float64(words), float64(q.Input), 3)
		// The parent's bytes must come again, up to the end of its last message.
		for k := range tr.Requests[:i] {
			p := &tr.Requests[k]
			if len(p.Blocks) != q.Turns[len(q.Turns)-1] || p.Blocks[len(p.Blocks)-1] != q.Blocks[len(p.Blocks)-1] {
				continue
			}
			a, b := string(c.traceBody(tr, p, nil).rest), string(c.traceBody(tr, q, nil).rest)
			common := a[:strings.LastIndex(a, `"}],"max_tokens"`)]
			if !strings.HasPrefix(b, common) {
				t.Fatalf("request %d does not begin with the bytes of its earlier turn %d", i, k)
			}
		}
	}
	if checked < 20 {
		t.Errorf("only %d conversations in the trace", checked)
	}
}

func TestBrokenTraceLineIsNamedByNumber(t *testing.T) {
	good := `{"timestamp":0,"input_length":600,"output_length":5,"hash_ids":[1,2]}` + "\n"
	for _, bad := range []string{
		`{"timestamp":0,"input_length":600`, `{"timestamp":0,"input_length":600,"output_length":5,"hash_ids":[1]}`,
		`{"input_length":600,"output_length":5,"hash_ids":[1,2]}`, `{"timestamp":-1,"input_length":600,"output_length":5,"hash_ids":[1,2]}`, `nonsense`,
	} {
		tr, err := ReadMooncake(strings.NewReader(good+"\n"+bad+"\n"+good), 1)
		var te *TraceError
		if !errors.As(err, &te) || te.Line != 3 || len(tr.Requests) != 1 {
			t.Errorf("%s: error %v with %d requests, want line 3 named and what came before kept", bad, err, len(tr.Requests))
		}
	}
	for name, read := range map[string]func(string) error{
		"azure":    func(s string) error { _, err := ReadAzure(strings.NewReader(s)); return err },
		"servegen": func(s string) error { _, err := ReadServeGen(strings.NewReader(s)); return err },
		"lines":    func(s string) error { _, err := ReadLines(strings.NewReader(s)); return err },
	} {
		for _, in := range map[string][]string{
			"azure":    {"TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.97,48x,10\n", "TIMESTAMP,ContextTokens,GeneratedTokens\nyesterday,48,10\n"},
			"servegen": {"0,1,1,Gamma,1,1\n600,x,1,Gamma,1,1\n", "0,1,1,Gamma,1,1\n600,-1,1,Gamma,1,1\n"},
			"lines":    {"{\"model\":\"m\"}\n{\"model\":", "{\"at\":1,\"body\":{}}\n{\"at\":0,\"body\":{}}\n", "{\"a\":1}\n{\"body\":[]}\n"},
		}[name] {
			var te *TraceError
			if err := read(in); !errors.As(err, &te) || te.Line != 2 {
				t.Errorf("%s %q: %v, want line 2 named", name, in, err)
			}
		}
	}
}

func TestJitterSpeedAndCaps(t *testing.T) {
	tr := mooncake(t, "mooncake_conversation_trace.jsonl.gz")
	out, err := tr.Shape(ReplayOptions{Speed: 4, Jitter: 3 * time.Second, MaxInput: 4000, MaxOutput: 50, Limit: 5000, Seed: 1})
	if err != nil {
		t.Fatal(err)
	}
	distinct := map[time.Duration]bool{}
	for i, q := range out.Requests {
		distinct[q.At] = true
		if q.Input > 4000 || q.Output > 50 || len(q.Blocks) > 8 || (i > 0 && q.At < out.Requests[i-1].At) {
			t.Fatalf("request %d is not as asked: %+v", i, q)
		}
	}
	if len(out.Requests) != 5000 || len(distinct) < 4990 {
		t.Errorf("%d requests at %d distinct times, want 5,000 off the 3 s ticks", len(out.Requests), len(distinct))
	}
	again, _ := tr.Shape(ReplayOptions{Speed: 4, Jitter: 3 * time.Second, MaxInput: 4000, MaxOutput: 50, Limit: 5000, Seed: 1})
	for i := range again.Requests {
		if again.Requests[i].At != out.Requests[i].At {
			t.Fatal("one seed gave two different replays")
		}
	}
	if _, err := tr.Shape(ReplayOptions{Speed: -1}); !errors.Is(err, ErrUsage) {
		t.Errorf("a negative speed gave %v", err)
	}
}

func TestServeGenWindowsKeepRateAndBurstiness(t *testing.T) {
	w, err := ReadServeGen(strings.NewReader("0,10,2.0,Gamma,0.25,0.4\n600,20,1.0,Gamma,1,0.05\n"))
	if err != nil {
		t.Fatal(err)
	}
	times := ScheduleWindows(w, time.Hour, 1, 1, 7)
	var gaps []float64
	first := 0
	for i, at := range times {
		if at < 600*time.Second {
			first++
			if i > 0 {
				gaps = append(gaps, (at - times[i-1]).Seconds())
			}
		}
	}
	near(t, "requests in the first window", float64(first), 6000, 400)
	near(t, "requests in the second window", float64(len(times)-first), 12000, 500)
	mean, sq := 0.0, 0.0
	for _, g := range gaps {
		mean += g / float64(len(gaps))
	}
	for _, g := range gaps {
		sq += (g - mean) * (g - mean) / float64(len(gaps))
	}
	near(t, "coefficient of variation", math.Sqrt(sq)/mean, 2, 0.25)
}

func TestReplayKeepsSessionsInOrderWithThinkTime(t *testing.T) {
	c := NewClaudeTraces(ClaudeOptions{})
	for _, f := range []string{
		`{"id":"a","block_size":64,"tool_tokens":64,"system_tokens":64,"requests":[{"t":0,"in":192,"out":3,"hash_ids":[1,2,3]},{"t":9,"in":320,"out":3,"hash_ids":[1,2,3,4,5],"think_time":7}]}`,
		`{"id":"b","block_size":64,"tool_tokens":64,"system_tokens":64,"requests":[{"t":0,"in":192,"out":3,"hash_ids":[1,2,3]}]}`,
	} {
		if err := c.Add(strings.NewReader(f)); err != nil {
			t.Fatal(err)
		}
	}
	tr, err := c.Trace()
	if err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	records := map[int]Record{}
	o := Options{Protocol: dialect.Chat, OnRecord: func(r *Record) { mu.Lock(); records[r.Index] = *r; mu.Unlock() }}
	o.trace, o.Arrivals, o.Workload = tr, Arrivals{Kind: "constant", Rate: 1, Duration: 10 * time.Second}, Workload{}
	res := serve(t, func(w http.ResponseWriter, r *http.Request) {
		drain(r)
		wait(2 * time.Second)
		sse(w)
		say(w, "%s%s%s%s", textChunk, stopChunk, usageChunk(10, 0, 1), doneEvent)
	}, o)
	if res.Succeeded != 3 || res.Planned != 3 {
		t.Fatalf("%d of %d succeeded: %v", res.Succeeded, res.Planned, res.Errors)
	}
	for i, r := range records {
		if r.Turn == 1 && r.Planned != records[0].End+7*time.Second {
			t.Errorf("turn 2 (request %d) was planned at %v, want 7 s after %v", i, r.Planned, records[0].End)
		}
	}
}

func TestOurOwnAccessLogCanBeReplayed(t *testing.T) {
	const log = `{"time":"2026-11-30T20:00:02.500Z","level":"INFO","msg":"request","fingerprint":"aa","total_ms":2500,"prompt_tokens":700,"cached_tokens":640,"output_tokens":9}
{"time":"2026-11-30T20:00:03Z","level":"INFO","msg":"node ready","node":"a"}
{"time":"2026-11-30T20:00:04Z","level":"INFO","msg":"request","fingerprint":"aa","total_ms":1000,"prompt_tokens":710,"cached_tokens":640,"output_tokens":5}
{"time":"2026-11-30T20:00:04Z","level":"INFO","msg":"request","fingerprint":"aa","total_ms":5,"status":503}
{"time":"2026-11-30T20:00:06Z","level":"INFO","msg":"request","fingerprint":"bb","total_ms":1000,"prompt_tokens":300,"output_tokens":5}
`
	tr, err := ReadAccessLog(strings.NewReader(log))
	if err != nil || len(tr.Requests) != 3 {
		t.Fatalf("%v, %d requests", err, len(tr.Requests))
	}
	a, b, c := tr.Requests[0], tr.Requests[1], tr.Requests[2]
	if a.At != 0 || b.At != 3*time.Second || c.At != 5*time.Second {
		t.Errorf("times %v, %v, %v: a request came before its line by its total time", a.At, b.At, c.At)
	}
	if a.System != 10 || b.System != 10 || c.System != 0 || a.Blocks[9] != b.Blocks[9] || a.Blocks[10] == b.Blocks[10] {
		t.Errorf("ten blocks of 64 are shared, not %d and %d", a.System, b.System)
	}
	if a.Input != 700 || a.Output != 9 {
		t.Errorf("lengths %d and %d", a.Input, a.Output)
	}
	var te *TraceError
	if _, err := ReadAccessLog(strings.NewReader(log + "{broken")); !errors.As(err, &te) || te.Line != 6 {
		t.Errorf("a broken line gave %v", err)
	}
	if _, err := ReadAccessLog(strings.NewReader("{}")); !errors.Is(err, ErrUsage) {
		t.Errorf("a log without requests gave %v", err)
	}
}
