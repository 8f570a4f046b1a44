package session

import "hash/maphash"

// Scope is everything that a binding depends on: a change of any field is another
// binding. Fields that don't apply stay zero.
type Scope struct {
	Tenant       string // who asks
	Principal    string // the user behind the tenant, where the client names one
	Conversation string // explicit conversation key; empty when Boundary is used
	Lane         string // agent lane (main, sub-agent), where the client names one
	Route        string // route or model asked for, after alias resolution
	Boundary     uint64 // hash at the last message boundary already answered
	Prefix       uint64 // fingerprint of the opening static prefix
	Tools        uint64 // digest of the tool schema, where it is not part of Prefix
	Revision     uint64 // policy revision of the route
	Mode         Mode
}

// Mode says what a binding follows.
type Mode uint8

// The modes. User is for hosted channels, whose cache belongs to an account.
const (
	Conversation Mode = iota
	User
)

// Key is the opaque digest of a Scope.
type Key struct{ a, b uint64 }

// Zero says that the key is not set.
func (k Key) Zero() bool { return k == Key{} }

// seeds are the per-store secret. One 64-bit digest would do for chance; two make a
// collision between tenants out of reach also for someone who can choose the inputs.
type seeds struct{ a, b maphash.Seed }

func newSeeds() seeds { return seeds{maphash.MakeSeed(), maphash.MakeSeed()} }

func (s *seeds) key(sc *Scope) Key {
	var h maphash.Hash
	h.SetSeed(s.a)
	write(&h, sc)
	k := Key{a: h.Sum64()}
	h.SetSeed(s.b)
	write(&h, sc)
	k.b = h.Sum64()
	if k.Zero() {
		k.b = 1
	}
	return k
}

// write feeds the fields with their lengths: ("ab", "c") and ("a", "bc") must differ.
func write(h *maphash.Hash, sc *Scope) {
	number(h, uint64(sc.Mode))
	number(h, sc.Revision)
	for _, f := range [...]string{sc.Tenant, sc.Principal, sc.Route} {
		text(h, f)
	}
	if sc.Mode == User {
		return // a user's requests share a binding, whatever they say
	}
	text(h, sc.Conversation)
	text(h, sc.Lane)
	for _, f := range [...]uint64{sc.Boundary, sc.Prefix, sc.Tools} {
		number(h, f)
	}
}

func text(h *maphash.Hash, s string) {
	number(h, uint64(len(s)))
	h.WriteString(s)
}

func number(h *maphash.Hash, v uint64) {
	b := [8]byte{byte(v), byte(v >> 8), byte(v >> 16), byte(v >> 24), byte(v >> 32), byte(v >> 40), byte(v >> 48), byte(v >> 56)}
	h.Write(b[:])
}
