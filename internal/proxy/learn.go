package proxy

import (
	"github.com/prefixring/prefixring/internal/fingerprint"
	"github.com/prefixring/prefixring/internal/residency"
	"github.com/prefixring/prefixring/ring"
)

// learned is what the pool's learner makes of a request's static prefix.
type learned struct {
	fingerprint.Advice
	on   bool   // there is advice: no registered prefix matched
	next uint64 // ring key of Advice.Next
}

// learnKey asks the learner, if the pool has one, for the digest to key by. Bindings
// are scoped to the family, which stays the same when a key changes.
func (c *call) learnKey(adapter string) (digest uint64) {
	pool := c.route.pool
	digest = c.scan.Key
	c.family = digest
	if pool.Learner == nil || !c.scan.Learnable() {
		return digest
	}
	l := &c.learned
	l.on = true
	if c.peeking {
		l.Advice = pool.Learner.Peek(c.route.model, c.scan)
	} else {
		l.Advice = pool.Learner.Place(c.route.model, c.scan, func(key, next uint64) bool {
			return c.mayMove(c.ringKey(key, adapter), c.ringKey(next, adapter))
		})
		if l.Moved != 0 {
			c.moved(c.ringKey(l.Moved, adapter), c.ringKey(l.Key, adapter))
		}
	}
	c.record.Depth = l.Depth.String()
	if l.Depth == fingerprint.DepthNone {
		// Nothing before the volatile text is worth a key, and no other request shares what
		// is behind it: the conversation is all that can come back.
		return c.conversationDigest()
	}
	c.family = l.Family
	if l.Next != 0 {
		l.next = c.ringKey(l.Next, adapter)
	}
	return l.Key
}

// ringKey is the ring key of a digest for this request's model.
func (c *call) ringKey(digest uint64, adapter string) uint64 {
	return fingerprint.Fingerprint(digest, c.route.model, adapter, c.route.pool.Salt)
}

// conversationDigest keys a request by its conversation: 0 = there is none.
func (c *call) conversationDigest() uint64 {
	if id := c.conversationID(); len(id) > 0 {
		return digest(0, id)
	}
	return c.scan.Root
}

// sharedBytes is how much of the prompt other requests share. Behind a learned head
// everything may differ, and tools may be rendered there: engines' templates disagree.
func (c *call) sharedBytes() int {
	if c.learned.on && c.learned.Depth != fingerprint.DepthWhole {
		return min(c.learned.Bytes, c.scan.StaticBytes)
	}
	return c.scan.StaticBytes
}

// kind is what the request is keyed by, for the record and for explain.
func (c *call) kind() fingerprint.Kind {
	switch {
	case !c.scanned:
		return fingerprint.KindNone
	case c.learned.on && c.learned.Depth == fingerprint.DepthNone && c.key == 0:
		return fingerprint.KindNone
	case c.learned.on && c.learned.Depth == fingerprint.DepthNone:
		return fingerprint.KindSession
	}
	return c.scan.Kind
}

// mayMove says whether a key can give way to the next one without a loss: all owners that
// the next one would have are proven warm, for it or for the key in force, whose prefix
// begins with the next one's; or the cache of the key in force is known to be lost and
// nothing else holds it.
func (c *call) mayMove(key, next uint64) bool {
	pool := c.route.pool
	if pool.Residency == nil {
		return false
	}
	if pool.Owners != nil && c.owners == 0 {
		c.owners = pool.Owners(key, ring.Unit)
	}
	var few [8]*ring.Node
	owners := pool.Ring.Owners(next, max(c.owners, 1), few[:0])
	proven := len(owners) > 0
	for _, n := range owners {
		proven = proven && (isWarm(pool, n, next) || isWarm(pool, n, key))
	}
	return proven || lost(pool, key)
}

func isWarm(pool *Pool, n *ring.Node, key uint64) bool {
	w, _ := pool.Residency.Warmth(n.ID(), key)
	return w == residency.Warm
}

// lost reports that a key's first owner is proven cold for it and no node is warm or
// warming.
func lost(pool *Pool, key uint64) bool {
	var one [1]*ring.Node
	owner := pool.Ring.Owners(key, 1, one[:0])
	if len(owner) == 0 {
		return false
	}
	if w, _ := pool.Residency.Warmth(owner[0].ID(), key); w != residency.Cold {
		return false
	}
	for _, n := range pool.Ring.Nodes() {
		if w, _ := pool.Residency.Warmth(n.ID(), key); w == residency.Warm || w == residency.Warming {
			return false
		}
	}
	return true
}

// moved hands on what was known of a key to the one that takes its place.
func (c *call) moved(from, to uint64) {
	pool := c.route.pool
	for _, n := range pool.Ring.Nodes() {
		pool.Residency.Inherit(n.ID(), from, to)
	}
	if pool.Moved != nil {
		pool.Moved(from, to)
	}
}

// diagnose notes the static prefix and tells how it differs from those before it, where it
// is new. Known prefixes cost one look-up.
func (c *call) diagnose() {
	pool := c.route.pool
	if pool.Churn == nil {
		return
	}
	if d, ok := pool.Churn.Observe(c.route.model, c.body, c.scan); ok && pool.Churned != nil {
		told := d // this copy escapes; a known prefix makes none
		pool.Churned(&told)
	}
}
