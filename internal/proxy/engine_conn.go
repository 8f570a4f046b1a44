package proxy

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// engineConn is one keep-alive connection to an engine. It belongs to exactly one
// of: the idle stack of its pool, or one exchange. Closing it is the only way to
// cancel an exchange, and the only way that engines notice: it is never half-closed.
type engineConn struct {
	net.Conn
	raw     syscall.RawConn // of the TCP socket below TLS; nil when there is none
	tls     bool
	reused  bool // it has carried a response before
	spent   bool // the engine answered before it had read the request: do not use it again
	created time.Time
	parked  time.Time

	alive  bool // result slot of probe, so that probing allocates nothing
	probe1 [1]byte
	probe  func(fd uintptr) bool
}

// connPool keeps the idle connections of one engine, newest last: the connection
// used last is the one least likely to have been closed by the engine meanwhile
// (uvicorn closes after 5 s of silence, engine_contracts 1 fact 9).
type connPool struct {
	dial    func(ctx context.Context) (net.Conn, error)
	maxIdle time.Duration // a connection idle for longer is not used again
	maxAge  time.Duration // nor one older than this; 0 = no limit
	now     func() time.Time

	open atomic.Int64 // connections that exist, idle or busy

	mu     sync.Mutex // guards idle, closed
	idle   []*engineConn
	closed bool
}

// maxIdleConns bounds the stack per engine. More idle connections than this are a
// burst that is over.
const maxIdleConns = 1024

// probeAfter is the idle age from which a pooled connection is asked whether the
// engine closed it. Below it the answer would almost always be the same, and the
// one retry for stale connections covers the rest.
const probeAfter = 50 * time.Millisecond

var errPoolClosed = errors.New("cannot connect to engine: it has left")

// take returns the newest idle connection that still looks alive, or nil.
func (p *connPool) take() *engineConn {
	now := p.now()
	for {
		p.mu.Lock()
		n := len(p.idle)
		if n == 0 {
			p.mu.Unlock()
			return nil
		}
		c := p.idle[n-1]
		p.idle[n-1] = nil
		p.idle = p.idle[:n-1]
		p.mu.Unlock()
		age := now.Sub(c.parked)
		if age > p.maxIdle || (p.maxAge > 0 && now.Sub(c.created) > p.maxAge) || (age > probeAfter && !c.quiet()) {
			p.drop(c)
			continue
		}
		return c
	}
}

// connect opens a new connection within ctx.
func (p *connPool) connect(ctx context.Context) (*engineConn, error) {
	p.mu.Lock()
	closed := p.closed
	p.mu.Unlock()
	if closed {
		return nil, errPoolClosed
	}
	nc, err := p.dial(ctx)
	if err != nil {
		return nil, err
	}
	p.open.Add(1)
	return newEngineConn(nc, p.now()), nil
}

// park gives a connection back whose last response ended cleanly.
func (p *connPool) park(c *engineConn) {
	c.reused = true
	c.parked = p.now()
	p.mu.Lock()
	if p.closed || len(p.idle) >= maxIdleConns {
		p.mu.Unlock()
		p.drop(c)
		return
	}
	p.idle = append(p.idle, c)
	p.mu.Unlock()
}

// drop closes a connection for good.
func (p *connPool) drop(c *engineConn) {
	c.Close()
	p.open.Add(-1)
}

// prune closes idle connections that are too old to be used again. The stack is in
// order of parking, so they are its lower part.
func (p *connPool) prune(now time.Time) {
	p.mu.Lock()
	n := 0
	for n < len(p.idle) && now.Sub(p.idle[n].parked) > p.maxIdle {
		n++
	}
	if n == 0 {
		p.mu.Unlock()
		return
	}
	stale := append([]*engineConn(nil), p.idle[:n]...)
	rest := copy(p.idle, p.idle[n:])
	clear(p.idle[rest:])
	p.idle = p.idle[:rest]
	p.mu.Unlock()
	for _, c := range stale {
		p.drop(c)
	}
}

// close drops all idle connections and refuses new ones. Busy ones end with their
// exchange.
func (p *connPool) close() {
	p.mu.Lock()
	idle := p.idle
	p.idle, p.closed = nil, true
	p.mu.Unlock()
	for _, c := range idle {
		p.drop(c)
	}
}

func newEngineConn(nc net.Conn, now time.Time) *engineConn {
	c := &engineConn{Conn: nc, created: now}
	if tc, ok := nc.(*tls.Conn); ok {
		c.tls = true
		nc = tc.NetConn()
	}
	if sc, ok := nc.(syscall.Conn); ok {
		c.raw, _ = sc.SyscallConn()
	}
	c.probe = c.peek
	return c
}

// quiet reports that nothing happened on an idle connection: the engine neither
// closed it nor sent anything unasked.
func (c *engineConn) quiet() bool {
	if c.raw == nil {
		return true
	}
	c.alive = false
	if err := c.raw.Read(c.probe); err != nil {
		return false
	}
	return c.alive
}

// dialer opens connections to one engine address.
type dialer struct {
	network, address string
	timeout          time.Duration
	tls              *tls.Config // nil = plain TCP
}

// dial opens a TCP connection and, where configured, does the TLS handshake, both
// within the connect timeout.
func (d *dialer) dial(ctx context.Context) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, d.timeout)
	defer cancel()
	var nd net.Dialer
	nc, err := nd.DialContext(ctx, d.network, d.address)
	if err != nil {
		return nil, fmt.Errorf("cannot connect to engine: %w", err)
	}
	if d.tls == nil {
		return nc, nil
	}
	tc := tls.Client(nc, d.tls)
	if err := tc.HandshakeContext(ctx); err != nil {
		nc.Close()
		return nil, fmt.Errorf("cannot do TLS handshake with engine: %w", err)
	}
	return tc, nil
}
