package health

import (
	"math"
	"testing"
)

func TestB56HitRateIsNeverAbsurd(t *testing.T) {
	of := func(queries, hits float64) *Signals {
		var s Signals
		s.Reset()
		s.PrefixQueries, s.PrefixHits = queries, hits
		return &s
	}
	nan := math.NaN()
	for _, c := range []struct {
		name         string
		older, newer *Signals
		want         float64
		known        bool
	}{
		{"half", of(100, 50), of(300, 150), 0.5, true},
		{"none", of(100, 50), of(300, 50), 0, true},
		{"idle", of(100, 50), of(100, 50), 0, false},
		{"restart", of(1e6, 9e5), of(10, 0), 0, false},
		{"restart that has overtaken in queries only", of(100, 90), of(200, 10), 0, false},
		{"more hits than queries", of(100, 0), of(110, 50), 0, false},
		{"unknown", of(nan, nan), of(100, 50), 0, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, known := HitRate(c.older, c.newer)
			if got != c.want || known != c.known {
				t.Errorf("HitRate = %v, %v, want %v, %v", got, known, c.want, c.known)
			}
		})
	}
}
