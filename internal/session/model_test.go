package session

import (
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// model is the plain reference: a list in order of use, searched from end to end.
type model struct {
	ttl  time.Duration
	uses int
	max  int
	seq  uint64
	list []modelBinding // least recently used first
}

type modelBinding struct {
	key         Key
	target, gen uint64
	expires     time.Duration
	used        int
}

func (m *model) at(k Key) int {
	return slices.IndexFunc(m.list, func(b modelBinding) bool { return b.key == k })
}

func (m *model) lookup(k Key, now time.Duration) Binding {
	b := Binding{Stamp: m.seq}
	i := m.at(k)
	if i < 0 {
		return b
	}
	e := m.list[i]
	m.list = slices.Delete(m.list, i, i+1)
	if now < e.expires && e.used < m.uses {
		m.list = append(m.list, e)
		b.Target, b.Gen = e.target, e.gen
	}
	return b
}

func (m *model) follow(k Key, gen uint64, now time.Duration) bool {
	i := m.at(k)
	if i < 0 || gen == 0 || m.list[i].gen != gen {
		return false
	}
	if now >= m.list[i].expires || m.list[i].used >= m.uses {
		m.list = slices.Delete(m.list, i, i+1)
		return false
	}
	m.list[i].used++
	return true
}

func (m *model) bind(k Key, target, stamp uint64, now time.Duration) (uint64, bool) {
	m.list = slices.DeleteFunc(m.list, func(b modelBinding) bool { return now >= b.expires })
	if i := m.at(k); i >= 0 {
		e := m.list[i]
		m.list = slices.Delete(m.list, i, i+1)
		if e.target == target || e.gen > stamp {
			m.list = append(m.list, e)
			return e.gen, false
		}
	} else if len(m.list) == m.max {
		m.list = m.list[1:]
	}
	m.seq++
	m.list = append(m.list, modelBinding{k, target, m.seq, now + m.ttl, 0})
	return m.seq, true
}

func (m *model) evict(k Key, gen uint64) bool {
	i := m.at(k)
	if i < 0 || gen == 0 || m.list[i].gen != gen {
		return false
	}
	m.list = slices.Delete(m.list, i, i+1)
	return true
}

// attempt is a request under way in the property test.
type attempt struct {
	key    Key
	seen   Binding
	target uint64
}

// Random interleavings of conversations, attempts, failures and time against the model.
func TestStoreAgreesWithModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		clock := &fake{}
		o := Options{
			TTL: time.Duration(rapid.IntRange(1, 30).Draw(t, "ttl")) * time.Second, Now: clock.now,
			Uses: rapid.IntRange(1, 4).Draw(t, "uses"), Max: rapid.IntRange(1, 6).Draw(t, "max"),
		}
		s, err := New(o)
		if err != nil {
			t.Fatal(err)
		}
		m := &model{ttl: o.TTL, uses: o.Uses, max: o.Max}
		var open []attempt
		t.Repeat(map[string]func(*rapid.T){
			"begin": func(t *rapid.T) {
				k := s.Key(&Scope{Boundary: rapid.Uint64Range(1, 9).Draw(t, "conversation")})
				got, want := s.Lookup(k), m.lookup(k, clock.t)
				if got != want {
					t.Fatalf("lookup %+v, want %+v", got, want)
				}
				a := attempt{k, got, rapid.Uint64Range(1, 3).Draw(t, "other target")}
				if rapid.Bool().Draw(t, "eligible") {
					followed := s.Follow(k, got.Gen)
					if want := m.follow(k, got.Gen, clock.t); followed != want {
						t.Fatalf("follow %v, want %v", followed, want)
					}
					if followed {
						a.target = got.Target
					}
				}
				open = append(open, a)
			},
			"end": func(t *rapid.T) {
				if len(open) == 0 {
					return
				}
				i := rapid.IntRange(0, len(open)-1).Draw(t, "which")
				a := open[i]
				open = slices.Delete(open, i, i+1)
				if rapid.Bool().Draw(t, "success") {
					g, fresh := s.Bind(a.key, a.target, a.seen.Stamp)
					if wg, wf := m.bind(a.key, a.target, a.seen.Stamp, clock.t); g != wg || fresh != wf {
						t.Fatalf("bind %d %v, want %d %v", g, fresh, wg, wf)
					}
				} else if got, want := s.EvictIf(a.key, a.seen.Gen, Failed), m.evict(a.key, a.seen.Gen); got != want {
					t.Fatalf("evict %v, want %v", got, want)
				}
			},
			"wait": func(t *rapid.T) {
				clock.t += time.Duration(rapid.IntRange(1, 20).Draw(t, "seconds")) * time.Second
			},
			"": func(t *rapid.T) {
				if s.Len() != len(m.list) || s.Len() > o.Max {
					t.Fatalf("%d entries, want %d of at most %d", s.Len(), len(m.list), o.Max)
				}
			},
		})
	})
}

// Many goroutines; afterwards the lists and the table of each shard must agree.
func TestConcurrentUse(t *testing.T) {
	s, err := New(Options{Max: 2000, TTL: time.Second, Uses: 3})
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for g := range 8 {
		wg.Go(func() {
			rnd := rand.New(rand.NewPCG(uint64(g), 1))
			for i := range 20_000 {
				k := s.Key(&Scope{Boundary: rnd.Uint64N(5000) + 1})
				b := s.Lookup(k)
				switch rnd.Uint64N(4) {
				case 0:
					s.EvictIf(k, b.Gen, Failed)
				case 1:
					s.Follow(k, b.Gen)
				default:
					s.Bind(k, rnd.Uint64N(8), b.Stamp)
				}
				if i%5000 == 0 {
					s.EvictTarget(rnd.Uint64N(8))
					s.Stats()
				}
			}
		})
	}
	wg.Wait()
	for i := range s.shards {
		checkShard(t, &s.shards[i])
	}
	if s.Len() == 0 || s.Len() > 2000 {
		t.Errorf("%d entries", s.Len())
	}
}

func checkShard(t *testing.T, sh *shard) {
	t.Helper()
	count := func(first int32, next func(*entry) int32) (n int32) {
		for i := first; i != none; i = next(&sh.entries[i]) {
			if n++; n > int32(len(sh.entries)) {
				t.Fatal("a list goes in circles")
			}
		}
		return n
	}
	byUse := count(sh.recent, func(e *entry) int32 { return e.next })
	byAge := count(sh.first, func(e *entry) int32 { return e.newer })
	free := count(sh.free, func(e *entry) int32 { return e.chain })
	chained := int32(0)
	for _, b := range sh.buckets {
		chained += count(b, func(e *entry) int32 { return e.chain })
	}
	if byUse != sh.used || byAge != sh.used || chained != sh.used || free+sh.used != int32(len(sh.entries)) {
		t.Errorf("used %d, by use %d, by age %d, chained %d, free %d of %d", sh.used, byUse, byAge, chained, free, len(sh.entries))
	}
}
