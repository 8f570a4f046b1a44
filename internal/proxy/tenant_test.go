package proxy

import (
	"bufio"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/prefixring/prefixring/internal/dialect"
)

func keyring(t *testing.T, now time.Time, o ...TenantOptions) *Keyring {
	t.Helper()
	k, err := NewKeyring(o, now)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

func hashed(keys ...string) (out [][32]byte) {
	for _, k := range keys {
		out = append(out, HashKey([]byte(k)))
	}
	return out
}

// Keys authenticate the client here, in both forms, and go no further.
func TestClientKeys(t *testing.T) {
	e := newEngine(t, answer)
	r := newRouter(t, setup{opts: Options{Admission: keyring(t, time.Now(), TenantOptions{Name: "a", Keys: hashed("k1", "k2")})}}, e.url())
	for _, h := range []string{"Authorization: Bearer k1", "authorization: bearer k2", "x-api-key: k1"} {
		if got := r.chat(t, chatBody, h); got.status != 200 {
			t.Errorf("%s: %d", h, got.status)
		}
		if l := strings.ToLower(e.lastHead()); strings.Contains(l, "k1") || strings.Contains(l, "k2") || strings.Contains(l, "authorization") {
			t.Errorf("the key reached the engine:\n%s", e.lastHead())
		}
	}
	calls := e.calls.Load()
	for _, h := range []string{"X: none", "Authorization: Bearer", "Authorization: Bearer k3", "Authorization: Basic k1", "Authorization: k1", "x-api-key: K1"} {
		got := r.chat(t, chatBody, h)
		if got.status != 401 || got.header.Get("X-Prefixring-Error") != "unauthorized" {
			t.Errorf("%s: %d %v", h, got.status, got.header)
		}
	}
	// A large body of a stranger is not read.
	status, _, _, closed := r.rawDo(t, "POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nContent-Length: 1000000\r\n\r\n{")
	if status != 401 || !closed {
		t.Errorf("large body: %d", status)
	}
	if e.calls.Load() != calls {
		t.Error("a refused request reached the engine")
	}
}

// The rate limit refuses in its own name and says when to come back.
func TestTenantRate(t *testing.T) {
	clock := newClock()
	r := newRouter(t, setup{opts: Options{Now: clock.now, Admission: keyring(t, clock.now(),
		TenantOptions{Name: "rate", Keys: hashed("rate"), RequestsPerMinute: 3})}}, newEngine(t, answer).url())
	for i, want := range []int{200, 200, 200, 429, 429} {
		got := r.chat(t, chatBody, "Authorization: Bearer rate")
		if got.status != want {
			t.Fatalf("request %d: %d", i, got.status)
		}
		h := got.header
		if h.Get("X-Ratelimit-Limit-Requests") != "3" || h.Get("X-Ratelimit-Remaining-Requests") != itoa(max(2-i, 0)) {
			t.Fatalf("request %d: %v", i, h)
		}
		if want == 429 && (h.Get("Retry-After") != "20" || h.Get("X-Prefixring-Error") != "rate_limited") {
			t.Fatalf("request %d: %v", i, h)
		}
	}
	clock.advance(20 * time.Second)
	if got := r.chat(t, chatBody, "Authorization: Bearer rate"); got.status != 200 {
		t.Fatalf("after the wait: %d", got.status)
	}
}

// The token limit counts what engines counted.
func TestTenantTokens(t *testing.T) {
	clock := newClock()
	r := newRouter(t, setup{opts: Options{Now: clock.now, Admission: keyring(t, clock.now(),
		TenantOptions{Name: "tokens", Keys: hashed("tokens"), TokensPerMinute: 10})}}, newEngine(t, answer).url())
	if got := r.chat(t, chatBody, "Authorization: Bearer tokens"); got.status != 200 {
		t.Fatal(got.status)
	}
	r.records.wait(t, 1) // okJSON says 6 tokens
	long := strings.Replace(chatBody, `"u"`, `"`+strings.Repeat("long ", 20)+`"`, 1)
	got := r.chat(t, long, "Authorization: Bearer tokens")
	if got.status != 429 || got.header.Get("X-Prefixring-Error") != "tokens_limited" || got.header.Get("X-Ratelimit-Remaining-Tokens") != "4" {
		t.Fatalf("%d %v", got.status, got.header)
	}
}

// The concurrency limit is given back when a request ends.
func TestTenantConcurrency(t *testing.T) {
	hold := make(chan struct{})
	e := newEngine(t, func(x *engineCall) { <-hold; x.json(200, okJSON) })
	r := newRouter(t, setup{opts: Options{Admission: keyring(t, time.Now(),
		TenantOptions{Name: "one", Keys: hashed("one"), Concurrent: 1})}}, e.url())
	c := r.dial(t)
	io.WriteString(c, rawRequest("/v1/chat/completions", chatBody, "Authorization: Bearer one"))
	eventually(t, func() bool { return e.calls.Load() == 1 }, "the first runs")
	got := r.chat(t, chatBody, "Authorization: Bearer one")
	if got.status != 429 || got.header.Get("X-Prefixring-Error") != "concurrency_limited" || got.header.Get("Retry-After") != "1" {
		t.Fatalf("%d %v", got.status, got.header)
	}
	close(hold)
	if got := readReply(t, bufio.NewReader(c), "POST"); got.status != 200 {
		t.Fatal(got.status)
	}
	eventually(t, func() bool { return r.chat(t, chatBody, "Authorization: Bearer one").status == 200 }, "room again")
}

// A client that leaves gives its concurrency back.
func TestConcurrencyGivenBackOnDisconnect(t *testing.T) {
	e, reached, closed := silentEngine(t, func(*engineCall) {})
	k := keyring(t, time.Now(), TenantOptions{Name: "one", Keys: hashed("one"), Concurrent: 1})
	r := newRouter(t, setup{opts: Options{Admission: k}}, e.url())
	c := r.dial(t)
	io.WriteString(c, rawRequest("/v1/chat/completions", chatBody, "Authorization: Bearer one"))
	<-reached
	c.Close()
	<-closed
	r.records.wait(t, 1)
	tn := k.Identify([]byte("one")).(*tenant)
	eventually(t, func() bool { return tn.meter.running.Load() == 0 }, "concurrency given back")
}

// Each tenant has its own cache salt; a client's own salt stands.
func TestTenantSalt(t *testing.T) {
	e := newEngine(t, answer)
	k := keyring(t, time.Now(), TenantOptions{Name: "a", Keys: hashed("a")}, TenantOptions{Name: "b", Keys: hashed("b")})
	r := newRouter(t, setup{opts: Options{Admission: k, SaltTenants: true, SaltSecret: []byte("0123456789abcdef")}}, e.url())
	salts := map[string]bool{}
	for _, key := range []string{"a", "b", "a"} {
		r.chat(t, chatBody, "Authorization: Bearer "+key)
		b := string(e.lastBody())
		if !strings.HasPrefix(b, `{"cache_salt":"`) || !strings.HasSuffix(b, chatBody[1:]) {
			t.Fatalf("engine got %s", b)
		}
		salts[b] = true
	}
	if len(salts) != 2 {
		t.Fatalf("%d salts for 2 tenants", len(salts))
	}
	own := strings.Replace(chatBody, `{`, `{"cache_salt":"mine",`, 1)
	r.chat(t, own, "Authorization: Bearer a")
	if string(e.lastBody()) != own {
		t.Fatalf("engine got %s", e.lastBody())
	}
}

// Priority is the tenant's and takes the sign of the engine's dialect.
func TestPriorityTakesDialectSign(t *testing.T) {
	k := keyring(t, time.Now(), TenantOptions{Name: "a", Keys: hashed("a"), Class: 5})
	for engine, want := range map[dialect.Engine]string{dialect.VLLM: "-5", dialect.SGLang: "5"} {
		e := newEngine(t, answer)
		r := newRouter(t, setup{opts: Options{Admission: k}, upstream: func(o *UpstreamOptions) { o.Engine = engine }}, e.url())
		r.chat(t, chatBody, "Authorization: Bearer a")
		if b := string(e.lastBody()); b != `{"priority":`+want+`,`+chatBody[1:] {
			t.Errorf("%v got %s", engine, b)
		}
		own := strings.Replace(chatBody, `{`, `{ "priority" : 99 ,`, 1)
		r.chat(t, own, "Authorization: Bearer a")
		if b := string(e.lastBody()); b != strings.Replace(own, "99", want, 1) {
			t.Errorf("%v got %s", engine, b)
		}
	}
}

func TestKeyringRefusesTwoMeanings(t *testing.T) {
	for name, o := range map[string][]TenantOptions{
		"same key":      {{Name: "a", Keys: hashed("k")}, {Name: "b", Keys: hashed("k")}},
		"same name":     {{Name: "a", Keys: hashed("k")}, {Name: "a", Keys: hashed("l")}},
		"no name":       {{Keys: hashed("k")}},
		"two anonymous": {{Name: "a"}, {Name: "b"}},
		"negative":      {{Name: "a", Concurrent: -1}},
	} {
		if _, err := NewKeyring(o, time.Now()); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

// A new configuration forgives nothing: what a tenant has used and has running counts
// on under its new limits, also when the limit was off in between.
func TestRenewedKeyringRemembers(t *testing.T) {
	now := time.Unix(1000, 0)
	o := TenantOptions{Name: "a", Keys: hashed("a"), RequestsPerMinute: 2, Concurrent: 2}
	k := keyring(t, now, o)
	first := k.Identify([]byte("a"))
	if first.Admit(now, 1) != nil {
		t.Fatal("refused")
	}
	for _, step := range []struct {
		perMinute, concurrent int
		want                  *Limit
	}{
		{2, 1, new(LimitConcurrency)}, {1, 9, new(LimitRate)}, {0, 9, nil}, {0, 2, new(LimitConcurrency)},
	} {
		o.RequestsPerMinute, o.Concurrent = step.perMinute, step.concurrent
		next, err := k.Renew([]TenantOptions{o}, now)
		if err != nil {
			t.Fatal(err)
		}
		k = next
		r := k.Identify([]byte("a")).Admit(now, 1)
		if (r == nil) != (step.want == nil) || r != nil && r.Limit != *step.want {
			t.Fatalf("%+v: %+v", step, r)
		}
	}
	first.Settle(now, 1, 1) // admitted before all that, settled after it
	if got := k.Identify([]byte("a")).(*tenant).meter.running.Load(); got != 1 {
		t.Fatalf("%d running, want 1", got)
	}
}

// A bad list changes nothing, and its limits are not in force either.
func TestRenewIsAllOrNothing(t *testing.T) {
	now := time.Unix(1000, 0)
	k := keyring(t, now, TenantOptions{Name: "a", Keys: hashed("a"), Concurrent: 5})
	for _, bad := range [][]TenantOptions{
		{{Name: "a", Keys: hashed("a"), Concurrent: 1}, {Name: "a", Keys: hashed("b")}},
		{{Name: "a", Keys: hashed("a"), Concurrent: 1}, {Name: "b", Keys: hashed("a")}},
		{{Name: "a", Concurrent: 1}, {Name: "b"}},
		{{Name: "a", Concurrent: 1}, {Name: "b", TokensPerMinute: -1, Keys: hashed("b")}},
	} {
		if _, err := k.Renew(bad, now); err == nil {
			t.Errorf("%+v accepted", bad)
		}
	}
	if got := k.Identify([]byte("a")).(*tenant).meter.most.Load(); got != 5 {
		t.Fatalf("the limit became %d", got)
	}
}

// A model that a tenant may not use does not exist for it: not in the list, not by
// name, not in the error that names what there is, not by leaving the name out.
func TestTenantModels(t *testing.T) {
	e := newEngine(t, answer)
	k := keyring(t, time.Now(), TenantOptions{Name: "a", Keys: hashed("a"), Models: []string{"other"}}, TenantOptions{Name: "all"})
	r := newRouter(t, setup{opts: Options{Admission: k}}, e.url())
	mine, all := "Authorization: Bearer a", "X: none"
	if got := r.chat(t, chatBody, all); got.status != 200 {
		t.Fatal(got.status)
	}
	calls := e.calls.Load()
	model := r.do(t, "GET /v1/models HTTP/1.1\r\nHost: a\r\n\r\n")
	if !strings.Contains(string(model.body), `"id":"m"`) {
		t.Fatalf("models: %s", model.body)
	}
	for _, got := range []clientReply{
		r.chat(t, chatBody, mine), r.do(t, "GET /v1/models/m HTTP/1.1\r\nHost: a\r\n"+mine+"\r\n\r\n"), r.chat(t, strings.Replace(chatBody, `"model":"m",`, "", 1), mine),
	} {
		if got.status < 400 || strings.Contains(string(got.body), "there is") {
			t.Errorf("%d %s", got.status, got.body)
		}
	}
	if got := r.do(t, "GET /v1/models HTTP/1.1\r\nHost: a\r\n"+mine+"\r\n\r\n"); strings.Contains(string(got.body), `"id"`) {
		t.Errorf("models: %s", got.body)
	}
	if e.calls.Load() != calls {
		t.Error("a refused request reached the engine")
	}
}
