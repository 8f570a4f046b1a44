package health

import (
	"fmt"
	"testing"
	"time"
)

// A node takes its first work only after its metrics were looked at: a restart shows by
// what changes between two looks, so work given before the first one would make warmth
// that no restart can undo. How the loops are spread makes no difference, and an engine
// without a page is not held up by it.
func TestReadyComesAfterTheFirstLookAtMetrics(t *testing.T) {
	for _, spread := range []float64{0, 0.3, 0.99} {
		for page, epochs := range map[string]int{"process_start_time_seconds %d\nvllm:num_requests_running 0\n": 1, "": 0} {
			run(t, 1, Options{Rand: func() float64 { return spread }}, func(f *fleet) {
				e := f.engines[0]
				started := func(at int) {
					if page != "" {
						e.set(func(e *engine) { e.metrics = fmt.Sprintf(page, at) })
					} else {
						e.set(func(e *engine) { e.metrics = "" })
					}
				}
				started(1000)
				f.apply(f.targets()...)
				for n := 0; f.status("n0").State != Ready; n++ {
					if n > 1000 {
						t.Fatal("not ready in a second")
					}
					f.wait(time.Millisecond)
				}
				started(2000) // at the moment that it is ready, work comes and the engine restarts
				f.wait(3 * time.Second)
				if s := f.status("n0"); s.Epoch != epochs {
					t.Errorf("spread %v, page %q: epoch %d, want %d", spread, page, s.Epoch, epochs)
				}
			})
		}
	}
}
