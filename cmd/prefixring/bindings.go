package main

import (
	"crypto/tls"
	"log/slog"

	"github.com/prefixring/prefixring/internal/config"
	"github.com/prefixring/prefixring/internal/session"
)

// applyBindingEnv lets the two environment variables override the file. A malformed one
// switches bindings off, with one warning that names it.
func applyBindingEnv(cfg *config.Config, log *slog.Logger, getenv func(string) string) {
	s, warning := session.Override(session.Settings{Enabled: cfg.Bindings.Enabled, TTL: cfg.Bindings.TTL.D()},
		getenv(session.EnvEnabled), getenv(session.EnvTTL))
	if warning != "" {
		log.Warn(warning)
	}
	cfg.Bindings.Enabled, cfg.Bindings.TTL = s.Enabled, config.Duration(s.TTL)
}

// newBindings returns the session store of one pool, or nil when bindings are off.
func newBindings(b *config.Bindings) (*session.Store, error) {
	if !b.Enabled {
		return nil, nil
	}
	return session.New(session.Options{TTL: b.TTL.D(), Uses: b.Uses, Max: b.Max})
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
