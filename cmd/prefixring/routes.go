package main

import (
	"fmt"
	"io"
	"sync/atomic"
	"time"

	"github.com/prefixring/prefixring/internal/config"
	"github.com/prefixring/prefixring/internal/dialect"
	"github.com/prefixring/prefixring/internal/proxy"
	"github.com/prefixring/prefixring/internal/route"
	"github.com/prefixring/prefixring/internal/session"
	"github.com/prefixring/prefixring/internal/telemetry"
)

// loopTTL is how long a tool loop keeps its tier: agents wait for people and builds.
const loopTTL = 4 * time.Hour

// routes builds the configured routes over the pools of the table. A member whose pool
// has no engine now is left out until it has. The caller holds mu.
func (f *fleet) routes(pools []*proxy.Pool) ([]*proxy.Route, error) {
	byName := map[string]*proxy.Pool{}
	for _, p := range pools {
		byName[p.Name] = p
	}
	memories := map[string]*session.Store{}
	var out []*proxy.Route
	for i := range f.cfg.Routes {
		c := &f.cfg.Routes[i]
		r := &proxy.Route{Name: c.Name, NoBindings: c.Bindings != nil && !*c.Bindings, Memory: f.memories[c.Name]}
		if r.Memory == nil {
			var err error
			if r.Memory, err = session.New(session.Options{TTL: loopTTL, Uses: -1}); err != nil {
				return nil, err
			}
		}
		memories[c.Name] = r.Memory
		for tier := range c.Tiers {
			for _, m := range c.Tiers[tier].Members {
				name := m.Pool + m.Channel // one of them
				if p := byName[name]; p != nil {
					r.Members = append(r.Members, proxy.RouteMember{Tier: tier, Pool: p, Model: m.Model, Weight: m.Weight,
						Can: ability(f.canOf(name)), Taken: f.takenBy(c.Name, tier, name, m.Model)})
				}
			}
		}
		if len(r.Members) > 0 {
			out = append(out, r)
		}
	}
	f.memories = memories
	return out, nil
}

// takenBy is the count of a member, which outlives tables. The caller holds mu.
func (f *fleet) takenBy(parts ...any) *atomic.Int64 {
	key := fmt.Sprintf("%q", parts)
	if f.taken[key] == nil {
		f.taken[key] = new(atomic.Int64)
	}
	return f.taken[key]
}

// canOf is what the configuration says of a pool or channel.
func (f *fleet) canOf(pool string) *config.Can {
	for i := range f.cfg.Pools {
		if f.cfg.Pools[i].Name == pool {
			return &f.cfg.Pools[i].Can
		}
	}
	for i := range f.cfg.Channels {
		if f.cfg.Channels[i].Name == pool {
			return &f.cfg.Channels[i].Can
		}
	}
	return &config.Can{}
}

func ability(c *config.Can) route.Can {
	no := func(b *bool) bool { return b != nil && !*b }
	can := route.Can{Context: c.Context, NoTools: no(c.Tools), NoImages: no(c.Images)}
	for _, name := range c.Protocols {
		can.Protocols = append(can.Protocols, protocolNamed[name])
	}
	return can
}

// protocolNamed are the words of the configuration.
var protocolNamed = map[string]dialect.Protocol{
	"chat": dialect.Chat, "completions": dialect.Completions, "responses": dialect.Responses, "messages": dialect.Messages,
}

// routeView is one member of a route in status.
type routeView struct {
	Route string `json:"route"`
	Tier  int    `json:"tier"` // from 1
	Pool  string `json:"pool"`
	Model string `json:"model"`
	Taken int64  `json:"requests"`
}

func (f *fleet) routeViews() []routeView {
	t := f.proxy.Table()
	if t == nil {
		return nil
	}
	var out []routeView
	for _, c := range t.Routes() {
		out = append(out, routeView{c.Route, c.Tier + 1, c.Pool, c.Model, c.Taken})
	}
	return out
}

func (f *fleet) writeRoutes(w io.Writer) {
	for _, r := range f.routeViews() {
		telemetry.WriteLine(w, "prefixring_route_requests_total", float64(r.Taken),
			"route", r.Route, "tier", fmt.Sprint(r.Tier), "pool", r.Pool, "model", r.Model)
	}
}

func printRoutes(w io.Writer, routes []routeView) {
	for _, r := range routes {
		fmt.Fprintf(w, "route %s, tier %d: %s as %s, %d requests\n", r.Route, r.Tier, r.Pool, r.Model, r.Taken)
	}
}
