package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"reflect"
	"sync"

	"github.com/prefixring/prefixring/internal/config"
	"github.com/prefixring/prefixring/internal/discovery"
)

// source finds the engines of one pool while the fleet is discovered.
type source struct {
	pool   string
	conf   config.Discovery
	keeper *discovery.Keeper
	before []discovery.Endpoint // what the pool's last source had found: it serves until this one speaks
	cancel context.CancelFunc   // nil until it runs
}

// found is the set that may be served from.
func (s *source) found() []discovery.Endpoint {
	if set, known := s.keeper.Set(); known {
		return set
	}
	return s.before
}

// discovered are the sources that run, and what they run under.
type discovered struct {
	ctx     context.Context // nil until discover
	wg      sync.WaitGroup
	sources map[string]*source // by pool name
}

// discover runs the sources until ctx ends, those of later configurations, too.
func (f *fleet) discover(ctx context.Context) {
	f.applying.Lock()
	f.found.ctx = ctx
	f.follows(f.found.sources)
	f.applying.Unlock()
	<-ctx.Done()
	f.applying.Lock()
	f.found.ctx = nil // from here on, apply starts nothing
	f.applying.Unlock()
	f.found.wg.Wait()
}

// sourcesOf makes the sources of a configuration. One whose settings are as before goes
// on as it is, with what it has found. The caller holds applying.
func (f *fleet) sourcesOf(cfg *config.Config) (map[string]*source, error) {
	out := map[string]*source{}
	for i := range cfg.Pools {
		p := &cfg.Pools[i]
		if !p.Discovery.Is() {
			continue
		}
		was := f.found.sources[p.Name]
		if was != nil && reflect.DeepEqual(was.conf, p.Discovery) {
			out[p.Name] = was
			continue
		}
		src, err := sourceOf(cfg, &p.Discovery)
		if err != nil {
			return nil, fmt.Errorf("cannot discover the engines of pool %q: %w", p.Name, err)
		}
		s := &source{pool: p.Name, conf: p.Discovery}
		if was != nil {
			s.before = was.found()
		}
		s.keeper = discovery.NewKeeper(p.Name, src, discovery.KeeperOptions{
			EmptyGrace: p.Discovery.EmptyGrace.D(), Limit: p.Discovery.Limit.D(), Logger: f.log,
			OnSet: func([]discovery.Endpoint) { f.refound(s) },
		})
		out[p.Name] = s
	}
	return out, nil
}

// sourceOf maps configuration to a source.
func sourceOf(cfg *config.Config, d *config.Discovery) (discovery.Source, error) {
	switch {
	case d.File != "":
		return &discovery.File{Path: cfg.Path(d.File)}, nil
	case d.DNS != nil:
		x := d.DNS
		return &discovery.DNS{Name: x.Name, SRV: x.SRV, Port: x.Port, Scheme: x.Scheme, Family: x.Family}, nil
	case d.Kubernetes != nil:
		x := d.Kubernetes
		return &discovery.Kubernetes{
			Namespace: x.Namespace, Service: x.Service, Selector: x.Selector, Port: x.Port, Scheme: x.Scheme, Family: x.Family,
			ServerName: x.ServerName, API: x.API, TokenFile: cfg.Path(x.TokenFile), CAFile: cfg.Path(x.CAFile),
		}, nil
	}
	return nil, errors.New("BUG: there is no source")
}

// follows runs what is new among the sources and ends what is gone. The caller holds
// applying, so nobody waits for a source that ends: what it says meanwhile is not heard.
func (f *fleet) follows(sources map[string]*source) {
	for name, s := range f.found.sources {
		if sources[name] != s && s.cancel != nil {
			s.cancel()
		}
	}
	f.found.sources = sources
	for name := range sources {
		f.sourceGauges(name)
	}
	if f.found.ctx == nil {
		return
	}
	for _, s := range sources {
		if s.cancel != nil {
			continue
		}
		var ctx context.Context
		ctx, s.cancel = context.WithCancel(f.found.ctx)
		f.found.wg.Go(func() { s.keeper.Run(ctx) })
	}
}

// sourceGauges registers those of a pool's source.
func (f *fleet) sourceGauges(pool string) {
	read := func(of func(*source) float64) func() float64 {
		return func() float64 {
			f.applying.Lock()
			s := f.found.sources[pool]
			f.applying.Unlock()
			if s == nil {
				return math.NaN()
			}
			return of(s)
		}
	}
	f.metrics.Gauge("prefixring_discovery_engines", read(func(s *source) float64 { return float64(len(s.found())) }), "pool", pool)
	f.metrics.Gauge("prefixring_discovery_age_seconds", read(func(s *source) float64 {
		age, ok := s.keeper.Age()
		if !ok {
			return math.NaN()
		}
		return age.Seconds()
	}), "pool", pool)
}

// refound makes members of what a source has found now.
func (f *fleet) refound(s *source) {
	f.applying.Lock()
	defer f.applying.Unlock()
	if f.found.sources[s.pool] != s {
		return // a reload has put another in its place
	}
	f.mu.Lock()
	cfg, known := f.cfg, f.known
	f.mu.Unlock()
	if err := f.install(cfg, known, f.found.sources); err != nil {
		f.log.Error("engines found, but not taken", "pool", s.pool, "error", err)
		return
	}
	f.log.Info("engines found", "pool", s.pool, "source", s.conf.String(), "engines", len(s.found()))
}

// discoveryView is what is known of a source.
type discoveryView struct {
	Pool    string   `json:"pool"`
	Source  string   `json:"source"`
	Engines int      `json:"engines"`
	Age     *float64 `json:"age_seconds"` // since the source last confirmed its set; null before the first time
	Trouble string   `json:"trouble,omitempty"`
}

func (f *fleet) discoveries() []discoveryView {
	f.applying.Lock()
	sources := f.found.sources
	f.applying.Unlock()
	var out []discoveryView
	for _, name := range sortedKeys(sources) {
		s := sources[name]
		v := discoveryView{Pool: name, Source: s.conf.String(), Engines: len(s.found())}
		if age, ok := s.keeper.Age(); ok {
			seconds := math.Round(age.Seconds()*10) / 10
			v.Age = &seconds
		}
		if err := s.keeper.Check(); err != nil {
			v.Trouble = err.Error()
		}
		out = append(out, v)
	}
	return out
}

// stale are the warnings of readiness: engines that are known go on being served when
// their source is silent, because all routers lose it at the same time.
func (f *fleet) stale() []string {
	var out []string
	for _, v := range f.discoveries() {
		if v.Trouble != "" {
			out = append(out, fmt.Sprintf("discovery of pool %s: %s", v.Pool, v.Trouble))
		}
	}
	return out
}
