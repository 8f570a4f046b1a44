package sim

import (
	"math"
	"os"
	"strings"
	"testing"
)

// The model is good enough to rank routers if it gives the published throughput of an
// affinity router within a third and its time per token within 30 %.
func TestPublishedReportsAreReproduced(t *testing.T) {
	fits, err := Calibrate(t.Context(), 1)
	if err != nil {
		t.Fatal(err)
	}
	if len(fits) != len(Reports()) {
		t.Fatalf("%d of %d rows were simulated", len(fits), len(Reports()))
	}
	for _, f := range fits {
		off := f.Sim.TokenRate/f.Published.TokRate - 1
		if limit := 0.35; f.Published.Policy == "index-precise" && math.Abs(off) > limit {
			t.Errorf("%s %s %s: %.0f tok/s, published %.0f", f.Published.Scenario, f.Published.Policy, f.Published.Stage, f.Sim.TokenRate, f.Published.TokRate)
		}
		if !math.IsNaN(f.Published.ITL) && math.Abs(f.Sim.TPOT.Mean/f.Published.ITL-1) > 0.30 {
			t.Errorf("%s %s: %.1f ms per token, published %.0f", f.Published.Policy, f.Published.Stage, f.Sim.TPOT.Mean, f.Published.ITL)
		}
	}
	var b strings.Builder
	WriteFits(&b, fits)
	if n := strings.Count(b.String(), "\n"); n != len(fits)+2 {
		t.Errorf("the table has %d lines for %d rows", n, len(fits))
	}
	if os.Getenv("SIM_TABLES") != "" {
		t.Log("\n" + b.String())
	}
}
