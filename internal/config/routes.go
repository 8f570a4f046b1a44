package config

import (
	"fmt"
	"slices"
)

// Route is a name that clients may ask for as a model. A request goes to the first tier
// with a member that can do it and takes work; docs/routes.md has the rules.
type Route struct {
	Name     string `yaml:"name"`     // no pool may serve a model of this name
	Tiers    []Tier `yaml:"tiers"`    // in the order in which they are asked
	Bindings *bool  `yaml:"bindings"` // false = none for requests that come by this name; default: as the pool has them
}

// Tier is one step of a route.
type Tier struct {
	Members []TierMember `yaml:"members"` // they share the tier's conversations by weight
}

// TierMember is a pool or a channel in a tier.
type TierMember struct {
	Pool    string  `yaml:"pool"`    // name of a pool whose models are configured
	Channel string  `yaml:"channel"` // or name of a channel
	Model   string  `yaml:"model"`   // name that the member knows, spliced into the body; default: the pool's first; a channel needs one
	Weight  float64 `yaml:"weight"`  // relative to the others of the tier, above 0 and at most 1000; default 1
}

// Can says what a member of a route is able to do. What it cannot makes it ineligible
// before a try. Without this it can do everything.
type Can struct {
	Protocols []string `yaml:"protocols"` // of chat, completions, responses, messages; default all
	Context   int64    `yaml:"context"`   // tokens of prompt (an estimate) and requested output; default no limit
	Tools     *bool    `yaml:"tools"`     // default true
	Images    *bool    `yaml:"images"`    // pictures, audio, video and files in messages; default true
}

// protocols are the names that Can knows.
var protocols = []string{"chat", "completions", "responses", "messages"}

func (c *Can) check(v *validator, path string) {
	for _, p := range c.Protocols {
		oneOf(v, path+".protocols", p, protocols...)
	}
	ranged(v, path+".context", int(c.Context), 1, 1<<40)
}

// checkRoutes runs after the pools: models says which names are taken.
func (c *Config) checkRoutes(v *validator, models map[string]string) {
	seen := map[string]bool{}
	for i := range c.Routes {
		r := &c.Routes[i]
		path := fmt.Sprintf("routes[%d]", i)
		switch {
		case r.Name == "":
			v.fail(path+".name", "the route has no name; clients ask for it as a model")
		case seen[r.Name]:
			v.fail(path+".name", "route %q is there twice", r.Name)
		case models[r.Name] != "":
			v.fail(path+".name", "pool %q serves a model %q; a route needs a name of its own", models[r.Name], r.Name)
		}
		seen[r.Name] = true
		if len(r.Tiers) == 0 {
			v.fail(path+".tiers", "the route has no tier; give it one with its members")
		}
		for k := range r.Tiers {
			c.checkTier(v, fmt.Sprintf("%s.tiers[%d]", path, k), &r.Tiers[k])
		}
	}
}

func (c *Config) checkTier(v *validator, path string, t *Tier) {
	if len(t.Members) == 0 {
		v.fail(path+".members", "the tier has no member; name a pool or a channel")
	}
	for i := range t.Members {
		m := &t.Members[i]
		path := fmt.Sprintf("%s.members[%d]", path, i)
		if m.Weight < 0 || m.Weight > 1000 {
			v.fail(path+".weight", "%v is not above 0 and at most 1000", m.Weight)
		}
		p := c.poolNamed(m.Pool)
		switch {
		case (m.Pool == "") == (m.Channel == ""):
			v.fail(path, "the member needs a pool or a channel, one of them")
		case m.Channel != "" && c.channelNamed(m.Channel) == nil:
			v.fail(path+".channel", "there is no channel %q", m.Channel)
		case m.Channel != "" && m.Model == "":
			v.fail(path+".model", "a channel needs the name of the model at its host")
		case m.Channel != "":
		case p == nil:
			v.fail(path+".pool", "there is no pool %q", m.Pool)
		case len(p.Models) == 0:
			v.fail(path+".pool", "pool %q does not name its models; a route needs them (pools[].models)", m.Pool)
		case m.Model != "" && !slices.Contains(p.Models, m.Model):
			v.fail(path+".model", "pool %q does not serve %q; it has %q", m.Pool, m.Model, p.Models)
		}
	}
}

func (c *Config) poolNamed(name string) *Pool {
	for i := range c.Pools {
		if c.Pools[i].name() == name {
			return &c.Pools[i]
		}
	}
	return nil
}

// fillRoutes sets the models that were left out.
func (c *Config) fillRoutes() {
	for i := range c.Routes {
		for k := range c.Routes[i].Tiers {
			for j := range c.Routes[i].Tiers[k].Members {
				if m := &c.Routes[i].Tiers[k].Members[j]; m.Model == "" && m.Pool != "" {
					m.Model = c.poolNamed(m.Pool).Models[0]
				}
			}
		}
	}
}
