package main

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net/http"
	"os"

	"github.com/prefixring/prefixring/internal/admin"
	"github.com/prefixring/prefixring/internal/config"
)

// protect reads who may use the admin port, and with which certificate it speaks.
func (s *server) protect(cfg *config.Config) error {
	if cfg.Admin == "off" {
		return nil
	}
	t, err := readTokens(cfg)
	if err != nil {
		return err
	}
	s.tokens.Store(t)
	a := &cfg.AdminAccess
	if a.CertFile == "" {
		return nil
	}
	pair := &certFiles{cert: cfg.Path(a.CertFile), key: cfg.Path(a.KeyFile)}
	if _, err := pair.load(); err != nil {
		return fmt.Errorf("admin_access: %w", err)
	}
	s.adminTLS = &tls.Config{
		MinVersion: tls.VersionTLS12, NextProtos: []string{"http/1.1"},
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return pair.load() },
	}
	if a.ClientCAFile == "" {
		return nil
	}
	roots, err := readRoots(cfg.Path(a.ClientCAFile))
	if err != nil {
		return fmt.Errorf("admin_access.client_ca_file: %w", err)
	}
	// Probes come without a certificate; what needs one refuses those who have none.
	s.adminTLS.ClientCAs, s.adminTLS.ClientAuth = roots, tls.VerifyClientCertIfGiven
	return nil
}

func readRoots(path string) (*x509.CertPool, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(b) {
		return nil, fmt.Errorf("%s holds no PEM certificate", path)
	}
	return roots, nil
}

// readTokens reads those of operators; nil when the configuration names none.
func readTokens(cfg *config.Config) (*admin.Tokens, error) {
	if cfg.AdminAccess.TokenFile == "" || cfg.Admin == "off" {
		return nil, nil
	}
	b, err := os.ReadFile(cfg.Path(cfg.AdminAccess.TokenFile))
	if err != nil {
		return nil, fmt.Errorf("cannot read the operators' tokens (admin_access.token_file): %w", err)
	}
	t, err := admin.ReadTokens(bytes.NewReader(b))
	if err != nil {
		return nil, fmt.Errorf("cannot use the operators' tokens (admin_access.token_file): %s: %w", cfg.AdminAccess.TokenFile, err)
	}
	return t, nil
}

func (s *server) adminScheme() string {
	if s.adminTLS != nil {
		return "https"
	}
	return "http"
}

func (s *server) adminHandler() http.Handler {
	return admin.Handler(admin.Options{
		Access: admin.Access{Tokens: s.tokens.Load, ClientCerts: s.cfg.AdminAccess.ClientCAFile != "", Audit: s.log},
		Ready:  s.fleet.ready, Warnings: s.fleet.stale, Metrics: func(w io.Writer) {
			s.metrics.Write(w)
			s.fleet.writeBindings(w)
			s.fleet.writeRoutes(w)
			s.fleet.writeChannels(w)
		},
		Fleet: func() any { return s.fleet.view(s.totals) }, Node: s.fleet.oneNode, Explain: s.fleet.explain, Operate: s.fleet.operate,
	})
}

// oneNode shows a node, with a tag of what operators have set for it.
func (f *fleet) oneNode(name string) (any, string, error) {
	set, err := f.health.Operated(name)
	if err != nil {
		return nil, "", err
	}
	v := nodeView{Name: name, State: "gone", Reason: "not a target now", Models: []string{}}
	for _, s := range f.health.Snapshot() {
		if s.Name == name {
			f.mu.Lock()
			v = f.nodeView(&s)
			f.mu.Unlock()
		}
	}
	word := "open"
	switch {
	case set.Drained && set.Cordoned:
		word = "drained-cordoned"
	case set.Drained:
		word = "drained"
	case set.Cordoned:
		word = "cordoned"
	}
	return v, fmt.Sprintf("%s-%g", word, set.Weight), nil
}
