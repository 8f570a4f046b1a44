package config

import (
	"fmt"
	"net"
	"net/url"
	"slices"
	"strings"
	"time"
)

// check notes every fault. Unset fields are in order: fill comes later.
func (c *Config) check(v *validator) {
	address(v, "listen", c.Listen, false)
	c.checkAdmin(v)
	if (c.TLS.CertFile == "") != (c.TLS.KeyFile == "") {
		v.fail("tls", "cert_file and key_file go together; set both or none")
	}
	c.Limits.check(v)
	if c.Limits.Heartbeat > 0 && c.Retry.Hedge > 0 {
		v.fail("retry.hedge", "hedging and limits.heartbeat exclude each other: a heartbeat commits the answer to one engine")
	}
	c.checkTenants(v)
	if r := c.Retry.Max; r != nil && (*r < 0 || *r > 10) {
		v.fail("retry.max", "%d is not within 0..10", *r)
	}
	ranged(v, "retry.budget", c.Retry.Budget, 0, 1)
	within(v, "retry.hedge", c.Retry.Hedge.D(), time.Millisecond, time.Hour)
	ranged(v, "work.quantum_tokens", c.Work.QuantumTokens, 1, 1<<24)
	ranged(v, "work.bytes_per_token", c.Work.BytesPerToken, 1, 64)
	if len(c.Pools) == 0 {
		v.fail("pools", "no pool is configured; name at least one with its engines")
	}
	names, engines, models := map[string]bool{}, map[string]string{}, map[string]string{}
	for i := range c.Pools {
		path := fmt.Sprintf("pools[%d]", i)
		p := &c.Pools[i]
		p.check(v, path, engines, models)
		if name := p.name(); names[name] {
			v.fail(path+".name", "pool %q is there twice; give each its own name", name)
		} else {
			names[name] = true
		}
	}
	c.checkChannels(v)
	c.checkRoutes(v, models)
	oneOf(v, "bindings.mode", c.Bindings.Mode, "conversation", "user")
	oneOf(v, "bindings.preset", c.Bindings.Preset, "strict", "hosted")
	within(v, "bindings.ttl", c.Bindings.TTL.D(), time.Second, 86400*time.Second)
	ranged(v, "bindings.max", c.Bindings.Max, 1, 10_000_000)
	if l := c.Telemetry.LogLevel; l != "" && !slices.Contains([]string{"debug", "info", "warn", "error"}, l) {
		v.fail("telemetry.log_level", "%q is none of debug, info, warn, error", l)
	}
}

func (l *Limits) check(v *validator) {
	ranged(v, "limits.max_body", l.MaxBody, 1<<10, 1<<30)
	ranged(v, "limits.max_header", l.MaxHeader, 4<<10, 1<<20)
	ranged(v, "limits.queue_depth", l.QueueDepth, 1, 1_000_000)
	within(v, "limits.heartbeat", l.Heartbeat.D(), 100*time.Millisecond, time.Hour)
	within(v, "limits.engine_idle", l.EngineIdle.D(), time.Millisecond, time.Hour)
	if l.DrainDelay < 0 || l.DrainGrace < 0 {
		v.fail("limits.drain_delay", "drain_delay and drain_grace must not be negative")
	}
}

func (p *Pool) check(v *validator, path string, engines, models map[string]string) {
	if _, ok := parseDialect(p.Dialect); !ok {
		v.fail(path+".dialect", "%q is neither vllm nor sglang", p.Dialect)
	}
	switch {
	case p.Discovery.Is() && len(p.Engines) > 0:
		v.fail(path+".discovery", "the pool lists engines, too; name one or the other")
	case !p.Discovery.Is() && len(p.Engines) == 0:
		v.fail(path+".engines", "the pool has no engine; give each a url, or name a discovery source")
	}
	p.Discovery.check(v, path+".discovery")
	for i := range p.Engines {
		p.Engines[i].check(v, fmt.Sprintf("%s.engines[%d]", path, i), engines)
	}
	for _, m := range p.Models {
		claim(v, path+".models", m, p.name(), models)
	}
	for alias, to := range p.Aliases {
		claim(v, path+".aliases", alias, p.name(), models)
		if to == "" {
			v.fail(path+".aliases", "alias %q leads to no model", alias)
		}
	}
	if (p.TLS.CertFile == "") != (p.TLS.KeyFile == "") {
		v.fail(path+".tls", "cert_file and key_file go together; set both or none")
	}
	p.Can.check(v, path+".can")
	p.Placement.check(v, path+".placement")
	p.Health.check(v, path+".health")
}

// claim notes a model name that two pools would serve: the answer would depend on order.
func claim(v *validator, path, model, pool string, models map[string]string) {
	if model == "" {
		v.fail(path, "a model name is empty")
		return
	}
	if other, ok := models[model]; ok && other != pool {
		v.fail(path, "model %q is in pool %q as well; a name leads to one pool", model, other)
	}
	models[model] = pool
}

func (e *Engine) check(v *validator, path string, engines map[string]string) {
	u, err := url.Parse(e.URL)
	switch {
	case e.URL == "":
		v.fail(path+".url", "the engine has no url; write for example http://10.0.0.7:8000")
	case err != nil || u.Host == "" || (u.Scheme != "http" && u.Scheme != "https"):
		v.fail(path+".url", "%q is no http or https URL; write for example http://10.0.0.7:8000 (an IPv6 address goes in brackets)", e.URL)
	}
	name := e.name()
	if other, ok := engines[name]; ok && name != "" {
		v.fail(path+".name", "engine %q is there twice (also %s); names must be unique, because placement depends on them", name, other)
	}
	engines[name] = path
	if _, ok := parseDialect(e.Dialect); !ok {
		v.fail(path+".dialect", "%q is neither vllm nor sglang", e.Dialect)
	}
	if e.Weight < 0 || e.Weight > 1000 {
		v.fail(path+".weight", "%v is not above 0 and at most 1000", e.Weight)
	}
	if e.Rank != nil && (*e.Rank < 0 || *e.Rank > 1023) {
		v.fail(path+".rank", "%d is not within 0..1023", *e.Rank)
	}
}

func (p *Placement) check(v *validator, path string) {
	ranged(v, path+".factor", p.Factor, 1, 100)
	ranged(v, path+".floor", p.Floor, 1, 1e6)
	ranged(v, path+".margin", p.Margin, 0, 1e6)
	ranged(v, path+".hard", p.Hard, 1, 1e6)
	ranged(v, path+".follow", p.Follow, 1, 100)
	ranged(v, path+".owners", p.Owners, 1, 65535)
	ranged(v, path+".completion_lead", p.CompletionLead, 64, 16<<20)
}

func (h *Health) check(v *validator, path string) {
	within(v, path+".interval", h.Interval.D(), 100*time.Millisecond, time.Minute)
	within(v, path+".timeout", h.Timeout.D(), 10*time.Millisecond, time.Minute)
	ranged(v, path+".failures", h.Failures, 1, 100)
	if h.SlowStart.D() > time.Hour {
		v.fail(path+".slow_start", "%v is more than 1h", h.SlowStart.D())
	}
	ranged(v, path+".waiting", h.Waiting, 1, 1e6)
	ranged(v, path+".kv_usage", h.KVUsage, 0.05, 1)
}

// ranged notes a set value out of its range. Zero is unset.
func ranged[T int | float64 | Size](v *validator, path string, x, low, high T) {
	if x != 0 && !(x >= low && x <= high) {
		v.fail(path, "%v is not within %v..%v", x, low, high)
	}
}

func within(v *validator, path string, x, low, high time.Duration) {
	if x != 0 && (x < low || x > high) {
		v.fail(path, "%v is not within %v..%v", x, low, high)
	}
}

// oneOf notes a word that is none of those known. Empty is unset.
func oneOf(v *validator, path, word string, known ...string) {
	if word != "" && !slices.Contains(known, word) {
		v.fail(path, "%q is none of %s", word, strings.Join(known, ", "))
	}
}

// address notes an address that nothing could listen on.
func address(v *validator, path, a string, mayBeOff bool) {
	if a == "" || (mayBeOff && a == "off") {
		return
	}
	if _, port, err := net.SplitHostPort(a); err != nil || port == "" {
		v.fail(path, "%q is no address to listen on; write host:port, for example 0.0.0.0:8080 or [::]:8080", a)
	}
}

// name is what the pool is called when nothing else is said.
func (p *Pool) name() string {
	switch {
	case p.Name != "":
		return p.Name
	case len(p.Models) > 0:
		return p.Models[0]
	}
	return "default"
}

func (e *Engine) name() string {
	if e.Name != "" {
		return e.Name
	}
	name := e.URL
	if u, err := url.Parse(e.URL); err == nil && u.Host != "" {
		name = u.Host
	}
	if e.Rank != nil {
		name = fmt.Sprintf("%s/%d", name, *e.Rank)
	}
	return name
}

// fill sets the defaults that are names. Numbers stay zero: the packages that take
// them know their own defaults.
func (c *Config) fill() {
	if c.Listen == "" {
		c.Listen = DefaultListen
	}
	if c.Admin == "" {
		c.Admin = DefaultAdmin
	}
	if c.Limits.DrainDelay == 0 {
		c.Limits.DrainDelay = Duration(DefaultDrainDelay)
	}
	if c.Limits.DrainGrace == 0 {
		c.Limits.DrainGrace = Duration(DefaultDrainGrace)
	}
	for i := range c.Pools {
		p := &c.Pools[i]
		p.Name = p.name()
		for k := range p.Engines {
			p.Engines[k].Name = p.Engines[k].name()
			if p.Engines[k].Weight == 0 {
				p.Engines[k].Weight = 1
			}
		}
	}
	c.fillRoutes()
	c.fillChannels()
}
