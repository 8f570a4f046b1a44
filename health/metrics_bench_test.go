package health

import (
	"os"
	"testing"

	"github.com/prefixring/prefixring/internal/dialect"
)

func page(tb testing.TB, name string) []byte {
	tb.Helper()
	b, err := os.ReadFile("testdata/" + name)
	if err != nil {
		tb.Fatal(err)
	}
	return b
}

func BenchmarkParseVLLM(b *testing.B) {
	text := page(b, "vllm_metrics.txt")
	var s Signals
	b.SetBytes(int64(len(text)))
	b.ReportAllocs()
	for b.Loop() {
		if err := ParseMetrics(text, dialect.VLLM, &s); err != nil {
			b.Fatal(err)
		}
	}
}
