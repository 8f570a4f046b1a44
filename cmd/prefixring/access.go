package main

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/prefixring/prefixring/health"
	"github.com/prefixring/prefixring/internal/config"
	"github.com/prefixring/prefixring/internal/proxy"
)

// access is how a pool's engines are reached: the same key and TLS settings for
// traffic, probes, metrics and warm-up (field cases B19, B64).
type access struct {
	key func() string
	tls *tls.Config
}

// way tells accesses apart. Files count with their state, so that a changed authority
// makes a new access at the next reload.
type way struct {
	tls     config.ClientTLS
	keyFile string
	files   string
}

// reach returns the access to a pool's engines. As long as its settings are the same it
// is the same one: probes and connections go on over a reload. serverName, unless it is
// empty, stands for the configured one.
func (f *fleet) reach(cfg *config.Config, p *config.Pool, serverName string) (*access, error) {
	w := way{tls: p.TLS, keyFile: cfg.Path(p.APIKeyFile), files: stampsOf([]string{cfg.Path(p.TLS.CAFile)})}
	if serverName != "" && w.tls.ServerName == "" {
		w.tls.ServerName = serverName
	}
	f.waysMu.Lock()
	defer f.waysMu.Unlock()
	if a := f.ways[w]; a != nil {
		return a, nil
	}
	a, err := newAccess(cfg, &w)
	if err == nil {
		f.ways[w] = a
	}
	return a, err
}

func newAccess(cfg *config.Config, w *way) (*access, error) {
	a := &access{}
	if w.keyFile != "" {
		k := &secretFile{path: w.keyFile}
		if err := k.read(); err != nil {
			return nil, err
		}
		a.key = k.value
	}
	t := &w.tls
	if *t == (config.ClientTLS{}) {
		return a, nil
	}
	a.tls = &tls.Config{MinVersion: tls.VersionTLS12, ServerName: t.ServerName}
	if t.CAFile != "" {
		pem, err := os.ReadFile(cfg.Path(t.CAFile))
		if err != nil {
			return nil, fmt.Errorf("cannot read the CA: %w", err)
		}
		a.tls.RootCAs = x509.NewCertPool()
		if !a.tls.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("cannot use the CA %s: it holds no PEM certificate", t.CAFile)
		}
	}
	if t.CertFile != "" {
		pair := &certFiles{cert: cfg.Path(t.CertFile), key: cfg.Path(t.KeyFile)}
		if _, err := pair.load(); err != nil {
			return nil, err
		}
		a.tls.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return pair.load() }
	}
	return a, nil
}

func (a *access) upstream(cfg *config.Config, p *config.Pool, e *config.Engine) proxy.UpstreamOptions {
	rank := -1
	if e.Rank != nil {
		rank = *e.Rank
	}
	return proxy.UpstreamOptions{
		Name: e.Name, URL: e.URL, Engine: p.DialectOf(e), Key: a.key, TLS: a.tls, Rank: rank,
		Timeouts: timeouts(&cfg.Limits),
	}
}

func (a *access) target(p *config.Pool, e *config.Engine) health.Target {
	t := health.Target{
		Name: e.Name, URL: e.URL, Pool: p.Name, Engine: p.DialectOf(e), Models: p.Models, APIKey: a.key, TLS: a.tls,
	}
	if e.Rank != nil {
		t.Rank = strconv.Itoa(*e.Rank)
	}
	return t
}

// recheck is how old a secret read from a file may get.
const recheck = 2 * time.Second

// secretFile is a key in a file, read anew when it is older than recheck. A file that
// cannot be read leaves the last key in force.
type secretFile struct {
	path string

	mu  sync.Mutex // guards what follows
	key string
	at  time.Time
}

func (s *secretFile) read() error {
	b, err := os.ReadFile(s.path)
	if err != nil {
		return fmt.Errorf("cannot read the key file: %w", err)
	}
	key := strings.TrimSpace(string(b))
	if key == "" || strings.ContainsAny(key, "\r\n") {
		return fmt.Errorf("cannot use the key file %s: it must hold one line with the key", s.path)
	}
	s.key, s.at = key, time.Now()
	return nil
}

func (s *secretFile) value() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if time.Since(s.at) > recheck {
		if s.read() != nil {
			s.at = time.Now()
		}
	}
	return s.key
}

// certFiles is a certificate that is read anew when its files are older than recheck.
type certFiles struct {
	cert, key string
	now       func() time.Time // nil = time.Now

	mu   sync.Mutex // guards what follows
	pair *tls.Certificate
	at   time.Time
}

func (c *certFiles) load() (*tls.Certificate, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now()
	if c.now != nil {
		now = c.now()
	}
	if c.pair != nil && now.Sub(c.at) <= recheck {
		return c.pair, nil
	}
	pair, err := tls.LoadX509KeyPair(c.cert, c.key)
	c.at = now
	if err == nil {
		c.pair = &pair
	} else if c.pair == nil {
		return nil, fmt.Errorf("cannot use the certificate: %w", err)
	}
	return c.pair, nil
}
