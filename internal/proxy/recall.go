package proxy

import (
	"encoding/binary"

	"github.com/prefixring/prefixring/internal/dialect"
	"github.com/prefixring/prefixring/internal/fingerprint"
	"github.com/prefixring/prefixring/internal/session"
	"github.com/prefixring/prefixring/ring"
)

// binding is what a call knows of its conversation.
type binding struct {
	now   session.Key // what this request continues; zero on a first turn
	next  session.Key // what a later turn of it will ask for
	found session.Binding
	node  *ring.Node // where the earlier turns were answered, if it may be asked again
	noted bool       // followed or refused has been counted
	scope [8]byte    // the tenant's, as octets
}

// recall is step 3: is there a live binding for this conversation?
func (c *call) recall() {
	b := &c.bound
	binary.LittleEndian.PutUint64(b.scope[:], c.scope())
	if c.recallStored() || !c.scanned || c.protocol == dialect.Opaque {
		return
	}
	id := c.conversationID()
	c.second = c.spread(id)
	store := c.bindings()
	if store == nil {
		return
	}
	c.nameBindings(store, id)
	if b.found = store.Lookup(b.now); b.found.Found() {
		b.node = c.leadsTo(store)
	}
}

// nameBindings makes the keys of the binding that this request continues and of the one
// that a later turn will ask for.
func (c *call) nameBindings(store *session.Store, id []byte) {
	b, a := &c.bound, &c.route.pool.Affinity
	scope := session.Scope{
		Tenant: b2s(b.scope[:]), Principal: b2s(c.span(c.scan.User)), Lane: b2s(c.lane()),
		Route: c.route.model, Prefix: c.family, Revision: a.Revision, Mode: a.Mode,
	}
	if c.scope() == 0 && !c.scan.User.Present() {
		scope.Mode = session.Conversation // nobody is not a user: all strangers would share one binding
	}
	c.nameTurns(store, scope, id, &b.now, &b.next)
}

// nameTurns adds to a scope what stays the same from one turn to the next.
func (c *call) nameTurns(store *session.Store, scope session.Scope, id []byte, now, next *session.Key) {
	if scope.Conversation = b2s(id); len(id) > 0 || scope.Mode == session.User {
		// An explicit id is the same for all turns. It never replaces the prefix.
		*now = store.Key(&scope)
		*next = *now
		return
	}
	if scope.Boundary, _ = c.scan.Answered(); scope.Boundary != 0 {
		*now = store.Key(&scope)
	}
	if scope.Boundary, _ = c.scan.Last(); scope.Boundary != 0 {
		*next = store.Key(&scope)
	}
}

// bindings is the store in force for this call, nil where they are off.
func (c *call) bindings() *session.Store {
	if c.route.bindless {
		return nil
	}
	return c.route.pool.Bindings
}

// header is a field of the request's head; Explain has none.
func (c *call) header(name string) []byte {
	if c.ctx == nil {
		return nil
	}
	return c.ctx.Request.Header.Peek(name)
}

// lane is the part of an agent's work that a request belongs to, where the client says
// so: a sub-agent has a history of its own under the same conversation id.
func (c *call) lane() []byte {
	for _, name := range [...]string{"X-Prefixring-Lane", "X-Openai-Subagent"} {
		if v := c.header(name); len(v) > 0 {
			return v
		}
	}
	return nil
}

// span is the raw JSON value of a field, quotes and all: an opaque id.
func (c *call) span(s fingerprint.Span) []byte { return c.body[s.Start:s.End] }

// nodeByID looks for a member; few requests ask, and pools are small.
func nodeByID(r *ring.Ring, id uint32) *ring.Node {
	for _, n := range r.Nodes() {
		if n.ID() == id {
			return n
		}
	}
	return nil
}

// spread chooses among a prefix's owners: the same one for all turns of a
// conversation. Without an id, the first message behind the static prefix is what
// stays the same as a conversation grows.
func (c *call) spread(id []byte) uint64 {
	if len(id) > 0 {
		return digest(mix(c.key, c.scope()), id)
	}
	if c.scan.Root == 0 {
		return 0
	}
	return nonzero(mix(c.key, c.scan.Root))
}

// boundWork is what the request weighs where its history is: only what came after the
// turn that was answered there has to be computed. 0 = as much as anywhere.
func (c *call) boundWork() int64 {
	if c.bound.node == nil || !c.scanned {
		return 0
	}
	fresh, ok := c.scan.Fresh()
	if !ok {
		return 0
	}
	return ring.Unit + c.units(min(int64(fresh/c.p.opts.BytesPerToken), c.tokens-c.static))
}

// followed reports that this attempt went where the binding said.
func (c *call) followed() bool {
	return c.bound.node != nil && c.node == c.bound.node
}

// rebind remembers where a conversation was answered, on terminal evidence of
// success only, and forgets it on anything less.
func (c *call) rebind(v dialect.Verdict) {
	store := c.bindings()
	switch {
	case store == nil:
	case v == dialect.Success && c.ex.answered:
		if why, unfit := c.unfit(c.node); unfit && !c.bound.next.Zero() {
			store.Refused(why)
			return
		}
		store.Bind(c.bound.next, uint64(c.node.ID()), c.bound.found.Stamp)
	case c.clientError(v):
		if c.route.pool.Affinity.Strict {
			c.evict(session.ClientError)
		}
	case v == dialect.Failed && c.committed && !c.whole:
		c.evict(session.Interrupted) // it was cut in the middle of an answer
	default:
		c.evict(reasonOf(v))
	}
}

// clientError reports an answer that says something of the request and nothing of the
// engine or its cache. What the router's own key or the engine's limits caused is not
// the client's, and a stored response that is not there any more is worth forgetting.
func (c *call) clientError(v dialect.Verdict) bool {
	if v != dialect.Failed || !c.ex.answered || c.status < 400 || c.status > 499 || c.head.route.Stored {
		return false
	}
	switch c.status {
	case 401, 403, 408, 429, 499:
		return false
	}
	return true
}

// evict forgets the binding that this attempt followed.
func (c *call) evict(why session.Reason) {
	if store := c.bindings(); store != nil && c.followed() {
		store.EvictIf(c.bound.now, c.bound.found.Gen, why)
		c.bound.node = nil
	}
}

func reasonOf(v dialect.Verdict) session.Reason {
	switch v {
	case dialect.Incomplete:
		return session.Incomplete
	case dialect.Cancelled:
		return session.Cancelled
	case dialect.Failed:
		return session.Failed
	default:
		return session.Interrupted
	}
}

// conversationID returns the explicit conversation key of a request, or nothing.
func (c *call) conversationID() []byte {
	if id := c.header("X-Prefixring-Conversation"); len(id) > 0 {
		return id
	}
	s := c.scan
	for _, span := range [...]fingerprint.Span{s.PromptCacheKey, s.Conversation, s.SessionID} {
		if span.Present() {
			return c.span(span)
		}
	}
	return c.header("X-Session-Id")
}

// digest hashes an id (FNV-1a, finished by mix). A collision only sends two
// conversations to one owner.
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
