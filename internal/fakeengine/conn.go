package fakeengine

import (
	"io"
	"log"
	"net"
	"net/http"
	"sync/atomic"
)

// silent swallows net/http's own log: faults abort handlers on purpose.
var silent = log.New(io.Discard, "", 0)

// trackedConn is a server connection with what faults need below HTTP.
type trackedConn struct {
	net.Conn
	e       *Engine
	closing atomic.Bool // close when the response is through, without having said so
	reset   atomic.Bool // and close with RST
}

// trackingListener hands out tracked connections and knows the live ones.
type trackingListener struct {
	net.Listener
	e *Engine
}

func (l *trackingListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	t := &trackedConn{Conn: c, e: l.e}
	l.e.mu.Lock()
	l.e.conns[t] = struct{}{}
	l.e.mu.Unlock()
	return t, nil
}

// CutConnections closes every connection, with RST if reset is set. The listener stays.
func (e *Engine) CutConnections(reset bool) {
	e.mu.Lock()
	all := make([]*trackedConn, 0, len(e.conns))
	for c := range e.conns {
		all = append(all, c)
	}
	e.mu.Unlock()
	for _, c := range all {
		c.reset.Store(reset)
		_ = c.Close()
	}
}

// Close honours a wish for RST: the kernel drops what is unsent and the peer sees
// "connection reset" instead of a polite end.
func (c *trackedConn) Close() error {
	if c.reset.Load() {
		if t, ok := c.Conn.(*net.TCPConn); ok {
			_ = t.SetLinger(0)
		}
	}
	c.e.mu.Lock()
	delete(c.e.conns, c)
	c.e.mu.Unlock()
	return c.Conn.Close()
}

// tracked finds the trackedConn of a request; nil when the handler is not served
// by Engine.Serve.
func tracked(r *http.Request) *trackedConn {
	c, _ := r.Context().Value(connKey{}).(net.Conn)
	return unwrap(c)
}

func unwrap(c net.Conn) *trackedConn {
	if t, ok := c.(interface{ NetConn() net.Conn }); ok { // tls.Conn
		c = t.NetConn()
	}
	t, _ := c.(*trackedConn)
	return t
}

// closeWhenIdle closes connections that were marked, right after a response whose
// headers promised to keep them (field case B48).
func closeWhenIdle(c net.Conn, s http.ConnState) {
	if t := unwrap(c); t != nil && s == http.StateIdle && t.closing.Load() {
		_ = t.Close()
	}
}
