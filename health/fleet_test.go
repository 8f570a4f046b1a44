package health

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/prefixring/prefixring/ring"
)

func TestSaturationIsSeenWithinTwoSecondsAndEnds(t *testing.T) {
	run(t, 2, Options{}, func(f *fleet) {
		f.apply(f.targets()...)
		f.wait(5 * time.Second)
		e := f.engines[0]
		e.set(func(e *engine) { e.metrics = busyPage(1, 9, 0.12, 5) })
		f.wait(2 * time.Second)
		if s := f.is("n0", Saturated); s.Level != ring.WarmOnly || s.Reason != "9 requests wait for room" {
			t.Errorf("level %v, reason %q", s.Level, s.Reason)
		}
		e.set(func(e *engine) { e.metrics = busyPage(0, 0, 0, 6) })
		f.wait(7 * time.Second)
		f.is("n0", Ready)
	})
}

func TestPanicOpensTheLeastBad(t *testing.T) {
	run(t, 3, Options{}, func(f *fleet) {
		f.apply(f.targets()...)
		f.wait(5 * time.Second)
		full := func(waiting ...int) {
			for i, w := range waiting {
				f.engines[i].set(func(e *engine) { e.metrics = busyPage(4, w, 0.1, 5) })
			}
			f.wait(1500 * time.Millisecond)
		}
		open := func() (names string) {
			for _, s := range f.m.Snapshot() {
				if s.Level == ring.Open {
					names += s.Name
				}
			}
			return names
		}
		full(60, 40, 50)
		if got := open(); got != "n1" {
			t.Errorf("open: %q, want the least full", got)
		}
		if s := f.status("n1"); !s.Panicking || s.State != Saturated {
			t.Errorf("n1 %v, panicking %v", s.State, s.Panicking)
		}
		full(60, 45, 42)
		if got := open(); got != "n1" {
			t.Errorf("open: %q, want it to stay", got)
		}
		full(60, 90, 42)
		if got := open(); got != "n2" {
			t.Errorf("open: %q, want the clearly better", got)
		}
		f.m.Report("n2", PassiveOutcome{Kind: Busy, RetryAfter: 5 * time.Second})
		if got := open(); got == "n2" {
			t.Error("a node that refuses work is open")
		}
		full(60, 90, 0)
		f.wait(8 * time.Second)
		if got := open(); got != "n2" {
			t.Errorf("open: %q", got)
		}
		if s := f.is("n2", Ready); s.Panicking {
			t.Error("still in panic though a node has room")
		}
	})
}

func TestB55RanksShareOnePollAndOneNodeOverManyIsMarked(t *testing.T) {
	run(t, 1, Options{}, func(f *fleet) {
		e := f.engines[0]
		page := ""
		for i, kv := range []float64{0.2, 0.99} {
			page += fmt.Sprintf("vllm:num_requests_running{engine=\"%d\"} %d\nvllm:num_requests_waiting{engine=\"%d\"} 0\n"+
				"vllm:kv_cache_usage_perc{engine=\"%d\"} %v\n", i, i+1, i, i, kv)
		}
		e.set(func(e *engine) { e.metrics = page })
		a := f.targets()[0]
		b := a
		a.Rank, b.Rank, a.Name, b.Name = "0", "1", "r0", "r1"
		f.apply(a, b)
		f.wait(10 * time.Second)
		if s := f.is("r0", Ready); s.Signals.Running != 1 || s.AffinityLimited {
			t.Errorf("rank 0: running %v, limited %v", s.Signals.Running, s.AffinityLimited)
		}
		if s := f.is("r1", Saturated); s.Signals.KVUsage != 0.99 {
			t.Errorf("rank 1: KV %v", s.Signals.KVUsage)
		}
		if n := e.count("/metrics"); n > 12 {
			t.Errorf("%d polls in 10 s for two ranks", n)
		}
		for range 3 {
			f.m.Report("r0", PassiveOutcome{Kind: Reset})
		}
		f.wait(10 * time.Second)
		e.set(func(e *engine) {
			if e.rank != "0" {
				t.Errorf("the trial went to rank %q", e.rank)
			}
		})
		whole := f.targets()[0]
		f.apply(whole)
		f.wait(2 * time.Second)
		if s := f.status("n0"); !s.AffinityLimited || s.Signals.Running != 3 || s.Signals.KVUsage != 0.99 {
			t.Errorf("limited %v, running %v, KV %v", s.AffinityLimited, s.Signals.Running, s.Signals.KVUsage)
		}
		if n := strings.Count(f.logged(), "pod affinity limited"); n != 1 {
			t.Errorf("logged %d times", n)
		}
	})
}

func TestB42MissingSignalIsShownAndWarnedOnceAMinute(t *testing.T) {
	run(t, 1, Options{}, func(f *fleet) {
		f.engines[0].set(func(e *engine) { e.metrics = "vllm:num_requests_running 1\nvllm:num_requests_waiting 0\n" })
		f.apply(f.targets()...)
		f.wait(50 * time.Second)
		if s := f.is("n0", Ready); len(s.Missing) != 1 || s.Missing[0] != "kv_usage" || s.Level != ring.Open {
			t.Errorf("missing %v, level %v", s.Missing, s.Level)
		}
		if n := strings.Count(f.logged(), "does not report a signal"); n != 1 {
			t.Errorf("warned %d times in 50 s", n)
		}
	})
}

func TestLatencyOutlierIsEjected(t *testing.T) {
	run(t, 4, Options{}, func(f *fleet) {
		f.apply(f.targets()...)
		f.wait(time.Second)
		for range 30 {
			for i, d := range []time.Duration{100, 120, 90, 6000} {
				f.m.Report(fmt.Sprintf("n%d", i), PassiveOutcome{Kind: Success, Warm: true, FirstByte: d * time.Millisecond})
				f.m.Report(fmt.Sprintf("n%d", i), PassiveOutcome{Kind: Success, FirstByte: time.Minute}) // cold: not compared
			}
		}
		f.wait(time.Second)
		if s := f.is("n3", Ejected); !strings.Contains(s.Reason, "first event takes 6.0 s") {
			t.Errorf("reason %q", s.Reason)
		}
		f.is("n0", Ready)
	})
}
