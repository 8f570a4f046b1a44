package main

import (
	"crypto/tls"
	"fmt"
	"hash/fnv"
	"io"
	"log/slog"
	"strings"
	"time"

	"github.com/prefixring/prefixring/health"
	"github.com/prefixring/prefixring/internal/config"
	"github.com/prefixring/prefixring/internal/proxy"
	"github.com/prefixring/prefixring/internal/session"
	"github.com/prefixring/prefixring/internal/telemetry"
)

// applyBindingEnv lets the two environment variables override the file. A malformed one
// switches bindings off, with one warning that names it.
func applyBindingEnv(cfg *config.Config, log *slog.Logger, getenv func(string) string) {
	s, warning := session.Override(session.Settings{Enabled: cfg.Bindings.Enabled, TTL: bindingTTL(&cfg.Bindings)},
		getenv(session.EnvEnabled), getenv(session.EnvTTL))
	if warning != "" {
		log.Warn(warning)
	}
	cfg.Bindings.Enabled = s.Enabled
	if strings.TrimSpace(getenv(session.EnvTTL)) != "" {
		cfg.Bindings.TTL = config.Duration(s.TTL) // else presets and channels keep their own
	}
}

// bindingTTL is the configured life of a binding, or that of the preset.
func bindingTTL(b *config.Bindings) time.Duration {
	switch {
	case b.TTL != 0:
		return b.TTL.D()
	case b.Preset == "hosted":
		return session.HostedTTL
	}
	return session.DefaultTTL
}

// newBindings returns the session store of one pool, or nil when bindings are off.
func newBindings(b *config.Bindings, p *config.Pool) (*session.Store, error) {
	if !b.Enabled || (p.Bindings != nil && !*p.Bindings) {
		return nil, nil
	}
	return session.New(session.Options{TTL: bindingTTL(b), Uses: b.Uses, Max: b.Max})
}

// newAffinity says how a pool uses its bindings. Its revision is a digest of what decides
// where a name leads, so that a reload that changes it leaves the old bindings behind.
func newAffinity(b *config.Bindings, p *config.Pool) proxy.Affinity {
	h := fnv.New64a()
	fmt.Fprintf(h, "%q %q %q %q %v", p.Name, p.Models, p.Aliases, p.Salt, p.Placement)
	a := proxy.Affinity{Strict: b.Preset == "strict", Revision: h.Sum64()}
	if b.Mode == "user" {
		a.Mode = session.User
	}
	return a
}

// forbidding is the refusal that a state of health means for bindings, if any.
func forbidding(s health.State) (session.Refusal, bool) {
	switch s {
	case health.Ready:
		return 0, false
	case health.Saturated:
		return session.Saturated, true
	case health.Draining:
		return session.Draining, true
	case health.Ejected, health.Unhealthy:
		return session.Ejected, true
	}
	return session.NotEligible, true
}

// forbid tells the data plane if bindings may lead to this node.
func (m *member) forbid() {
	if why, bad := forbidding(m.state); bad {
		m.upstream.Forbid(why)
	} else {
		m.upstream.Allow()
	}
}

// bindingStats are the counts of every pool that has bindings.
func (f *fleet) bindingStats() map[string]session.Stats {
	f.mu.Lock()
	defer f.mu.Unlock()
	out := map[string]session.Stats{}
	for name, p := range f.pools {
		if p.bindings != nil {
			out[name] = p.bindings.Stats()
		}
	}
	for name, h := range f.channels {
		if h.store != nil {
			out[name] = h.store.Stats()
		}
	}
	return out
}

// writeBindings writes them for a scrape.
func (f *fleet) writeBindings(w io.Writer) {
	all := f.bindingStats()
	for _, pool := range sortedKeys(all) {
		st := all[pool]
		line := func(metric string, n uint64, more ...string) {
			telemetry.WriteLine(w, "prefixring_bindings"+metric, float64(n), append([]string{"pool", pool}, more...)...)
		}
		line("", uint64(st.Entries))
		line("_bound_total", st.Bound)
		line("_followed_total", st.Followed)
		line("_expired_total", st.Expired)
		line("_spent_total", st.Spent)
		for _, why := range sortedKeys(st.Refused) {
			line("_refused_total", st.Refused[why], "reason", why)
		}
		for _, why := range sortedKeys(st.Evicted) {
			line("_evicted_total", st.Evicted[why], "reason", why)
		}
	}
}

// printBindings writes one line per pool: what is zero is left out of the reasons.
func printBindings(w io.Writer, all map[string]session.Stats) {
	for _, pool := range sortedKeys(all) {
		st := all[pool]
		fmt.Fprintf(w, "bindings of %s: %d live, %d bound, %d followed%s%s, %d expired, %d used up\n",
			pool, st.Entries, st.Bound, st.Followed, reasons(", refused", st.Refused), reasons(", evicted", st.Evicted), st.Expired, st.Spent)
	}
}

func reasons(what string, counts map[string]uint64) string {
	var b strings.Builder
	for _, why := range sortedKeys(counts) {
		if n := counts[why]; n > 0 {
			fmt.Fprintf(&b, " %d %s", n, why)
		}
	}
	if b.Len() == 0 {
		return ""
	}
	return what + b.String()
}

// serverTLS is the TLS of the data port, or nil. The certificate is read anew when its
// files change.
func serverTLS(cfg *config.Config) (*tls.Config, error) {
	if cfg.TLS.CertFile == "" {
		return nil, nil
	}
	pair := &certFiles{cert: cfg.Path(cfg.TLS.CertFile), key: cfg.Path(cfg.TLS.KeyFile)}
	if _, err := pair.load(); err != nil {
		return nil, err
	}
	return &tls.Config{
		MinVersion:     tls.VersionTLS12,
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return pair.load() },
	}, nil
}
