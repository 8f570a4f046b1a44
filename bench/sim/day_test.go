package sim

import (
	"testing"
	"time"

	"github.com/prefixring/prefixring/bench"
)

// BenchmarkDay is an hour of a thousand engines in the evening of a day; reported: the
// simulated seconds per second, and what a whole day would take at that rate.
func BenchmarkDay(b *testing.B) {
	for b.Loop() {
		w := saleWorkload()
		src, pre := FromWorkload(w, bench.Arrivals{Kind: "constant", Rate: 1000 * SalePerEngine * 0.5, Duration: 2 * time.Minute}, 1, 16)
		r, err := Run(b.Context(), Options{Policy: "ring", Engines: 1000, Engine: engineOf("70b-tp4"), Source: src, Prefixes: pre, Prewarm: true, Seed: 1})
		if err != nil {
			b.Fatal(err)
		}
		b.ReportMetric(r.Duration/r.Wall, "sim-s/s")
		b.ReportMetric(86400/(r.Duration/r.Wall)/60, "min/day")
		b.ReportMetric(float64(r.Requests)/r.Wall, "req/s")
	}
}
