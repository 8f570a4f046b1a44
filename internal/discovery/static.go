package discovery

import (
	"context"
	"time"
)

// Static is a fixed list of engines.
type Static struct {
	Endpoints []Endpoint
}

// staticPeriod is how often a fixed list confirms itself; it only has to be well below
// any Limit.
const staticPeriod = 10 * time.Second

// Run implements Source. A list that cannot be used is refused at once.
func (s *Static) Run(ctx context.Context, out chan<- []Endpoint) error {
	set := append([]Endpoint{}, s.Endpoints...)
	for i := range set {
		set[i].Ready = true
	}
	if err := check(set); err != nil {
		return err
	}
	t := time.NewTicker(staticPeriod)
	defer t.Stop()
	for {
		if err := send(ctx, out, set); err != nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return nil
		case <-t.C:
		}
	}
}
