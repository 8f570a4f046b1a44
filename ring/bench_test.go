package ring

import (
	"fmt"
	"testing"
)

func names(n int) []Member {
	out := make([]Member, n)
	for i := range out {
		out[i] = Member{Name: fmt.Sprintf("engine-%03d", i)}
	}
	return out
}

func newRing(t testing.TB, members []Member, o Options) *Ring {
	t.Helper()
	r, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Apply(members); err != nil {
		t.Fatal(err)
	}
	return r
}

// BenchmarkPick256 is one pick and its release on an idle pool of 256 nodes.
// Budget: 100 ns, 0 allocations.
func BenchmarkPick256(b *testing.B) {
	r := newRing(b, names(256), Options{})
	b.ReportAllocs()
	var q Query
	for i := 0; b.Loop(); i++ {
		q.Key = uint64(i) * 0x9e3779b97f4a7c15
		slot, reason, _ := r.Pick(&q)
		if reason != Owner {
			b.Fatal(reason)
		}
		slot.Release()
	}
}

// BenchmarkPick256Parallel is the same from all cores at once.
func BenchmarkPick256Parallel(b *testing.B) {
	r := newRing(b, names(256), Options{})
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		var q Query
		for i := uint64(0); pb.Next(); i++ {
			q.Key = i * 0x9e3779b97f4a7c15
			slot, _, _ := r.Pick(&q)
			slot.Release()
		}
	})
}

// BenchmarkPick256K4 has four owners and a conversation that chooses among them.
func BenchmarkPick256K4(b *testing.B) {
	r := newRing(b, names(256), Options{})
	b.ReportAllocs()
	var q Query
	for i := 0; b.Loop(); i++ {
		q.Key, q.Second, q.K = uint64(i)*0x9e3779b97f4a7c15, uint64(i)|1, 4
		slot, _, _ := r.Pick(&q)
		slot.Release()
	}
}

// saturate fills all nodes but every tenth to their bound.
func saturate(t testing.TB, r *Ring) (open int) {
	for i, n := range r.Nodes() {
		if i%10 == 0 {
			open++
			continue
		}
		n.account.Add(1 << 40) // as far over as it gets: the mean must not open it again
	}
	r.opts.Factor = 0 // and the floor is the bound
	return open
}

// BenchmarkPick256Saturated has 90 % of the nodes at their bound. Budget: 300 ns.
func BenchmarkPick256Saturated(b *testing.B) {
	r := newRing(b, names(256), Options{})
	saturate(b, r)
	b.ReportAllocs()
	var q Query
	for i := 0; b.Loop(); i++ {
		q.Key = uint64(i) * 0x9e3779b97f4a7c15
		slot, reason, refusal := r.Pick(&q)
		if reason == None {
			b.Fatal(refusal)
		}
		slot.Release()
	}
}

// BenchmarkRebuild1000 replaces one member of 1,000. Budget: 50 ms.
func BenchmarkRebuild1000(b *testing.B) {
	m := names(1000)
	r := newRing(b, m, Options{})
	for i := 0; b.Loop(); i++ {
		m[500].Name = fmt.Sprintf("joining-%d", i)
		if err := r.Apply(m); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkKSizerObserve is what each request adds where K is measured.
func BenchmarkKSizerObserve(b *testing.B) {
	z := NewKSizer(KOptions{})
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		z.Observe(uint64(i%1000)*0x9e3779b97f4a7c15, Unit, 64)
	}
}
