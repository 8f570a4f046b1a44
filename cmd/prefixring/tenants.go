package main

import (
	"bytes"
	"fmt"
	"os"
	"time"

	"github.com/prefixring/prefixring/internal/config"
	"github.com/prefixring/prefixring/internal/proxy"
)

// tenantsOf reads the tenants with their keys. Only hashes of the keys are kept.
func tenantsOf(cfg *config.Config) ([]proxy.TenantOptions, error) {
	var out []proxy.TenantOptions
	for i := range cfg.Tenants {
		t := &cfg.Tenants[i]
		o := proxy.TenantOptions{
			Name: t.Name, RequestsPerMinute: t.RequestsPerMinute, TokensPerMinute: t.TokensPerMinute,
			Concurrent: t.Concurrent, Class: t.Priority, Models: t.Models,
		}
		if t.KeyFile != "" {
			b, err := os.ReadFile(cfg.Path(t.KeyFile))
			if err != nil {
				return nil, fmt.Errorf("cannot read the keys of tenant %q: %w", t.Name, err)
			}
			if o.Keys, err = proxy.ReadKeys(bytes.NewReader(b)); err != nil {
				return nil, fmt.Errorf("cannot use the keys of tenant %q: %s: %w", t.Name, t.KeyFile, err)
			}
		}
		out = append(out, o)
	}
	return out, nil
}

// saltSecret reads what tenants' cache salts are derived from; nil when they have none.
func saltSecret(cfg *config.Config) ([]byte, error) {
	if cfg.Access.SaltFile == "" {
		return nil, nil
	}
	b, err := os.ReadFile(cfg.Path(cfg.Access.SaltFile))
	if err != nil {
		return nil, fmt.Errorf("cannot read the salt secret (access.salt_file): %w", err)
	}
	if b = bytes.TrimSpace(b); len(b) < 16 {
		return nil, fmt.Errorf("cannot use the salt secret (access.salt_file): %s holds fewer than 16 bytes", cfg.Access.SaltFile)
	}
	return b, nil
}

// admit puts tenants in force that have been checked. What they have used stays used.
func (f *fleet) admit(tenants []proxy.TenantOptions) error {
	if len(tenants) == 0 {
		f.keys = nil
		f.proxy.SetAdmission(nil)
		return nil
	}
	keys, err := f.keys.Renew(tenants, time.Now())
	if err != nil {
		return err
	}
	f.keys = keys
	f.proxy.SetAdmission(keys)
	return nil
}

// keysWord says for the banner who may use the data port.
func keysWord(cfg *config.Config) string {
	if len(cfg.Tenants) == 0 {
		return "client keys: everyone who reaches the data port may use it (tenants)"
	}
	for i := range cfg.Tenants {
		if cfg.Tenants[i].KeyFile == "" {
			return fmt.Sprintf("a key is not needed: tenant %q is who comes without one", cfg.Tenants[i].Name)
		}
	}
	return ""
}

func tenantsWord(cfg *config.Config) string {
	if len(cfg.Tenants) == 0 {
		return "no tenants: everyone may use the data port"
	}
	return fmt.Sprintf("%d tenants", len(cfg.Tenants))
}
