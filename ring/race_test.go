package ring

import (
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
)

// While the mean is so low that floor and margin are the bound, no node may ever be seen
// above it, by anybody, at any interleaving; and in the end every counter is at zero.
func TestBoundHoldsAtAnyInterleaving(t *testing.T) {
	const bound = 5 * Unit
	r := newRing(t, names(8), Options{Factor: 1, Floor: 4 * Unit, Margin: Unit})
	begin, stop := make(chan struct{}), make(chan struct{})
	var watch, work sync.WaitGroup
	var above atomic.Int64
	watch.Add(1)
	go func() {
		defer watch.Done()
		for {
			select {
			case <-stop:
				return
			default:
			}
			for _, n := range r.Nodes() {
				if n.Load() > bound || n.InFlight() > bound/Unit || n.Load() < 0 || n.InFlight() < 0 {
					above.Add(1)
				}
			}
		}
	}()
	var overflow, picked atomic.Int64
	for g := range 12 { // that hold two slots each: the mean stays below 5
		work.Add(1)
		go func() {
			defer work.Done()
			rnd := rand.New(rand.NewPCG(uint64(g), 9))
			gate := &tgate{veto: map[*Node]bool{r.Nodes()[g%8]: true}}
			var held []Slot
			<-begin
			for i := range 2000 {
				if i%16 == 0 {
					runtime.Gosched() // let the others find the slots of this one held
				}
				q := Query{Key: rnd.Uint64N(3), Second: rnd.Uint64(), K: int(rnd.Uint64N(4))}
				if rnd.Uint64N(3) == 0 {
					q.Gate = gate
				}
				slot, reason, refusal := r.Pick(&q)
				if reason == None {
					t.Errorf("refused: %v", refusal)
					break
				}
				if reason == Overflow {
					overflow.Add(1)
				}
				picked.Add(1)
				held = append(held, slot)
				for len(held) > int(rnd.Uint64N(3)) {
					held[0].Release()
					held = held[1:]
				}
			}
			for i := range held {
				held[i].Release()
			}
		}()
	}
	close(begin)
	work.Wait()
	close(stop)
	watch.Wait()
	if above.Load() > 0 {
		t.Errorf("a node was seen outside its bound %d times", above.Load())
	}
	if overflow.Load() < 100 {
		t.Errorf("%d of %d overflowed: the bound was not tested", overflow.Load(), picked.Load())
	}
	drained(t, r)
}

func drained(t *testing.T, r *Ring) {
	t.Helper()
	for _, n := range r.Nodes() {
		if n.Load() != 0 || n.InFlight() != 0 {
			t.Errorf("%s ends with load %d, %d in flight", n.Name(), n.Load(), n.InFlight())
		}
	}
	if total := r.total.Load(); total != 0 {
		t.Errorf("total ends at %d", total)
	}
}

// Where the bound follows the mean, a burst with no release can't overshoot it: in the
// end every node is within the bound that the final total gives.
func TestBurstNeverOvershootsTheRatio(t *testing.T) {
	r := newRing(t, names(10), Options{})
	var wg sync.WaitGroup
	for range 1000 {
		wg.Go(func() {
			if _, reason, refusal := r.Pick(&Query{Key: 1}); reason == None {
				t.Errorf("refused: %v", refusal)
			}
		})
	}
	wg.Wait()
	sum := int64(0)
	for _, n := range r.Nodes() {
		sum += n.InFlight()
		if n.Load() > r.Bound(n, false) || n.InFlight() > 1000/10*5/4+1 {
			t.Errorf("%s has %d in flight, bound %d", n.Name(), n.InFlight(), r.Bound(n, false))
		}
	}
	if sum != 1000 {
		t.Errorf("%d slots are out, want 1,000", sum)
	}
}

// Copies of one slot race to release it, while others adjust it and the hold is reused.
func TestReleaseIsExactlyOnce(t *testing.T) {
	r := newRing(t, names(3), Options{Hard: 1 << 30})
	for range 500 {
		slot := pick(t, r, Query{Key: 1, Hard: true}, Owner)
		var first atomic.Int64
		var wg sync.WaitGroup
		for g := range 4 {
			s := slot
			wg.Go(func() {
				s.Adjust(int64(g) * Unit)
				if s.Release() {
					first.Add(1)
				}
				if s.Release() {
					first.Add(1)
				}
				next, _, _ := r.Pick(&Query{Key: 2, Hard: true})
				s.Adjust(50 * Unit) // stale: must not touch the next slot
				if s.Release() {
					first.Add(1)
				}
				if !next.Release() {
					first.Add(100)
				}
			})
		}
		wg.Wait()
		if first.Load() != 1 {
			t.Fatalf("released %d times", first.Load())
		}
	}
	drained(t, r)
	var zero Slot
	if zero.Release() || zero.Work() != 0 || zero.Node() != nil {
		t.Error("the zero slot must hold nothing")
	}
}

// Picks go on while members and levels change; slots of nodes that left still count down.
func TestPicksDuringRebuilds(t *testing.T) {
	r := newRing(t, names(12), Options{Partitions: 101, Replicas: 10})
	stop := make(chan struct{})
	var wg sync.WaitGroup
	for g := range 8 {
		wg.Go(func() {
			rnd := rand.New(rand.NewPCG(uint64(g), 1))
			var held []Slot
			for {
				select {
				case <-stop:
					for i := range held {
						held[i].Release()
					}
					return
				default:
				}
				if slot, reason, _ := r.Pick(&Query{Key: rnd.Uint64(), K: 2}); reason != None {
					held = append(held, slot)
				}
				if len(held) > 8 {
					held[0].Release()
					held = held[1:]
				}
			}
		})
	}
	for i := range 300 {
		if err := r.Apply(names(6 + i%7)); err != nil {
			t.Error(err)
		}
		nodes := r.Nodes()
		n := nodes[i%len(nodes)]
		n.SetLevel(Level(i % 4))
		n.SetExternal(int64(i%3) * Unit)
	}
	for _, n := range r.Nodes() {
		n.SetExternal(0)
	}
	close(stop)
	wg.Wait()
	drained(t, r)
}
