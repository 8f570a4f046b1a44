package proxy

import (
	"context"
	"errors"
	"time"
)

// drainRest is how long calls that were cut may take to write their last event.
const drainRest = 2 * time.Second

// Retire begins to let clients go: everything is served as before, but each response
// closes its connection, so that clients come back through their balancer and find
// another router. Call it when readiness begins to fail, a while before Drain, and no
// keep-alive connection is left that Drain would have to close under a client's hand.
func (p *Proxy) Retire() { p.retiring.Store(true) }

// Drain ends the data plane in order: no new connection is accepted, idle ones are
// closed, requests on open ones are served to their end until ctx ends, and those that
// are left then are cut with an event or answer that says so in their protocol. It
// returns nil when all requests ended by themselves.
func (p *Proxy) Drain(ctx context.Context) error {
	p.Retire()
	err := p.server.ShutdownWithContext(ctx)
	if err == nil {
		// Connections that the server has given away (HTTP/1.0 streams) are not its to
		// wait for.
		err = p.awaitClosed(ctx)
	}
	if err != nil {
		p.cutting.Store(true)
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

// Retiring reports that Retire or Drain has been called.
func (p *Proxy) Retiring() bool { return p.retiring.Load() }

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
