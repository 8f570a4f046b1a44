package proxy

import (
	"crypto/tls"
	"net"
	"strings"
	"testing"
	"time"
)

// B64: engines on TLS with a private authority, a server name and a client
// certificate; without them nothing falls back to plain text.
func TestB64EngineOnTLS(t *testing.T) {
	c := testCert(t)
	withClient := c.server.Clone()
	withClient.ClientAuth = tls.RequireAndVerifyClientCert
	withClient.ClientCAs = c.roots
	for name, x := range map[string]struct {
		server, client *tls.Config
		status         int
	}{
		"right":                 {c.server, &tls.Config{RootCAs: c.roots, ServerName: "engine-0.svc"}, 200},
		"unknown authority":     {c.server, nil, 502},
		"wrong name":            {c.server, &tls.Config{RootCAs: c.roots}, 502},
		"client certificate":    {withClient, c.client, 200},
		"no client certificate": {withClient, &tls.Config{RootCAs: c.roots, ServerName: "engine-0.svc"}, 502},
	} {
		t.Run(name, func(t *testing.T) {
			ln, err := tls.Listen("tcp", "127.0.0.1:0", x.server)
			if err != nil {
				t.Fatal(err)
			}
			e := engineOn(t, ln, answer)
			r := newRouter(t, setup{upstream: func(o *UpstreamOptions) { o.TLS = x.client }}, strings.Replace(e.url(), "http:", "https:", 1))
			for range 3 {
				if got := r.chat(t, chatBody); got.status != x.status {
					t.Fatalf("got %d %s", got.status, got.body)
				}
			}
			if x.status == 200 && e.opened.Load() != 1 {
				t.Fatalf("3 requests used %d connections", e.opened.Load())
			}
			if x.status != 200 && e.calls.Load() != 0 {
				t.Fatal("a request reached the engine")
			}
		})
	}
}

// B62: IPv6 addresses.
func TestB62IPv6Engine(t *testing.T) {
	ln, err := net.Listen("tcp", "[::1]:0")
	if err != nil {
		t.Logf("this machine has no IPv6 loopback (%v): the parsing is checked alone", err)
		up, err := NewUpstream(UpstreamOptions{Name: "v6", URL: "http://[::1]:8000", Rank: -1})
		if err != nil || up.dialer.address != "[::1]:8000" || up.host != "[::1]:8000" {
			t.Fatalf("%+v %v", up, err)
		}
		return
	}
	e := engineOn(t, ln, answer)
	r := newRouter(t, setup{}, e.url())
	if got := r.chat(t, chatBody); got.status != 200 || !strings.Contains(e.lastHead(), "Host: [::1]:") {
		t.Fatalf("got %d\n%s", got.status, e.lastHead())
	}
}

func TestUpstreamAddresses(t *testing.T) {
	for url, want := range map[string]string{
		"http://a": "a:80", "https://a": "a:443", "http://a:8000/": "a:8000", "http://a/v/x/": "a:80",
	} {
		up, err := NewUpstream(UpstreamOptions{Name: "n", URL: url, Rank: -1})
		if err != nil || up.dialer.address != want {
			t.Errorf("%s: %v, %v", url, up, err)
		}
	}
	for _, url := range []string{"", "a:8000", "ftp://a", "http://", "http://u:secret@a", "http://a?x=1", "http://a#f", "http://a:b"} {
		_, err := NewUpstream(UpstreamOptions{Name: "n", URL: url, Rank: -1})
		if err == nil || strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: %v", url, err)
		}
	}
}

// A base path is put before the request's, and a rank goes into its header.
func TestBasePathAndRank(t *testing.T) {
	e := newEngine(t, answer)
	r := newRouter(t, setup{upstream: func(o *UpstreamOptions) { o.Rank, o.Host = 3, "pub.example" }}, e.url()+"/engines/7/")
	r.chat(t, chatBody)
	h := e.lastHead()
	if !strings.HasPrefix(h, "POST /engines/7/v1/chat/completions HTTP/1.1\r\nHost: pub.example\r\n") || !strings.Contains(h, "X-data-parallel-rank: 3\r\n") {
		t.Fatalf("engine got\n%s", h)
	}
}

// B48: an engine connection that was idle for 3 s is not used again, below the 5 s
// after which engines close it, and is closed by the janitor.
func TestB48IdleLimitIsBelowTheEngines(t *testing.T) {
	e := newEngine(t, answer)
	r, clock := steered(t, Options{}, e.url())
	r.chat(t, chatBody)
	r.records.wait(t, 1)
	clock.advance(2900 * time.Millisecond)
	r.chat(t, chatBody)
	if e.opened.Load() != 1 {
		t.Fatalf("%d connections", e.opened.Load())
	}
	r.records.wait(t, 2)
	clock.advance(3100 * time.Millisecond)
	r.chat(t, chatBody)
	if e.opened.Load() != 2 {
		t.Fatalf("%d connections", e.opened.Load())
	}
	r.records.wait(t, 3)
	clock.advance(3100 * time.Millisecond)
	r.prune(clock.now())
	eventually(t, func() bool { return e.open.Load() == 0 }, "idle connection closed")
}
