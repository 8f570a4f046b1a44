package ring

import (
	"math/rand/v2"
	"testing"

	"pgregory.net/rapid"
)

// pick fails the test unless a node is picked.
func pick(t testing.TB, r *Ring, q Query, want Reason) Slot {
	t.Helper()
	slot, reason, refusal := r.Pick(&q)
	if reason != want {
		t.Fatalf("reason %v (%v), want %v", reason, refusal, want)
	}
	return slot
}

func refuse(t testing.TB, r *Ring, q Query, want Refusal) {
	t.Helper()
	slot, reason, refusal := r.Pick(&q)
	if reason != None || refusal != want || slot.Node() != nil {
		t.Fatalf("picked %v, refusal %v, want %v", reason, refusal, want)
	}
}

func fill(t testing.TB, n *Node, to int64) {
	t.Helper()
	for n.Load() < to {
		if !n.reserve(Unit, Unit, to) {
			t.Fatal("cannot fill the node")
		}
	}
}

func TestPickEmptyAndSingle(t *testing.T) {
	r := newRing(t, nil, Options{})
	refuse(t, r, Query{}, Empty)
	if err := r.Apply(names(1)); err != nil {
		t.Fatal(err)
	}
	s := pick(t, r, Query{Key: 1}, Only)
	if s.Rank() != 0 || s.Node().Name() != "engine-000" {
		t.Errorf("picked %s at rank %d", s.Node().Name(), s.Rank())
	}
	r.Nodes()[0].SetLevel(Closed)
	refuse(t, r, Query{Key: 1}, AllClosed)
}

func TestPickOverflowsInRingOrder(t *testing.T) {
	r := newRing(t, names(6), Options{Floor: 2 * Unit, Margin: -1})
	order := r.Owners(99, 6, nil)
	for want := range 3 {
		for range 2 {
			reason := Overflow
			if want == 0 {
				reason = Owner
			}
			s := pick(t, r, Query{Key: 99}, reason)
			if s.Node() != order[want] || s.Rank() != want {
				t.Fatalf("picked %s at %d, want %s at %d", s.Node().Name(), s.Rank(), order[want].Name(), want)
			}
		}
	}
}

// The second copy of a key that is about to change is made where the new key lives.
func TestPickOverflowsToTheOwnersOfTheNextKey(t *testing.T) {
	for key := range uint64(50) {
		r := newRing(t, names(6), Options{Floor: 2 * Unit, Margin: -1})
		next := key + 1000
		owner, heir := r.Owners(key, 1, nil)[0], r.Owners(next, 1, nil)[0]
		if owner == heir {
			continue
		}
		for range 2 {
			if s := pick(t, r, Query{Key: key, Next: next}, Owner); s.Node() != owner {
				t.Fatalf("key %d: the owner is passed over while it has room", key)
			}
		}
		if s := pick(t, r, Query{Key: key, Next: next}, Overflow); s.Node() != heir || s.Rank() != -1 {
			t.Fatalf("key %d: overflow at %s, rank %d, want %s", key, s.Node().Name(), s.Rank(), heir.Name())
		}
		pick(t, r, Query{Key: key, Next: next}, Overflow)
		if s := pick(t, r, Query{Key: key, Next: next}, Overflow); s.Node() == heir || s.Node() == owner {
			t.Fatalf("key %d: %s is above its bound", key, s.Node().Name())
		}
	}
}

func TestPickBoundNodeFirst(t *testing.T) {
	r := newRing(t, names(6), Options{})
	order := r.Owners(7, 6, nil)
	s := pick(t, r, Query{Key: 7, Bound: order[4]}, Binding)
	if s.Node() != order[4] || s.Rank() != -1 {
		t.Errorf("picked %s", s.Node().Name())
	}
	order[4].SetLevel(WarmOnly)
	pick(t, r, Query{Key: 7, Bound: order[4]}, Binding)
	pick(t, r, Query{Key: 7, Bound: order[4], Tried: []*Node{order[4]}}, Owner)
	order[4].SetLevel(Closed)
	pick(t, r, Query{Key: 7, Bound: order[4]}, Owner)
	order[4].SetLevel(Open)
	if err := r.Apply(names(3)); err != nil {
		t.Fatal(err)
	}
	for _, n := range order {
		if n.Gone() {
			pick(t, r, Query{Key: 7, Bound: n}, Owner)
		}
	}
}

func TestPickLevels(t *testing.T) {
	r := newRing(t, names(4), Options{Floor: Unit, Margin: -1})
	o := r.Owners(5, 4, nil)
	o[0].SetLevel(NoOverflow)
	o[1].SetLevel(NoOverflow)
	if s := pick(t, r, Query{Key: 5}, Owner); s.Node() != o[0] {
		t.Error("a no-overflow owner must take what it owns")
	}
	if s := pick(t, r, Query{Key: 5}, Overflow); s.Node() != o[2] {
		t.Errorf("overflow went to %s, want the next open node", s.Node().Name())
	}
	// A closed owner: the next in line stands in and counts as the owner.
	r = newRing(t, names(4), Options{})
	o = r.Owners(5, 4, nil)
	o[0].SetLevel(Closed)
	o[1].SetLevel(NoOverflow)
	if s := pick(t, r, Query{Key: 5}, Owner); s.Node() != o[1] || s.Rank() != 1 {
		t.Error("the heir must stand in for a closed owner, also at no-overflow")
	}
	for _, n := range o {
		n.SetLevel(WarmOnly)
	}
	refuse(t, r, Query{Key: 5}, AllClosed)
}

// tgate is a gate with a list of cold nodes it vetoes and of warm ones it proves.
type tgate struct {
	veto, warm map[*Node]bool
	extra      int64
	asked      int
}

func (g *tgate) Admit(n *Node) (int64, bool) { g.asked++; return g.extra, !g.veto[n] }
func (g *tgate) Warm(n *Node) bool           { return g.warm[n] }

func TestPickGate(t *testing.T) {
	r := newRing(t, names(4), Options{Floor: Unit, Margin: -1})
	o := r.Owners(5, 4, nil)
	g := &tgate{veto: map[*Node]bool{o[0]: true}, extra: 3 * Unit}
	s := pick(t, r, Query{Key: 5, Gate: g}, Overflow)
	if s.Node() != o[1] || s.Work() != 4*Unit || o[1].Load() != 4*Unit || g.asked != 2 {
		t.Errorf("picked %s with work %d after %d questions", s.Node().Name(), s.Work(), g.asked)
	}
	if o[0].Load() != 0 || o[0].InFlight() != 0 {
		t.Error("a vetoed reservation must be undone")
	}
	for _, n := range o {
		g.veto[n] = true
	}
	refuse(t, r, Query{Key: 5, Gate: g}, Gated)
	s.Release()
	if o[1].Load() != 0 || r.total.Load() != 0 {
		t.Errorf("load %d, total %d after release", o[1].Load(), r.total.Load())
	}
}

func TestPickWarmOnlyTakesProvenWarmKeys(t *testing.T) {
	r := newRing(t, names(4), Options{})
	o := r.Owners(5, 4, nil)
	o[0].SetLevel(WarmOnly)
	if s := pick(t, r, Query{Key: 5, Gate: &tgate{}}, Owner); s.Node() != o[1] {
		t.Errorf("cold: picked %s, want the heir", s.Node().Name())
	}
	if s := pick(t, r, Query{Key: 5, Gate: &tgate{warm: map[*Node]bool{o[0]: true}}}, Owner); s.Node() != o[0] {
		t.Errorf("warm: picked %s, want the owner", s.Node().Name())
	}
}

func TestPickSecondKeyChoosesInsideK(t *testing.T) {
	r := newRing(t, names(16), Options{})
	rnd := rand.New(rand.NewPCG(1, 1))
	count := map[*Node]int{}
	moved := 0
	for range 4000 {
		second := rnd.Uint64() | 1
		s := pick(t, r, Query{Key: 42, Second: second, K: 4}, Owner)
		count[s.Node()]++
		s.Release()
		again := pick(t, r, Query{Key: 42, Second: second, K: 4}, Owner)
		grown := pick(t, r, Query{Key: 42, Second: second, K: 5}, Owner)
		if again.Node() != s.Node() {
			t.Fatal("a conversation must return to its owner")
		}
		if grown.Node() != s.Node() {
			moved++
			if grown.Rank() != 4 {
				t.Fatal("growing K may move conversations to the new owner only")
			}
		}
		again.Release()
		grown.Release()
	}
	if len(count) != 4 {
		t.Fatalf("%d nodes used, want 4", len(count))
	}
	for n, c := range count {
		if c < 850 || c > 1150 {
			t.Errorf("%s got %d of 4,000 conversations", n.Name(), c)
		}
	}
	if moved < 650 || moved > 950 {
		t.Errorf("%d of 4,000 conversations moved to the fifth owner, want about 800", moved)
	}
}

func TestPickOtherOwnersBeforeOverflowAndSpread(t *testing.T) {
	r := newRing(t, names(16), Options{})
	o := r.Owners(42, 16, nil)
	fill(t, o[2], 9*Unit)
	got := map[int]int{}
	for second := uint64(1); second < 2000; second++ {
		s := pick(t, r, Query{Key: 42, Second: second, K: 4}, Owner)
		got[s.Rank()]++
		s.Release()
	}
	// A quarter of the conversations want the full node; each of the others takes a share.
	if got[2] != 0 || got[0] < 600 || got[1] < 500 || got[3] < 500 {
		t.Errorf("ranks used: %v", got)
	}
	for _, i := range []int{0, 1, 3} {
		fill(t, o[i], 9*Unit)
	}
	if s := pick(t, r, Query{Key: 42, Second: 5, K: 4}, Overflow); s.Node() != o[4] {
		t.Errorf("overflow went to rank %d", s.Rank())
	}
}

func TestPickWithoutSecondTakesLeastLoadedOwner(t *testing.T) {
	r := newRing(t, names(8), Options{})
	for range 12 {
		pick(t, r, Query{Key: 3, K: 3}, Owner)
	}
	for _, n := range r.Owners(3, 3, nil) {
		if n.InFlight() != 4 {
			t.Errorf("%s has %d in flight, want 4", n.Name(), n.InFlight())
		}
	}
}

func TestPickHardBound(t *testing.T) {
	r := newRing(t, names(4), Options{Floor: Unit, Margin: -1, Hard: 20 * Unit})
	owner := r.Owners(5, 1, nil)[0]
	for range 20 {
		if s := pick(t, r, Query{Key: 5, Hard: true}, Owner); s.Node() != owner {
			t.Fatal("the hard bound must hold the owner open")
		}
	}
	if s := pick(t, r, Query{Key: 5, Hard: true}, Overflow); s.Node() == owner {
		t.Fatal("over the hard bound")
	}
}

// A request bigger than the bound gets in where one request has room: size alone
// refuses nobody, but it counts in full afterwards.
func TestPickBigWorkDoesNotStarve(t *testing.T) {
	r := newRing(t, names(2), Options{Floor: 2 * Unit, Margin: -1})
	o := r.Owners(5, 2, nil)
	s := pick(t, r, Query{Key: 5, Work: 40 * Unit}, Owner)
	if o[0].Load() != 40*Unit {
		t.Errorf("load %d", o[0].Load())
	}
	s.Adjust(Unit)
	if o[0].Load() != Unit || r.total.Load() != Unit {
		t.Errorf("load %d, total %d after Adjust", o[0].Load(), r.total.Load())
	}
	s.Release()
	s.Adjust(9 * Unit)
	if o[0].Load() != 0 || r.total.Load() != 0 {
		t.Errorf("load %d, total %d at the end", o[0].Load(), r.total.Load())
	}
}

func TestPickTriedIsExcluded(t *testing.T) {
	r := newRing(t, names(3), Options{})
	var tried []*Node
	for range 3 {
		slot, reason, _ := r.Pick(&Query{Key: 8, Tried: tried})
		if reason == None {
			t.Fatal("refused")
		}
		for _, n := range tried {
			if n == slot.Node() {
				t.Fatal("picked again what was tried")
			}
		}
		tried = append(tried, slot.Node())
		slot.Release()
	}
	refuse(t, r, Query{Key: 8, Tried: tried}, AllTried)
}

// Explain must say what Pick then does, whatever the state of the pool.
func TestExplainAgreesWithPick(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 12).Draw(t, "nodes")
		r := apply(t, names(n), Options{Partitions: 101, Replicas: 10, Floor: 3 * Unit})
		for _, node := range r.Nodes() {
			node.SetLevel(Level(rapid.IntRange(0, 3).Draw(t, "level")))
			if load := rapid.Int64Range(0, 6).Draw(t, "load"); load > 0 {
				node.reserve(0, load*Unit, 1<<40)
			}
			node.SetExternal(rapid.Int64Range(0, 2).Draw(t, "external") * Unit)
		}
		q := Query{
			Key: rapid.Uint64().Draw(t, "key"), Second: rapid.Uint64Range(0, 3).Draw(t, "second"),
			K: rapid.IntRange(0, n+1).Draw(t, "k"), Hard: rapid.Bool().Draw(t, "hard"),
		}
		if rapid.Bool().Draw(t, "bound") {
			q.Bound = r.Nodes()[rapid.IntRange(0, n-1).Draw(t, "which")]
		}
		if rapid.Bool().Draw(t, "tried") {
			q.Tried = append(q.Tried, r.Nodes()[rapid.IntRange(0, n-1).Draw(t, "which tried")])
		}
		if rapid.Bool().Draw(t, "changing") {
			q.Next = rapid.Uint64Range(1, 1<<20).Draw(t, "next")
		}
		e := r.Explain(&q)
		slot, reason, refusal := r.Pick(&q)
		name := ""
		if slot.Node() != nil {
			name = slot.Node().Name()
		}
		if e.Node != name || e.Reason != reason.String() || e.Refusal != refusal.String() {
			t.Fatalf("explained %q %s %s, picked %q %v %v", e.Node, e.Reason, e.Refusal, name, reason, refusal)
		}
	})
}
