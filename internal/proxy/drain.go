package proxy

import (
	"context"
	"errors"
	"time"
)

// drainRest is how long calls that were cut may take to write their last event.
const drainRest = 2 * time.Second

// Drain ends the data plane in order: no new connection is accepted, no new request
// is taken, running ones go on until ctx ends, and those that are left then are cut
// with an event that says so in their protocol. It returns nil when all requests
// ended by themselves. The caller has made readiness fail before, for as long as its
// balancers need.
func (p *Proxy) Drain(ctx context.Context) error {
	p.draining.Store(true)
	err := p.server.ShutdownWithContext(ctx)
	if err == nil {
		// Connections that the server has given away (HTTP/1.0 streams) are not its to
		// wait for.
		err = p.awaitClosed(ctx)
	}
	if err != nil {
		p.hurry()
	}
	p.stop()
	p.closePools()
	return err
}

// awaitClosed waits until no client connection is open.
func (p *Proxy) awaitClosed(ctx context.Context) error {
	t := time.NewTicker(5 * time.Millisecond)
	defer t.Stop()
	for p.conns.open.Load() > 0 {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-t.C:
		}
	}
	return nil
}

// hurry cuts running calls and waits until all client connections are closed: those
// of cut calls end when their last event is written, idle ones at once, and what is
// left after drainRest is taken away from its writers.
func (p *Proxy) hurry() {
	end := time.Now().Add(drainRest)
	t := time.NewTicker(2 * time.Millisecond)
	defer t.Stop()
	for p.conns.open.Load() > 0 {
		late := time.Now().After(end)
		p.conns.each(func(c *clientConn) {
			switch cl := c.cur.Load(); {
			case late:
				c.Conn.SetDeadline(longAgo)
			case cl != nil:
				cl.cancelFor(c, cl.seq.Load(), causeDrain)
			default:
				c.Conn.SetReadDeadline(longAgo)
			}
		})
		<-t.C
	}
}

// Close is Drain without patience.
func (p *Proxy) Close() error {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	err := p.Drain(ctx)
	if errors.Is(err, context.Canceled) {
		return nil
	}
	return err
}

// Draining reports that Drain has begun.
func (p *Proxy) Draining() bool { return p.draining.Load() }

// closePools closes the idle engine connections of the table in use.
func (p *Proxy) closePools() {
	t := p.table.Load()
	if t == nil {
		return
	}
	for _, pool := range t.pools {
		for _, n := range pool.Ring.Nodes() {
			if up, ok := n.Value().(*Upstream); ok {
				up.Close()
			}
		}
	}
}
