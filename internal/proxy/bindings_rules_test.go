package proxy

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/prefixring/prefixring/internal/session"
	"github.com/prefixring/prefixring/ring"
)

// bound is a router in which the conversation of turn(n, extra) is bound away from the
// owner of its prefix, so that following shows.
type bound struct {
	*router
	store       *session.Store
	owner, home string
	settled     int
}

func newBound(t *testing.T, script func(*engineCall), extra string, tune func(*Pool), headers ...string) *bound {
	t.Helper()
	r, store := bindingRouter(t, script)
	if tune != nil {
		tune(r.pool)
	}
	b := &bound{router: r, store: store}
	b.owner = b.send(t, turn(0, extra), headers...).header.Get("X-Prefixring-Engine")
	r.pool.Ring.Node(b.owner).SetLevel(ring.Closed)
	b.home = b.send(t, turn(1, extra), headers...).header.Get("X-Prefixring-Engine")
	r.pool.Ring.Node(b.owner).SetLevel(ring.Open)
	if b.home == b.owner || b.home == "" {
		t.Fatalf("turn 1 went to %q, the closed owner is %q", b.home, b.owner)
	}
	return b
}

// send waits until the request has settled: only then is a binding made.
func (b *bound) send(t *testing.T, body string, headers ...string) clientReply {
	t.Helper()
	got := b.chat(t, body, headers...)
	b.settled++
	b.records.wait(t, b.settled)
	return got
}

func (b *bound) follows(t *testing.T, body string, headers ...string) bool {
	t.Helper()
	return b.send(t, body, headers...).header.Get("X-Prefixring-Reason") == "binding"
}

// A change of any part of the scope is another conversation.
func TestBindingScope(t *testing.T) {
	const id = `"prompt_cache_key":"k",`
	same := turn(2, id)
	for name, tc := range map[string]struct {
		body    string
		headers []string
	}{
		"session":        {body: turn(2, `"prompt_cache_key":"other",`)},
		"principal":      {body: turn(2, id+`"user":"ann",`)},
		"lane":           {body: same, headers: []string{"X-Prefixring-Lane: sub-1"}},
		"a client's own": {body: same, headers: []string{"x-openai-subagent: review"}},
		"opening prefix": {body: strings.Replace(same, "shop", "shoe", 1)},
		"tool schema":    {body: turn(2, id+`"tools":[{"type":"function","function":{"name":"f"}}],`)},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBound(t, answer, id, nil)
			if b.follows(t, tc.body, tc.headers...) {
				t.Error("followed")
			}
			if !b.follows(t, same) {
				t.Error("the conversation itself must be followed still")
			}
		})
	}
	t.Run("policy revision", func(t *testing.T) {
		b := newBound(t, answer, id, nil)
		b.pool.Affinity.Revision++
		if b.follows(t, same) {
			t.Error("followed under another policy")
		}
	})
	t.Run("tenant", func(t *testing.T) {
		b := newBound(t, answer, id, nil)
		keys := keyring(t, time.Now(), TenantOptions{Name: "a", Keys: hashed("ka")}, TenantOptions{Name: "b", Keys: hashed("kb")})
		b.SetAdmission(keys)
		home := func(key string) bool { return b.follows(t, same, "Authorization: Bearer "+key) }
		home("ka")
		if !home("ka") || home("kb") {
			t.Error("a tenant followed another's binding, or not its own")
		}
	})
}

// Tool results keep the opening identity: the loop of one turn stays where it began.
func TestBindingToolLoopStays(t *testing.T) {
	b := newBound(t, answer, "", nil)
	loop := strings.TrimSuffix(turn(1, ""), "]}") +
		`,{"role":"assistant","content":null,"tool_calls":[{"id":"c1","type":"function","function":{"name":"f","arguments":"{}"}}]},{"role":"tool","tool_call_id":"c1","content":"42"}]}`
	if got := b.send(t, loop); got.header.Get("X-Prefixring-Engine") != b.home || got.header.Get("X-Prefixring-Reason") != "binding" {
		t.Errorf("the tool result went to %v", got.header)
	}
}

// Mode user: one binding for all that a principal asks of a model.
func TestBindingModeUser(t *testing.T) {
	b := newBound(t, answer, `"user":"ann",`, func(p *Pool) { p.Affinity.Mode = session.User })
	other := strings.Replace(turn(0, `"user":"ann",`), "q0", "something else", 1)
	if !b.follows(t, other) {
		t.Error("another conversation of the same user was not followed")
	}
	if b.follows(t, strings.Replace(other, "ann", "bob", 1)) {
		t.Error("another user followed it")
	}
}

// Health before cache: nothing is followed and nothing bound while health forbids it.
func TestBindingHealthComesFirst(t *testing.T) {
	for _, why := range []session.Refusal{session.Saturated, session.Draining, session.ShortOfRate, session.Resting, session.Ejected} {
		t.Run(why.String(), func(t *testing.T) {
			b := newBound(t, answer, "", nil)
			up := b.pool.Ring.Node(b.home).Value().(*Upstream)
			up.Forbid(why)
			if b.follows(t, turn(2, "")) {
				t.Error("followed")
			}
			if n := b.store.Stats().Refused[why.String()]; n != 1 {
				t.Errorf("%d refusals", n)
			}
			up.Allow()
			for _, n := range b.pool.Ring.Nodes() {
				n.Value().(*Upstream).Forbid(why)
			}
			before := b.store.Stats()
			b.send(t, strings.Replace(turn(0, ""), "q0", "new", 1))
			if after := b.store.Stats(); after.Bound != before.Bound || after.Refused[why.String()] != before.Refused[why.String()]+1 {
				t.Errorf("bound to a node that is %v: %+v", why, after)
			}
		})
	}
	t.Run("after a 503", func(t *testing.T) {
		b := newBound(t, answer, "", nil)
		b.pool.Ring.Node(b.home).Value().(*Upstream).setBusy(time.Now(), 5*time.Second)
		if b.follows(t, turn(2, "")) || b.store.Stats().Refused["resting"] == 0 {
			t.Errorf("followed to a node that asked to be left alone: %+v", b.store.Stats())
		}
	})
	t.Run("at its bound", func(t *testing.T) {
		b := newBound(t, answer, "", nil)
		n := b.pool.Ring.Node(b.home)
		n.SetExternal(b.pool.Ring.FollowBound(n) * 100)
		followed := b.follows(t, turn(2, ""))
		n.SetExternal(0)
		if followed || b.store.Stats().Refused["bound"] != 1 {
			t.Errorf("followed past the bound: %+v", b.store.Stats())
		}
	})
}

// What ends a binding, by how its own answer ended.
func TestBindingEvictionReasons(t *testing.T) {
	cut := func(x *engineCall) { x.write(sseHead); x.chunk(delta("a")); x.conn.Close(); panic(errHangUp) }
	for name, tc := range map[string]struct {
		bad    func(*engineCall)
		strict bool
		reason string // empty: it stays
	}{
		"server error":          {bad: func(x *engineCall) { x.json(500, `{}`) }, reason: "failed"},
		"refused key":           {bad: func(x *engineCall) { x.json(401, `{}`) }, reason: "failed"},
		"client's error":        {bad: func(x *engineCall) { x.json(400, `{}`) }},
		"client's error strict": {bad: func(x *engineCall) { x.json(400, `{}`) }, strict: true, reason: "client_error"},
		"cut stream":            {bad: cut, reason: "interrupted"},
		"error after start":     {bad: func(x *engineCall) { x.sse(delta("a"), `data: {"error":{"message":"x","code":500}}`+"\n\n", doneEvent) }, reason: "failed"},
		"no terminal evidence":  {bad: func(x *engineCall) { x.sse(delta("a")) }, reason: "interrupted"},
		"stopped early": {bad: func(x *engineCall) {
			x.sse(delta("a"), strings.Replace(stopEvent, `"stop"`, `"abort"`, 1), doneEvent)
		}, reason: "incomplete"},
	} {
		t.Run(name, func(t *testing.T) {
			fail := false
			b := newBound(t, func(x *engineCall) {
				if fail {
					tc.bad(x)
				} else {
					answer(x)
				}
			}, "", func(p *Pool) { p.Affinity.Strict = tc.strict })
			fail = true
			before := b.store.Stats()
			b.send(t, turn(2, `"stream":true,`))
			st := b.store.Stats()
			if st.Bound != before.Bound {
				t.Errorf("bound without terminal evidence of success")
			}
			for why, n := range st.Evicted {
				if want := why == tc.reason; (n > before.Evicted[why]) != want {
					t.Errorf("evicted as %s: %d, before %d, want %q", why, n, before.Evicted[why], tc.reason)
				}
			}
		})
	}
}

// A client that leaves takes its binding along: its history may not be in cache whole.
func TestBindingEvictedByCancel(t *testing.T) {
	stall := false
	b := newBound(t, func(x *engineCall) {
		if !stall {
			answer(x)
			return
		}
		x.write(sseHead)
		x.chunk(delta("a"))
		if !x.gone(10 * time.Second) {
			t.Error("the engine's connection outlived the client")
		}
		panic(errHangUp)
	}, "", nil)
	stall = true
	c := b.dial(t)
	if _, err := c.Write([]byte(rawRequest("/v1/chat/completions", turn(2, `"stream":true,`)))); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Read(make([]byte, 64)); err != nil {
		t.Fatal(err)
	}
	c.Close()
	b.records.wait(t, b.settled+1)
	if st := b.store.Stats(); st.Evicted["cancelled"] != 1 {
		t.Errorf("%+v", st)
	}
}

func TestBindingUseLimit(t *testing.T) {
	store, err := session.New(session.Options{Uses: 2})
	if err != nil {
		t.Fatal(err)
	}
	const id = `"prompt_cache_key":"k",`
	b := newBound(t, answer, id, func(p *Pool) { p.Bindings = store })
	for i := range 4 {
		if followed := b.follows(t, turn(2+i, id)); followed != (i < 2) {
			t.Errorf("use %d: followed %t", i+1, followed)
		}
		if i == 1 {
			// The owner takes it again, and a new binding is made there.
			continue
		}
		if i == 2 {
			if st := store.Stats(); st.Spent != 1 || st.Followed != 2 {
				t.Errorf("%+v", st)
			}
			return
		}
	}
}

// A binding to a node that has left is forgotten.
func TestBindingOfAGoneNode(t *testing.T) {
	b := newBound(t, answer, "", nil)
	var rest []ring.Member
	for _, n := range b.pool.Ring.Nodes() {
		if n.Name() != b.home {
			rest = append(rest, ring.Member{Name: n.Name(), Value: n.Value()})
		}
	}
	if err := b.pool.Ring.Apply(rest); err != nil {
		t.Fatal(err)
	}
	if b.follows(t, turn(2, "")) || b.store.Stats().Evicted["gone"] != 1 {
		t.Errorf("%+v", b.store.Stats())
	}
}

// Bindings choose among nodes and change nothing else: the same traffic gives every
// engine request and every answer octet for octet, with bindings and without.
func TestBindingsChangeNoOctet(t *testing.T) {
	run := func(store *session.Store) string {
		var log bytes.Buffer
		n := 0
		e := newEngine(t, func(x *engineCall) {
			fmt.Fprintf(&log, "engine %s%s\n", x.head, x.body)
			if n++; n%4 == 0 {
				x.json(503, `{"error":"full"}`)
				return
			}
			answer(x)
		})
		r := newRouter(t, setup{opts: Options{Retry: Retry{Max: 1}}, pool: func(p *Pool) { p.Bindings = store }}, e.url())
		for i := range 12 {
			extra := []string{"", `"stream":true,`, `"prompt_cache_key":"k",`}[i%3]
			got := r.chat(t, turn(i/3, extra), "X-Request-Id: fixed")
			got.header.Del("X-Request-Id")
			fmt.Fprintf(&log, "client %d %v %s\n", got.status, got.header, got.body)
		}
		out := strings.ReplaceAll(log.String(), e.ln.Addr().String(), "ENGINE")
		return strings.ReplaceAll(out, r.idPrefix, "ID")
	}
	store, err := session.New(session.Options{})
	if err != nil {
		t.Fatal(err)
	}
	off, on := run(nil), run(store)
	if st := store.Stats(); st.Followed == 0 || st.Bound == 0 {
		t.Fatalf("the traffic tests nothing: %+v", st)
	}
	if off != on {
		t.Errorf("without bindings:\n%s\nwith:\n%s", off, on)
	}
}
