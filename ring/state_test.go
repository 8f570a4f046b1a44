package ring

import (
	"math"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestNodesSurviveRebuildsByName(t *testing.T) {
	r := newRing(t, names(3), Options{})
	s := pick(t, r, Query{Key: 1}, Owner)
	n := s.Node()
	n.SetLevel(NoOverflow)
	if err := r.Apply(append(names(3), Member{Name: "more", Value: 7, Level: WarmOnly})); err != nil {
		t.Fatal(err)
	}
	if r.Node(n.Name()) != n || n.Level() != NoOverflow || n.InFlight() != 1 {
		t.Error("identity, level and counters must survive")
	}
	if more := r.Node("more"); more.Value() != 7 || more.Level() != WarmOnly {
		t.Errorf("new node: value %v, level %v", more.Value(), more.Level())
	}
	// A node that leaves with a request in flight and comes back is the same node.
	var rest []Member
	for _, m := range names(3) {
		if m.Name != n.Name() {
			rest = append(rest, m)
		}
	}
	for range 2 {
		if err := r.Apply(rest); err != nil {
			t.Fatal(err)
		}
	}
	if r.Node(n.Name()) != nil || !n.Gone() {
		t.Error("the node should be gone")
	}
	if m := r.snap.Load().mean(r); m != 0 {
		t.Errorf("a gone node's load is in the mean: %g", m)
	}
	if err := r.Apply(names(3)); err != nil {
		t.Fatal(err)
	}
	if r.Node(n.Name()) != n || n.Gone() || n.InFlight() != 1 {
		t.Error("the node must come back with its counters")
	}
	if !s.Release() {
		t.Error("release failed")
	}
	drained(t, r)
}

func TestFailedRebuildKeepsTheOldSnapshot(t *testing.T) {
	r := newRing(t, names(3), Options{})
	want := r.Nodes()
	for name, bad := range map[string][]Member{
		"no name":  {{}},
		"twice":    {{Name: "a"}, {Name: "a"}},
		"NUL":      {{Name: "a\x00b"}},
		"weight":   {{Name: "a", Weight: -1}},
		"infinite": {{Name: "a", Weight: math.Inf(1)}},
		"NaN":      {{Name: "a", Weight: math.NaN()}},
	} {
		if err := r.Apply(bad); err == nil || !strings.HasPrefix(err.Error(), "cannot apply members: ") {
			t.Errorf("%s: error %v", name, err)
		}
		if got := r.Nodes(); &got[0] != &want[0] {
			t.Errorf("%s: the snapshot changed", name)
		}
	}
	pick(t, r, Query{Key: 1}, Owner)
	// The library itself panics when partitions don't fit: that is an error, too.
	members, err := checkMembers(names(3))
	if err != nil {
		t.Fatal(err)
	}
	_, err = askLibrary(sharesOf(members), Options{Partitions: 10, Replicas: 3, PartitionLoad: 0.1})
	if err == nil || !strings.Contains(err.Error(), "not enough room") {
		t.Errorf("error %v, want the library's panic", err)
	}
}

func TestOptionsAreChecked(t *testing.T) {
	for _, o := range []Options{{Partitions: -1}, {Partitions: 70000}, {Replicas: 1001}, {PartitionLoad: 1}, {Factor: 0.5}, {Floor: 1}, {Hard: 1}} {
		if _, err := New(o); err == nil || !strings.HasPrefix(err.Error(), "cannot use ring options: ") {
			t.Errorf("%+v: error %v", o, err)
		}
	}
	r := newRing(t, nil, Options{})
	if o := r.Options(); o.Factor != 1.25 || o.Floor != 8*Unit || o.Margin != Unit || o.Partitions != 4093 {
		t.Errorf("defaults are %+v", o)
	}
}

// Closed and warm-only nodes are no part of the mean: neither do stuck requests on
// ejected nodes loosen the bound, nor does the emptiness of joining ones tighten it.
func TestMeanIsOfUsableNodes(t *testing.T) {
	r := newRing(t, names(8), Options{Floor: Unit, Margin: -1})
	for _, n := range r.Nodes() {
		fill(t, n, 40*Unit)
	}
	want := r.Bound(r.Nodes()[0], false)
	for i, n := range r.Nodes() {
		if i < 6 {
			n.SetLevel([]Level{Closed, WarmOnly}[i%2])
		}
		if got := r.Bound(r.Nodes()[7], false); got < want || got > want+Unit {
			t.Errorf("with %d nodes out the bound is %d, was %d", i+1, got, want)
		}
	}
	if r.Usable() != 2 {
		t.Errorf("%d usable", r.Usable())
	}
}

// A node of weight w gets w shares of the partitions and of the bound.
func TestWeightsShareOut(t *testing.T) {
	members := names(10)
	members[0].Weight = 3
	members[1].Weight = 0.5
	members[2].Weight = 1.5
	r := newRing(t, members, Options{})
	plain := newRing(t, names(10), Options{})
	count := map[string]float64{}
	for p := range DefaultPartitions {
		count[orderOf(r, p)[0]]++
	}
	unit := float64(DefaultPartitions) / 12 // 3 + 0.5 + 1.5 + 7
	for name, w := range map[string]float64{"engine-000": 3, "engine-001": 0.5, "engine-002": 1.5, "engine-005": 1} {
		if got := count[name] / unit; got < 0.75*w || got > 1.27*w {
			t.Errorf("%s of weight %g owns %.2f shares", name, w, got)
		}
	}
	// Making one node smaller moves nothing but what leaves it.
	members = names(10)
	members[4].Weight = 0.25
	half := newRing(t, members, Options{})
	stray, left := 0, 0
	for p := range DefaultPartitions {
		a, b := orderOf(plain, p)[0], orderOf(half, p)[0]
		switch {
		case a == b:
		case a == "engine-004":
			left++
		default:
			stray++
		}
	}
	if stray > 0 || left < DefaultPartitions/10*6/10 {
		t.Errorf("%d partitions left the smaller node, %d moved between others", left, stray)
	}
	if a, b := r.Bound(r.Node("engine-000"), false), r.Bound(r.Node("engine-001"), false); a <= b {
		t.Errorf("bounds %d and %d: the bigger node must get more", a, b)
	}
}

// The order goes beyond the stored prefix without repeating.
func TestOrderBeyondTheStoredPrefix(t *testing.T) {
	r := newRing(t, names(200), Options{Floor: Unit, Margin: -1, Factor: 1})
	seen := map[*Node]bool{}
	order := orderOf(r, r.snap.Load().table.partition(12345))
	for range 150 {
		slot, reason, refusal := r.Pick(&Query{Key: 12345})
		if reason == None {
			t.Fatalf("refused %v with %d nodes used", refusal, len(seen))
		}
		if seen[slot.Node()] {
			t.Fatal("a node was used twice")
		}
		if slot.Rank() != len(seen) || order[slot.Rank()] != slot.Node().Name() {
			t.Fatalf("rank %d, want %d", slot.Rank(), len(seen))
		}
		seen[slot.Node()] = true
	}
	if slices.Sort(order); len(order) != 200 || len(slices.Compact(order)) != 200 {
		t.Errorf("the order has %d nodes", len(order))
	}
}

func TestKSizer(t *testing.T) {
	sec := 0.0
	z := NewKSizer(KOptions{Now: simClock(&sec), HalfLife: 10 * time.Second})
	run := func(seconds int, hot, cold int) {
		for range seconds {
			for range hot {
				z.Observe(1, Unit, 16)
			}
			for k := range cold {
				z.Observe(uint64(100+k), Unit, 16)
			}
			sec++
		}
		z.Observe(99, Unit, 16)
	}
	z.Observe(1, Unit, 16)
	sec += 2
	z.Observe(1, Unit, 16)
	if k := z.K(1, 16); k != 1 {
		t.Errorf("K %d after two requests: no evidence of heat yet", k)
	}
	run(30, 50, 50)
	// half of 16 nodes' load, less what the bound leaves to one: ceil(8 x 0.8)
	if k := z.K(1, 16); k != 7 {
		t.Errorf("K %d at a share of %.2f, want 7", k, z.Share(1))
	}
	if k := z.K(120, 16); k != 1 {
		t.Errorf("K %d of a cold key", k)
	}
	if k := z.K(1, 2); k != 1 {
		t.Errorf("K %d of 2 nodes: half the load fits one node's bound", k)
	}
	run(30, 5, 95)
	if k := z.K(1, 16); k != 7 {
		t.Errorf("K %d: owners must not be let go at once", k)
	}
	run(300, 5, 95)
	if k := z.K(1, 16); k != 1 {
		t.Errorf("K %d, share %.3f: owners must be let go in the end", k, z.Share(1))
	}
}

// A key that takes the place of another one has its owners from the first request on.
func TestKSizerInherit(t *testing.T) {
	sec := 0.0
	z := NewKSizer(KOptions{Now: simClock(&sec), HalfLife: 10 * time.Second})
	for range 30 {
		for range 50 {
			z.Observe(1, Unit, 16)
			z.Observe(uint64(100+int(sec)%40), Unit, 16)
		}
		sec++
	}
	had := z.K(1, 16)
	z.Inherit(1, 2)
	if k := z.K(2, 16); k != had || k < 5 {
		t.Errorf("K %d, the old key had %d", k, had)
	}
	for range 5 {
		sec++
		for range 50 {
			z.Observe(2, Unit, 16)
			z.Observe(3, Unit, 16)
		}
		if k := z.Observe(2, Unit, 16); k != had {
			t.Errorf("K %d after %g s, the old key had %d", k, sec, had)
		}
	}
	z.Inherit(77, 78) // nothing is known of it
	z.Inherit(2, 2)
	if z.K(78, 16) != 1 || z.K(2, 16) != had {
		t.Error("inheriting nothing has changed something")
	}
}

// Junk keys must neither grow the table nor push out a key with load.
func TestKSizerIsBounded(t *testing.T) {
	sec := 0.0
	z := NewKSizer(KOptions{Now: simClock(&sec), MaxKeys: 64})
	for i := range 100_000 {
		z.Observe(7, Unit, 8)
		z.Observe(mix(uint64(i)), Unit, 8)
		sec += 0.001
	}
	if len(z.keys) != 64 {
		t.Errorf("%d places", len(z.keys))
	}
	if k := z.K(7, 8); k != 4 {
		t.Errorf("K %d with half the load of 8 nodes, want 4", k)
	}
	if a := testing.AllocsPerRun(1000, func() { z.Observe(7, Unit, 8) }); a != 0 {
		t.Errorf("%g allocations", a)
	}
}

func TestPickDoesNotAllocate(t *testing.T) {
	r := newRing(t, names(256), Options{})
	q := Query{K: 3}
	if a := testing.AllocsPerRun(2000, func() {
		q.Key += 0x9e3779b97f4a7c15
		slot, _, _ := r.Pick(&q)
		slot.Adjust(5)
		slot.Release()
	}); a != 0 {
		t.Errorf("%g allocations", a)
	}
}
