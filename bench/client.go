package bench

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/valyala/fasthttp"
)

// idleLimit is how long an idle connection is trusted: uvicorn, in front of both
// engines, closes after 5 s.
const idleLimit = 3 * time.Second

// client is a load client for one base URL. fasthttp reads the response headers; the
// rest is ours, because the time of the first byte has to be taken at the socket, and
// because a fat body is written from shared pieces without joining them.
type client struct {
	addr string
	tls  *tls.Config
	base string // path in front of /v1/...
	host string
	name string // what the per-node breakdown calls it
	fix  []byte // header lines that never change
	dial func(ctx context.Context, network, addr string) (net.Conn, error)

	mu     sync.Mutex // guards the fields below
	idle   []*conn    // last in, first out: the freshest is the likeliest to live
	open   map[*conn]struct{}
	closed bool
}

type conn struct {
	net.Conn
	br   *bufio.Reader
	used time.Time // zero: never carried a request
}

// call is the scratch space of one request; it is pooled by the runner.
type call struct {
	head   []byte
	rest   []byte
	iov    [3][]byte
	header fasthttp.ResponseHeader
	body   body
	whole  []byte
	answer answer
}

// reply is what the wire said of one request.
type reply struct {
	status    int
	firstByte time.Time
	end       time.Time
	sent      int64
	node      string
	reason    string
	err       error
	late      error // the body was cut after the status came
}

func newClient(base string, o *Options) (*client, error) {
	u, err := url.Parse(base)
	if err != nil || u.Host == "" || (u.Scheme != "http" && u.Scheme != "https") {
		return nil, fmt.Errorf("%w: %q is not an http or https URL", ErrUsage, base)
	}
	c := &client{addr: u.Host, host: u.Host, name: u.Host, open: map[*conn]struct{}{}, dial: o.Dial}
	c.base = strings.TrimSuffix(strings.TrimSuffix(u.Path, "/"), "/v1")
	port := "80"
	if u.Scheme == "https" {
		port = "443"
		c.tls = &tls.Config{ServerName: u.Hostname(), InsecureSkipVerify: o.Insecure, MinVersion: tls.VersionTLS12}
	}
	if u.Port() == "" {
		c.addr = net.JoinHostPort(u.Hostname(), port)
	}
	if c.dial == nil {
		d := &net.Dialer{Timeout: 5 * time.Second}
		c.dial = d.DialContext
	}
	c.fix, err = fixedHeaders(o, c.host)
	return c, err
}

// acquire returns an idle connection that is young enough, or a new one.
func (c *client) acquire(ctx context.Context, fresh bool, now time.Time) (*conn, error) {
	c.mu.Lock()
	for n := len(c.idle); n > 0 && !fresh; n = len(c.idle) {
		cn := c.idle[n-1]
		c.idle = c.idle[:n-1]
		if now.Sub(cn.used) < idleLimit {
			c.mu.Unlock()
			return cn, nil
		}
		delete(c.open, cn)
		cn.Close()
	}
	c.mu.Unlock()
	nc, err := c.dial(ctx, "tcp", c.addr)
	if err != nil {
		return nil, err
	}
	if c.tls != nil {
		tc := tls.Client(nc, c.tls)
		if err := tc.HandshakeContext(ctx); err != nil {
			nc.Close()
			return nil, err
		}
		nc = tc
	}
	cn := &conn{Conn: nc, br: bufio.NewReaderSize(nc, 16<<10)}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		nc.Close()
		return nil, net.ErrClosed
	}
	c.open[cn] = struct{}{}
	return cn, nil
}

func (c *client) release(cn *conn, reuse bool, now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if reuse && !c.closed {
		cn.used = now
		c.idle = append(c.idle, cn)
		return
	}
	delete(c.open, cn)
	cn.Close()
}

// close ends every connection, also those in use: their calls fail at once.
func (c *client) close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
	for cn := range c.open {
		cn.Close()
	}
	clear(c.open)
	c.idle = nil
}

// do sends one request and feeds the answer to k.answer. A reused connection that
// turns out dead before the first byte is replaced once: that is the pool's fault and
// not the server's.
func (c *client) do(ctx context.Context, k *call, method, path string, p parts, timeout time.Duration) reply {
	for try := 0; ; try++ {
		now := time.Now()
		cn, err := c.acquire(ctx, try > 0, now)
		if err != nil {
			return reply{end: time.Now(), err: err}
		}
		stale := !cn.used.IsZero()
		if err := cn.SetDeadline(now.Add(timeout)); err != nil {
			c.release(cn, false, now)
			return reply{end: time.Now(), err: err}
		}
		r, reuse := c.exchange(cn, k, method, path, p)
		c.release(cn, reuse, r.end)
		if r.err != nil && stale && try == 0 && r.firstByte.IsZero() && !isTimeout(r.err) && !c.isClosed() {
			continue
		}
		return r
	}
}

func (c *client) isClosed() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.closed
}

func (c *client) exchange(cn *conn, k *call, method, path string, p parts) (r reply, reuse bool) {
	k.head = append(append(append(append(k.head[:0], method...), ' '), c.base...), path...)
	k.head = append(append(k.head, " HTTP/1.1\r\n"...), c.fix...)
	k.head = append(k.head, "Content-Length: "...)
	k.head = strconv.AppendInt(k.head, int64(len(p.head)+len(p.rest)), 10)
	k.head = append(k.head, "\r\n\r\n"...)
	k.iov = [3][]byte{k.head, p.head, p.rest}
	bufs := net.Buffers(k.iov[:])
	var werr error
	if r.sent, werr = bufs.WriteTo(cn.Conn); werr != nil && isTimeout(werr) {
		r.err, r.end = werr, time.Now()
		return r, false
	}
	// A server may answer (413, 401) and close without reading the whole body, so a
	// failed write is not yet the verdict.
	if _, err := cn.br.Peek(1); err != nil {
		r.err, r.end = errors.Join(err, werr), time.Now()
		return r, false
	}
	r.firstByte = time.Now()
	for {
		k.header.Reset()
		if err := k.header.Read(cn.br); err != nil {
			r.err, r.end = fmt.Errorf("cannot read response header: %w", err), time.Now()
			return r, false
		}
		if code := k.header.StatusCode(); code >= 200 || code == fasthttp.StatusSwitchingProtocols {
			break
		}
	}
	r.status = k.header.StatusCode()
	if v := k.header.Peek("X-Prefixring-Engine"); len(v) > 0 {
		r.node, r.reason = string(v), string(k.header.Peek("X-Prefixring-Reason"))
	}
	k.body.start(cn.br, &k.header)
	r.late = k.readBody(r.status)
	r.end = time.Now()
	return r, r.late == nil && werr == nil && !k.header.ConnectionClose() && !k.body.toEOF && cn.br.Buffered() == 0
}

// maxWhole bounds an answer that is not a stream.
const maxWhole = 16 << 20

// readBody feeds the answer as its bytes come.
func (k *call) readBody(status int) error {
	stream := status == fasthttp.StatusOK && bytes.HasPrefix(k.header.ContentType(), []byte("text/event-stream"))
	k.whole = k.whole[:0]
	for {
		b, err := k.body.next()
		if err == io.EOF {
			break
		}
		if err != nil {
			return err
		}
		if stream {
			k.answer.feed(b, time.Now())
			continue
		}
		if len(k.whole)+len(b) > maxWhole {
			return fmt.Errorf("%w: answer above %d bytes", errCut, maxWhole)
		}
		k.whole = append(k.whole, b...)
	}
	if !stream {
		k.answer.whole(k.whole)
	}
	return nil
}

func isTimeout(err error) bool {
	var ne net.Error
	return errors.As(err, &ne) && ne.Timeout()
}
