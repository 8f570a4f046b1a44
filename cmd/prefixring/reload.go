package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/prefixring/prefixring/internal/admin"
	"github.com/prefixring/prefixring/internal/config"
)

// watchConfig reads the configuration again on SIGHUP and when one of its files has
// changed, until ctx ends. A bad file changes nothing: it is told once, and tried again
// when it changes again, so that a half-written one does no harm.
func (s *server) watchConfig(ctx context.Context) {
	hup := make(chan os.Signal, 1)
	signal.Notify(hup, syscall.SIGHUP)
	defer signal.Stop(hup)
	var look <-chan time.Time
	if s.look > 0 {
		t := time.NewTicker(s.look)
		defer t.Stop()
		look = t.C
	}
	cfg := s.cfg
	seen := stampsOf(configFiles(cfg))
	for {
		select {
		case <-ctx.Done():
			return
		case <-hup:
		case <-look:
			now := stampsOf(configFiles(cfg))
			if now == seen {
				continue
			}
			seen = now
		}
		if next := s.reload(cfg); next != nil {
			cfg = next
			seen = stampsOf(configFiles(cfg))
		}
	}
}

// reload puts the configuration in force that the files hold now. It returns nil when
// they are bad and nothing has changed.
func (s *server) reload(old *config.Config) *config.Config {
	cfg, err := s.reread()
	var tokens *admin.Tokens
	if err == nil {
		tokens, err = readTokens(cfg)
	}
	if err == nil {
		applyBindingEnv(cfg, s.log, os.Getenv)
		err = s.fleet.apply(cfg)
	}
	if err != nil {
		s.log.Error("configuration not changed", "error", err)
		return nil
	}
	if tokens != nil {
		s.tokens.Store(tokens) // without a file the old ones hold: that the port opens needs a restart
	}
	s.log.Info("configuration read again", "pools", len(cfg.Pools), "tenants", len(cfg.Tenants))
	if late := config.NeedRestart(old, cfg); len(late) > 0 {
		s.log.Warn("changed, and in force only after a restart", "keys", late)
	}
	return cfg
}

// configFiles are the files that a configuration consists of.
func configFiles(cfg *config.Config) []string {
	files := []string{cfg.File(), cfg.Path(cfg.Prewarm.Manifest), cfg.Path(cfg.AdminAccess.TokenFile)}
	for i := range cfg.Tenants {
		files = append(files, cfg.Path(cfg.Tenants[i].KeyFile))
	}
	return files
}

// stampsOf changes when one of the files does: replaced, rewritten, removed or made.
func stampsOf(files []string) string {
	var b strings.Builder
	for _, f := range files {
		if f == "" {
			continue
		}
		if st, err := os.Stat(f); err == nil {
			fmt.Fprintf(&b, "%s %d %d\n", f, st.Size(), st.ModTime().UnixNano())
		} else {
			fmt.Fprintf(&b, "%s -\n", f)
		}
	}
	return b.String()
}
