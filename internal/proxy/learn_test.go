package proxy

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/prefixring/prefixring/internal/dialect"
	"github.com/prefixring/prefixring/internal/fakeengine"
	"github.com/prefixring/prefixring/internal/fingerprint"
	"github.com/prefixring/prefixring/internal/residency"
	"github.com/prefixring/prefixring/ring"
)

// learns gives a pool all that it needs to learn keys.
func learns(p *Pool) {
	p.Residency = residency.New(residency.Options{})
	p.Learner = fingerprint.NewLearner(fingerprint.LearnerOptions{Now: time.Now})
	p.Churn = fingerprint.NewChurn(fingerprint.ChurnOptions{Now: time.Now, Seed: 0x5eed, Gap: -1})
}

// clocked is a request whose fat system message ends with a date line.
func clocked(prefix string, minute int, user string) string {
	system := prefix + strings.Repeat(" static text", 2000) + fmt.Sprintf("\\nNow: 2031-01-01 %02d:%02d", minute/60, minute%60)
	return `{"model":"m","max_tokens":2,"messages":[{"role":"system","content":"` + system + `"},{"role":"user","content":"` + user + `"}]}`
}

func coldPrefills(engines []*fakeengine.Engine) (n int64) {
	for _, e := range engines {
		n += e.Counters().ColdPrefills
	}
	return n
}

// A system message with a date line in its tail is one key, whatever the time: one cold
// prefill in the whole fleet.
func TestB26DateLineInTheTailIsOneKey(t *testing.T) {
	r, engines := fleet(t, 4, fakeengine.Options{Preset: "8b-tp1", Speed: 200}, setup{opts: Options{Explain: true}, pool: learns})
	var home string
	for i := range 30 {
		got := r.chat(t, clocked("one", i, fmt.Sprint("question ", i)))
		if got.status != 200 {
			t.Fatalf("%d %s", got.status, got.body)
		}
		if i == 0 {
			home = got.header.Get("X-Prefixring-Engine")
		}
		if e := got.header.Get("X-Prefixring-Engine"); e != home {
			t.Fatalf("minute %d went to %s, the prefix is warm on %s", i, e, home)
		}
		if d := got.header.Get("X-Prefixring-Depth"); i > 0 && d != "head" {
			t.Errorf("minute %d has a key of depth %q", i, d)
		}
	}
	if n := coldPrefills(engines); n != 1 {
		t.Errorf("%d cold prefills", n)
	}
	recs := r.records.wait(t, 30)
	for _, rec := range recs[1:] {
		if rec.Usage.Cached < 5000 {
			t.Errorf("%d of %d tokens from cache", rec.Usage.Cached, rec.Usage.Prompt)
		}
	}
}

// nextOwner finds a prefix whose learned key has another owner than its first key, and
// returns both nodes and the two keys.
func nextOwner(t *testing.T, r *router) (prefix string, key, next uint64, home, heir *ring.Node) {
	t.Helper()
	for i := range 100 {
		l := fingerprint.NewLearner(fingerprint.LearnerOptions{Now: time.Now})
		prefix = fmt.Sprint("prefix ", i)
		var a fingerprint.Advice
		for minute := range 2 {
			var s fingerprint.Result
			if err := r.pool.Scanner.Scan(dialect.Chat, []byte(clocked(prefix, minute, "u")), &s); err != nil {
				t.Fatal(err)
			}
			a = l.Place("m", &s, nil)
		}
		key, next = fingerprint.Fingerprint(a.Key, "m", "", ""), fingerprint.Fingerprint(a.Next, "m", "", "")
		home, heir = r.pool.Ring.Owners(key, 1, nil)[0], r.pool.Ring.Owners(next, 1, nil)[0]
		if home != heir {
			return prefix, key, next, home, heir
		}
	}
	t.Fatal("no prefix changes its owner")
	return
}

// A change of depth moves nothing warm: requests stay with the first key until the owner of
// the learned one is proven warm by real traffic, and then none of them is cold there.
func TestDepthChangeWaitsForAWarmOwner(t *testing.T) {
	var moves [][2]uint64
	r, engines := fleet(t, 4, fakeengine.Options{Preset: "8b-tp1", Speed: 100}, setup{opts: Options{Explain: true}, pool: func(p *Pool) {
		learns(p)
		p.Moved = func(from, to uint64) { moves = append(moves, [2]uint64{from, to}) }
	}})
	prefix, key, next, home, heir := nextOwner(t, r)
	for i := range 10 {
		if got := r.chat(t, clocked(prefix, i, "u")); got.header.Get("X-Prefixring-Engine") != home.Name() {
			t.Fatalf("minute %d left the warm node without a proof elsewhere: %v", i, got.header)
		}
	}
	if e, err := r.Explain("/v1/chat/completions", "", []byte(clocked(prefix, 11, "u"))); err != nil ||
		e.Learned == nil || e.Learned.Next != fmt.Sprintf("%016x", next) || e.Fingerprint != key || len(moves) != 0 {
		t.Fatalf("before the proof: %+v %+v %v, moves %x", e, e.Learned, err, moves)
	}

	// The first owner is at its bound: the second copy is made at the heir.
	home.SetExternal(20 * ring.Unit)
	if got := r.chat(t, clocked(prefix, 20, "u")); got.header.Get("X-Prefixring-Engine") != heir.Name() || got.header.Get("X-Prefixring-Reason") != "overflow" {
		t.Fatalf("a copy was not made at %s, which the key moves to: %v", heir.Name(), got.header)
	}
	home.SetExternal(0)
	cold := coldPrefills(engines)
	if cold != 2 {
		t.Errorf("%d cold prefills before the change, want one at each of two nodes", cold)
	}
	for i := range 10 {
		got := r.chat(t, clocked(prefix, 60+i, "u"))
		if got.header.Get("X-Prefixring-Engine") != heir.Name() || got.header.Get("X-Prefixring-Fingerprint") != fmt.Sprintf("%x", next) {
			t.Fatalf("after the proof: %v, want %s", got.header, heir.Name())
		}
	}
	if n := coldPrefills(engines); n != cold {
		t.Errorf("the change cost %d cold prefills", n-cold)
	}
	if len(moves) != 1 || moves[0] != [2]uint64{key, next} {
		t.Errorf("moves %x, want one from %x to %x", moves, key, next)
	}
	if w, _ := r.pool.Residency.Warmth(home.ID(), next); w != residency.Warm {
		t.Errorf("what was proven of the first owner is forgotten: %v", w)
	}
}

// When the cache of the first key is lost, there is nothing to stay for.
func TestDepthChangesWhereNothingIsWarm(t *testing.T) {
	r, _ := fleet(t, 4, fakeengine.Options{Preset: "8b-tp1", Speed: 200}, setup{opts: Options{Explain: true}, pool: learns})
	prefix, _, _, home, heir := nextOwner(t, r)
	for i := range 3 {
		r.chat(t, clocked(prefix, i, "u"))
	}
	r.pool.Residency.Forget(home.ID(), residency.Restart)
	if got := r.chat(t, clocked(prefix, 9, "u")); got.header.Get("X-Prefixring-Engine") != heir.Name() {
		t.Errorf("after the loss: %v, want %s", got.header, heir.Name())
	}
}

// A conversation keeps its binding across the minutes and across the change of its key.
func TestBindingsSurviveADepthChange(t *testing.T) {
	r, _ := bindingRouter(t, answer)
	learns(r.pool)
	prefix, key, next, _, _ := nextOwner(t, r)
	ask := func(minute int) clientReply {
		return r.chat(t, clocked(prefix, minute, "u"), "X-Prefixring-Conversation: c1", "X-Prefixring-Explain: 1")
	}
	first := ask(0)
	node := first.header.Get("X-Prefixring-Engine")
	if got := ask(1); got.header.Get("X-Prefixring-Reason") != "binding" {
		t.Fatalf("another minute: %v", got.header)
	}
	for _, n := range r.pool.Ring.Nodes() {
		r.pool.Residency.Observe(n.ID(), key, residency.Evidence{Kind: residency.Proof, Static: 6000})
	}
	got := ask(2)
	if got.header.Get("X-Prefixring-Fingerprint") != fmt.Sprintf("%x", next) {
		t.Fatalf("the key did not change: %v", got.header)
	}
	if got.header.Get("X-Prefixring-Reason") != "binding" || got.header.Get("X-Prefixring-Engine") != node {
		t.Errorf("the binding is lost with the key: %v, was on %s", got.header, node)
	}
}

// Text that is new from its first bytes gives no key: each conversation stays together, and
// no prefill is guarded as if others could use it.
func TestVolatileFromTheStartIsPlacedByConversation(t *testing.T) {
	e := newEngine(t, answer)
	r := newRouter(t, setup{opts: Options{Explain: true}, pool: learns}, e.url())
	body := func(i int, user string) string {
		return strings.Replace(clocked(fmt.Sprintf("session %08x", i*2654435761), 0, user), "Now:", "Then:", 1)
	}
	for i := range 40 {
		r.chat(t, body(i, fmt.Sprint("u", i)))
	}
	a, b, c := r.chat(t, body(100, "same words")), r.chat(t, body(101, "same words")), r.chat(t, body(102, "other words"))
	for _, got := range []clientReply{a, b, c} {
		if got.header.Get("X-Prefixring-Depth") != "none" || got.header.Get("X-Prefixring-Key") != "session" {
			t.Errorf("%v", got.header)
		}
	}
	const fp = "X-Prefixring-Fingerprint"
	if a.header.Get(fp) != b.header.Get(fp) || a.header.Get(fp) == c.header.Get(fp) {
		t.Errorf("keys %s %s %s", a.header.Get(fp), b.header.Get(fp), c.header.Get(fp))
	}
	x, err := r.Explain("/v1/chat/completions", "", []byte(body(103, "same words")))
	if err != nil || x.Fat || x.StaticTokens != 0 || !x.Learned.Volatile || x.Learned.From > 20 || x.Churn == nil || x.Churn.Change != "text" {
		t.Errorf("%+v %+v %+v %v", x, x.Learned, x.Churn, err)
	}
}

// A registered prefix is nobody's to learn.
func TestNamedPrefixesAreNotLearned(t *testing.T) {
	e := newEngine(t, answer)
	r := newRouter(t, setup{opts: Options{Explain: true}, pool: func(p *Pool) {
		learns(p)
		n, err := fingerprint.NewNamedText("rules", "m", "one"+strings.Repeat(" static text", 2000))
		if err != nil {
			t.Fatal(err)
		}
		if p.Scanner, err = fingerprint.NewScanner(fingerprint.Options{Named: []fingerprint.Named{n}}); err != nil {
			t.Fatal(err)
		}
		p.Named = []string{"rules"}
	}}, e.url())
	for i := range 5 {
		got := r.chat(t, clocked("one", i, "u"))
		if got.header.Get("X-Prefixring-Key") != "named" || got.header.Get("X-Prefixring-Depth") != "" {
			t.Errorf("%v", got.header)
		}
	}
	if n, _ := r.pool.Learner.Size(); n != 0 {
		t.Errorf("%d prefixes were learned", n)
	}
}

// A known prefix is read, keyed and diagnosed without an allocation.
func TestReadingAKnownPrefixDoesNotAllocate(t *testing.T) {
	e := newEngine(t, answer)
	r := newRouter(t, setup{pool: learns}, e.url())
	c := &call{p: r.Proxy}
	c.ex = &exchange{c: c}
	c.table, c.protocol, c.scan = r.Table(), dialect.Chat, newScan()
	body := [][]byte{[]byte(clocked("one", 1, "u")), []byte(clocked("one", 2, "u"))}
	i := 0
	read := func() {
		c.body = body[i%2]
		i++
		if f := c.understand([]byte("application/json")); f != nil {
			t.Fatal(f.code)
		}
		c.diagnose()
	}
	read()
	read()
	if c.learned.Next == 0 {
		t.Fatalf("no change is due: %+v", c.learned)
	}
	if n := testing.AllocsPerRun(200, read); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
