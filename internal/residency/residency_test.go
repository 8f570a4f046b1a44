package residency

import (
	"math/rand/v2"
	"sync"
	"testing"
	"time"
)

type fake struct {
	mu sync.Mutex // guards t: the race test reads it from everywhere
	t  time.Time
}

func (f *fake) now() time.Time {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.t
}

func (f *fake) pass(d time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.t = f.t.Add(d)
}

func newTable(o Options) (*Table, *fake) {
	f := &fake{t: time.Date(2031, 1, 1, 0, 0, 0, 0, time.UTC)}
	o.Now = f.now
	t := New(o)
	f.pass(time.Hour) // a table is not only used in the second it was made
	return t, f
}

func want(t *testing.T, tab *Table, node uint32, fp uint64, w Warmth) {
	t.Helper()
	if got, age := tab.Warmth(node, fp); got != w {
		t.Fatalf("node %d is %v (age %v), want %v", node, got, age, w)
	}
}

func hit(static int64) Evidence {
	return Evidence{Kind: Usage, Prompt: static + 300, Cached: static, Static: static}
}

func miss(static int64) Evidence {
	return Evidence{Kind: Usage, Prompt: static + 300, Cached: 0, Static: static}
}

func TestNothingIsClaimedWithoutEvidence(t *testing.T) {
	tab, _ := newTable(Options{})
	want(t, tab, 3, 7, Unknown)
	tab.Observe(3, 7, hit(60000))
	want(t, tab, 3, 7, Warm)
	want(t, tab, 4, 7, Unknown)
	want(t, tab, 3, 8, Unknown)
	if _, age := tab.Warmth(3, 7); age != 0 {
		t.Errorf("age %v of fresh evidence", age)
	}
}

// Field case B67: unknown is not zero. Nothing reported neither proves a hit nor a miss.
func TestB67UnreportedCachedTokensAreUnknown(t *testing.T) {
	tab, clock := newTable(Options{})
	tab.Observe(1, 7, hit(60000))
	for range 20 {
		clock.pass(30 * time.Second)
		tab.Observe(1, 7, Evidence{Kind: Usage, Prompt: 60300, Cached: Unreported, Static: 60000})
		want(t, tab, 1, 7, Warm)
	}
	rows := tab.Snapshot()
	if len(rows) != 1 || rows[0].Misses != 0 {
		t.Errorf("%+v: unreported counts must be no misses", rows)
	}
	// Zeros that are reported, against fresh evidence, are.
	for range maxMisses {
		clock.pass(30 * time.Second)
		tab.Observe(1, 7, miss(60000))
	}
	want(t, tab, 1, 7, Cold)
	tab.Observe(1, 7, hit(60000))
	want(t, tab, 1, 7, Warm)
}

// Field case B58: a probe that shares all but the last partial block with the real
// request proves the prefix; one that shares less, for example because its template adds
// a header near the front, does not.
func TestB58OnlyWholePrefixCountsAsHit(t *testing.T) {
	for _, c := range []struct {
		e    Evidence
		want bool
	}{
		{Evidence{Prompt: 3652, Cached: 3584, Static: 3600, Block: 128}, true},
		{Evidence{Prompt: 3652, Cached: 3472, Static: 3600, Block: 128}, true},
		{Evidence{Prompt: 3652, Cached: 3344, Static: 3600, Block: 128}, false},
		{Evidence{Prompt: 3652, Cached: 128, Static: 3600, Block: 128}, false},
		{Evidence{Prompt: 3652, Cached: 0, Static: 3600}, false},
		{Evidence{Prompt: 60500, Cached: 59000, Static: 61000}, true}, // static is an estimate
		{Evidence{Prompt: 900, Cached: 0, Static: 100, Block: 528}, false},
		{Evidence{Prompt: 1000, Cached: 600}, true},
		{Evidence{Prompt: 1000, Cached: 100}, false},
	} {
		if got := c.e.hit(); got != c.want {
			t.Errorf("%+v: hit %v", c.e, got)
		}
	}
}

// A miss means that it has been computed now: warm on weak evidence, until misses follow
// each other (field case B56: the engine does not cache this prefix at all).
func TestMissThenPrefilledThenUseless(t *testing.T) {
	tab, clock := newTable(Options{})
	tab.Observe(1, 7, miss(60000))
	want(t, tab, 1, 7, Warm)
	for range maxMisses - 1 {
		clock.pass(time.Minute)
		tab.Observe(1, 7, miss(60000))
		want(t, tab, 1, 7, Warm)
	}
	clock.pass(time.Minute)
	tab.Observe(1, 7, miss(60000))
	want(t, tab, 1, 7, Cold)
}

// Requests that run side by side all miss; that contradicts nothing.
func TestMissesSideBySideAreNoContradiction(t *testing.T) {
	tab, clock := newTable(Options{})
	sent := clock.now()
	for range 10 {
		clock.pass(5 * time.Second)
		e := miss(60000)
		e.Sent = sent
		tab.Observe(1, 7, e)
		want(t, tab, 1, 7, Warm)
	}
	if rows := tab.Snapshot(); rows[0].Misses != 0 {
		t.Errorf("%d misses", rows[0].Misses)
	}
}

func TestTrustDecaysWeakEvidenceSooner(t *testing.T) {
	for _, c := range []struct {
		kind Kind
		life time.Duration
	}{{Usage, 15 * time.Minute}, {Proof, 15 * time.Minute}, {Counters, 10 * time.Minute}, {TTFT, 7 * time.Minute}, {Prefill, 7 * time.Minute}} {
		tab, clock := newTable(Options{})
		tab.Observe(1, 7, Evidence{Kind: c.kind, Prompt: 60300, Cached: 60000, Static: 60000})
		clock.pass(c.life)
		want(t, tab, 1, 7, Warm)
		clock.pass(time.Minute)
		want(t, tab, 1, 7, Unknown)
	}
}

func TestAgeIsThatOfTheProof(t *testing.T) {
	tab, clock := newTable(Options{})
	tab.Observe(1, 7, Evidence{Kind: Proof, Static: 60000})
	clock.pass(90 * time.Second)
	tab.Observe(1, 7, Evidence{Kind: Prefill, Static: 60000})
	if _, age := tab.Warmth(1, 7); age != 90*time.Second {
		t.Errorf("age %v: weak evidence must not pass for a proof", age)
	}
	clock.pass(10 * time.Minute)
	tab.Observe(1, 7, Evidence{Kind: Prefill, Static: 60000})
	if _, age := tab.Warmth(1, 7); age != 0 {
		t.Errorf("age %v: the proof has worn down, the fresh evidence stands", age)
	}
}

// A prefix has what is proven of a longer one, for as long, and nothing else.
func TestInherit(t *testing.T) {
	tab, clock := newTable(Options{})
	tab.Observe(1, 7, hit(60000))
	tab.Observe(2, 7, Evidence{Kind: Removed})
	tab.Observe(3, 8, Evidence{Kind: Proof, Static: 50000})
	tab.Observe(3, 7, hit(60000))
	clock.pass(10 * time.Minute)
	for node := range uint32(5) {
		tab.Inherit(node, 7, 8)
	}
	want(t, tab, 1, 8, Warm)
	want(t, tab, 2, 8, Unknown)
	want(t, tab, 3, 8, Warm)
	want(t, tab, 4, 8, Unknown)
	if _, age := tab.Warmth(1, 8); age != 10*time.Minute {
		t.Errorf("the proof has become %v old", age)
	}
	clock.pass(6 * time.Minute)
	want(t, tab, 1, 8, Unknown)
	tab.Inherit(1, 7, 9)
	want(t, tab, 1, 9, Unknown)

	tab.Observe(1, 7, hit(60000))
	tab.Observe(1, 10, Evidence{Kind: Prefill, Static: 60000})
	tab.Inherit(1, 7, 10)
	clock.pass(8 * time.Minute)
	want(t, tab, 1, 10, Unknown) // its own evidence stayed
	tab.Inherit(1, 7, 7)
	want(t, tab, 1, 7, Warm)
	tab.Forget(1, Restart)
	want(t, tab, 1, 8, Cold)
}

func TestRestartIsCold(t *testing.T) {
	for why := range Gone + 1 {
		tab, clock := newTable(Options{})
		for fp := range uint64(100) {
			tab.Observe(1, fp+1, hit(60000))
			tab.Observe(2, fp+1, hit(60000))
		}
		clock.pass(time.Second)
		tab.Forget(1, why)
		clock.pass(time.Second)
		for fp := range uint64(100) {
			want(t, tab, 1, fp+1, Cold)
			want(t, tab, 2, fp+1, Warm)
		}
		want(t, tab, 1, 5555, Cold) // also what was never seen there
		if _, age := tab.Warmth(1, 1); age.Round(time.Second) != time.Second {
			t.Errorf("%v: age %v, want that of the restart", why, age)
		}
		tab.Observe(1, 1, hit(60000))
		want(t, tab, 1, 1, Warm)
		want(t, tab, 1, 2, Cold)
		clock.pass(time.Hour)
		want(t, tab, 1, 5555, Unknown) // others may have filled it since
	}
}

func TestRemovedBlocksAreColdAtOnce(t *testing.T) {
	tab, clock := newTable(Options{})
	tab.Observe(1, 9, Evidence{Kind: Removed})
	want(t, tab, 1, 9, Unknown)
	tab.Observe(1, 7, hit(60000))
	tab.Observe(1, 7, Evidence{Kind: Removed})
	want(t, tab, 1, 7, Cold)
	clock.pass(time.Second)
	tab.Observe(1, 7, Evidence{Kind: Proof, Static: 60000})
	want(t, tab, 1, 7, Warm)
}

// The least recently used leaves when more has been written than there is room.
func TestEvictionIsEstimatedFromCapacity(t *testing.T) {
	tab, clock := newTable(Options{})
	tab.SetCapacity(1, 200_000)
	for fp := uint64(1); fp <= 3; fp++ {
		tab.Observe(1, fp, miss(60000))
		clock.pass(time.Second)
	}
	for fp := uint64(1); fp <= 3; fp++ {
		want(t, tab, 1, fp, Warm)
	}
	tab.Observe(1, 1, hit(60000)) // a hit refreshes the whole prefix
	tab.Observe(1, 4, miss(60000))
	want(t, tab, 1, 1, Warm)
	want(t, tab, 1, 2, Unknown)
	want(t, tab, 1, 4, Warm)
	tab.Fill(1, 150_000) // thin traffic without a fingerprint takes room, too
	want(t, tab, 1, 1, Unknown)
	want(t, tab, 1, 4, Unknown)
	want(t, tab, 2, 4, Unknown)
}

// Without a known capacity, or with less room than the engine says, eviction is learned
// from a miss against fresh belief, and unlearned from a hit.
func TestEvictionIsLearned(t *testing.T) {
	tab, clock := newTable(Options{})
	tab.Observe(1, 1, hit(60000))
	tab.Fill(1, 100_000)
	clock.pass(time.Minute)
	want(t, tab, 1, 1, Warm)
	tab.Observe(1, 1, miss(60000))
	if room := tab.Room(1); room < 150_000 || room > 170_000 {
		t.Fatalf("room %d, want about 160,000", room)
	}
	tab.Fill(1, 110_000)
	want(t, tab, 1, 1, Unknown)
	clock.pass(time.Minute)
	tab.Observe(1, 1, hit(60000))
	if room := tab.Room(1); room < 170_000 {
		t.Errorf("room %d: a hit after more than that must unlearn it", room)
	}
	tab.SetCapacity(1, 80_000)
	if tab.Room(1) != 80_000 {
		t.Errorf("room %d, want what the engine has", tab.Room(1))
	}
	tab.Forget(1, Restart)
	if tab.Room(1) != 80_000 {
		t.Errorf("room %d after a restart", tab.Room(1))
	}
}

// Junk fingerprints are bounded and never push out a proof (field case B65's kin).
func TestMemoryIsBoundedAndProofsStay(t *testing.T) {
	tab, clock := newTable(Options{MaxEntries: 1024})
	for fp := uint64(1); fp <= 24; fp++ {
		tab.Observe(1, mix(fp), Evidence{Kind: Proof, Static: 60000})
	}
	for i := range uint64(30_000) {
		tab.Observe(1, mix(1000+i), Evidence{Kind: Prefill, Static: 100})
		if i%300 == 0 {
			clock.pass(time.Second)
		}
	}
	if n := len(tab.Snapshot()); n > 1024 {
		t.Errorf("%d entries, more than 1,024", n)
	}
	for i := range uint64(2000) {
		tab.Observe(1, mix(i%300), hit(100))
		tab.Fill(1, 10)
	}
	if n := len(tab.nodes.get(1).recent); n > maxTouched {
		t.Errorf("%d in the order of use, more than %d", n, maxTouched)
	}
	for fp := uint64(1); fp <= 24; fp++ {
		want(t, tab, 1, mix(fp), Warm)
	}
}

func TestSnapshot(t *testing.T) {
	tab, clock := newTable(Options{})
	tab.Observe(2, 7, hit(60000))
	tab.Observe(1, 9, Evidence{Kind: TTFT, Static: 500})
	tab.Lead(1, 8)
	clock.pass(15 * time.Minute / 2)
	rows := tab.Snapshot()
	if len(rows) != 3 || rows[0].Fingerprint != 8 || rows[1].Fingerprint != 9 || rows[2].Node != 2 {
		t.Fatalf("%+v", rows)
	}
	if r := rows[2]; r.Warmth != Warm || r.Kind != Usage || r.Static != 60000 || r.Trust < 0.70 || r.Trust > 0.72 {
		t.Errorf("%+v", r)
	}
	if r := rows[0]; r.Warmth != Unknown || r.Kind.String() != "none" || r.Trust != 0 {
		t.Errorf("%+v: the lead is void by now", r)
	}
}

func TestReadsDoNotAllocate(t *testing.T) {
	tab, _ := newTable(Options{})
	tab.Observe(1, 7, hit(60000))
	tab.Lead(1, 8)
	e := hit(60000)
	if a := testing.AllocsPerRun(1000, func() {
		tab.Warmth(1, 7)
		tab.Warmth(9, 9)
		tab.Lead(1, 8)
		tab.Leaders(8)
		tab.Observe(1, 7, e)
	}); a != 0 {
		t.Errorf("%g allocations", a)
	}
}

// Everything at once; nobody may ever see warmth that no evidence gave.
func TestConcurrentUse(t *testing.T) {
	tab, clock := newTable(Options{MaxEntries: 512})
	var wg sync.WaitGroup
	for g := range 8 {
		wg.Go(func() {
			rnd := rand.New(rand.NewPCG(uint64(g), 1))
			for range 5000 {
				node, fp := uint32(rnd.Uint64N(5)), rnd.Uint64N(2000)*2 // even: may be warm
				switch rnd.Uint64N(8) {
				case 0:
					tab.Observe(node, fp, hit(1000))
				case 1:
					tab.Observe(node, fp, miss(1000))
				case 2:
					if tab.Lead(node, fp) {
						tab.Done(node, fp)
					}
				case 3:
					tab.Forget(node, Restart)
				case 4:
					tab.SetCapacity(node, 1<<40)
					tab.Changed(fp)
				default:
					if w, _ := tab.Warmth(node, fp+1); w == Warm {
						t.Error("warmth without evidence")
					}
					tab.Warmth(node, fp)
				}
			}
		})
	}
	for range 50 {
		clock.pass(time.Second)
		tab.Snapshot()
	}
	wg.Wait()
	for i := range tab.shards {
		if n := len(tab.shards[i].flights); n != 0 {
			t.Errorf("shard %d still has %d flights", i, n)
		}
	}
}

// BenchmarkWarmth is what a pick asks per candidate.
func BenchmarkWarmth(b *testing.B) {
	tab := New(Options{})
	for n := range uint32(64) {
		for fp := range uint64(24) {
			tab.Observe(n, mix(fp), hit(60000))
		}
	}
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		if w, _ := tab.Warmth(uint32(i&63), mix(uint64(i%24))); w != Warm {
			b.Fatal(w)
		}
	}
}

// BenchmarkObserve is what a settled request costs.
func BenchmarkObserve(b *testing.B) {
	tab := New(Options{})
	e := hit(60000)
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		tab.Observe(uint32(i&63), mix(uint64(i%24)), e)
	}
}
