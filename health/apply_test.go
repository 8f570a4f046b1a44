package health

import (
	"fmt"
	"log/slog"
	"testing"
	"time"
)

func thousand(generation int) []Target {
	var out []Target
	for i := range 1000 {
		out = append(out, Target{Name: fmt.Sprint("n", i), Pool: fmt.Sprint("p", i%4), Models: []string{"m"},
			URL: fmt.Sprintf("http://10.%d.%d.%d:8000", generation%2*(i%10), i/250, i%250)})
	}
	return out
}

// BenchmarkApply1000 replaces a tenth of the addresses of 1,000 nodes. The budget of a
// reload is 100 ms.
func BenchmarkApply1000(b *testing.B) {
	m, err := New(Options{Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		b.Fatal(err)
	}
	sets := [][]Target{thousand(0), thousand(1)}
	for i := 0; b.Loop(); i++ {
		if err := m.Apply(sets[i%2]); err != nil {
			b.Fatal(err)
		}
	}
}

func TestApplyOfAThousandNodesIsQuick(t *testing.T) {
	run(t, 0, Options{Logger: slog.New(slog.DiscardHandler)}, func(f *fleet) {
		for i := range 3 {
			start := cpuTime()
			f.apply(thousand(i)...)
			// The bubble's clock stands still; CPU time does not. Generous, for slow machines
			// and the race detector: what is wanted is 100 ms.
			if d := cpuTime() - start; d > time.Second {
				t.Errorf("Apply %d took %v of CPU time", i, d)
			}
			f.wait(time.Second)
		}
		if n := len(f.m.Snapshot()); n != 1000 {
			t.Errorf("%d nodes", n)
		}
	})
}
