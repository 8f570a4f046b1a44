package health

import (
	"testing"
	"time"
)

// Both loops of an engine share one connection: none has to be made anew for as long as
// the engine keeps it open, and a slow /health makes one more and no more than that.
func TestProbesShareAConnection(t *testing.T) {
	for name, tc := range map[string]struct {
		slow time.Duration
		most int
	}{
		"quick /health": {0, 6},                        // the first second, and when both loops meet in one beat
		"slow /health":  {1500 * time.Millisecond, 30}, // one for each of 25 overlaps
	} {
		t.Run(name, func(t *testing.T) {
			run(t, 1, Options{}, func(f *fleet) {
				f.engines[0].set(func(e *engine) { e.healthWait = tc.slow })
				f.apply(f.targets()...)
				f.wait(2 * time.Minute)
				f.is("n0", Ready)
				f.engines[0].net.mu.Lock()
				defer f.engines[0].net.mu.Unlock()
				if n := f.engines[0].net.dials; n == 0 || n > tc.most {
					t.Errorf("%d connections in 2 minutes, want 1..%d", n, tc.most)
				}
			})
		})
	}
}

// All wake-ups lie on one grid, within half a beat of their time, whatever the period.
func TestWakeUpsShareBeats(t *testing.T) {
	m, err := New(Options{})
	if err != nil {
		t.Fatal(err)
	}
	for period, beat := range map[time.Duration]time.Duration{
		time.Second: 50 * time.Millisecond, time.Minute: 50 * time.Millisecond, 100 * time.Millisecond: 5 * time.Millisecond,
	} {
		for i := range 100 {
			at := time.Now().Add(time.Second + time.Duration(i)*7321*time.Microsecond)
			before := time.Now()
			due := before.Add(m.untilBeat(at, period))
			late := time.Since(before)
			if off := due.Sub(at); off > beat/2+late || off < -beat/2-late {
				t.Fatalf("period %v: %v away from its time", period, off)
			}
			// The clock went on between the two readings: that much the grid may seem off.
			if r := due.Sub(m.made) % beat; min(r, beat-r) > late {
				t.Fatalf("period %v: %v beside the grid of %v", period, r, beat)
			}
		}
	}
	if d := m.untilBeat(time.Now().Add(-time.Minute), time.Second); d != 0 {
		t.Errorf("waits %v for what is overdue", d)
	}
}
