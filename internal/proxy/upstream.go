package proxy

import (
	"crypto/tls"
	"fmt"
	"net"
	"net/url"
	"strings"
	"sync/atomic"
	"time"

	"github.com/prefixring/prefixring/internal/channel"
	"github.com/prefixring/prefixring/internal/dialect"
	"github.com/prefixring/prefixring/internal/session"
)

// UpstreamOptions describes how to reach one node.
type UpstreamOptions struct {
	Name   string         // the node's name, for reports
	URL    string         // base URL of the engine, http or https, with an optional path prefix
	Engine dialect.Engine // whose dialect it speaks
	Key    func() string  // the engine's own key, read per request so that it can rotate; nil or "" = none
	TLS    *tls.Config    // for https: roots, client certificate, server name; nil = system roots
	Host   string         // Host header; default is the address of URL
	Rank   int            // data-parallel rank behind one port, sent as a header; -1 = none
	Now    func() time.Time
	// Account makes this a hosted account: only answers tell of it, and its key goes in the
	// form that the protocol's hosts take. It needs a Key.
	Account *channel.Account
	Timeouts
}

// Upstream is an engine as the data plane sees it: an address, its connections, and
// what attempts have taught about it. It is the Value of a ring node.
type Upstream struct {
	name   string
	engine dialect.Engine
	host   string
	prefix string // of the path, without a trailing slash
	key    func() string
	rank   int
	pool   connPool
	dialer dialer
	now    func() time.Time

	account    *channel.Account // nil = an engine
	refusedKey atomic.Pointer[string]

	creds   atomic.Pointer[credentials]
	breaker breaker
	state   atomic.Uint32 // 1 + session.Refusal while health forbids to follow bindings here; 0 = it does not
	busy    atomic.Int64  // Unix nanoseconds until which the engine asked to be left alone
}

// NewUpstream checks the address; it opens no connection.
func NewUpstream(o UpstreamOptions) (*Upstream, error) {
	u, err := url.Parse(o.URL)
	if err != nil {
		// The parse error would quote the address, which may carry credentials.
		return nil, fmt.Errorf("cannot use the URL of engine %q: it does not parse", o.Name)
	}
	switch {
	case u.Scheme != "http" && u.Scheme != "https":
		return nil, fmt.Errorf("cannot use the URL of engine %q: the scheme must be http or https", o.Name)
	case u.Hostname() == "":
		return nil, fmt.Errorf("cannot use the URL of engine %q: it names no host", o.Name)
	case u.User != nil:
		return nil, fmt.Errorf("cannot use the URL of engine %q: keys belong in the key setting, not in the URL", o.Name)
	case o.Account != nil && o.Key == nil:
		return nil, fmt.Errorf("cannot use account %q: it has no key", o.Name)
	case u.RawQuery != "" || u.Fragment != "":
		return nil, fmt.Errorf("cannot use the URL of engine %q: it has a query or fragment", o.Name)
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	port := u.Port()
	if port == "" {
		port = map[string]string{"http": "80", "https": "443"}[u.Scheme]
	}
	t := Options{Timeouts: o.Timeouts}.withDefaults().Timeouts
	up := &Upstream{name: o.Name, engine: o.Engine, host: o.Host, key: o.Key, rank: o.Rank, now: o.Now, account: o.Account}
	up.prefix = strings.TrimRight(u.EscapedPath(), "/")
	if up.host == "" {
		up.host = u.Host
	}
	up.dialer = dialer{network: "tcp", address: net.JoinHostPort(u.Hostname(), port), timeout: t.Connect}
	if up.dialer.timeout == 0 {
		up.dialer.timeout = time.Hour
	}
	if u.Scheme == "https" {
		cfg := &tls.Config{MinVersion: tls.VersionTLS12}
		if o.TLS != nil {
			cfg = o.TLS.Clone()
		}
		if cfg.ServerName == "" {
			cfg.ServerName = u.Hostname()
		}
		cfg.NextProtos = []string{"http/1.1"}
		up.dialer.tls = cfg
	}
	up.pool = connPool{dial: up.dialer.dial, maxIdle: t.EngineIdle, maxAge: t.EngineMaxAge, now: o.Now}
	if up.pool.maxIdle == 0 {
		up.pool.maxIdle = 24 * time.Hour
	}
	return up, nil
}

// Name is the node's configured name.
func (u *Upstream) Name() string { return u.name }

// Engine is the dialect that the engine speaks.
func (u *Upstream) Engine() dialect.Engine { return u.engine }

// Forbid keeps bindings from leading here, and from being made, until Allow: health comes
// before cache. What the node may be given at all is its level's business.
func (u *Upstream) Forbid(why session.Refusal) { u.state.Store(uint32(why) + 1) }

// Allow ends Forbid.
func (u *Upstream) Allow() { u.state.Store(0) }

// Close drops the idle connections. Exchanges that are running go on to their end.
func (u *Upstream) Close() { u.pool.close() }

// credentials are the header lines made of one key, one per protocol.
type credentials struct {
	key   string
	lines [dialect.Messages + 1]string
}

// credential returns the header line that authenticates the router to the engine,
// or nothing. The lines are made once per key.
func (u *Upstream) credential(p dialect.Protocol) string {
	if u.key == nil {
		return ""
	}
	key := u.key()
	if key == "" {
		return ""
	}
	have := u.creds.Load()
	if have == nil || have.key != key {
		have = &credentials{key: key}
		for p := range have.lines {
			name, value := dialect.AuthHeader(dialect.Protocol(p), u.engine, key)
			if u.account != nil {
				name, value = dialect.ChannelAuthHeader(dialect.Protocol(p), key)
			}
			have.lines[p] = name + ": " + value + crlf
		}
		u.creds.Store(have)
	}
	return have.lines[p]
}

// isBusy reports that the engine asked, with a 503, to be left alone for now.
func (u *Upstream) isBusy(now time.Time) bool { return u.busy.Load() > now.UnixNano() }

// setBusy notes a refusal. The engine's own wish is capped: it is a hint for the
// order of nodes, not a verdict over this one.
func (u *Upstream) setBusy(now time.Time, wish time.Duration) {
	const least, most = 250 * time.Millisecond, 5 * time.Second
	u.busy.Store(now.Add(min(max(wish, least), most)).UnixNano())
}

// breaker skips an engine that refuses connections, without asking it each time
// (field case B46): after three failures in a row nothing is sent for a cool-down,
// then one attempt probes.
type breaker struct {
	failures atomic.Int32
	until    atomic.Int64 // Unix nanoseconds; 0 = closed
	probing  atomic.Bool
}

const (
	breakerLimit    = 3
	breakerCoolDown = time.Second
	breakerMaxShift = 5 // longest cool-down is 32 s
)

// allow says if an attempt may be made. Past the cool-down only one caller may: it is
// the probe, and owes a success, a failure, or an abandon.
func (b *breaker) allow(now time.Time) (ok, probe bool) {
	until := b.until.Load()
	if until == 0 {
		return true, false
	}
	ok = now.UnixNano() >= until && b.probing.CompareAndSwap(false, true)
	return ok, ok
}

// success closes the breaker.
func (b *breaker) success() {
	if b.failures.Load() != 0 {
		b.failures.Store(0)
	}
	if b.until.Load() != 0 {
		b.until.Store(0)
		b.probing.Store(false)
	}
}

// failure counts one failed connect and opens the breaker at the limit.
func (b *breaker) failure(now time.Time) {
	n := b.failures.Add(1)
	if n >= breakerLimit {
		shift := min(n-breakerLimit, breakerMaxShift)
		b.until.Store(now.Add(breakerCoolDown << shift).UnixNano())
	}
	b.probing.Store(false)
}

// abandon gives back a probe that ended without an answer about the connection.
// After a success or failure it changes nothing.
func (b *breaker) abandon() { b.probing.Store(false) }
