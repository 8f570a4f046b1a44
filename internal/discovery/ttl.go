package discovery

import (
	"context"
	"encoding/binary"
	"net"
	"sync"
	"time"
)

// ttlWatch reads the TTLs that pass through a resolver's connections: net.Resolver
// knows search lists, retries and TCP fallback, but does not tell them.
type ttlWatch struct {
	dial func(ctx context.Context, network, addr string) (net.Conn, error)

	mu   sync.Mutex // the resolver asks for A and AAAA at the same time
	ttl  uint32
	seen bool
}

func (w *ttlWatch) connect(ctx context.Context, network, addr string) (net.Conn, error) {
	dial := w.dial
	if dial == nil {
		dial = (&net.Dialer{}).DialContext
	}
	c, err := dial(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	// The resolver recognises datagrams by this interface.
	if p, ok := c.(net.PacketConn); ok {
		return &ttlPacketConn{ttlConn{c, w}, p}, nil
	}
	return c, nil // TCP: a long answer; its TTLs are not worth reassembling a stream for
}

type ttlConn struct {
	net.Conn
	w *ttlWatch
}

type ttlPacketConn struct {
	ttlConn
	p net.PacketConn
}

// Read passes a datagram on and notes its TTLs.
func (c *ttlConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if err == nil {
		if ttl, ok := shortestTTL(b[:n]); ok {
			c.w.note(ttl)
		}
	}
	return n, err
}

func (c *ttlPacketConn) ReadFrom(b []byte) (int, net.Addr, error)  { return c.p.ReadFrom(b) }
func (c *ttlPacketConn) WriteTo(b []byte, a net.Addr) (int, error) { return c.p.WriteTo(b, a) }

func (w *ttlWatch) note(ttl uint32) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.seen || ttl < w.ttl {
		w.ttl, w.seen = ttl, true
	}
}

// shortest is the shortest TTL seen. A TTL of 0 means "do not cache", which becomes the
// least period of the caller.
func (w *ttlWatch) shortest() time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.seen {
		return 0
	}
	return max(time.Duration(w.ttl)*time.Second, time.Millisecond)
}

// shortestTTL reads the shortest TTL of the answer section of a DNS message; false if
// it has no answers or is broken.
func shortestTTL(m []byte) (uint32, bool) {
	if len(m) < 12 || m[2]&0x80 == 0 {
		return 0, false
	}
	questions, answers := binary.BigEndian.Uint16(m[4:]), binary.BigEndian.Uint16(m[6:])
	i := 12
	for range questions {
		if i = skipName(m, i); i < 0 || i+4 > len(m) {
			return 0, false
		}
		i += 4
	}
	best, ok := uint32(0), false
	for range answers {
		if i = skipName(m, i); i < 0 || i+10 > len(m) {
			return 0, false
		}
		ttl := binary.BigEndian.Uint32(m[i+4:])
		if ttl > 1<<31-1 {
			ttl = 0 // RFC 2181: a value with the top bit set counts as zero
		}
		if !ok || ttl < best {
			best, ok = ttl, true
		}
		i += 10 + int(binary.BigEndian.Uint16(m[i+8:]))
	}
	return best, ok
}

// skipName returns the index behind the name at i, or -1.
func skipName(m []byte, i int) int {
	for i < len(m) {
		switch n := int(m[i]); {
		case n == 0:
			return i + 1
		case n >= 0xC0:
			return i + 2 // a pointer ends a name
		case n >= 0x40:
			return -1
		default:
			i += 1 + n
		}
	}
	return -1
}
