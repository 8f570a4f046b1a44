package proxy

import (
	"bytes"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prefixring/prefixring/internal/channel"
	"github.com/prefixring/prefixring/internal/dialect"
	"github.com/prefixring/prefixring/internal/fingerprint"
	tiers "github.com/prefixring/prefixring/internal/route"
	"github.com/prefixring/prefixring/internal/session"
	"github.com/prefixring/prefixring/ring"
)

// hostedRouter has a route "auto" to one channel with keys at simulated hosts. The first
// of its tiers is an engine that is closed unless a test opens it.
type hostedRouter struct {
	*router
	hosts   []*scripted
	keys    []*atomic.Pointer[string]
	channel *Pool
	log     *bytes.Buffer
}

// rates are the headers that the host of a protocol sends, in its own form.
func rates(p dialect.Protocol, limit, left, reset int) string {
	if p == dialect.Messages {
		at := time.Now().Add(time.Duration(reset) * time.Second).UTC().Format(time.RFC3339)
		return fmt.Sprintf("anthropic-ratelimit-requests-limit: %d\r\nanthropic-ratelimit-requests-remaining: %d\r\nanthropic-ratelimit-requests-reset: %s\r\nanthropic-organization-id: org-secret\r\n", limit, left, at)
	}
	return fmt.Sprintf("x-ratelimit-limit-requests: %d\r\nx-ratelimit-remaining-requests: %d\r\nx-ratelimit-reset-requests: %ds\r\nopenai-organization: org-secret\r\nset-cookie: a=b\r\n", limit, left, reset)
}

// say answers like a hosted endpoint.
func (x *engineCall) say(status int, fields, body string) {
	x.write(fmt.Sprintf("HTTP/1.1 %d X\r\ncontent-type: application/json\r\nx-request-id: host-1\r\n%scontent-length: %d\r\n\r\n%s", status, fields, len(body), body))
}

type hostedSetup struct {
	protocols []dialect.Protocol
	scripts   []func(*engineCall) // one host per key
	weights   []float64
	options   channel.Options
	opts      Options
	bindings  *session.Store
}

func newHosted(t *testing.T, s hostedSetup) *hostedRouter {
	t.Helper()
	h := &hostedRouter{log: &bytes.Buffer{}}
	s.opts.Explain, s.opts.Log = true, slog.New(slog.NewTextHandler(h.log, nil))
	rg, err := ring.New(ring.Options{})
	if err != nil {
		t.Fatal(err)
	}
	scanner, err := fingerprint.NewScanner(fingerprint.Options{})
	if err != nil {
		t.Fatal(err)
	}
	h.channel = &Pool{Name: "cloud", Hosted: true, Ring: rg, Scanner: scanner, Bindings: s.bindings, Affinity: Affinity{Mode: session.User}}
	var members []ring.Member
	for i, script := range s.scripts {
		e, key := newEngine(t, script), fmt.Sprintf("sk-canary-%d", i)
		h.hosts, h.keys = append(h.hosts, e), append(h.keys, &atomic.Pointer[string]{})
		h.keys[i].Store(&key)
		up, err := NewUpstream(UpstreamOptions{Name: fmt.Sprintf("cloud/k%d", i), URL: e.url() + "/base", Rank: -1, Now: s.opts.Now,
			Account: channel.New(s.options, time.Now()), Key: func() string { return *h.keys[i].Load() }})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(up.Close)
		m := ring.Member{Name: up.Name(), Value: up}
		if s.weights != nil {
			m.Weight = s.weights[i]
		}
		members = append(members, m)
	}
	if err := rg.Apply(members); err != nil {
		t.Fatal(err)
	}
	engine := newEngine(t, answer)
	h.router = newRouter(t, setup{opts: s.opts}, engine.url())
	h.pool.Ring.Nodes()[0].SetLevel(ring.Closed)
	memory, err := session.New(session.Options{})
	if err != nil {
		t.Fatal(err)
	}
	table, err := NewTable([]*Pool{h.pool, h.channel}, &Route{Name: "auto", Memory: memory, Members: []RouteMember{
		{Tier: 0, Pool: h.pool, Model: "m"},
		{Tier: 1, Pool: h.channel, Model: "big-4", Can: tiers.Can{Protocols: s.protocols}},
	}})
	if err != nil {
		t.Fatal(err)
	}
	h.SetTable(table)
	return h
}

func ok(x *engineCall) { x.say(200, rates(dialect.Chat, 60, 59, 1), okJSON) }

// A host gets the body with its own model name, its own key, and nothing else of ours or
// of the client's; the client gets nothing of the account's.
func TestHostedGetsAndTellsOnlyWhatItShould(t *testing.T) {
	for name, tc := range map[string]struct {
		path, body, auth string
		protocol         dialect.Protocol
	}{
		"openai":    {"/v1/chat/completions", autoBody, "Authorization: Bearer sk-canary-0", dialect.Chat},
		"anthropic": {"/v1/messages", `{"model":"auto","max_tokens":5,"messages":[{"role":"user","content":"u"}]}`, "x-api-key: sk-canary-0", dialect.Messages},
	} {
		t.Run(name, func(t *testing.T) {
			keys := keyring(t, time.Now(), TenantOptions{Name: "ten-canary", Keys: hashed("client-canary"), Class: 3})
			h := newHosted(t, hostedSetup{
				opts: Options{Admission: keys, SaltTenants: true, SaltSecret: make([]byte, 16), PassClientKey: true},
				scripts: []func(*engineCall){func(x *engineCall) {
					x.say(200, rates(tc.protocol, 60, 59, 1), wholeAnswer(tc.path))
				}}})
			got := h.do(t, rawRequest(tc.path, tc.body, "Authorization: Bearer client-canary", "Cookie: c=canary", "X-Real-IP: 10.9.9.9",
				"OpenAI-Organization: client-org", "User-Agent: sdk/1", "X-Prefixring-Conversation: conv-canary"))
			if got.status != 200 || got.header.Get("X-Prefixring-Engine") != "cloud/k0" {
				t.Fatalf("%d %v %s", got.status, got.header, got.body)
			}
			head := h.hosts[0].lastHead()
			if b := string(h.hosts[0].lastBody()); b != strings.Replace(tc.body, "auto", "big-4", 1) {
				t.Errorf("body %s", b)
			}
			if !strings.HasPrefix(head, "POST /base"+tc.path+" HTTP/1.1\r\n") || !strings.Contains(head, tc.auth+"\r\n") || !strings.Contains(head, "User-Agent: sdk/1") {
				t.Errorf("head:\n%s", head)
			}
			for _, leak := range []string{"client-canary", "canary-1", "Cookie", "10.9.9.9", "Forwarded", "client-org", "conv-canary", "X-Request-Id", "Prefixring"} {
				if strings.Contains(head, leak) {
					t.Errorf("the host got %q:\n%s", leak, head)
				}
			}
			if version := strings.Contains(head, "Anthropic-Version: 2023-06-01"); version != (tc.protocol == dialect.Messages) {
				t.Errorf("anthropic-version sent: %t", version)
			}
			for k := range got.header {
				if k = strings.ToLower(k); strings.Contains(k, "ratelimit-limit-requests") || strings.Contains(k, "organization") || k == "set-cookie" {
					t.Errorf("the client got %s", k)
				}
			}
		})
	}
}

// A 429 makes one key rest for as long as the host says; the other serves meanwhile, and
// the client notices nothing.
func TestHosted429RestsTheKey(t *testing.T) {
	clock := newClock()
	var limited atomic.Int32
	script := func(me int32) func(*engineCall) {
		return func(x *engineCall) {
			if limited.Load() == me {
				x.say(429, "retry-after: 7\r\n", `{"error":{"message":"Rate limit reached in organization org-secret"}}`)
				return
			}
			ok(x)
		}
	}
	h := newHosted(t, hostedSetup{scripts: []func(*engineCall){script(1), script(2)}, opts: Options{Now: clock.now}})
	first := h.chat(t, autoBody).header.Get("X-Prefixring-Engine")
	limited.Store(int32(first[len(first)-1]-'0') + 1)
	got := h.chat(t, autoBody)
	if got.status != 200 || got.header.Get("X-Prefixring-Engine") == first || got.header.Get("X-Prefixring-Tries") != "2" {
		t.Fatalf("%d %v", got.status, got.header)
	}
	if got = h.chat(t, autoBody); got.header.Get("X-Prefixring-Tries") != "1" || got.header.Get("X-Prefixring-Engine") == first {
		t.Errorf("the resting key was asked: %v", got.header)
	}
	limited.Store(0)
	clock.advance(8 * time.Second)
	if got = h.chat(t, autoBody); got.header.Get("X-Prefixring-Engine") != first {
		t.Errorf("after its rest the key is not asked: %v", got.header)
	}
}

// When all keys rest nobody is asked, and what the host said of the account stays here.
func TestHostedAllResting(t *testing.T) {
	full := func(x *engineCall) { x.say(429, "retry-after: 30\r\n", `{"error":"org-secret"}`) }
	h := newHosted(t, hostedSetup{scripts: []func(*engineCall){full, full}})
	for i := range 2 {
		got := h.chat(t, autoBody)
		if got.status != 503 || strings.Contains(string(got.body), "org-secret") || got.header.Get("Retry-After") == "" {
			t.Errorf("request %d: %d %s %v", i, got.status, got.body, got.header)
		}
	}
	if n := h.hosts[0].calls.Load() + h.hosts[1].calls.Load(); n != 2 {
		t.Errorf("%d calls to resting keys", n)
	}
}

// A refused key is removed with an alarm that does not name it, and comes back when its
// file holds another one.
func TestHostedAuthFailureRemovesTheKey(t *testing.T) {
	good := "sk-new"
	script := func(x *engineCall) {
		if !strings.Contains(x.head, good) {
			x.say(401, "", `{"error":{"message":"Incorrect API key provided: sk-c***-0"}}`)
			return
		}
		ok(x)
	}
	h := newHosted(t, hostedSetup{scripts: []func(*engineCall){script}})
	for range 3 {
		got := h.chat(t, autoBody)
		if got.status != 503 || strings.Contains(string(got.body), "API key") {
			t.Fatalf("%d %s", got.status, got.body)
		}
	}
	if n := h.hosts[0].calls.Load(); n != 1 {
		t.Errorf("a refused key was used %d times", n)
	}
	if l := h.log.String(); strings.Count(l, "refuses its key") != 1 || !strings.Contains(l, "cloud/k0") || strings.Contains(l, "sk-") {
		t.Errorf("log: %s", l)
	}
	h.keys[0].Store(&good)
	if got := h.chat(t, autoBody); got.status != 200 {
		t.Errorf("with a new key: %d %s", got.status, got.body)
	}
}

// Rates that a host tells are believed before it has to refuse.
func TestHostedRatesAreLearned(t *testing.T) {
	for _, p := range []dialect.Protocol{dialect.Chat, dialect.Messages} {
		path, body := "/v1/chat/completions", autoBody
		if p == dialect.Messages {
			path, body = "/v1/messages", `{"model":"auto","max_tokens":5,"messages":[{"role":"user","content":"u"}]}`
		}
		last := func(x *engineCall) { x.say(200, rates(p, 60, 0, 60), wholeAnswer(path)) }
		h := newHosted(t, hostedSetup{scripts: []func(*engineCall){last, last}})
		seen := map[string]bool{}
		for range 2 {
			got := h.do(t, rawRequest(path, body))
			if got.status != 200 || got.header.Get("X-Prefixring-Tries") != "1" {
				t.Fatalf("%v: %d %v", p, got.status, got.header)
			}
			seen[got.header.Get("X-Prefixring-Engine")] = true
		}
		if got := h.do(t, rawRequest(path, body)); len(seen) != 2 || got.status != 503 || h.hosts[0].calls.Load()+h.hosts[1].calls.Load() != 2 {
			t.Errorf("%v: keys %v, then %d after %d calls", p, seen, got.status, h.hosts[0].calls.Load()+h.hosts[1].calls.Load())
		}
	}
}

// Configured rates hold although the host says nothing, and count the output asked for.
func TestHostedConfiguredRates(t *testing.T) {
	h := newHosted(t, hostedSetup{scripts: []func(*engineCall){answer}, options: channel.Options{TPM: 1000}})
	big := strings.Replace(autoBody, `"messages"`, `"max_tokens":600,"messages"`, 1)
	if got := h.chat(t, big); got.status != 200 {
		t.Fatalf("%d %s", got.status, got.body)
	}
	// The host counted 6 tokens where 600 were reserved, so the next one fits as well.
	h.records.wait(t, 1)
	if got := h.chat(t, big); got.status != 200 {
		t.Errorf("after the correction: %d", got.status)
	}
	h.records.wait(t, 2)
	tight := strings.Replace(autoBody, `"messages"`, `"max_tokens":990,"messages"`, 1)
	if got := h.chat(t, tight); got.status != 503 || h.hosts[0].calls.Load() != 2 {
		t.Errorf("%d after %d calls", got.status, h.hosts[0].calls.Load())
	}
}

// A redirect is neither followed nor told: a key is never sent to another host.
func TestHostedRedirectIsNotFollowed(t *testing.T) {
	trap := newEngine(t, answer)
	h := newHosted(t, hostedSetup{scripts: []func(*engineCall){func(x *engineCall) {
		x.say(307, "location: "+trap.url()+"/v1/chat/completions\r\n", "")
	}}})
	got := h.chat(t, autoBody)
	if trap.opened.Load() != 0 || got.header.Get("Location") != "" || got.status != 307 {
		t.Errorf("%d connections, %d %v", trap.opened.Load(), got.status, got.header)
	}
}

// A user's requests return to the account that holds their cache, and leave it when it is
// short of rate: health before cache.
func TestHostedBindsUserToAccount(t *testing.T) {
	store, err := session.New(session.Options{TTL: session.HostedTTL})
	if err != nil {
		t.Fatal(err)
	}
	var left atomic.Int32
	left.Store(50)
	script := func(x *engineCall) { x.say(200, rates(dialect.Chat, 60, int(left.Load()), 60), okJSON) }
	h := newHosted(t, hostedSetup{scripts: []func(*engineCall){script, script, script, script}, bindings: store})
	ask := func(i int) clientReply {
		got := h.chat(t, fmt.Sprintf(`{"model":"auto","user":"ann","messages":[{"role":"user","content":"question %d"}]}`, i))
		eventually(t, func() bool { return h.Stats().Running == 0 }, "settled")
		return got
	}
	home := ask(0).header.Get("X-Prefixring-Engine")
	for i := 1; i < 8; i++ {
		if got := ask(i); got.header.Get("X-Prefixring-Engine") != home || got.header.Get("X-Prefixring-Reason") != "binding" {
			t.Fatalf("question %d went to %v", i, got.header)
		}
	}
	left.Store(1) // of 60: below a twentieth
	ask(8)
	before := store.Stats().Refused["rate"]
	left.Store(50)
	if got := ask(9); got.header.Get("X-Prefixring-Reason") == "binding" || store.Stats().Refused["rate"] <= before {
		t.Errorf("a key short of rate was followed: %v %+v", got.header, store.Stats())
	}
}

// Keys share conversations as their weights say.
func TestHostedWeights(t *testing.T) {
	h := newHosted(t, hostedSetup{scripts: []func(*engineCall){answer, answer}, weights: []float64{3, 1}})
	const n = 200
	for i := range n {
		h.chat(t, fmt.Sprintf(`{"model":"auto","messages":[{"role":"user","content":"q%d"}]}`, i))
	}
	if share := float64(h.hosts[0].calls.Load()) / n; share < 0.62 || share > 0.88 {
		t.Errorf("a key of weight 3 beside one of weight 1 got %.2f", share)
	}
}

// Only clients of its own protocol reach a channel; there is no translation.
func TestHostedSameProtocolOnly(t *testing.T) {
	h := newHosted(t, hostedSetup{scripts: []func(*engineCall){answer}, protocols: []dialect.Protocol{dialect.Messages}})
	if got := h.chat(t, autoBody); got.status != 503 || h.hosts[0].opened.Load() != 0 {
		t.Errorf("%d, %d connections", got.status, h.hosts[0].opened.Load())
	}
}

// An https host must show a certificate that the roots know.
func TestHostedTLSIsVerified(t *testing.T) {
	srv := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(200) }))
	srv.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, 0)
	srv.StartTLS()
	defer srv.Close()
	up, err := NewUpstream(UpstreamOptions{Name: "c/k", URL: srv.URL, Rank: -1, Account: channel.New(channel.Options{}, time.Now()), Key: func() string { return "k" }})
	if err != nil {
		t.Fatal(err)
	}
	if conn, err := up.pool.connect(t.Context()); err == nil {
		conn.Close()
		t.Error("an unknown certificate was accepted")
	}
}

func TestHostedPoolsAreChecked(t *testing.T) {
	if _, err := NewUpstream(UpstreamOptions{Name: "c/k", URL: "https://h", Rank: -1, Account: channel.New(channel.Options{}, time.Now())}); err == nil {
		t.Error("an account without a key was accepted")
	}
	p, ups := newPool(t, "p", setup{}, "http://127.0.0.1:1")
	defer ups[0].Close()
	p.Hosted = true
	if _, err := NewTable([]*Pool{p}); err == nil {
		t.Error("a channel with models of its own was accepted: only routes may lead to it")
	}
}
