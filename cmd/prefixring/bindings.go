package main

import (
	"crypto/tls"
	"log/slog"
	"sync"

	"github.com/prefixring/prefixring/internal/config"
	"github.com/prefixring/prefixring/internal/proxy"
	"github.com/prefixring/prefixring/internal/session"
)

// newBindings returns the session store of the data plane, or nil when bindings are
// off. The two environment variables override the file.
func newBindings(cfg *config.Config, log *slog.Logger, getenv func(string) string) (proxy.Bindings, error) {
	s, warning := session.Override(session.Settings{Enabled: cfg.Bindings.Enabled, TTL: cfg.Bindings.TTL.D()},
		getenv(session.EnvEnabled), getenv(session.EnvTTL))
	if warning != "" {
		log.Warn(warning)
	}
	cfg.Bindings.Enabled = s.Enabled
	if !s.Enabled {
		return nil, nil
	}
	return bindingStore(session.Options{TTL: s.TTL, Uses: cfg.Bindings.Uses, Max: cfg.Bindings.Max})
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

// boundNodes adapts the session store to the data plane: nodes are numbered, since
// a binding holds a number and no name.
type boundNodes struct {
	store *session.Store

	mu    sync.RWMutex // guards what follows
	ids   map[string]uint64
	names []string
}

func bindingStore(o session.Options) (*boundNodes, error) {
	store, err := session.New(o)
	if err != nil {
		return nil, err
	}
	return &boundNodes{store: store, ids: map[string]uint64{}}, nil
}

func (b *boundNodes) key(k uint64) session.Key { return b.store.Key(&session.Scope{Boundary: k}) }

// Lookup implements proxy.Bindings. Each hit counts as one use.
func (b *boundNodes) Lookup(key uint64) string {
	k := b.key(key)
	found := b.store.Lookup(k)
	if !found.Found() || !b.store.Follow(k, found.Gen) {
		return ""
	}
	b.mu.RLock()
	defer b.mu.RUnlock()
	return b.names[found.Target]
}

// Bind implements proxy.Bindings.
func (b *boundNodes) Bind(key uint64, node string) {
	k := b.key(key)
	b.store.Bind(k, b.id(node), b.store.Lookup(k).Stamp)
}

// Evict implements proxy.Bindings.
func (b *boundNodes) Evict(key uint64, node string) {
	k := b.key(key)
	if found := b.store.Lookup(k); found.Found() && found.Target == b.id(node) {
		b.store.EvictIf(k, found.Gen, session.Failed)
	}
}

// id numbers a node. Numbers are never reused: the set of names is that of configured
// engines over the life of the process.
func (b *boundNodes) id(node string) uint64 {
	b.mu.RLock()
	id, ok := b.ids[node]
	b.mu.RUnlock()
	if ok {
		return id
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if id, ok := b.ids[node]; ok {
		return id
	}
	id = uint64(len(b.names))
	b.ids[node], b.names = id, append(b.names, node)
	return id
}
