package core

import (
	"errors"
	"math/rand/v2"
	"reflect"
	"testing"
	"time"
)

func cost(t *testing.T, name string) Cost {
	t.Helper()
	p, err := FindPreset(name)
	if err != nil {
		t.Fatal(err)
	}
	return p.Cost
}

func TestPrefillsShareOneBudget(t *testing.T) {
	c := mustNew(t, Config{Budget: 2048, MaxSeqs: 64, Cost: Cost{Token: 1e-6}})
	a := submit(t, c, 0, Request{Prompt: unique(1, 3000, 16), Output: 1})
	b := submit(t, c, 0, Request{Prompt: unique(2, 3000, 16), Output: 1})
	var sizes []int
	var ev []Event
	now := time.Duration(0)
	for {
		var o Outcome
		if o, ev = c.Step(now, ev); !o.Ran {
			break
		}
		sizes, now = append(sizes, o.Prefill), o.End
	}
	if want := []int{2048, 2048, 1904}; !reflect.DeepEqual(sizes, want) {
		t.Errorf("steps prefill %v tokens, want %v", sizes, want)
	}
	first, _ := find(ev, a, First)
	second, _ := find(ev, b, First)
	if first.At >= second.At {
		t.Error("first come was not first served")
	}
}

func TestDecodesGoBeforePrefills(t *testing.T) {
	c := mustNew(t, Config{Budget: 64, MaxSeqs: 32, Cost: Cost{Token: 1e-6}})
	for i := range uint64(8) {
		submit(t, c, 0, Request{Prompt: unique(i, 8, 16), Output: 50})
	}
	o, _ := c.Step(0, nil)
	submit(t, c, o.End, Request{Prompt: unique(99, 1000, 16), Output: 1})
	o, _ = c.Step(o.End, nil)
	if o.Decode != 8 || o.Prefill != 56 {
		t.Errorf("a step decodes %d and prefills %d tokens, want 8 and the rest of the budget, 56", o.Decode, o.Prefill)
	}
}

// A full queue beside an almost empty KV memory (capture vllm_metrics_saturated):
// one long prefill eats the budget, the others wait.
func TestOnePrefillAtATimeLeavesTheRestWaiting(t *testing.T) {
	c := mustNew(t, Config{Budget: 2048, MaxSeqs: 4, KVTokens: 524_288, Cost: cost(t, "8b")})
	for i := range uint64(10) {
		submit(t, c, 0, Request{Prompt: unique(i, 20_000, 16), Output: 50})
	}
	_, _ = c.Step(time.Second, nil)
	s := c.Stats()
	if s.Running != 1 || s.Waiting != 9 || s.Usage() > 0.2 {
		t.Errorf("running %d, waiting %d, usage %.2f; want 1, 9 and below 0.2", s.Running, s.Waiting, s.Usage())
	}
}

func TestMaxSeqsHolds(t *testing.T) {
	c := mustNew(t, Config{MaxSeqs: 4, Budget: 8192})
	for i := range uint64(10) {
		submit(t, c, 0, Request{Prompt: unique(i, 20, 16), Output: 5})
	}
	_, _ = c.Step(0, nil)
	if s := c.Stats(); s.Running != 4 || s.Waiting != 6 {
		t.Errorf("running %d, waiting %d; want 4 and 6", s.Running, s.Waiting)
	}
	drain(t, c, 0)
	if s := c.Stats(); s.Finished != 10 || s.UsedBlocks != 0 {
		t.Errorf("finished %d, blocks held %d; want 10 and 0", s.Finished, s.UsedBlocks)
	}
}

func TestATwinThatArrivesTogetherFindsOnlyScheduledChunks(t *testing.T) {
	c := mustNew(t, Config{Budget: 2048, MaxSeqs: 64, Cost: Cost{Token: 1e-6}})
	head := SeedChain(1, 1000)
	p := func(seed uint64) Prompt {
		return Prompt{Tokens: 16_000 + 40, Static: 16_000, Head: head, Tail: AppendSeed(nil, head.End(), seed, 2)}
	}
	a := submit(t, c, 0, Request{Prompt: p(1), Output: 1})
	b := submit(t, c, 0, Request{Prompt: p(2), Output: 1})
	ev, _ := drain(t, c, 0)
	first, _ := find(ev, a, Admitted)
	second, _ := find(ev, b, Admitted)
	if first.Cached != 0 || second.Cached == 0 || second.Cached > 16_000 {
		t.Errorf("cached %d and %d; want 0 and what the first had computed so far", first.Cached, second.Cached)
	}
}

func TestPreemptionTakesTheNewestAndRecomputes(t *testing.T) {
	// Room for 24 blocks; two requests of 10 blocks that want 5 more each.
	c := mustNew(t, Config{KVTokens: 24 * 16, TokenEvents: true, Cost: Cost{Fixed: 1e-3}})
	a := submit(t, c, 0, Request{Prompt: unique(1, 160, 16), Output: 80})
	b := submit(t, c, 0, Request{Prompt: unique(2, 160, 16), Output: 80})
	ev, _ := drain(t, c, 0)
	if _, ok := find(ev, a, Preempted); ok {
		t.Error("the older request was preempted")
	}
	if _, ok := find(ev, b, Preempted); !ok {
		t.Error("nothing was preempted although the memory cannot hold both")
	}
	tokens := map[ID]int{}
	for _, e := range ev {
		if e.Kind == First || e.Kind == Token {
			tokens[e.ID]++
		}
	}
	if tokens[a] != 80 || tokens[b] != 80 {
		t.Errorf("%d and %d tokens, want 80 each: preemption must lose and double none", tokens[a], tokens[b])
	}
	s := c.Stats()
	if s.Preemptions == 0 || s.Generated != 160 || s.Prompt != 320 || s.Admitted != 2 {
		t.Errorf("stats %+v: preempted re-runs must not count as lookups", s)
	}
}

func TestAbortFreesAtOnceInEveryState(t *testing.T) {
	c := mustNew(t, Config{MaxSeqs: 2, Budget: 64, Cost: Cost{Token: 1e-6, FrontFixed: 1}})
	var ids []ID
	for i := range uint64(4) {
		ids = append(ids, submit(t, c, 0, Request{Prompt: unique(i, 100, 16), Output: 1000}))
	}
	o, _ := c.Step(time.Second, nil) // 0 prefills, the rest wait
	o, _ = c.Step(o.End, nil)        // 0 decodes soon, 1 prefills
	late := submit(t, c, o.End, Request{Prompt: unique(9, 100, 16), Output: 5})
	for _, id := range append(ids, late) {
		if !c.Abort(id) {
			t.Errorf("request %d cannot be aborted", id)
		}
		check(t, c)
		if c.Abort(id) {
			t.Errorf("request %d was aborted twice", id)
		}
	}
	s := c.Stats()
	if s.UsedBlocks != 0 || s.Running != 0 || s.Waiting != 0 || s.Pending != 0 || s.Aborts != 5 {
		t.Errorf("after aborting all: %+v", s)
	}
	if o, _ := c.Step(2*time.Second, nil); o.Ran {
		t.Error("an aborted request still makes the engine work")
	}
}

func TestQueueLimitCountsRunningOnlyWhenToldTo(t *testing.T) {
	for _, row := range []struct {
		running bool
		taken   int
	}{{false, 4}, {true, 2}} {
		c := mustNew(t, Config{MaxSeqs: 2, QueueLimit: 2, QueueRunning: row.running, Cost: Cost{Fixed: 1e-3}})
		taken := 0
		for i := range uint64(6) {
			_, err := c.Submit(0, Request{Prompt: unique(i, 20, 16), Output: 100})
			if err == nil {
				taken++
			} else if !errors.Is(err, ErrQueueFull) {
				t.Fatal(err)
			}
			_, _ = c.Step(0, nil)
		}
		if taken != row.taken {
			t.Errorf("running counts %t: %d requests taken, want %d", row.running, taken, row.taken)
		}
	}
}

func TestPriorityOrdersTheQueue(t *testing.T) {
	c := mustNew(t, Config{MaxSeqs: 1, Priority: true, Cost: Cost{Fixed: 1e-3}})
	submit(t, c, 0, Request{Prompt: unique(1, 20, 16), Output: 3})
	_, _ = c.Step(0, nil)
	low := submit(t, c, 0, Request{Prompt: unique(2, 20, 16), Output: 3, Priority: 5})
	high := submit(t, c, 0, Request{Prompt: unique(3, 20, 16), Output: 3, Priority: -5})
	ev, _ := drain(t, c, time.Millisecond)
	a, _ := find(ev, low, Admitted)
	b, _ := find(ev, high, Admitted)
	if b.At >= a.At {
		t.Error("a lower priority value was not served earlier")
	}
}

func TestRefusals(t *testing.T) {
	c := mustNew(t, Config{KVTokens: 160})
	for _, row := range []struct {
		r    Request
		want error
	}{
		{Request{Prompt: Prompt{Tokens: 0}, Output: 1}, ErrEmpty},
		{Request{Prompt: Prompt{Tokens: 1}, Output: 0}, ErrEmpty},
		{Request{Prompt: Prompt{Tokens: 150}, Output: 11}, ErrTooLong},
	} {
		if _, err := c.Submit(0, row.r); !errors.Is(err, row.want) {
			t.Errorf("%+v: %v, want %v", row.r, err, row.want)
		}
	}
	if id := submit(t, c, 0, Request{Prompt: Prompt{Tokens: 150}, Output: 10}); id == 0 {
		t.Error("a request that fills the memory exactly was refused")
	}
	if _, now := drain(t, c, 0); c.Stats().Finished != 1 {
		t.Errorf("it did not finish by %v", now)
	}
	for _, bad := range []Config{{MaxSeqs: 100, Budget: 10}, {KVTokens: -1}, {KVTokens: 20}, {Noise: 2}} {
		if _, err := New(bad); err == nil {
			t.Errorf("%+v was accepted", bad)
		}
	}
}

// story is a seeded workload with shared prefixes, aborts and memory pressure.
func story(seed uint64, n int) []Request {
	r := rand.New(rand.NewPCG(seed, 2))
	chains := make([]*Chain, 4)
	for i := range chains {
		chains[i] = SeedChain(seed*10+uint64(i), 20+r.IntN(60))
	}
	var all []Request
	for range n {
		h := chains[r.IntN(len(chains))]
		tail := AppendSeed(nil, h.End(), r.Uint64(), r.IntN(6))
		tokens := 16*(h.Blocks()+len(tail)) + 1 + r.IntN(15)
		all = append(all, Request{Prompt: Prompt{Tokens: tokens, Static: 16 * h.Blocks(), Head: h, Tail: tail}, Output: 1 + r.IntN(120), Priority: int64(r.IntN(3))})
	}
	return all
}

func TestBlocksAreConservedUnderPressure(t *testing.T) {
	preempted, evicted := int64(0), int64(0)
	for seed := range uint64(20) {
		r := rand.New(rand.NewPCG(seed, 3))
		c := mustNew(t, Config{KVTokens: 200 * 16, MaxSeqs: 32, Budget: 256, Priority: seed%2 == 0, TokenEvents: true, Cost: cost(t, "8b"), Seed: seed})
		now := time.Duration(0)
		var live []ID
		var ev []Event
		for _, q := range story(seed, 300) {
			id := submit(t, c, now, q)
			live = append(live, id)
			if r.IntN(10) == 0 {
				c.Abort(live[r.IntN(len(live))])
			}
			if r.IntN(50) == 0 {
				c.Reset()
			}
			var o Outcome
			for range r.IntN(4) {
				if o, ev = c.Step(now, ev[:0]); o.Ran {
					now = o.End
				} else if o.Wake != Never {
					now = o.Wake
				}
			}
			check(t, c)
		}
		drain(t, c, now)
		s := c.Stats()
		if s.Finished+s.Aborts != s.Requests || s.UsedBlocks != 0 {
			t.Fatalf("seed %d: %+v", seed, s)
		}
		preempted, evicted = preempted+s.Preemptions, evicted+s.Evicted
	}
	if preempted < 10 || evicted < 1000 {
		t.Errorf("%d preemptions and %d evictions in all: the runs met no pressure", preempted, evicted)
	}
}

// play runs a story with arrivals and returns the events, stepping with next.
func play(t *testing.T, cfg Config, qs []Request, next func(c *Core, now, until time.Duration, ev []Event) (time.Duration, []Event)) ([]Event, Stats) {
	t.Helper()
	c := mustNew(t, cfg)
	var ev []Event
	now := time.Duration(0)
	at := time.Duration(0)
	for _, q := range qs {
		at += 7 * time.Millisecond
		for now < at {
			now, ev = next(c, now, at, ev)
		}
		submit(t, c, at, q)
	}
	for c.Stats().Running+c.Stats().Waiting+c.Stats().Pending > 0 {
		now, ev = next(c, now, now+time.Hour, ev)
	}
	return ev, c.Stats()
}

func TestRunGivesWhatStepGives(t *testing.T) {
	for seed := range uint64(10) {
		cfg := Config{KVTokens: 400 * 16, MaxSeqs: 16, Budget: 512, Cost: cost(t, "70b-tp8")}
		qs := story(seed, 200)
		fast, a := play(t, cfg, qs, (*Core).Run)
		slow, b := play(t, cfg, qs, func(c *Core, now, until time.Duration, ev []Event) (time.Duration, []Event) {
			o, ev := c.Step(now, ev)
			if o.Ran {
				return o.End, ev
			}
			return min(o.Wake, until), ev
		})
		if !reflect.DeepEqual(fast, slow) {
			t.Fatalf("seed %d: the two ways to drive the engine give different events", seed)
		}
		if a != b {
			t.Fatalf("seed %d: stats differ: %+v and %+v", seed, a, b)
		}
	}
}

func TestEqualSeedsGiveEqualRuns(t *testing.T) {
	cfg := Config{KVTokens: 400 * 16, MaxSeqs: 16, Budget: 512, Cost: cost(t, "8b"), Noise: 0.08, Seed: 5}
	qs := story(1, 200)
	a, _ := play(t, cfg, qs, (*Core).Run)
	b, _ := play(t, cfg, qs, (*Core).Run)
	if !reflect.DeepEqual(a, b) {
		t.Error("equal seeds give different runs")
	}
	cfg.Seed = 6
	if c, _ := play(t, cfg, qs, (*Core).Run); reflect.DeepEqual(a, c) {
		t.Error("another seed gives the same noise")
	}
}

func TestNoiseKeepsTheMean(t *testing.T) {
	busy := func(noise float64) time.Duration {
		c := mustNew(t, Config{Cost: cost(t, "8b"), Noise: noise, Seed: 1})
		submit(t, c, 0, Request{Prompt: unique(1, 100, 16), Output: 20_000})
		drain(t, c, 0)
		return c.Stats().Busy
	}
	plain, noisy := busy(0).Seconds(), busy(0.1).Seconds()
	if off := noisy/plain - 1; off > 0.01 || off < -0.01 || noisy == plain {
		t.Errorf("20,000 steps take %.2f s without noise and %.2f s with 10 %%", plain, noisy)
	}
}

func TestNoCacheNeverHits(t *testing.T) {
	c := mustNew(t, Config{NoCache: true})
	for range 3 {
		if got := run1(t, c, unique(1, 500, 16), 20); got != 0 {
			t.Errorf("%d tokens cached with the cache off", got)
		}
	}
	if s := c.Stats(); s.IdleBlocks != 0 {
		t.Errorf("%d blocks are cached with the cache off", s.IdleBlocks)
	}
}
