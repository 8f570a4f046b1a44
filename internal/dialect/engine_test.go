package dialect

import (
	"bytes"
	"compress/gzip"
	"io"
	"os"
	"strings"
	"testing"
	"unsafe"
)

func TestB19EngineKeyIsAlwaysABearer(t *testing.T) {
	for _, p := range protocols {
		for _, e := range []Engine{VLLM, SGLang} {
			if n, v := AuthHeader(p, e, "k1"); n != "Authorization" || v != "Bearer k1" {
				t.Errorf("%v %v: %q %q", p, e, n, v)
			}
			if n, v := AuthHeader(p, e, ""); n != "" || v != "" {
				t.Errorf("%v %v: an empty key is sent: %q %q", p, e, n, v)
			}
		}
	}
	if n, v := ChannelAuthHeader(Messages, "k"); n != "x-api-key" || v != "k" {
		t.Errorf("hosted messages: %q %q", n, v)
	}
	if n, v := ChannelAuthHeader(Chat, "k"); n != "Authorization" || v != "Bearer k" {
		t.Errorf("hosted chat: %q %q", n, v)
	}
	if n, _ := ChannelAuthHeader(Messages, ""); n != "" {
		t.Error("an empty key is sent")
	}
}

func TestPriorityHasOppositeSigns(t *testing.T) {
	if a, b := EnginePriority(VLLM, 1), EnginePriority(VLLM, -1); a >= b {
		t.Errorf("vLLM serves the lowest first: urgent %d, idle %d", a, b)
	}
	if a, b := EnginePriority(SGLang, 1), EnginePriority(SGLang, -1); a <= b {
		t.Errorf("SGLang serves the highest first: urgent %d, idle %d", a, b)
	}
	if EnginePriority(VLLM, 0) != 0 || EnginePriority(SGLang, 0) != 0 {
		t.Error("normal is zero on both")
	}
}

func TestB55RankFacts(t *testing.T) {
	if !strings.EqualFold(RankHeader(VLLM), RankHeader(SGLang)) || RankField(VLLM) != "" || RankField(SGLang) != "routed_dp_rank" {
		t.Error("rank names")
	}
	if RankHonoured(VLLM, Responses) || !RankHonoured(VLLM, Chat) || !RankHonoured(SGLang, Responses) {
		t.Error("rank header is not read by vLLM on /v1/responses only")
	}
}

func TestFlagsNameTheCacheReportFirst(t *testing.T) {
	for e, want := range map[Engine]string{VLLM: "--enable-prompt-tokens-details", SGLang: "--enable-cache-report"} {
		flags := RecommendedFlags(e)
		if flags[0].Name != want || CachedTokensFlag(e).Name != want {
			t.Errorf("%v: %+v", e, flags)
		}
		for _, f := range flags {
			if !strings.HasPrefix(f.Name, "--") || f.Why == "" {
				t.Errorf("%v: %+v", e, f)
			}
		}
	}
}

// Every current vLLM name of the table is on the page of a real engine, with the
// labels that the table relies on; only the names kept for older versions are not.
func TestB42MetricTableMatchesARealPage(t *testing.T) {
	page := realPage(t)
	for _, m := range MetricTable(VLLM) {
		if m.Meaning == MeanLoRA {
			continue // the page is of an engine without adapters
		}
		found := false
		for line := range strings.Lines(page) {
			rest, ok := strings.CutPrefix(line, m.Name)
			if !ok || rest[0] != '{' {
				continue
			}
			if m.Label != "" && !strings.Contains(rest, m.Label+`="`+m.Value+`"`) || m.FromLabel != "" && !strings.Contains(rest, m.FromLabel+`="`) {
				continue
			}
			found = true
		}
		if found != (m.Age == 0) {
			t.Errorf("%s %s: on the page %v, age %d", m.Name, m.Label, found, m.Age)
		}
	}
}

func TestMetricTablesAreConsistent(t *testing.T) {
	for _, e := range []Engine{VLLM, SGLang} {
		ages := map[Meaning]map[uint8]bool{}
		for _, m := range MetricTable(e) {
			if !strings.HasPrefix(m.Name, e.String()+":") || m.Meaning == 0 || m.Counter && m.Fold != Sum {
				t.Errorf("%+v", m)
			}
			if ages[m.Meaning] == nil {
				ages[m.Meaning] = map[uint8]bool{}
			}
			if ages[m.Meaning][m.Age] {
				t.Errorf("%s: two names of one meaning with age %d", m.Name, m.Age)
			}
			ages[m.Meaning][m.Age] = true
		}
		for _, must := range []Meaning{MeanRunning, MeanWaiting, MeanKVUsage, MeanKVTokens, MeanBlockSize, MeanPreemptions,
			MeanPrefixQueries, MeanPrefixHits, MeanPromptTokens, MeanGenerationTokens} {
			if !ages[must][0] {
				t.Errorf("%v has no name for meaning %d", e, must)
			}
		}
	}
}

func realPage(t *testing.T) string {
	t.Helper()
	raw, err := os.ReadFile("testdata/vllm_metrics.txt.gz")
	if err != nil {
		t.Fatal(err)
	}
	z, err := gzip.NewReader(bytes.NewReader(raw))
	if err != nil {
		t.Fatal(err)
	}
	page, err := io.ReadAll(z)
	if err != nil {
		t.Fatal(err)
	}
	return string(page)
}

// A Tap is part of every open stream: 10,000 of them have a budget of 40 KB each.
func TestTapIsSmall(t *testing.T) {
	if size := unsafe.Sizeof(Tap{}); size > 1024 {
		t.Errorf("a Tap has %d bytes", size)
	}
}
