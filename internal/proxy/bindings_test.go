package proxy

import (
	"fmt"
	"strings"
	"testing"

	"github.com/prefixring/prefixring/internal/session"
	"github.com/prefixring/prefixring/ring"
)

// turn is a chat body with n earlier exchanges.
func turn(n int, extra string) string {
	var b strings.Builder
	b.WriteString(`{"model":"m",` + extra + `"messages":[{"role":"system","content":"shop"},{"role":"user","content":"q0"}`)
	for i := range n {
		fmt.Fprintf(&b, `,{"role":"assistant","content":"a%d"},{"role":"user","content":"q%d"}`, i, i+1)
	}
	return b.String() + "]}"
}

func bindingRouter(t *testing.T, script func(*engineCall)) (*router, *session.Store) {
	t.Helper()
	store, err := session.New(session.Options{})
	if err != nil {
		t.Fatal(err)
	}
	a, b, c := newEngine(t, script), newEngine(t, script), newEngine(t, script)
	return newRouter(t, setup{opts: Options{Explain: true}, pool: func(p *Pool) { p.Bindings = store }}, a.url(), b.url(), c.url()), store
}

// A later turn follows the conversation to where it was answered, even when that is
// not the owner of its prefix any more.
func TestBindingFollowsConversation(t *testing.T) {
	for name, extra := range map[string]string{"by history": "", "by id": `"prompt_cache_key":"k1",`} {
		t.Run(name, func(t *testing.T) {
			r, _ := bindingRouter(t, answer)
			owner := r.chat(t, turn(0, extra)).header.Get("X-Prefixring-Engine")
			// The owner closes; the conversation moves and binds elsewhere.
			r.pool.Ring.Node(owner).SetLevel(ring.Closed)
			moved := r.chat(t, turn(1, extra))
			if e := moved.header.Get("X-Prefixring-Engine"); e == owner {
				t.Fatal("a closed node was used")
			}
			r.pool.Ring.Node(owner).SetLevel(ring.Open)
			next := r.chat(t, turn(2, extra))
			if next.header.Get("X-Prefixring-Engine") != moved.header.Get("X-Prefixring-Engine") || next.header.Get("X-Prefixring-Reason") != "binding" {
				t.Fatalf("turn 2 went to %v", next.header)
			}
			// Another conversation with the same prefix goes to the owner.
			other := strings.ReplaceAll(turn(2, strings.Replace(extra, "k1", "k2", 1)), "q0", "other")
			if got := r.chat(t, other); got.header.Get("X-Prefixring-Engine") != owner {
				t.Fatalf("another conversation went to %v", got.header)
			}
		})
	}
}

// A binding ends with the first failure of its own.
func TestBindingEvictedByFailure(t *testing.T) {
	var fail bool
	r, store := bindingRouter(t, func(x *engineCall) {
		if fail {
			x.json(500, `{}`)
		} else {
			x.json(200, okJSON)
		}
	})
	r.chat(t, turn(0, `"prompt_cache_key":"k",`))
	r.records.wait(t, 1)
	if store.Len() != 1 {
		t.Fatalf("%d bindings", store.Len())
	}
	fail = true
	r.chat(t, turn(1, `"prompt_cache_key":"k",`))
	r.records.wait(t, 2)
	if store.Len() != 0 {
		t.Fatalf("%d bindings after a failure", store.Len())
	}
}

// Off means off: no lookups, no reason "binding".
func TestNoBindings(t *testing.T) {
	e := newEngine(t, answer)
	r := newRouter(t, setup{opts: Options{Explain: true}}, e.url(), newEngine(t, answer).url())
	for i := range 3 {
		if got := r.chat(t, turn(i, `"prompt_cache_key":"k",`)); got.header.Get("X-Prefixring-Reason") != "owner" {
			t.Fatalf("headers %v", got.header)
		}
	}
}
