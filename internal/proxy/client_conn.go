package proxy

import (
	"errors"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/prefixring/prefixring/internal/dialect"
)

// readAhead is how much of a request a client connection buffers itself. The
// server gives its own read buffer back between requests and then reads one octet
// to wait for the next (fasthttp ReduceMemoryUsage); reading ahead makes that one
// system call for a thin request instead of two, and costs 1 KiB per connection
// where the server's buffer would cost 64.
const readAhead = 1 << 10

// clientConn is a client's connection. It adds to the socket what the server
// cannot know while a handler runs: whether the client has left, since when a write
// is stuck, and which call is being served.
type clientConn struct {
	net.Conn
	set *connSet
	raw syscall.RawConn // nil when there is no socket below (in-memory listeners)

	// cur is the call being served; the watcher and the janitor cancel it. gone is
	// set before cur is looked at, and cur before gone: whoever comes second acts.
	cur  atomic.Pointer[call]
	gone atomic.Bool

	// The following belong to the serving goroutine.
	ahead    [readAhead]byte
	a0, a1   int
	protocol dialect.Protocol // of the request being read
	refusal  *failure         // why its body is not read; nil = it is welcome so far
	linger   bool             // it is closed on a request that was not read to its end

	writing atomic.Int64 // coarse time at which the write now running began; 0 = none
	closed  atomic.Bool

	mu       sync.Mutex // guards the following
	deadline int64      // of reads, in the janitor's time, which enforces it; 0 = none
	forced   bool       // the socket's own deadline was set to the past

	watchID    uint64 // set once by the watcher
	shard      *connShard
	prev, next *clientConn // in shard, guarded by its mu
}

// Read serves what was read ahead, and reads ahead when the server waits for the
// first octet of a request.
func (c *clientConn) Read(p []byte) (int, error) {
	if c.a0 < c.a1 {
		n := copy(p, c.ahead[c.a0:c.a1])
		c.a0 += n
		return n, nil
	}
	if len(p) != 1 {
		return c.Conn.Read(p)
	}
	n, err := c.Conn.Read(c.ahead[:])
	if n > 0 {
		p[0] = c.ahead[0]
		c.a0, c.a1 = 1, n
		return 1, nil
	}
	return 0, err
}

// Write notes when it began, so that a client that stops reading can be cut.
func (c *clientConn) Write(p []byte) (int, error) {
	c.writing.Store(c.set.coarse.Load())
	n, err := c.Conn.Write(p)
	c.writing.Store(0)
	return n, err
}

// writeBuffers is Write for several pieces in one system call.
func (c *clientConn) writeBuffers(b *net.Buffers) (int64, error) {
	c.writing.Store(c.set.coarse.Load())
	n, err := b.WriteTo(c.Conn)
	c.writing.Store(0)
	return n, err
}

// SetReadDeadline only notes the deadline: the server sets two per request, and the
// janitor looks at it often enough for limits of seconds.
func (c *clientConn) SetReadDeadline(t time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.deadline = 0; !t.IsZero() {
		c.deadline = c.set.coarse.Load() + int64(time.Until(t))
	}
	if c.forced {
		c.forced = false
		return c.Conn.SetReadDeadline(time.Time{})
	}
	return nil
}

// SetDeadline sets both deadlines.
func (c *clientConn) SetDeadline(t time.Time) error {
	if err := c.SetReadDeadline(t); err != nil {
		return err
	}
	return c.Conn.SetWriteDeadline(t)
}

// expire fails the read now running if its deadline has passed.
func (c *clientConn) expire(now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.forced && c.deadline != 0 && now.UnixNano() > c.deadline {
		c.forced = true
		c.Conn.SetReadDeadline(longAgo)
	}
}

var longAgo = time.Unix(1, 0)

// Close takes the connection out of the set, once.
func (c *clientConn) Close() error {
	if c.closed.Swap(true) {
		return c.Conn.Close()
	}
	if c.linger {
		c.drain()
	}
	c.set.remove(c)
	return c.Conn.Close()
}

// A socket that is closed with octets unread is reset, and the reset overtakes the
// answer: a client that is still uploading would never see why it was refused. So the
// rest of such a request is thrown away for a moment first.
const (
	lingerTime   = 2 * time.Second
	lingerOctets = 64 * mib
)

func (c *clientConn) drain() {
	hc, ok := c.Conn.(interface{ CloseWrite() error })
	if !ok || hc.CloseWrite() != nil {
		return
	}
	c.Conn.SetReadDeadline(time.Now().Add(lingerTime))
	var b [4 * kib]byte
	for n := 0; n < lingerOctets; {
		m, err := c.Conn.Read(b[:])
		if err != nil {
			return
		}
		n += m
	}
}

// left is called by the watcher when the client closed its side.
func (c *clientConn) left() {
	c.gone.Store(true)
	if cl := c.cur.Load(); cl != nil {
		cl.cancelFor(c, cl.seq.Load(), causeClientGone)
	}
}

// serve makes cl the call of this connection. A client that left before is noticed
// here.
func (c *clientConn) serve(cl *call) {
	c.cur.Store(cl)
	if c.gone.Load() {
		cl.cancelFor(c, cl.seq.Load(), causeClientGone)
	}
}

// connSet is the set of open client connections. The janitor and drain walk it;
// nothing on the path of one request takes its locks.
type connSet struct {
	coarse atomic.Int64 // Unix nanoseconds, set by the janitor
	open   atomic.Int64
	watch  watcher
	shards [16]connShard
	turn   atomic.Uint32 // shard of the next connection
}

type connShard struct {
	mu   sync.Mutex // guards head and the links of its connections
	head *clientConn
	_    [40]byte // shards on their own cache lines
}

// add wraps a new connection.
func (s *connSet) add(nc net.Conn) *clientConn {
	sh := &s.shards[s.turn.Add(1)%uint32(len(s.shards))]
	c := &clientConn{Conn: nc, set: s, shard: sh}
	if sc, ok := nc.(syscall.Conn); ok {
		c.raw, _ = sc.SyscallConn()
	}
	sh.mu.Lock()
	c.next = sh.head
	if c.next != nil {
		c.next.prev = c
	}
	sh.head = c
	sh.mu.Unlock()
	s.open.Add(1)
	s.watch.add(c)
	return c
}

func (s *connSet) remove(c *clientConn) {
	s.watch.remove(c)
	sh := c.shard
	sh.mu.Lock()
	if c.prev != nil {
		c.prev.next = c.next
	} else {
		sh.head = c.next
	}
	if c.next != nil {
		c.next.prev = c.prev
	}
	c.prev, c.next = nil, nil
	sh.mu.Unlock()
	s.open.Add(-1)
}

// each calls f for every open connection, under the shard's lock: f must not close
// a connection or block.
func (s *connSet) each(f func(*clientConn)) {
	for i := range s.shards {
		sh := &s.shards[i]
		sh.mu.Lock()
		for c := sh.head; c != nil; c = c.next {
			f(c)
		}
		sh.mu.Unlock()
	}
}

// listener hands the server wrapped connections.
type listener struct {
	net.Listener
	set  *connSet
	quit <-chan struct{}
	log  *slog.Logger
}

// Accept waits out a shortage of descriptors or memory: the server would take it for
// the end of the listener, and the process would stop serving for good.
func (l listener) Accept() (net.Conn, error) {
	const first, last = 5 * time.Millisecond, time.Second
	for delay := first; ; delay = min(2*delay, last) {
		nc, err := l.Listener.Accept()
		if err == nil {
			return l.set.add(nc), nil
		}
		if !shortage(err) {
			return nil, err
		}
		if delay == first {
			l.log.Error("cannot accept clients for now", "error", err)
		}
		select {
		case <-time.After(delay):
		case <-l.quit:
			return nil, err
		}
	}
}

// shortage reports that accepting failed for want of something that may come back.
func shortage(err error) bool {
	for _, e := range [...]error{syscall.EMFILE, syscall.ENFILE, syscall.ENOBUFS, syscall.ENOMEM} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}
