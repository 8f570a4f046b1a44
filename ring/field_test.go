package ring

import (
	"container/heap"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
)

// Field case B33: ten nodes, 2,000 prefixes, 100 requests a second of one second each,
// 5 % aborts, one node replaced every ten seconds. Loads must stay together, over the
// whole run, and nothing may leak.
func TestB33ManyPrefixesStaySpread(t *testing.T) {
	for seed := range uint64(10) {
		b33(t, seed)
	}
}

func b33(t *testing.T, seed uint64) {
	members := names(10)
	r := newRing(t, members, Options{})
	rnd := rand.New(rand.NewPCG(33, seed))
	served := map[string]int{}
	var open endings
	settle := func(now float64) {
		for len(open) > 0 && open[0].at <= now {
			e := heap.Pop(&open).(ending)
			if !e.slot.Release() {
				t.Fatal("slot was released already")
			}
		}
	}
	for i := range 6000 {
		now := float64(i) / 100
		settle(now)
		if i > 0 && i%1000 == 0 {
			// The node of this place is replaced by one of another name; its requests fail.
			place := i / 1000
			old := members[place].Name
			for j := range open {
				if open[j].slot.Node().Name() == old {
					open[j].at = now
				}
			}
			heap.Init(&open)
			settle(now)
			members[place].Name = fmt.Sprintf("replaced-%d", place)
			if err := r.Apply(members); err != nil {
				t.Fatal(err)
			}
		}
		slot := pick2(t, r, Query{Key: mix(rnd.Uint64N(2000))})
		served[slot.Node().Name()]++
		life := 1.0
		if rnd.Uint64N(20) == 0 {
			life = rnd.Float64() // the client leaves
		}
		heap.Push(&open, ending{now + life, slot})
		if i%100 == 99 {
			highest, mean := spread(r)
			if mean >= 4 && highest > math.Ceil(1.25*mean)+1 {
				t.Errorf("second %d: %g in flight on one node, mean %g", i/100, highest, mean)
			}
			if int(math.Round(mean*10)) != len(open) {
				t.Errorf("second %d: nodes count %g in flight, there are %d", i/100, mean*10, len(open))
			}
		}
	}
	for place, m := range members {
		n := served[m.Name]
		if m.Name != names(10)[place].Name {
			n += served[names(10)[place].Name]
		}
		if n < 360 || n > 840 {
			t.Errorf("place %d served %d of 6,000, outside 6..14 %%", place, n)
		}
	}
	settle(math.Inf(1))
	drained(t, r)
}

func pick2(t *testing.T, r *Ring, q Query) Slot {
	t.Helper()
	slot, reason, refusal := r.Pick(&q)
	if reason == None {
		t.Fatalf("refused: %v", refusal)
	}
	return slot
}

// Field case B35: 480 requests of one prefix on 8 nodes. Whatever the path, a pick is a
// reservation, so that no node gets more than its bound.
func TestB35OnePrefixCannotMeltItsNode(t *testing.T) {
	r := newRing(t, names(8), Options{})
	for range 480 {
		pick2(t, r, Query{Key: 4711})
	}
	for _, n := range r.Nodes() {
		if limit := int64(math.Ceil(1.25*60)) + 1; n.InFlight() > limit {
			t.Errorf("%s has %d in flight, more than %d", n.Name(), n.InFlight(), limit)
		}
	}
}

// Field case B36, first half: a saturated owner (few long requests, full cache) gets no
// more new work; it goes to the next in ring order, turns of its conversations may
// stay, and ownership returns with the level.
func TestB36SaturatedOwnerShiftsToTheNextInLine(t *testing.T) {
	r := newRing(t, names(4), Options{})
	o := r.Owners(36, 4, nil)
	for i, n := range o {
		n.SetExternal([]int64{3, 6, 6, 6}[i] * Unit)
	}
	o[0].SetLevel(WarmOnly) // what health sets for an engine whose KV memory is full
	for range 2 {
		if s := pick2(t, r, Query{Key: 36}); s.Node() != o[1] {
			t.Errorf("new work went to %s, want the next in line", s.Node().Name())
		}
	}
	if s := pick(t, r, Query{Key: 36, Bound: o[0]}, Binding); s.Node() != o[0] {
		t.Error("a turn of a bound conversation may stay")
	}
	o[0].SetLevel(Open)
	if s := pick2(t, r, Query{Key: 36}); s.Node() != o[0] {
		t.Error("ownership must return")
	}
}

// Field case B36, second half: two routers with half of the traffic each, told of each
// other's requests by the engines, stay within the bound together. A report is up to
// 50 requests old.
func TestB36TwoRoutersShareTheBound(t *testing.T) {
	a, b := newRing(t, names(4), Options{}), newRing(t, names(4), Options{})
	tell := func() {
		for i, n := range a.Nodes() {
			m := b.Nodes()[i]
			mine, theirs := n.Load(), m.Load()
			n.SetExternal(theirs)
			m.SetExternal(mine)
		}
	}
	rnd := rand.New(rand.NewPCG(36, 2))
	var held []Slot
	worst := 0.0
	for i := range 4000 {
		r := []*Ring{a, b}[i%2]
		held = append(held, pick2(t, r, Query{Key: rnd.Uint64N(2)})) // two hot prefixes
		if len(held) > 160 {
			k := rnd.IntN(len(held))
			held[k].Release()
			held = slices.Delete(held, k, k+1)
		}
		if i%50 == 0 {
			tell()
		}
		if i > 400 {
			for j, n := range a.Nodes() {
				worst = max(worst, float64(n.InFlight()+b.Nodes()[j].InFlight())/40)
			}
		}
	}
	if limit := (1.25*40 + 1) / 40 * 1.25; worst > limit {
		t.Errorf("a node had %.2f x the mean, more than the bound and a quarter (%.2f)", worst, limit)
	}
	for i := range held {
		held[i].Release()
	}
	for i := range a.Nodes() {
		a.Nodes()[i].SetExternal(0)
		b.Nodes()[i].SetExternal(0)
	}
	drained(t, a)
	drained(t, b)
}

// Field case B27, set 2: 50 tenants whose prefixes differ spread over four nodes; and
// set 1: one prefix stays on its owner set.
func TestB27PrefixesSpreadAndOnePrefixStays(t *testing.T) {
	r := newRing(t, names(4), Options{})
	count := map[*Node]int{}
	for i := range 5000 {
		s := pick2(t, r, Query{Key: mix(uint64(i % 50))})
		count[s.Node()]++
		s.Release()
	}
	inside := 0
	for _, n := range r.Nodes() {
		if c := count[n]; c >= 750 && c <= 1750 {
			inside++
		}
	}
	if inside < 3 {
		t.Errorf("only %d of 4 nodes got 15..35 %%: %v", inside, count)
	}
	owner := r.Owners(1, 1, nil)[0]
	stayed := 0
	var held []Slot
	for range 200 { // eight at a time
		s := pick2(t, r, Query{Key: 1})
		if s.Node() == owner {
			stayed++
		}
		if held = append(held, s); len(held) > 8 {
			held[0].Release()
			held = held[1:]
		}
	}
	if stayed < 190 {
		t.Errorf("%d of 200 requests of one prefix stayed on its owner", stayed)
	}
}
