// Package route decides which member of a route a request goes to. A route is a name
// that clients ask for as a model; it has tiers in order, and a tier has members: pools
// and channels with weights.
//
// # Rules
//
//   - A request goes to the first tier that has a member that can do it and takes work.
//   - Inside a tier members are asked in the order of a weighted rendezvous of the
//     conversation, so that a conversation keeps its member while that takes work, and
//     members share conversations as their weights say.
//   - What a member cannot do (protocol, context length, tools, images) makes it
//     ineligible before a try.
//   - A walk that is held to a tier never leaves it.
//
// The package is pure: no I/O, no clock, no randomness, no state besides a Walk, which
// belongs to one request.
package route

import (
	"fmt"
	"math"

	"github.com/prefixring/prefixring/internal/dialect"
)

// Need is what a request asks of whoever serves it.
type Need struct {
	Protocol dialect.Protocol
	Tokens   int64 // prompt and requested output, as far as known or estimated
	Tools    bool
	Images   bool
}

// Can is what a member is able to do. The zero value can do everything.
type Can struct {
	Protocols []dialect.Protocol // none = all
	Context   int64              // tokens, 0 = no limit known
	NoTools   bool
	NoImages  bool
}

// Lack says what a member cannot do for a request.
type Lack uint8

// What can be lacking. Nothing is the zero value.
const (
	Nothing Lack = iota
	Protocol
	Context
	Tools
	Images
)

// String is a word for messages.
func (l Lack) String() string {
	return [...]string{"nothing", "protocol", "context length", "tools", "images"}[min(l, Images)]
}

// Lacks returns the first thing that the member cannot do.
func (c *Can) Lacks(n *Need) Lack {
	known := len(c.Protocols) == 0
	for _, p := range c.Protocols {
		known = known || p == n.Protocol
	}
	switch {
	case !known:
		return Protocol
	case c.Context > 0 && n.Tokens > c.Context:
		return Context
	case c.NoTools && n.Tools:
		return Tools
	case c.NoImages && n.Images:
		return Images
	}
	return Nothing
}

// Member is one pool or channel in a tier.
type Member struct {
	Tier   int
	Weight float64 // relative to the others of its tier; 0 means 1
	Can    Can
	Hash   uint64 // of its name: the same in every router
}

// MaxMembers bounds a route.
const MaxMembers = 64

// Plan is the members of a route, tier by tier. It is immutable once checked.
type Plan struct{ Members []Member }

// Check reports what makes the plan unusable.
func (p *Plan) Check() error {
	if len(p.Members) == 0 || len(p.Members) > MaxMembers {
		return fmt.Errorf("%d members are not within 1..%d", len(p.Members), MaxMembers)
	}
	for i, m := range p.Members {
		if !(m.Weight >= 0 && m.Weight <= 1000) {
			return fmt.Errorf("weight %g is not within 0..1000", m.Weight)
		}
		if i > 0 && m.Tier < p.Members[i-1].Tier || m.Tier < 0 {
			return fmt.Errorf("members are not in the order of their tiers")
		}
	}
	return nil
}

// Walk is one request's way through a plan. The zero value of what is not set here is
// the beginning.
type Walk struct {
	Plan *Plan
	Need Need
	Seed uint64 // the conversation
	Tier int    // where to begin, then where the walk is
	Held bool   // it must not leave Tier

	asked uint64 // bit per member
}

// Next names the member to ask now, and never one twice. up says whether a member takes
// work at present; nil takes all for up.
func (w *Walk) Next(up func(member int) bool) (member int, ok bool) {
	i := w.peek(up)
	if i < 0 {
		return 0, false
	}
	w.asked |= 1 << i
	w.Tier = w.Plan.Members[i].Tier
	return i, true
}

// More says if Next would find a member.
func (w *Walk) More(up func(member int) bool) bool { return w.peek(up) >= 0 }

func (w *Walk) peek(up func(member int) bool) int {
	best, bestScore := -1, 0.0
	for i := range w.Plan.Members {
		m := &w.Plan.Members[i]
		if m.Tier < w.Tier {
			continue
		}
		if m.Tier > w.Tier && (w.Held || best >= 0 && m.Tier > w.Plan.Members[best].Tier) {
			break
		}
		if w.asked&(1<<i) != 0 || m.Can.Lacks(&w.Need) != Nothing || up != nil && !up(i) {
			continue
		}
		if score := m.score(w.Seed); best < 0 || score > bestScore {
			best, bestScore = i, score
		}
	}
	return best
}

// Lacking says what keeps every member from serving the request, or Nothing. Where they
// lack different things it is what the last one lacks.
func (w *Walk) Lacking() Lack {
	why := Nothing
	for i := range w.Plan.Members {
		if why = w.Plan.Members[i].Can.Lacks(&w.Need); why == Nothing {
			return Nothing
		}
	}
	return why
}

// score is the member's place in a weighted rendezvous: w / -ln(u) for a uniform u, of
// which the highest wins with a chance in proportion to w.
func (m *Member) score(seed uint64) float64 {
	u := (float64(mix(seed^m.Hash)>>11) + 0.5) / (1 << 53)
	w := m.Weight
	if w == 0 {
		w = 1
	}
	return w / -math.Log(u)
}

// mix is the finaliser of SplitMix64.
func mix(z uint64) uint64 {
	z += 0x9e3779b97f4a7c15
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}
