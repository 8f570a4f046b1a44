package session

import (
	"encoding/binary"
	"hash/maphash"
)

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
	var buf [fixedLen + texts*(8+longText)]byte
	b := s.encode(buf[:0], sc)
	k := Key{maphash.Bytes(s.a, b), maphash.Bytes(s.b, b)}
	if k.Zero() {
		k.b = 1
	}
	return k
}

const (
	texts    = 5
	longText = 64 // longer texts enter as their digest, so that the buffer stays on the stack
	fixedLen = 6 * 8
)

// encode writes the fields with their lengths: ("ab", "c") and ("a", "bc") must differ.
func (s *seeds) encode(b []byte, sc *Scope) []byte {
	b = number(b, uint64(sc.Mode))
	b = number(b, sc.Revision)
	b = s.text(b, sc.Tenant)
	b = s.text(b, sc.Principal)
	b = s.text(b, sc.Route)
	if sc.Mode == User {
		return b // a user's requests share a binding, whatever they say
	}
	b = s.text(b, sc.Conversation)
	b = s.text(b, sc.Lane)
	b = number(b, sc.Boundary)
	b = number(b, sc.Prefix)
	return number(b, sc.Tools)
}

func (s *seeds) text(b []byte, t string) []byte {
	b = number(b, uint64(len(t)))
	if len(t) <= longText {
		return append(b, t...)
	}
	return number(number(b, maphash.String(s.a, t)), maphash.String(s.b, t))
}

func number(b []byte, v uint64) []byte { return binary.LittleEndian.AppendUint64(b, v) }
