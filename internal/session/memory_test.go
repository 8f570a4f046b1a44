package session

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"reflect"
	"testing"
	"unsafe"
)

// Planted strings must not be found in the store's memory, nor in its statistics. The
// entries have no pointers, so that their bytes are all there is.
func TestNoTextIsKept(t *testing.T) {
	s, _ := newStore(t, Options{Max: 64})
	canaries := []string{"CANARY-TENANT-4711", "CANARY-PRINCIPAL", "CANARY-CONVERSATION", "CANARY-LANE-9", "CANARY-ROUTE-12"}
	sc := Scope{Tenant: canaries[0], Principal: canaries[1], Conversation: canaries[2], Lane: canaries[3], Route: canaries[4]}
	bind(s, s.Key(&sc), 3)
	if et := reflect.TypeFor[entry](); !pointerless(et) {
		t.Fatalf("%v has pointers: this test can no longer see all that is kept", et)
	}
	for i := range s.shards {
		e := s.shards[i].entries
		dump := unsafe.Slice((*byte)(unsafe.Pointer(&e[0])), len(e)*int(unsafe.Sizeof(entry{})))
		for _, c := range canaries {
			for n := 6; n <= len(c); n++ {
				if bytes.Contains(dump, []byte(c[:n])) {
					t.Fatalf("%q is in the store's memory", c[:n])
				}
			}
		}
	}
	if out := fmt.Sprintf("%+v %+v", s.Stats(), s.Lookup(s.Key(&sc))); bytes.Contains([]byte(out), []byte("CANARY")) {
		t.Error("a planted string is in the output")
	}
}

func pointerless(t reflect.Type) bool {
	switch t.Kind() {
	case reflect.Struct:
		for f := range t.NumField() {
			if !pointerless(t.Field(f).Type) {
				return false
			}
		}
		return true
	case reflect.Array:
		return pointerless(t.Elem())
	default:
		return t.Kind() < reflect.Array && t.Kind() != reflect.Uintptr
	}
}

// What leaves the store leaves no trace in it.
func TestRemovedEntriesAreCleared(t *testing.T) {
	s, _ := newStore(t, Options{Max: 8})
	k := key(s, "c")
	s.EvictIf(k, bind(s, k, 77), Cancelled)
	for _, e := range s.shards[0].entries {
		if !e.key.Zero() || e.target != 0 || e.gen != 0 {
			t.Errorf("left behind: %+v", e)
		}
	}
}

// At most 200 bytes an entry, buckets and all.
func TestBytesPerEntry(t *testing.T) {
	s, _ := newStore(t, Options{})
	size := uintptr(0)
	for i := range s.shards {
		size += unsafe.Sizeof(shard{}) + uintptr(cap(s.shards[i].entries))*unsafe.Sizeof(entry{}) + uintptr(cap(s.shards[i].buckets))*4
	}
	per := float64(size) / DefaultMax
	t.Logf("%.1f bytes an entry", per)
	if per > 200 {
		t.Errorf("%.1f bytes an entry, more than 200", per)
	}
}

func TestNothingIsAllocated(t *testing.T) {
	s, _ := newStore(t, Options{})
	sc := Scope{Tenant: "tenant", Conversation: "conversation", Route: "model"}
	if a := testing.AllocsPerRun(1000, func() {
		sc.Boundary++
		k := s.Key(&sc)
		b := s.Lookup(k)
		s.Follow(k, b.Gen)
		s.Bind(k, 1, b.Stamp)
	}); a != 0 {
		t.Errorf("%g allocations", a)
	}
}

// BenchmarkStoreLookupInsert is a lookup and an insertion at 10,000 entries under 8
// goroutines. Budget: 300 ns, 0 allocations. Half of the lookups find something.
func BenchmarkStoreLookupInsert(b *testing.B) {
	s, _ := newStore(b, Options{})
	for i := range DefaultMax {
		bind(s, Key{mix(uint64(i)), mix(uint64(i) + 1)}, 1)
	}
	b.SetParallelism(4) // x 2 cores here = 8 goroutines
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		for i := rand.Uint64() % DefaultMax; pb.Next(); i++ {
			n := i % (2 * DefaultMax)
			k := Key{mix(n), mix(n + 1)}
			seen := s.Lookup(k)
			s.Bind(k, 1+n%7, seen.Stamp)
		}
	})
}

// BenchmarkStoreKey is the digest of a scope.
func BenchmarkStoreKey(b *testing.B) {
	s, _ := newStore(b, Options{})
	sc := Scope{Tenant: "tenant-12", Conversation: "0f8fad5b-d9cb-469f-a165-70867728950e", Route: "llama-70b", Prefix: 1}
	b.ReportAllocs()
	for b.Loop() {
		s.Key(&sc)
	}
}

func mix(x uint64) uint64 {
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	return x ^ x>>31
}
