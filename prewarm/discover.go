package prewarm

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/sourcegraph/conc"

	"github.com/prefixring/prefixring/internal/dialect"
)

// Discover asks the nodes for what the fleet does not say of them: models, KV capacity,
// block size, ranks and the tokens that running requests hold. Nodes are asked side by
// side; those that do not answer keep what is known, and are named in the error.
func (f *Fleet) Discover(ctx context.Context, o Options) error {
	o.fill()
	r := newRunner(f, o, &counter{})
	defer r.close()
	faults := make([]error, len(f.Nodes))
	var wg conc.WaitGroup
	for i := range f.Nodes {
		wg.Go(func() {
			ctx, cancel := context.WithTimeout(ctx, 15*time.Second)
			defer cancel()
			if err := r.probes[f.Nodes[i].Name].discover(ctx, &f.Nodes[i]); err != nil {
				faults[i] = fmt.Errorf("node %s: %w", f.Nodes[i].Name, err)
			}
		})
	}
	if c := wg.WaitAndRecover(); c != nil {
		return fmt.Errorf("cannot ask the engines: %w", c.AsError())
	}
	if err := errors.Join(faults...); err != nil {
		return fmt.Errorf("cannot ask the engines: %w", err)
	}
	return nil
}

func (b *prober) discover(ctx context.Context, n *Node) error {
	if len(n.Models) == 0 {
		models, err := b.models(ctx)
		if err != nil {
			return err
		}
		n.Models = models
	}
	s, err := b.metrics(ctx)
	var ref *refusal
	if errors.As(err, &ref) && !retryable(err) {
		return nil // SGLang without --enable-metrics: what is known must do
	}
	if err != nil {
		return err
	}
	if n.KVTokens == 0 {
		n.KVTokens = s.KVTokens
	}
	if n.BlockSize == 0 {
		n.BlockSize = s.BlockSize
	}
	if n.Ranks == 0 && !n.Pinned {
		n.Ranks = len(s.Ranks)
	}
	if s.KVUsage > 0 {
		n.Live = int64(s.KVUsage * float64(n.KVTokens))
	}
	return nil
}

// models reads the model and adapter names that the engine serves.
func (b *prober) models(ctx context.Context) ([]string, error) {
	a, err := b.call(ctx, http.MethodGet, "/v1/models", nil, dialect.Opaque)
	if err != nil {
		return nil, err
	}
	var list struct {
		Data []struct {
			ID string `json:"id"`
		} `json:"data"`
	}
	if err := json.Unmarshal(a.body, &list); err != nil {
		return nil, errors.New("its model list cannot be read")
	}
	var out []string
	for _, m := range list.Data {
		out = append(out, m.ID)
	}
	if len(out) == 0 {
		return nil, errors.New("it lists no model")
	}
	return out, nil
}

// Measure counts the static tokens of the plan's prefixes with the engines' tokenizers,
// so that time and memory rest on counts and not on estimates. Prefixes that no engine
// could count keep their estimate. Plan again with what it returns: Fleet.Counted.
func (p *Plan) Measure(ctx context.Context, o Options) (map[string]int64, error) {
	o.fill()
	r := newRunner(p.fleet, o, &counter{})
	defer r.close()
	counts := make([]int64, len(p.Prefixes))
	var wg conc.WaitGroup
	for i, x := range p.Prefixes {
		wg.Go(func() {
			ctx, cancel := context.WithTimeout(ctx, time.Minute)
			defer cancel()
			for _, name := range x.Nodes {
				c, err := r.tokens.count(ctx, r.probes[name].engine, x, r.turn(), r.turn())
				if err != nil || c.ok {
					counts[i] = c.static
					return
				}
			}
		})
	}
	if c := wg.WaitAndRecover(); c != nil {
		return nil, fmt.Errorf("cannot count tokens: %w", c.AsError())
	}
	out := map[string]int64{}
	for i, n := range counts {
		if n > 0 {
			out[p.Prefixes[i].Digest] = n
		}
	}
	return out, ctx.Err()
}
