package proxy

import (
	"github.com/prefixring/prefixring/internal/dialect"
	"github.com/prefixring/prefixring/internal/fingerprint"
	"github.com/prefixring/prefixring/ring"
)

// Bindings remembers which node a conversation was answered by. Keys are digests
// that reveal nothing; what makes two requests one conversation is decided here.
type Bindings interface {
	// Lookup returns the node that the conversation is bound to, or "".
	Lookup(key uint64) (node string)
	// Bind remembers the node, Evict forgets the key if it is bound to that node.
	Bind(key uint64, node string)
	Evict(key uint64, node string)
}

// binding is what a call knows of its conversation.
type binding struct {
	now  uint64     // key that this request continues; 0 = a first turn
	next uint64     // key that a later turn of it will ask for; 0 = cannot be known
	node *ring.Node // where the earlier turns were answered, if still a member
}

// recall is step 3: is there a live binding for this conversation?
func (c *call) recall() {
	b := c.p.opts.Bindings
	if !c.scanned || c.protocol == dialect.Opaque {
		return
	}
	conv := c.conversation()
	c.second = c.spread(conv)
	if b == nil {
		return
	}
	c.bound.now, c.bound.next = conv.now, conv.next
	if conv.now == 0 {
		return
	}
	if name := b.Lookup(conv.now); name != "" {
		c.bound.node = c.route.pool.Ring.Node(name)
	}
}

// spread chooses among a prefix's owners: the same one for all turns of a
// conversation. What the first message behind the static prefix is stays the same as
// a conversation grows.
func (c *call) spread(conv binding) uint64 {
	if id := c.conversationID(); len(id) > 0 {
		return conv.now
	}
	return mix(c.key, c.scan.Root)
}

// rebind remembers where a conversation was answered, on terminal evidence of
// success only, and forgets it on anything less.
func (c *call) rebind(v dialect.Verdict) {
	b := c.p.opts.Bindings
	if b == nil {
		return
	}
	if v == dialect.Success {
		if c.bound.next != 0 {
			b.Bind(c.bound.next, c.node.Name())
		}
		return
	}
	c.evict()
}

// evict forgets the binding that led to the node of this attempt.
func (c *call) evict() {
	if b := c.p.opts.Bindings; b != nil && c.bound.now != 0 && c.node != nil {
		b.Evict(c.bound.now, c.node.Name())
		if c.bound.node == c.node {
			c.bound.node = nil
		}
	}
}

// conversation derives the keys of this turn and the next. An explicit id is the
// same for all turns; without one, the history that both turns share is the key.
// Either is mixed with the static prefix, which an id never replaces, and the
// tenant.
func (c *call) conversation() (conv binding) {
	base := mix(c.key, c.scope())
	if id := c.conversationID(); len(id) > 0 {
		k := digest(base, id)
		return binding{now: k, next: k}
	}
	if last, ok := c.scan.Last(); ok {
		conv.next = nonzero(mix(base, last))
	}
	if answered, ok := c.scan.Answered(); ok {
		conv.now = nonzero(mix(base, answered))
	}
	return conv
}

// conversationID returns the explicit conversation key of a request, or nothing.
func (c *call) conversationID() []byte {
	if id := c.ctx.Request.Header.Peek("X-Prefixring-Conversation"); len(id) > 0 {
		return id
	}
	s := c.scan
	for _, span := range [...]fingerprint.Span{s.PromptCacheKey, s.Conversation, s.SessionID} {
		if span.Present() {
			return c.body[span.Start:span.End]
		}
	}
	return nil
}

// digest hashes an id into a key (FNV-1a, finished by mix). Collisions would only
// send a conversation to another one's node.
func digest(seed uint64, b []byte) uint64 {
	h := seed ^ 14695981039346656037
	for _, x := range b {
		h = (h ^ uint64(x)) * 1099511628211
	}
	return nonzero(mix(h, 0x9e3779b97f4a7c15))
}

// mix combines two words (the finaliser of SplitMix64).
func mix(a, b uint64) uint64 {
	z := a ^ (b + 0x9e3779b97f4a7c15 + a<<6 + a>>2)
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}

func nonzero(v uint64) uint64 {
	if v == 0 {
		return 1
	}
	return v
}
