package health

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/prefixring/prefixring/ring"
)

func TestManagerMakesAFleetReady(t *testing.T) {
	run(t, 3, Options{}, func(f *fleet) {
		f.apply(f.targets()...)
		f.wait(time.Second)
		for i := range 3 {
			s := f.is(fmt.Sprintf("n%d", i), Ready)
			if s.Level != ring.Open || s.Version != "0.32.0" || s.Models[0] != "m1" || s.Voice != 1 || s.Ramp != 1 {
				t.Errorf("status = %+v", s)
			}
		}
		if n := strings.Count(f.logged(), "to=ready"); n != 3 {
			t.Errorf("%d log lines for 3 transitions:\n%s", n, f.logged())
		}
		for _, c := range f.told() {
			if c.old.Name != c.new.Name {
				t.Errorf("a change pairs %s with %s", c.old.Name, c.new.Name)
			}
		}
	})
}

func TestProbeRates(t *testing.T) {
	run(t, 1, Options{}, func(f *fleet) {
		f.apply(f.targets()...)
		f.wait(2 * time.Minute)
		for path, want := range map[string][2]int{
			"/metrics": {114, 127}, "/health": {22, 27}, "/v1/models": {7, 12}, "/version": {2, 3}, "/is_sleeping": {0, 1},
		} {
			if n := f.engines[0].count(path); n < want[0] || n > want[1] {
				t.Errorf("%s was asked %d times in 2 minutes, want %d..%d", path, n, want[0], want[1])
			}
		}
	})
}

func TestSlowSGLangHealthIsNotAskedMoreOften(t *testing.T) {
	run(t, 1, Options{}, func(f *fleet) {
		e := f.engines[0]
		e.set(func(e *engine) { e.healthWait = 1500 * time.Millisecond; e.metrics = "" })
		f.apply(sglangTarget(f.targets()[0]))
		f.wait(3 * time.Second)
		s := f.is("n0", Ready)
		if len(s.Missing) != 1 || s.Missing[0] != "metrics" {
			t.Errorf("missing = %v, want the page", s.Missing)
		}
		e.set(func(e *engine) { e.health = 503 })
		from := e.count("/health")
		f.wait(57 * time.Second)
		if n := e.count("/health") - from; n > 12 {
			t.Errorf("a failing slow /health was asked %d times in 57 s", n)
		}
		f.is("n0", Unhealthy)
	})
}

func TestB51AnEngineThatComesUp(t *testing.T) {
	run(t, 1, Options{}, func(f *fleet) {
		e := f.engines[0]
		e.down()
		f.apply(f.targets()...)
		f.wait(time.Minute)
		if s := f.is("n0", Starting); !strings.Contains(s.Reason, "refused") || s.Level != ring.Closed {
			t.Errorf("reason %q, level %v", s.Reason, s.Level)
		}
		e.set(func(e *engine) { e.health = 503; e.models = nil })
		e.up()
		f.wait(3 * time.Second)
		f.is("n0", Starting)
		e.set(func(e *engine) { e.health = 200 })
		f.wait(3 * time.Second)
		if s := f.is("n0", Starting); s.Reason != "engine lists no model" {
			t.Errorf("reason %q", s.Reason)
		}
		e.set(func(e *engine) { e.models = []string{"m1"} })
		f.wait(3 * time.Second)
		if s := f.is("n0", Ready); s.Level != ring.NoOverflow || s.Epoch != 0 {
			t.Errorf("level %v, epoch %d: want a slow start of a first life", s.Level, s.Epoch)
		}
		if d := f.m.RetryAfter("p"); d != 2*time.Second {
			t.Errorf("RetryAfter = %v", d)
		}
	})
}

func TestB51SleepIsAskedOfEnginesInDevelopmentMode(t *testing.T) {
	run(t, 1, Options{}, func(f *fleet) {
		e := f.engines[0]
		e.set(func(e *engine) {
			e.sleeping = `{"is_sleeping":false}`
			e.metrics = "vllm:num_requests_running 0\n"
		})
		f.apply(f.targets()...)
		f.wait(3 * time.Second)
		f.is("n0", Ready)
		e.set(func(e *engine) { e.sleeping = `{"is_sleeping":true}` })
		f.wait(6 * time.Second)
		if s := f.is("n0", Asleep); s.Epoch != 1 || s.Level != ring.Closed {
			t.Errorf("epoch %d, level %v", s.Epoch, s.Level)
		}
	})
}

func TestB19EveryProbeCarriesTheKeyAndARefusedKeyEjectsNobody(t *testing.T) {
	key := "k1"
	run(t, 1, Options{}, func(f *fleet) {
		e := f.engines[0]
		e.set(func(e *engine) { e.key = "k1" })
		target := f.targets()[0]
		target.APIKey = func() string { return key + "\n" } // as read from a file
		f.apply(target)
		f.wait(3 * time.Second)
		s := f.is("n0", Ready)
		if s.AuthFailing || len(s.Missing) > 0 {
			t.Errorf("auth failing %v, missing %v", s.AuthFailing, s.Missing)
		}
		e.set(func(e *engine) {
			if len(e.auth) != 1 || !e.auth["Bearer k1"] {
				t.Errorf("Authorization values seen: %v", e.auth)
			}
			e.key = "k2"
		})
		f.wait(2 * time.Minute)
		if s := f.is("n0", Ready); !s.AuthFailing {
			t.Error("nothing shows that the key is refused")
		}
		if n := strings.Count(f.logged(), "refuses the configured key"); n != 1 {
			t.Errorf("the refused key was logged %d times", n)
		}
	})
}

func TestB40FrozenEngineLeavesAndReturnsByOneTrial(t *testing.T) {
	run(t, 2, Options{}, func(f *fleet) {
		e := f.engines[0]
		e.set(func(e *engine) { e.metrics = busyPage(2, 0, 0.1, 77); e.frozen = true })
		f.apply(f.targets()...)
		f.wait(29 * time.Second)
		f.is("n0", Ready)
		f.wait(4 * time.Second)
		if s := f.is("n0", Unhealthy); s.Level != ring.Closed || !strings.Contains(s.Reason, "no progress") {
			t.Errorf("level %v, reason %q", s.Level, s.Reason)
		}
		f.wait(time.Minute)
		f.is("n0", Unhealthy)
		if n := e.count("/v1/completions"); n < 2 || n > 5 {
			t.Errorf("%d trials in a minute, want a few with growing waits", n)
		}
		e.set(func(e *engine) { e.frozen = false })
		f.wait(time.Minute)
		f.is("n0", Ready)
		f.is("n1", Ready)
		if f.engines[1].count("/v1/completions") != 0 {
			t.Error("a healthy engine got a trial request")
		}
	})
}

func TestB46TrafficFailuresEjectAtOnceWithinTheShare(t *testing.T) {
	run(t, 4, Options{}, func(f *fleet) {
		f.apply(f.targets()...)
		f.wait(time.Second)
		fail := func(name string, k Kind, n int) {
			for range n {
				f.m.Report(name, PassiveOutcome{Kind: k})
			}
		}
		fail("n0", ConnectFailed, 3)
		if s := f.is("n0", Ejected); s.Level != ring.Closed {
			t.Errorf("level %v", s.Level)
		}
		fail("n1", HeaderTimeout, 3)
		f.is("n1", Ejected)
		fail("n2", Reset, 50)
		if s := f.is("n2", Ready); !s.Suspect { // half of the pool is out already
			t.Error("n2 is not suspect")
		}
		f.m.Report("n2", PassiveOutcome{Kind: Success})
		if s := f.is("n2", Ready); s.Suspect {
			t.Error("n2 is suspect after a success")
		}
		f.wait(8 * time.Second)
		for i, want := range []int{1, 1, 0, 0} {
			if n := f.engines[i].count("/v1/completions"); n != want {
				t.Errorf("engine %d got %d trials, want %d", i, n, want)
			}
		}
		f.is("n0", Ready)
		f.is("n1", Ready)
	})
}

func TestConnectFailuresOfTrafficMakeTheProbesLook(t *testing.T) {
	run(t, 1, Options{}, func(f *fleet) {
		f.apply(f.targets()...)
		f.wait(3100 * time.Millisecond)
		f.engines[0].down()
		for range 10 {
			f.m.Report("n0", PassiveOutcome{Kind: ConnectFailed})
			f.wait(200 * time.Millisecond)
		}
		f.is("n0", Unhealthy) // 3 refusals within 2 s, though health is due each 5 s
	})
}

func TestB52FourHundredsChangeNothing(t *testing.T) {
	run(t, 1, Options{}, func(f *fleet) {
		f.apply(f.targets()...)
		f.wait(time.Second)
		before := len(f.told())
		for range 200 {
			f.m.Report("n0", PassiveOutcome{Kind: ClientError})
		}
		f.m.Report("nobody", PassiveOutcome{Kind: ConnectFailed})
		f.is("n0", Ready)
		if n := len(f.told()); n != before {
			t.Errorf("%d changes", n-before)
		}
	})
}

func TestOperatorsSettingsOutliveApplyAndAbsence(t *testing.T) {
	run(t, 2, Options{}, func(f *fleet) {
		all := f.targets()
		f.apply(all...)
		f.wait(time.Second)
		for _, err := range []error{f.m.Drain("n0"), f.m.SetWeight("n0", 2.5), f.m.Cordon("n1")} {
			if err != nil {
				t.Fatal(err)
			}
		}
		f.is("n0", Draining)
		f.apply(all...)
		f.is("n0", Draining)
		f.apply(all[1])
		f.is("n0", Gone)
		f.wait(2 * time.Minute)
		if len(f.m.Snapshot()) != 1 {
			t.Error("a node that is long gone is still shown")
		}
		f.apply(all...)
		f.wait(3 * time.Second)
		if s := f.is("n0", Draining); s.Weight != 2.5 {
			t.Errorf("weight %v", s.Weight)
		}
		if s := f.is("n1", Ready); !s.Cordoned || s.Level != ring.WarmOnly {
			t.Errorf("cordoned %v, level %v", s.Cordoned, s.Level)
		}
		if err := f.m.Resume("n0"); err != nil {
			t.Fatal(err)
		}
		f.is("n0", Ready)
		for _, err := range []error{f.m.Drain("x"), f.m.SetWeight("n0", 0), f.m.SetWeight("n0", -1)} {
			if err == nil {
				t.Error("nonsense accepted")
			}
		}
	})
}

func TestB38TerminatingNodeClosesWithinApply(t *testing.T) {
	run(t, 2, Options{}, func(f *fleet) {
		all := f.targets()
		f.apply(all...)
		f.wait(time.Second)
		all[0].Terminating = true
		f.apply(all...)
		if s := f.is("n0", Draining); s.Level != ring.Closed || s.Epoch != 0 {
			t.Errorf("level %v, epoch %d", s.Level, s.Epoch)
		}
		last := f.told()[len(f.told())-1]
		if last.new.Name != "n0" || last.new.State != Draining || last.old.State != Ready {
			t.Errorf("last change: %v -> %v", last.old.State, last.new.State)
		}
	})
}

func TestUnreadyNodeIsKeptClosedAndComesBackWarm(t *testing.T) {
	run(t, 2, Options{}, func(f *fleet) {
		all := f.targets()
		f.apply(all...)
		f.wait(time.Second)
		all[0].Unready = true
		f.apply(all...)
		if s := f.is("n0", Draining); s.Reason != "not ready, says discovery" || s.Level != ring.Closed {
			t.Errorf("level %v, reason %q", s.Level, s.Reason)
		}
		all[0].Unready = false
		f.apply(all...)
		if s := f.is("n0", Ready); s.Epoch != 0 || s.Level != ring.Open {
			t.Errorf("epoch %d, level %v", s.Epoch, s.Level)
		}
	})
}

func TestANewAddressIsColdUnderItsOldName(t *testing.T) {
	run(t, 2, Options{}, func(f *fleet) {
		all := f.targets()
		f.apply(all[0])
		f.wait(time.Second)
		all[0].URL = all[1].URL
		f.apply(all[0])
		f.is("n0", Unknown)
		f.wait(time.Second)
		if s := f.is("n0", Ready); s.Epoch != 1 || s.Level != ring.NoOverflow {
			t.Errorf("epoch %d, level %v", s.Epoch, s.Level)
		}
		asked := f.engines[0].count("/metrics")
		f.wait(10 * time.Second)
		if n := f.engines[0].count("/metrics"); n != asked {
			t.Error("the old address is still polled")
		}
	})
}

func TestRestartShowsAsEpoch(t *testing.T) {
	run(t, 1, Options{}, func(f *fleet) {
		e := f.engines[0]
		e.set(func(e *engine) { e.metrics = "vllm:prompt_tokens_total 500\n" })
		f.apply(f.targets()...)
		f.wait(3 * time.Second)
		e.set(func(e *engine) { e.metrics = "vllm:prompt_tokens_total 3\n" })
		f.wait(1200 * time.Millisecond)
		if s := f.is("n0", Ready); s.Epoch != 1 || s.Ramp >= 1 {
			t.Errorf("epoch %d, ramp %v", s.Epoch, s.Ramp)
		}
	})
}

func TestCallbacksMayCallTheManager(t *testing.T) {
	var m *Manager
	o := Options{OnChange: func(old, new Status) {
		if new.Name == "n0" && new.State == Ready && old.State != Ready && new.Weight == 1 {
			if err := m.SetWeight("n0", 3); err != nil {
				panic(err)
			}
			_ = m.Snapshot()
		}
	}}
	pages := 0
	o.OnSignals = func(name string, s *Signals) { pages++ }
	run(t, 1, o, func(f *fleet) {
		m = f.m
		f.apply(f.targets()...)
		f.wait(3 * time.Second)
		if s := f.is("n0", Ready); s.Weight != 3 {
			t.Errorf("weight %v", s.Weight)
		}
		if pages < 2 {
			t.Errorf("%d pages told in 3 s", pages)
		}
	})
}

func TestApplyRefusesBadTargetsAsAWhole(t *testing.T) {
	run(t, 1, Options{}, func(f *fleet) {
		good := f.targets()[0]
		f.apply(good)
		for name, bad := range map[string]Target{
			"no name": {URL: "http://x:1"}, "no host": {Name: "b", URL: "http://:80"},
			"odd scheme": {Name: "b", URL: "ftp://x"}, "twice": {Name: "n0", URL: "http://x"}, "no URL": {Name: "b"},
		} {
			if err := f.m.Apply([]Target{good, bad}); err == nil {
				t.Errorf("%s: accepted", name)
			}
		}
		if n := len(f.m.Snapshot()); n != 1 {
			t.Errorf("%d nodes after refused sets", n)
		}
		f.wait(time.Second)
		f.is("n0", Ready)
	})
}

func TestReportOfASuccessDoesNotAllocate(t *testing.T) {
	m, err := New(Options{})
	if err != nil {
		t.Fatal(err)
	}
	if err := m.Apply([]Target{{Name: "a", URL: "http://127.0.0.1:1"}}); err != nil {
		t.Fatal(err)
	}
	o := PassiveOutcome{Kind: Success, Warm: true, FirstByte: time.Millisecond}
	if n := testing.AllocsPerRun(100, func() { m.Report("a", o) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
