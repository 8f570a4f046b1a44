package main

import (
	"context"
	"time"

	"github.com/prefixring/prefixring/health"
	"github.com/prefixring/prefixring/internal/dialect"
	"github.com/prefixring/prefixring/internal/fingerprint"
	"github.com/prefixring/prefixring/internal/residency"
	"github.com/prefixring/prefixring/prewarm"
)

// prewarm plans a manifest over this fleet, warms and proves it, and tells residency and
// placement what was proven.
func (f *fleet) prewarm(ctx context.Context, m *prewarm.Manifest, po prewarm.PlanOptions, o prewarm.Options) (prewarm.Report, error) {
	plan, err := prewarm.NewPlan(m, f.facts(), po)
	if err != nil {
		return prewarm.Report{}, err
	}
	o.Proven = f.proven
	return prewarm.Run(ctx, plan, o)
}

// facts are the fleet as prewarm knows it.
func (f *fleet) facts() prewarm.Fleet {
	statuses := map[string]*health.Status{}
	for _, s := range f.health.Snapshot() {
		statuses[s.Name] = &s
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	out := prewarm.Fleet{Resolve: f.target, Key: f.keyOf, Version: f.known.version()}
	for _, m := range f.sorted() {
		n := prewarm.Node{
			Name: m.conf.Name, URL: m.conf.URL, Engine: m.pool.DialectOf(&m.conf), Models: m.models,
			APIKey: m.access.key, TLS: m.access.tls,
		}
		if m.conf.Rank != nil {
			n.Rank, n.Pinned = *m.conf.Rank, true
		}
		if s := statuses[m.conf.Name]; s != nil {
			n.KVTokens, n.BlockSize = max(s.Signals.KVTokens, 0), max(s.Signals.BlockSize, 0)
		}
		out.Nodes = append(out.Nodes, n)
	}
	return out
}

// target says what a model name stands for, and who owns a key of it.
func (f *fleet) target(model, adapter string) (prewarm.Target, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	asked := model
	if adapter != "" {
		asked = adapter
	}
	p, served, err := f.poolOf(asked)
	if err != nil {
		return prewarm.Target{}, false
	}
	t := prewarm.Target{Model: served, Owners: func(key uint64, k int) []string {
		var names []string
		for _, n := range p.ring.Owners(key, k, nil) {
			names = append(names, n.Name())
		}
		return names
	}}
	for _, m := range f.sorted() {
		if m.in == p.name {
			t.Nodes = append(t.Nodes, m.conf.Name)
		}
	}
	return t, true
}

// keyOf makes the ring key of a body exactly as the data plane does (field case B58).
func (f *fleet) keyOf(p dialect.Protocol, body []byte, t prewarm.Target) (prewarm.Key, error) {
	f.mu.Lock()
	pl, model, err := f.poolOf(t.Model)
	scanner := f.scanner
	f.mu.Unlock()
	if err != nil {
		return prewarm.Key{}, err
	}
	var r fingerprint.Result
	if err := scanner.Scan(p, body, &r); err != nil {
		return prewarm.Key{}, err
	}
	scanner.Lead(&r, int(pl.conf.Placement.CompletionLead))
	return prewarm.Key{Fingerprint: r.Fingerprint(model, "", pl.conf.Salt), StaticBytes: r.StaticBytes}, nil
}

// proven books a proof: residency may believe it, and the prefix has at least as many
// owners as the plan warmed.
func (f *fleet) proven(node string, x *prewarm.Prefix, proof prewarm.Proof) {
	f.mu.Lock()
	defer f.mu.Unlock()
	m := f.nodes[node]
	if m == nil || f.pools[m.in] == nil || !proof.Warm {
		return
	}
	p := f.pools[m.in]
	n := p.ring.Node(node)
	if n == nil {
		return
	}
	kind := residency.Proof
	if proof.Cached < 0 {
		kind = residency.Counters // weaker evidence than cached tokens
	}
	p.residency.Observe(n.ID(), x.Key, residency.Evidence{
		Kind: kind, Prompt: proof.Prompt, Cached: proof.Cached, Static: x.Tokens, Sent: time.Now(),
	})
	p.planned.Store(x.Key, max(x.K, 1))
}
