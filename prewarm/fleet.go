package prewarm

import (
	"crypto/tls"
	"fmt"
	"slices"
	"time"

	"github.com/prefixring/prefixring/internal/dialect"
	"github.com/prefixring/prefixring/internal/fingerprint"
	"github.com/prefixring/prefixring/ring"
)

// Node is one engine, or one data-parallel rank of it, with what is known of it. Zero
// figures are unknown.
type Node struct {
	Name   string
	URL    string // base URL, without /v1
	Engine dialect.Engine
	Models []string      // model and adapter names served; empty = any
	APIKey func() string // the engine's own key; nil or "" = none is sent
	TLS    *tls.Config

	KVTokens  int64 // capacity of the KV cache, tokens
	BlockSize int64 // tokens per block or page
	Live      int64 // KV tokens that running requests hold now
	// PrefillRate is the measured speed of a cold prefill, tokens/s. 0 = Model's.
	PrefillRate float64
	Model       EngineModel // speed figures when nothing is measured; zero = DefaultModel

	// Rank pins one data-parallel rank, when Pinned. Ranks > 1 without Pinned means that
	// the engine spreads requests over its ranks by itself: each must be warmed.
	Rank   int
	Pinned bool
	Ranks  int
	// Yields says that the engine schedules by priority, so that warm requests may ask
	// for the lowest. On SGLang with --radix-eviction-policy priority leave it off: the
	// entry would be the first to be evicted.
	Yields bool
}

// Target is what a model or route name of the manifest stands for.
type Target struct {
	Model   string   // the name that engines know
	Nodes   []string // names of the nodes that serve it
	Adapter string   // the adapter, for the fingerprint; "" for the base model
	// Owners is the pool's ring order: the first k nodes for a key. nil = a ring of Nodes
	// with default options.
	Owners func(key uint64, k int) []string
}

// Key is what the router would make of a request body.
type Key struct {
	Fingerprint uint64
	StaticBytes int // decoded bytes of the static prefix; 0 = the body has none
}

// Fleet is what prewarm knows of the engines and of the router in front of them. Only
// Nodes is required; the functions may be nil and must be safe for concurrent use.
type Fleet struct {
	Nodes []Node
	// Version changes with anything else that placement rests on (weights, partitions):
	// a Scheduler plans again when it does.
	Version string
	// Resolve maps a model or route and an adapter. nil = nodes by their Models.
	Resolve func(model, adapter string) (Target, bool)
	// Key makes the ring key of a body as traffic's is made (field case B58). nil = a
	// default scanner that knows the manifest's prefixes, see ScannerKey.
	Key func(p dialect.Protocol, body []byte, t Target) (Key, error)
	// TenantSalt is the cache salt of a tenant.
	TenantSalt func(tenant string) (salt string, ok bool)
	// Resident lists what is believed warm on a node, oldest first, to tell what a plan
	// would evict.
	Resident func(node string) []Resident
	// Counted are static tokens by Prefix.Digest, from Plan.Measure.
	Counted map[string]int64
	// BytesPerToken estimates tokens that nothing has counted; 0 = 4.
	BytesPerToken float64
	// Headroom is the share of each node's KV cache that the prefixes must leave to
	// running requests; 0 = DefaultKVHeadroom.
	Headroom float64
	// Working is the KV tokens that running requests are expected to hold on a node at
	// the peak, beside the prefixes they share. It counts where it exceeds the headroom.
	Working int64
}

// Resident is a prefix that a node holds.
type Resident struct {
	Key    uint64
	Name   string
	Tokens int64
}

// DefaultKVHeadroom is the share of the KV cache left to running requests.
const DefaultKVHeadroom = 0.25

func (f *Fleet) node(name string) *Node {
	for i := range f.Nodes {
		if f.Nodes[i].Name == name {
			return &f.Nodes[i]
		}
	}
	return nil
}

func (f *Fleet) headroom() float64 {
	if f.Headroom <= 0 {
		return DefaultKVHeadroom
	}
	return f.Headroom
}

// reserved is the KV memory of a node that prefixes must leave alone.
func (f *Fleet) reserved(n *Node) int64 {
	return max(int64(float64(n.KVTokens)*f.headroom()), f.Working, n.Live)
}

func (f *Fleet) bytesPerToken() float64 {
	if f.BytesPerToken <= 0 {
		return 4
	}
	return f.BytesPerToken
}

func (f *Fleet) resolve(model, adapter string) (Target, bool, error) {
	var t Target
	if f.Resolve != nil {
		var ok bool
		if t, ok = f.Resolve(model, adapter); !ok {
			return t, false, nil
		}
	} else {
		t = f.byModels(model, adapter)
	}
	if len(t.Nodes) == 0 {
		return t, false, nil
	}
	if t.Owners == nil {
		owners, err := ringOrder(t.Nodes)
		if err != nil {
			return t, false, err
		}
		t.Owners = owners
	}
	return t, true, nil
}

// byModels is Resolve without a router's configuration.
func (f *Fleet) byModels(model, adapter string) Target {
	t := Target{Model: model, Adapter: adapter}
	if adapter != "" {
		t.Model = adapter // vLLM serves an adapter under its own name
	}
	for _, n := range f.Nodes {
		served := t.Model
		if adapter != "" && n.Engine == dialect.SGLang {
			served = model + ":" + adapter // SGLang wants base:adapter
			t.Model = served
		}
		if len(n.Models) == 0 || slices.Contains(n.Models, served) {
			t.Nodes = append(t.Nodes, n.Name)
		}
	}
	return t
}

// ringOrder is the order of a default ring of these nodes.
func ringOrder(names []string) (func(key uint64, k int) []string, error) {
	r, err := ring.New(ring.Options{})
	if err != nil {
		return nil, err
	}
	members := make([]ring.Member, len(names))
	for i, n := range names {
		members[i] = ring.Member{Name: n}
	}
	if err := r.Apply(members); err != nil {
		return nil, fmt.Errorf("cannot place prefixes: %w", err)
	}
	return func(key uint64, k int) []string {
		var out []string
		for _, n := range r.Owners(key, k, nil) {
			out = append(out, n.Name())
		}
		return out
	}, nil
}

// ScannerKey is a Fleet.Key that reads bodies with the scanner of traffic. salt is the
// router's own, "" for none.
func ScannerKey(s *fingerprint.Scanner, salt string) func(dialect.Protocol, []byte, Target) (Key, error) {
	return func(p dialect.Protocol, body []byte, t Target) (Key, error) {
		var r fingerprint.Result
		if err := s.Scan(p, body, &r); err != nil {
			return Key{}, err
		}
		return Key{Fingerprint: r.Fingerprint(t.Model, t.Adapter, salt), StaticBytes: r.StaticBytes}, nil
	}
}

// withKey returns the fleet with a Key: its own, or that of a default scanner which knows
// the manifest's prefixes at the given moments.
func (f Fleet) withKey(m *Manifest, at ...time.Time) (Fleet, error) {
	if f.Key != nil {
		return f, nil
	}
	// An entry that cannot be rendered is named, with its line, when it is planned.
	named, _ := m.Named(f.TenantSalt, at...)
	s, err := fingerprint.NewScanner(fingerprint.Options{Named: named})
	if err != nil {
		return f, err
	}
	f.Key = ScannerKey(s, "")
	return f, nil
}
