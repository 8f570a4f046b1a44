package ring

import (
	"testing"
)

// A binding may fill its node to Follow times the ordinary bound, and not one request
// further; everybody else keeps to the ordinary bound.
func TestFollowHasItsOwnBound(t *testing.T) {
	for _, tc := range []struct {
		follow float64
		room   int // requests of one node with floor 4 and no margin
	}{{0, 8}, {1, 4}, {3, 12}} {
		r := newRing(t, names(4), Options{Floor: 4 * Unit, Margin: -1, Follow: tc.follow})
		n := r.Nodes()[2]
		for i := range tc.room {
			s := pick(t, r, Query{Key: 5, Bound: n}, Binding)
			if s.Node() != n {
				t.Fatalf("follow %g: request %d went to %s", tc.follow, i, s.Node().Name())
			}
		}
		slot, reason, _ := r.Pick(&Query{Key: 5, Bound: n})
		if reason == Binding || slot.Node() == n {
			t.Errorf("follow %g: followed to %d requests", tc.follow, n.InFlight())
		}
		if n.Load() > r.FollowBound(n) {
			t.Errorf("follow %g: load %d is above %d", tc.follow, n.Load(), r.FollowBound(n))
		}
	}
}

// Health and gate come before the binding, whatever room there is.
func TestFollowWidensNothingButTheBound(t *testing.T) {
	r := newRing(t, names(4), Options{})
	n := r.Nodes()[1]
	n.SetLevel(Closed)
	if s, reason, _ := r.Pick(&Query{Key: 5, Bound: n}); reason == Binding || s.Node() == n {
		t.Error("followed to a closed node")
	}
	n.SetLevel(Open)
	if s, reason, _ := r.Pick(&Query{Key: 5, Bound: n, Tried: []*Node{n}}); reason == Binding || s.Node() == n {
		t.Error("followed to a node that was tried")
	}
	if s, reason, _ := r.Pick(&Query{Key: 5, Bound: n, Gate: gateOf(func(c *Node) (int64, bool) { return 0, c != n })}); reason == Binding || s.Node() == n {
		t.Error("followed past the gate")
	}
}

type gateOf func(*Node) (int64, bool)

func (g gateOf) Admit(n *Node) (int64, bool) { return g(n) }

// Where the history is, a request weighs only what is new.
func TestFollowChargesWhatIsNew(t *testing.T) {
	r := newRing(t, names(4), Options{})
	n := r.Nodes()[1]
	s := pick(t, r, Query{Key: 5, Bound: n, Work: 9 * Unit, BoundWork: 2 * Unit}, Binding)
	if s.Work() != 2*Unit || n.Load() != 2*Unit {
		t.Errorf("slot %d, node %d, want two units", s.Work(), n.Load())
	}
	s.Release()
	n.SetLevel(Closed)
	other := pick(t, r, Query{Key: 5, Bound: n, Work: 9 * Unit, BoundWork: 2 * Unit}, Owner)
	if other.Work() != 9*Unit {
		t.Errorf("elsewhere it weighs %d, want nine units", other.Work())
	}
}
