package main

import (
	"context"
	"time"

	"github.com/prefixring/prefixring/ring"
)

// chaosWatch samples the rings while the load runs.
type chaosWatch struct {
	samples int
	above   int // node samples above the bound of that moment: it has fallen since, or followers of a warm prefix
	broken  int // node samples above the hard bound
	most    int64
}

func (w *chaosWatch) run(ctx context.Context, f *fleet) {
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			w.sample(f)
		}
	}
}

// sample looks at each node once. A request is charged in full once it is in, so a bound
// is counted in requests: one of them may be the one that is being decided.
func (w *chaosWatch) sample(f *fleet) {
	f.mu.Lock()
	pools := make([]*pool, 0, len(f.pools))
	for _, p := range f.pools {
		pools = append(pools, p)
	}
	f.mu.Unlock()
	w.samples++
	for _, p := range pools {
		for _, n := range p.ring.Nodes() {
			requests := n.InFlight()
			w.most = max(w.most, requests)
			if requests*ring.Unit > p.ring.Bound(n, true)+ring.Unit {
				w.broken++
			} else if requests*ring.Unit > p.ring.Bound(n, false)+ring.Unit {
				w.above++
			}
		}
	}
}
