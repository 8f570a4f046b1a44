package proxy

import (
	"bytes"
	"fmt"
	"hash/fnv"
	"strconv"
	"sync/atomic"

	"github.com/prefixring/prefixring/internal/dialect"
	"github.com/prefixring/prefixring/internal/fingerprint"
	tiers "github.com/prefixring/prefixring/internal/route"
	"github.com/prefixring/prefixring/internal/session"
)

// Route is a name that clients may ask for as a model, with tiers of members behind it
// (internal/route has the rules). The exported fields are set once, before the route is
// put in a Table.
type Route struct {
	Name    string
	Members []RouteMember // in the order of their tiers
	// NoBindings switches the bindings of the members' pools off for requests that come
	// by this name.
	NoBindings bool
	// Memory holds which tier began a tool loop or keeps a stored response: those never
	// cross tiers. Needed for two tiers and more.
	Memory *session.Store

	plan tiers.Plan
	legs []leg
}

// RouteMember is one pool in a tier; a channel is a pool of accounts.
type RouteMember struct {
	Tier   int
	Pool   *Pool
	Model  string  // name that the member knows the model by; spliced into the body
	Weight float64 // relative to the others of its tier; 0 means 1
	Can    tiers.Can
	Taken  *atomic.Int64 // counts the requests that it was given, over tables; nil = anew with each
}

// leg is a member as the data plane uses it, and what it was given.
type leg struct {
	route
	taken *atomic.Int64
}

// RouteCount says how often a member of a route was chosen.
type RouteCount struct {
	Route, Pool, Model string
	Tier               int
	Taken              int64
}

// prepare checks the route and builds what requests use.
func (r *Route) prepare() error {
	r.legs = make([]leg, len(r.Members))
	last := 0
	for i, m := range r.Members {
		if m.Pool == nil || m.Model == "" {
			return fmt.Errorf("cannot use route %q: member %d has no pool or no model", r.Name, i+1)
		}
		h := fnv.New64a()
		fmt.Fprintf(h, "%q %q", m.Pool.Name, m.Model)
		r.plan.Members = append(r.plan.Members, tiers.Member{Tier: m.Tier, Weight: m.Weight, Can: m.Can, Hash: h.Sum64()})
		r.legs[i].route = route{pool: m.Pool, model: m.Model, alias: m.Model != r.Name, bindless: r.NoBindings}
		if r.legs[i].taken = m.Taken; m.Taken == nil {
			r.legs[i].taken = new(atomic.Int64)
		}
		last = max(last, m.Tier)
	}
	if err := r.plan.Check(); err != nil {
		return fmt.Errorf("cannot use route %q: %w", r.Name, err)
	}
	if last > 0 && r.Memory == nil {
		return fmt.Errorf("cannot use route %q: several tiers need a memory of tool loops", r.Name)
	}
	return nil
}

// Routes tells what members of routes were given, in the order of the table.
func (t *Table) Routes() []RouteCount {
	var out []RouteCount
	for _, name := range t.names {
		r := t.routes[name].named
		if r == nil {
			continue
		}
		for i := range r.legs {
			l := &r.legs[i]
			out = append(out, RouteCount{r.Name, l.pool.Name, l.model, r.plan.Members[i].Tier, l.taken.Load()})
		}
	}
	return out
}

// way is a call's way through a named route.
type way struct {
	route *Route // nil: the name led to one pool
	walk  tiers.Walk
	now   session.Key // of the tool loop or stored response that this request goes on with
	next  session.Key
	stamp uint64
}

// setOut begins the walk of a request that asked for a route by name, and takes its
// first leg. A member that is down at present is only begun with if all are: its pool
// then says what is wrong, or lets the request wait.
func (c *call) setOut(r *Route) *failure {
	w := &c.way
	w.route = r
	w.walk = tiers.Walk{Plan: &r.plan, Need: c.need(), Seed: c.routeSeed()}
	if why := w.walk.Lacking(); why != tiers.Nothing {
		return failLacks.with("no member of this route can take the request: " + why.String())
	}
	c.recallTier()
	if c.takeLeg(c.legUp) || c.takeLeg(nil) {
		return nil
	}
	// Held to a tier that cannot do what is asked for now.
	return failLacks.with("the tier that began this tool loop cannot take the request")
}

// takeLeg moves the call to the next member.
func (c *call) takeLeg(up func(int) bool) bool {
	i, ok := c.way.walk.Next(up)
	if !ok {
		return false
	}
	l := &c.way.route.legs[i]
	if c.ctx != nil { // Explain takes nothing
		l.taken.Add(1)
	}
	c.route = &l.route
	return true
}

// legUp says if a member has a node that takes general work.
func (c *call) legUp(i int) bool {
	l := &c.way.route.legs[i]
	if l.pool.Hosted {
		return c.hostedUp(&l.route)
	}
	return l.pool.Ring.Usable() > 0
}

// elsewhereUp says if there is a member to fall to.
func (c *call) elsewhereUp() bool { return c.way.route != nil && c.way.walk.More(c.legUp) }

// fall leads a call whose pool could not take it to the next member. It falls on
// saturation, ejection and absence, never on an answer about the request itself, and
// never once something was committed.
func (c *call) fall(f *failure) bool {
	if c.way.route == nil || !absence(f) || c.cancelled() != causeNone || !c.elsewhereUp() {
		return false
	}
	if c.ex.node != nil {
		c.putAside(f)
	}
	c.takeLeg(c.legUp)
	c.bound, c.owners, c.ntried, c.again, c.hedged = binding{}, 0, 0, false, false
	c.step, c.blocked, c.refusedByEngine = stepPick, blockedNever, false
	if f := c.weigh(); f != nil {
		return false
	}
	c.recall()
	return true
}

// absence reports failures that say nothing of the request: another member may do better.
func absence(f *failure) bool {
	switch f.code {
	case failNoEngine.code, failBound.code, failQueueFull.code, failQueueWait.code,
		failConnect.code, failConnectTime.code, failClosed.code:
		return true
	}
	return false
}

// need is what the request asks of a member.
func (c *call) need() tiers.Need {
	n := tiers.Need{Protocol: c.protocol}
	if c.scanned {
		n.Tokens = int64(c.scan.PromptBytes / c.p.opts.BytesPerToken)
		if out, err := strconv.ParseInt(string(c.span(c.scan.MaxTokens)), 10, 64); err == nil && out > 0 {
			n.Tokens += min(out, 1<<40)
		}
		n.Tools, n.Images = c.scan.Tools.Present(), c.scan.Media
	}
	return n
}

// routeSeed is the conversation, before it is known which pool's key it goes with.
func (c *call) routeSeed() uint64 {
	if !c.scanned {
		return c.seq.Load() + c.p.nextID.Load()
	}
	if id := c.conversationID(); len(id) > 0 {
		return digest(c.scope(), id)
	}
	return mix(c.scan.Key, c.scan.Root)
}

// recallTier holds the walk to the tier that began what this request is in the middle of.
func (c *call) recallTier() {
	w := &c.way
	if w.route.Memory == nil || !c.scanned || c.protocol == dialect.Opaque {
		return
	}
	scope := session.Scope{Tenant: tenantText(c.scope()), Lane: b2s(c.lane()), Route: w.route.Name, Prefix: c.scan.Key}
	if c.scan.PreviousResponseID.Present() {
		w.now = storedTier(w.route, scope.Tenant, c.text(c.scan.PreviousResponseID))
	} else {
		c.nameTurns(w.route.Memory, scope, c.conversationID(), &w.now, &w.next)
	}
	found := w.route.Memory.Lookup(w.now)
	w.stamp = found.Stamp
	if found.Found() && (c.scan.PreviousResponseID.Present() || c.inToolLoop()) {
		w.walk.Tier, w.walk.Held = int(found.Target), true
	}
}

// rememberTier notes which tier answered, for a tool result that may come next.
func (c *call) rememberTier() {
	w := &c.way
	if w.route == nil || w.route.Memory == nil {
		return
	}
	w.route.Memory.Bind(w.next, uint64(w.walk.Tier), w.stamp)
	if len(c.respID) > 0 {
		k := storedTier(w.route, tenantText(c.scope()), c.respID)
		w.route.Memory.Bind(k, uint64(w.walk.Tier), w.route.Memory.Lookup(k).Stamp)
	}
}

func storedTier(r *Route, tenant string, id []byte) session.Key {
	return r.Memory.Key(&session.Scope{Tenant: tenant, Conversation: b2s(id), Lane: "response"})
}

func tenantText(scope uint64) string { return strconv.FormatUint(scope, 36) }

// inToolLoop reports that the last message is the result of a tool. Anthropic carries it
// in a user message, so there the last message is searched; a text that quotes the word
// has a backslash before its quotes.
func (c *call) inToolLoop() bool {
	b := c.scan.Boundaries
	if len(b) == 0 {
		return false
	}
	last := &b[len(b)-1]
	if last.Role == fingerprint.RoleTool {
		return true
	}
	from := c.scan.Messages.Start
	if len(b) > 1 {
		from = b[len(b)-2].End
	}
	return c.protocol == dialect.Messages && from < last.End && bytes.Contains(c.body[from:last.End], []byte(`"tool_result"`))
}
