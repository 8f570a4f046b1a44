package proxy

// Stats are totals and present counts of the data plane.
type Stats struct {
	Clients       int64 // open client connections
	Running       int64 // requests being served
	Waiting       int64 // of those, in a queue
	Settled       int64 // requests ended since the start
	Panics        int64 // of ours, each of which cost one request
	Retries       int64 // retries that drew on the budget
	RetriesDenied int64 // retries not made for want of budget
	EngineConns   int64 // open connections to the engines of the table in use
}

// Stats walks the open connections; it is for status pages and metrics.
func (p *Proxy) Stats() Stats {
	s := Stats{
		Clients: p.conns.open.Load(), Settled: p.counts.settled.Load(), Panics: p.counts.panics.Load(),
		Retries: p.budget.spent.Load(), RetriesDenied: p.budget.denied.Load(),
	}
	p.conns.each(func(c *clientConn) {
		if c.cur.Load() != nil {
			s.Running++
		}
	})
	if t := p.table.Load(); t != nil {
		for _, pool := range t.pools {
			s.Waiting += pool.queue.waiting.Load()
			for _, n := range pool.Ring.Nodes() {
				if up, ok := n.Value().(*Upstream); ok {
					s.EngineConns += up.pool.open.Load()
				}
			}
		}
	}
	return s
}
