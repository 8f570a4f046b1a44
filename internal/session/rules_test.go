package session

import (
	"strings"
	"testing"
	"time"
)

// fake is a clock that only moves when told.
type fake struct{ t time.Duration }

func (f *fake) now() time.Duration { return f.t }

func newStore(t testing.TB, o Options) (*Store, *fake) {
	t.Helper()
	f := &fake{}
	o.Now = f.now
	s, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	return s, f
}

func key(s *Store, conversation string) Key { return s.Key(&Scope{Conversation: conversation}) }

// bind binds as an attempt that began just now would.
func bind(s *Store, k Key, target uint64) uint64 {
	gen, _ := s.Bind(k, target, s.Lookup(k).Stamp)
	return gen
}

func TestLifeIsFixedAtCreation(t *testing.T) {
	s, clock := newStore(t, Options{})
	k := key(s, "c")
	bind(s, k, 7)
	for range 9 {
		clock.t += 90 * time.Second
		if b := s.Lookup(k); !b.Found() || b.Target != 7 {
			t.Fatalf("at %v: %+v", clock.t, b)
		}
		bind(s, k, 7) // a further success extends nothing, either
	}
	clock.t = 900*time.Second - 1
	if !s.Lookup(k).Found() {
		t.Error("gone before its time")
	}
	clock.t = 900 * time.Second
	if s.Lookup(k).Found() {
		t.Error("alive after 900 s")
	}
	if st := s.Stats(); st.Expired != 1 || st.Entries != 0 {
		t.Errorf("%+v", st)
	}
}

func TestExpiredOnesLeaveOnInsertion(t *testing.T) {
	s, clock := newStore(t, Options{TTL: time.Minute, Max: 100})
	for i := range 50 {
		bind(s, s.Key(&Scope{Boundary: uint64(i + 1)}), 1)
	}
	clock.t = time.Minute
	bind(s, key(s, "new"), 1)
	if s.Len() != 1 {
		t.Errorf("%d entries, want 1", s.Len())
	}
}

func TestUseLimit(t *testing.T) {
	s, _ := newStore(t, Options{})
	k := key(s, "c")
	gen := bind(s, k, 7)
	for i := range DefaultUses {
		if !s.Follow(k, gen) {
			t.Fatalf("use %d refused", i+1)
		}
	}
	if s.Follow(k, gen) || s.Lookup(k).Found() {
		t.Error("followed more than 100 times")
	}
	if st := s.Stats(); st.Spent != 1 || st.Followed != DefaultUses {
		t.Errorf("%+v", st)
	}
	free, _ := newStore(t, Options{Uses: -1})
	k = key(free, "c")
	gen = bind(free, k, 7)
	for range 1000 {
		if !free.Follow(k, gen) {
			t.Fatal("no limit was asked for")
		}
	}
}

func TestLookupsDoNotUseUp(t *testing.T) {
	s, _ := newStore(t, Options{Uses: 1})
	k := key(s, "c")
	gen := bind(s, k, 7)
	for range 10 {
		s.Lookup(k)
	}
	if !s.Follow(k, gen) {
		t.Error("looking is not following")
	}
}

// A slow failure of an old attempt never removes a newer binding.
func TestEvictComparesTheGeneration(t *testing.T) {
	s, _ := newStore(t, Options{})
	k := key(s, "c")
	old := bind(s, k, 7)
	fresh := bind(s, k, 8)
	if s.EvictIf(k, old, Failed) || s.Lookup(k).Target != 8 {
		t.Error("an old failure removed a newer binding")
	}
	if s.EvictIf(k, 0, Failed) {
		t.Error("an attempt that followed no binding evicts none")
	}
	if !s.EvictIf(k, fresh, Incomplete) || s.Lookup(k).Found() {
		t.Error("its own failure must remove it")
	}
	if st := s.Stats(); st.Evicted["replaced"] != 1 || st.Evicted["incomplete"] != 1 || st.Evicted["failed"] != 0 {
		t.Errorf("%+v", st)
	}
}

// Nor does a slow success of an old attempt replace it.
func TestBindComparesTheStamp(t *testing.T) {
	s, _ := newStore(t, Options{})
	k := key(s, "c")
	slow := s.Lookup(k)
	gen := bind(s, k, 8)
	if g, fresh := s.Bind(k, 7, slow.Stamp); fresh || g != gen || s.Lookup(k).Target != 8 {
		t.Error("an old success replaced a newer binding")
	}
	if _, fresh := s.Bind(k, 7, s.Lookup(k).Stamp); !fresh || s.Lookup(k).Target != 7 {
		t.Error("a new success on another target must replace it")
	}
}

func TestLeastRecentlyUsedLeavesFirst(t *testing.T) {
	s, _ := newStore(t, Options{Max: 3})
	a, b, c, d := key(s, "a"), key(s, "b"), key(s, "c"), key(s, "d")
	bind(s, a, 1)
	bind(s, b, 2)
	bind(s, c, 3)
	s.Lookup(a)
	bind(s, d, 4)
	if s.Lookup(b).Found() || !s.Lookup(a).Found() || !s.Lookup(c).Found() || !s.Lookup(d).Found() {
		t.Error("the wrong one left")
	}
	if st := s.Stats(); st.Evicted["capacity"] != 1 || st.Entries != 3 {
		t.Errorf("%+v", st)
	}
}

func TestMaxHoldsForShardedStores(t *testing.T) {
	s, _ := newStore(t, Options{})
	for i := range 50_000 {
		bind(s, s.Key(&Scope{Boundary: uint64(i + 1)}), 1)
	}
	if n := s.Len(); n != DefaultMax {
		t.Errorf("%d entries, want %d", n, DefaultMax)
	}
}

func TestGoneTargetsAndClear(t *testing.T) {
	s, _ := newStore(t, Options{})
	for i := range 90 {
		bind(s, s.Key(&Scope{Boundary: uint64(i + 1)}), uint64(i%3))
	}
	if n := s.EvictTarget(1); n != 30 || s.Len() != 60 {
		t.Errorf("%d evicted, %d left", n, s.Len())
	}
	s.Clear()
	if s.Len() != 0 || s.Lookup(s.Key(&Scope{Boundary: 1})).Found() {
		t.Error("not clear")
	}
	bind(s, key(s, "again"), 1)
	if s.Len() != 1 {
		t.Error("not usable after Clear")
	}
}

// Every field of the scope is part of the key: an explicit id never stands alone.
func TestScopeFieldsSeparate(t *testing.T) {
	s, _ := newStore(t, Options{})
	base := Scope{Tenant: "t", Principal: "p", Conversation: "c", Lane: "l", Route: "r", Boundary: 1, Prefix: 2, Tools: 3, Revision: 4}
	variants := map[string]func(*Scope){
		"tenant":       func(c *Scope) { c.Tenant = "u" },
		"principal":    func(c *Scope) { c.Principal = "q" },
		"conversation": func(c *Scope) { c.Conversation = "d" },
		"lane":         func(c *Scope) { c.Lane = "sub" },
		"route":        func(c *Scope) { c.Route = "s" },
		"boundary":     func(c *Scope) { c.Boundary = 9 },
		"prefix":       func(c *Scope) { c.Prefix = 9 },
		"tools":        func(c *Scope) { c.Tools = 9 },
		"revision":     func(c *Scope) { c.Revision = 9 },
		"mode":         func(c *Scope) { c.Mode = User },
		"shifted text": func(c *Scope) { c.Tenant, c.Principal = "tp", "" },
	}
	want := s.Key(&base)
	same := base
	if s.Key(&same) != want {
		t.Error("equal scopes must have equal keys")
	}
	for name, change := range variants {
		sc := base
		change(&sc)
		if s.Key(&sc) == want {
			t.Errorf("%s is not part of the key", name)
		}
	}
	long := strings.Repeat("x", 500)
	first, again := s.Key(&Scope{Tenant: long}), s.Key(&Scope{Tenant: long})
	if s.Key(&Scope{Tenant: long + "a"}) == s.Key(&Scope{Tenant: long + "b"}) || first != again {
		t.Error("long texts must count in full")
	}
	// In user mode only who asks, the route and its policy count.
	a, b := base, base
	a.Mode, b.Mode = User, User
	b.Conversation, b.Boundary, b.Prefix, b.Tools, b.Lane = "other", 8, 8, 8, "x"
	if s.Key(&a) != s.Key(&b) {
		t.Error("a user's requests share one binding")
	}
	other, _ := newStore(t, Options{})
	if other.Key(&base) == want {
		t.Error("digests must be keyed per store")
	}
}

func TestNilStoreIsOff(t *testing.T) {
	var s *Store
	k := s.Key(&Scope{Conversation: "c"})
	if gen, fresh := s.Bind(k, 1, 0); gen != 0 || fresh {
		t.Error("bound")
	}
	s.Refused(Draining)
	s.Clear()
	if s.Lookup(k).Found() || s.Follow(k, 1) || s.EvictIf(k, 1, Failed) || s.EvictTarget(1) != 0 || s.Len() != 0 || s.Stats().Entries != 0 {
		t.Error("nil must do nothing")
	}
}

func TestOptionsAreChecked(t *testing.T) {
	for _, o := range []Options{{TTL: time.Millisecond}, {TTL: MaxTTL + 1}, {TTL: -1}, {Max: -1}, {Max: 1 << 30}} {
		if _, err := New(o); err == nil || !strings.HasPrefix(err.Error(), "cannot use bindings: ") {
			t.Errorf("%+v: %v", o, err)
		}
	}
}

func TestOverride(t *testing.T) {
	on := Settings{Enabled: true, TTL: 300 * time.Second}
	for _, c := range []struct {
		base         Settings
		enabled, ttl string
		want         Settings
		warn         string
	}{
		{Settings{}, "", "", Settings{false, DefaultTTL}, ""},
		{on, "", "", on, ""},
		{Settings{}, "true", "", Settings{true, DefaultTTL}, ""},
		{Settings{}, " ON ", " 60 ", Settings{true, time.Minute}, ""},
		{on, "0", "", Settings{false, 300 * time.Second}, ""},
		{on, "", "1", Settings{true, time.Second}, ""},
		{on, "", "86400", Settings{true, MaxTTL}, ""},
		{on, "", "86401", Settings{false, 300 * time.Second}, EnvTTL},
		{on, "", "0", Settings{false, 300 * time.Second}, EnvTTL},
		{on, "", "-5", Settings{false, 300 * time.Second}, EnvTTL},
		{on, "", "15m", Settings{false, 300 * time.Second}, EnvTTL},
		{on, "", "99999999999999999999", Settings{false, 300 * time.Second}, EnvTTL},
		{on, "sk-secret-value", "", Settings{false, 300 * time.Second}, EnvEnabled},
		{on, "true", "sk-secret-value", Settings{false, 300 * time.Second}, EnvTTL},
	} {
		got, warning := Override(c.base, c.enabled, c.ttl)
		if got != c.want {
			t.Errorf("%q %q: %+v, want %+v", c.enabled, c.ttl, got, c.want)
		}
		if (warning == "") != (c.warn == "") || !strings.Contains(warning, c.warn) || strings.Contains(warning, "secret") {
			t.Errorf("%q %q: warning %q must name %q and no value", c.enabled, c.ttl, warning, c.warn)
		}
	}
}
