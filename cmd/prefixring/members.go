package main

import (
	"errors"
	"fmt"
	"reflect"
	"strconv"
	"time"

	"github.com/prefixring/prefixring/health"
	"github.com/prefixring/prefixring/internal/config"
	"github.com/prefixring/prefixring/internal/discovery"
	"github.com/prefixring/prefixring/internal/proxy"
	"github.com/prefixring/prefixring/ring"
)

// engine is one engine as the configuration lists it or as discovery has found it.
type engine struct {
	config.Engine
	serverName           string   // of an https certificate, where the URL holds an address
	models               []string // that it is meant to serve; empty = the pool's
	terminating, unready bool     // discovery's word
}

// apply makes cfg the configuration in force. On an error nothing has changed.
func (f *fleet) apply(cfg *config.Config) error {
	f.applying.Lock()
	defer f.applying.Unlock()
	known, err := readNamed(cfg, f.log)
	if err != nil {
		return err
	}
	tenants, err := tenantsOf(cfg)
	if err == nil {
		_, err = proxy.NewKeyring(tenants, time.Now())
	}
	if err != nil {
		return err
	}
	sources, err := f.sourcesOf(cfg)
	if err != nil {
		return err
	}
	if err := f.install(cfg, known, sources); err != nil {
		return err
	}
	f.follows(sources)
	return f.admit(tenants)
}

// install makes the engines of a configuration the members of the fleet. The caller
// holds applying. On an error nothing has changed.
func (f *fleet) install(cfg *config.Config, known *named, sources map[string]*source) error {
	watch, err := watchOf(cfg)
	if err != nil {
		return err
	}
	next, targets, err := f.members(cfg, sources)
	if err != nil {
		return err
	}
	f.mu.Lock()
	was := f.channels
	channels, err := channelsOf(cfg, was)
	if err != nil {
		f.mu.Unlock()
		closeUnshared(next, f.nodes)
		return err
	}
	old, oldCfg, oldKnown := f.nodes, f.cfg, f.known
	for name, m := range next {
		if was := old[name]; was != nil {
			m.models, m.level, m.epoch, m.state = was.models, was.level, was.epoch, was.state
		}
	}
	f.cfg, f.nodes, f.known, f.channels = cfg, next, known, channels
	err = f.rebuild()
	if err != nil && oldCfg != nil {
		f.cfg, f.nodes, f.known, f.channels = oldCfg, old, oldKnown, was
		err = errors.Join(err, f.rebuild())
	}
	f.mu.Unlock()
	if err != nil {
		closeUnshared(next, old)
		closeChannels(channels, was)
		return err
	}
	closeChannels(was, channels)
	for name := range old {
		if next[name] == nil {
			f.metrics.Drop(name)
		}
	}
	for name := range next {
		if old[name] == nil {
			f.nodeGauges(name)
		}
	}
	closeUnshared(old, next)
	if err := f.health.SetPools(watch); err != nil {
		return err
	}
	return f.health.Apply(targets)
}

// watchOf are the settings of health, by pool.
func watchOf(cfg *config.Config) (map[string]health.Settings, error) {
	out := map[string]health.Settings{}
	for i := range cfg.Pools {
		p := &cfg.Pools[i]
		s := healthSettings(&p.Health)
		if err := s.Check(); err != nil {
			return nil, fmt.Errorf("cannot watch pool %q: %w", p.Name, err)
		}
		out[p.Name] = s
	}
	return out, nil
}

// closeUnshared closes the connections of members that the others do not go on using.
func closeUnshared(members, others map[string]*member) {
	for name, m := range members {
		if o := others[name]; o == nil || o.upstream != m.upstream {
			m.upstream.Close()
		}
	}
}

// members makes the members of a configuration. One whose settings are as before keeps
// its connections.
func (f *fleet) members(cfg *config.Config, sources map[string]*source) (map[string]*member, []health.Target, error) {
	next := map[string]*member{}
	var targets []health.Target
	for i := range cfg.Pools {
		p := &cfg.Pools[i]
		for _, e := range enginesOf(p, sources[p.Name]) {
			if next[e.Name] != nil {
				f.log.Warn("engine left out: another pool has one of this name", "engine", e.Name, "pool", p.Name)
				continue
			}
			a, err := f.reach(cfg, p, e.serverName)
			if err != nil {
				return nil, nil, fmt.Errorf("cannot use pool %q: %w", p.Name, err)
			}
			m := &member{conf: e.Engine, pool: p, access: a, timeouts: timeouts(&cfg.Limits), level: ring.Closed}
			if was := f.nodes[e.Name]; was.sameWire(m) {
				m.upstream = was.upstream
			} else if m.upstream, err = proxy.NewUpstream(a.upstream(cfg, p, &e.Engine)); err != nil {
				return nil, nil, err
			}
			next[e.Name] = m
			t := a.target(p, &e.Engine)
			t.Terminating, t.Unready = e.terminating, e.unready
			if len(e.models) > 0 {
				t.Models = e.models
			}
			targets = append(targets, t)
		}
	}
	return next, targets, nil
}

// sameWire says if traffic to both goes the same way.
func (m *member) sameWire(o *member) bool {
	return m != nil && m.access == o.access && m.timeouts == o.timeouts &&
		m.pool.DialectOf(&m.conf) == o.pool.DialectOf(&o.conf) &&
		m.conf.URL == o.conf.URL && reflect.DeepEqual(m.conf.Rank, o.conf.Rank)
}

// enginesOf are the engines of a pool: those listed, or those found.
func enginesOf(p *config.Pool, s *source) []engine {
	var out []engine
	for _, e := range p.Engines {
		out = append(out, engine{Engine: e})
	}
	if s == nil {
		return out
	}
	for _, e := range s.found() {
		out = append(out, found(e))
	}
	return out
}

// found is an engine as discovery tells of it. A rank that is no number is none.
func found(e discovery.Endpoint) engine {
	x := engine{
		Engine:     config.Engine{Name: e.Name, URL: e.URL, Dialect: e.Dialect, Weight: e.Weight},
		serverName: e.ServerName, models: e.Models, terminating: e.Terminating, unready: !e.Ready,
	}
	if x.Weight == 0 {
		x.Weight = 1
	}
	if rank, err := strconv.Atoi(e.Rank); err == nil {
		x.Rank = &rank
	}
	return x
}
