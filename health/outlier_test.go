package health

import (
	"testing"
	"time"

	"github.com/prefixring/prefixring/ring"
)

func TestOutlierLimits(t *testing.T) {
	for _, c := range []struct {
		kind  Kind
		limit int
	}{{ConnectFailed, 3}, {Reset, 3}, {HeaderTimeout, 3}, {Truncated, 5}, {ServerError, 5}} {
		t.Run(c.kind.String(), func(t *testing.T) {
			s := ready(t, nil)
			for range c.limit - 1 {
				s.report(c.kind)
			}
			if s.c.wantEject != "" {
				t.Fatalf("wants ejection after %d", c.limit-1)
			}
			s.report(Success)
			for range c.limit - 1 {
				s.report(c.kind)
			}
			if s.c.wantEject != "" {
				t.Fatal("a success between did not start the count anew")
			}
			if s.report(c.kind); s.c.wantEject == "" {
				t.Fatalf("does not want ejection after %d in a row", c.limit)
			}
		})
	}
}

func TestB46EjectionCoolsDownTriesOnceAndStartsSlowly(t *testing.T) {
	s := ready(t, nil)
	eject := func() {
		s.step(observation{kind: obsEject, reason: "3 times in a row: connect failed"})
		s.is(Ejected, ring.Closed).because("3 times in a row: connect failed")
	}
	eject()
	for _, wait := range []time.Duration{5, 10, 20, 40, 60, 60} {
		s.after(wait*time.Second - time.Millisecond)
		if s.c.trialDue(s.now) {
			t.Fatalf("trial due before %v s", wait)
		}
		if s.after(time.Millisecond); !s.c.trialDue(s.now) {
			t.Fatalf("no trial due after %v s", wait)
		}
		s.step(observation{kind: obsTrial, result: nobody}).is(Ejected, ring.Closed)
	}
	s.after(time.Minute).step(observation{kind: obsTrial, result: good}).is(Ready, ring.NoOverflow)
	if s.c.ramp(s.now) >= 1 {
		t.Error("no slow start")
	}
	s.after(10 * time.Minute)
	eject()
	if s.after(5 * time.Second); !s.c.trialDue(s.now) {
		t.Error("a node that held for long is punished for its past")
	}
}

func TestNoTrialWhileProbesFail(t *testing.T) {
	s := ready(t, nil)
	s.step(observation{kind: obsEject, reason: "x"})
	s.health(nobody).health(nobody).health(nobody).is(Unhealthy, ring.Closed)
	if s.after(time.Hour); s.c.trialDue(s.now) {
		t.Error("trial due on a node that nobody answers for")
	}
}

func TestAnEmbeddingModelPassesItsTrialBy400(t *testing.T) {
	s := ready(t, nil).step(observation{kind: obsEject, reason: "x"}).after(5 * time.Second)
	s.step(observation{kind: obsTrial, result: result{status: 400}}).is(Ready, ring.NoOverflow)
}

func TestMayEject(t *testing.T) {
	for _, c := range []struct {
		total, ejected, serving int
		share                   float64
		want                    bool
	}{
		{1, 0, 1, 0.5, false}, // the last one stays
		{2, 0, 2, 0.5, true},
		{2, 1, 1, 0.5, false},
		{4, 1, 3, 0.5, true},
		{4, 2, 2, 0.5, false},
		{10, 0, 10, 0.05, true}, // one may always be ejected
		{10, 1, 9, 0.05, false},
		{3, 0, 1, 1, false},
	} {
		if got := mayEject(c.total, c.ejected, c.serving, c.share); got != c.want {
			t.Errorf("mayEject(%d, %d, %d, %v) = %v", c.total, c.ejected, c.serving, c.share, got)
		}
	}
}

func TestMedianWithout(t *testing.T) {
	if got := medianWithout([]float64{1, 2, 3, 10}, 10); got != 2 {
		t.Errorf("median without the outlier = %v, want 2", got)
	}
	if got := medianWithout([]float64{1, 2, 10}, 1); got != 6 {
		t.Errorf("median of two = %v, want 6", got)
	}
}
