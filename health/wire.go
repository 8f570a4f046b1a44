package health

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
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/prefixring/prefixring/internal/dialect"
)

// client is an HTTP/1.1 client for one engine and one loop. net/http's client leaves
// several KB of garbage per request, forty times what polling a hundred engines each
// second may cost; probes need only a GET whose answer is read once, front to back.
// It follows no redirect, knows no proxy and is not safe for concurrent use.
type client struct {
	dial  func(ctx context.Context, network, addr string) (net.Conn, error)
	addr  string
	host  string // Host header
	base  string // path prefix
	tls   *tls.Config
	key   func() string
	extra string // further header lines, each with its line end

	rest  *rest  // where connections rest between exchanges
	*line        // of the exchange; nil = none
	out   []byte // request under construction
}

// maxBody bounds an answer: 16 data-parallel ranks make a page of about 1 MB.
const maxBody = 16 << 20

var (
	errBadHTTP = errors.New("answer is not HTTP/1.x")
	errTooLong = errors.New("answer is too long")
	errBadKey  = errors.New("configured key contains control characters")
)

// parseURL splits a base URL. "host:port" alone means http.
func parseURL(s string) (*url.URL, error) {
	if !strings.Contains(s, "://") {
		s = "http://" + s
	}
	u, err := url.Parse(s)
	if err != nil {
		return nil, fmt.Errorf("cannot use engine URL: %w", err)
	}
	if u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "" {
		return nil, fmt.Errorf("cannot use engine URL %q: it needs http or https and a host", u.Redacted())
	}
	return u, nil
}

func newClient(o *Options, t *Target) (*client, error) {
	u, err := parseURL(t.URL)
	if err != nil {
		return nil, err
	}
	c := &client{
		dial: o.Dial, host: u.Host, key: t.APIKey,
		base: strings.TrimRight(u.EscapedPath(), "/"),
		rest: new(rest),
	}
	port := u.Port()
	if u.Scheme == "https" {
		if t.TLS != nil {
			c.tls = t.TLS.Clone()
		} else {
			c.tls = &tls.Config{MinVersion: tls.VersionTLS12}
		}
		if c.tls.ServerName == "" {
			c.tls.ServerName = u.Hostname()
		}
		c.tls.NextProtos = []string{"http/1.1"}
	}
	if port == "" {
		port = map[string]string{"http": "80", "https": "443"}[u.Scheme]
	}
	c.addr = net.JoinHostPort(u.Hostname(), port)
	return c, nil
}

// get asks for path and hands the body of a 2xx answer to read, piece by piece; the
// piece is valid only during the call.
func (c *client) get(ctx context.Context, path string, limit time.Duration, read func([]byte) error) result {
	return c.do(ctx, "GET", path, nil, limit, read)
}

func (c *client) do(ctx context.Context, method, path string, body []byte, limit time.Duration, read func([]byte) error) result {
	start := time.Now()
	if err := c.build(method, path, body); err != nil {
		return result{answer: broken, err: err}
	}
	var r result
	for {
		c.line = c.rest.take(start)
		reused := c.line != nil
		var stale bool
		r, stale = c.exchange(ctx, start.Add(limit), read)
		if !stale || !reused {
			break
		}
	}
	r.took = time.Since(start)
	c.rest.give(c.line) // nil after an error, or when the engine is about to close
	c.line = nil
	if r.err != nil {
		r.err = fmt.Errorf("cannot get %s: %w", path, r.err)
	}
	return r
}

// build writes the request into c.out.
func (c *client) build(method, path string, body []byte) error {
	b := append(c.out[:0], method...)
	b = append(b, ' ')
	b = append(b, c.base...)
	b = append(b, path...)
	b = append(b, " HTTP/1.1\r\nHost: "...)
	b = append(b, c.host...)
	b = append(b, "\r\nUser-Agent: prefixring\r\nAccept: */*\r\nAccept-Encoding: identity\r\n"...)
	b = append(b, c.extra...)
	if c.key != nil {
		key := strings.TrimSpace(c.key())
		if strings.ContainsFunc(key, func(r rune) bool { return r < ' ' || r == 0x7f }) {
			return errBadKey
		}
		if name, value := dialect.AuthHeader(dialect.Opaque, dialect.VLLM, key); name != "" {
			b = append(append(append(append(b, name...), ": "...), value...), "\r\n"...)
		}
	}
	if body != nil {
		b = append(b, "Content-Type: application/json\r\nContent-Length: "...)
		b = strconv.AppendInt(b, int64(len(body)), 10)
		b = append(b, "\r\n"...)
	}
	b = append(b, "\r\n"...)
	c.out = append(b, body...)
	return nil
}

// exchange sends the request and reads the answer. stale says that the connection
// ended before the first byte of an answer.
func (c *client) exchange(ctx context.Context, deadline time.Time, read func([]byte) error) (r result, stale bool) {
	if c.line == nil {
		if err := c.connect(ctx, deadline); err != nil {
			return result{answer: classify(err), err: err}, false
		}
	}
	_ = c.conn.SetDeadline(deadline)
	if err := ctx.Err(); err != nil { // after SetDeadline, which undoes a cancellation
		c.drop()
		return result{answer: broken, err: err}, false
	}
	if _, err := c.conn.Write(c.out); err != nil {
		c.drop()
		return result{answer: classify(err), err: err}, true
	}
	if _, err := c.br.Peek(1); err != nil {
		c.drop()
		if err == io.EOF {
			err = io.ErrUnexpectedEOF
		}
		a := classify(err)
		return result{answer: a, err: err}, a == broken
	}
	h, err := c.head()
	if err == nil {
		if h.status < 200 || h.status > 299 {
			read = nil
		}
		err = c.body(&h, read)
	}
	if err != nil {
		c.drop()
		if errors.Is(err, ErrTruncated) || errors.Is(err, ErrNotMetrics) {
			return result{answer: unclean, status: h.status, err: err}, false
		}
		return result{answer: classify(err), err: err}, false
	}
	c.used = time.Now()
	if h.close {
		c.drop()
	}
	return result{answer: answered, status: h.status}, false
}

func (c *client) connect(ctx context.Context, deadline time.Time) error {
	dctx, cancel := context.WithDeadline(ctx, deadline)
	defer cancel()
	conn, err := c.dial(dctx, "tcp", c.addr)
	if err != nil {
		return err
	}
	if c.tls != nil {
		t := tls.Client(conn, c.tls)
		if err := t.HandshakeContext(dctx); err != nil {
			_ = conn.Close()
			return err
		}
		conn = t
	}
	c.line = &line{
		conn: conn, in: conn, br: bufio.NewReaderSize(conn, 4<<10),
		unhook: context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) }),
	}
	return nil
}

// drop ends the connection in use.
func (c *client) drop() {
	if c.line != nil {
		c.line.end()
		c.line = nil
	}
}

// close ends the client's connection, in use or at rest.
func (c *client) close() {
	c.drop()
	c.rest.close()
}

// classify sorts a network error.
func classify(err error) answer {
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded), errors.Is(err, context.DeadlineExceeded):
		return timedOut
	case errors.Is(err, syscall.ECONNREFUSED), errors.Is(err, syscall.EHOSTUNREACH), errors.Is(err, syscall.ENETUNREACH):
		return refused
	}
	var ne net.Error
	if errors.As(err, &ne) && ne.Timeout() {
		return timedOut
	}
	return broken
}

// head is what matters of a response head.
type head struct {
	status  int
	length  int64 // -1 = not given
	chunked bool
	close   bool
}

// head reads response heads until the first that is not informational.
func (c *client) head() (head, error) {
	for {
		h, err := c.oneHead()
		if err != nil || h.status >= 200 {
			return h, err
		}
	}
}

func (c *client) oneHead() (head, error) {
	h := head{length: -1}
	b, err := c.textLine()
	if err != nil {
		return h, err
	}
	if len(b) < 12 || string(b[:7]) != "HTTP/1." || b[8] != ' ' || len(b) > 12 && b[12] != ' ' {
		return h, errBadHTTP
	}
	old := b[7] == '0'
	h.close = old
	if h.status, err = strconv.Atoi(string(b[9:12])); err != nil || h.status < 100 {
		return h, errBadHTTP
	}
	for range 256 {
		b, err := c.textLine()
		if err != nil {
			return h, err
		}
		if len(b) == 0 {
			if old && h.chunked { // HTTP/1.0 has no chunks: whatever this is, it is broken
				return h, errBadHTTP
			}
			return h, nil
		}
		if err := h.field(b); err != nil {
			return h, err
		}
	}
	return h, errTooLong
}

func (h *head) field(b []byte) error {
	i := bytes.IndexByte(b, ':')
	if i <= 0 {
		return errBadHTTP
	}
	name, value := b[:i], bytes.TrimSpace(b[i+1:])
	switch {
	case foldEqual(name, "content-length"):
		n, err := strconv.ParseUint(string(value), 10, 63)
		if err != nil || h.length >= 0 && h.length != int64(n) {
			return errBadHTTP
		}
		h.length = int64(n)
	case foldEqual(name, "transfer-encoding"):
		if !foldEqual(value, "chunked") {
			return errBadHTTP
		}
		h.chunked = true
	case foldEqual(name, "connection"):
		if foldEqual(value, "close") {
			h.close = true
		} else if foldEqual(value, "keep-alive") {
			h.close = false
		}
	}
	return nil
}

// foldEqual compares ASCII without regard to case.
func foldEqual(b []byte, lower string) bool {
	if len(b) != len(lower) {
		return false
	}
	for i, c := range b {
		if 'A' <= c && c <= 'Z' {
			c += 'a' - 'A'
		}
		if c != lower[i] {
			return false
		}
	}
	return true
}

// textLine reads a line of head or framing; the result is valid until the next read.
func (c *client) textLine() ([]byte, error) {
	b, err := c.br.ReadSlice('\n')
	switch err {
	case nil:
		b = b[:len(b)-1]
		if n := len(b); n > 0 && b[n-1] == '\r' {
			b = b[:n-1]
		}
		return b, nil
	case bufio.ErrBufferFull:
		return nil, errTooLong
	case io.EOF:
		return nil, io.ErrUnexpectedEOF
	}
	return nil, err
}

// body reads the answer's body to its end.
func (c *client) body(h *head, read func([]byte) error) error {
	switch {
	case h.status == 204 || h.status == 304:
		return nil
	case h.chunked:
		return c.chunks(read)
	case h.length >= 0:
		if h.length > maxBody {
			return errTooLong
		}
		return c.pass(h.length, read)
	}
	h.close = true
	err := c.pass(maxBody+1, read)
	if err == io.ErrUnexpectedEOF {
		return nil // delimited by the end of the connection
	}
	if err == nil {
		err = errTooLong
	}
	return err
}

func (c *client) chunks(read func([]byte) error) error {
	total := int64(0)
	for {
		b, err := c.chunkLine()
		if err != nil {
			return err
		}
		if i := bytes.IndexByte(b, ';'); i >= 0 {
			b = b[:i]
		}
		n, err := strconv.ParseUint(string(bytes.TrimSpace(b)), 16, 31)
		if err != nil {
			return errBadHTTP
		}
		if n == 0 {
			break
		}
		if total += int64(n); total > maxBody {
			return errTooLong
		}
		if err := c.pass(int64(n), read); err != nil {
			return err
		}
		if b, err := c.chunkLine(); err != nil || len(b) > 0 {
			return errBadHTTP
		}
	}
	for { // trailers
		b, err := c.textLine()
		if err != nil || len(b) == 0 {
			return err
		}
	}
}

// chunkLine reads a line of chunk framing, which has no excuse for a bare line feed.
func (c *client) chunkLine() ([]byte, error) {
	b, err := c.br.ReadSlice('\n')
	if err == io.EOF {
		return nil, io.ErrUnexpectedEOF
	}
	if err != nil {
		return nil, err
	}
	if len(b) < 2 || b[len(b)-2] != '\r' {
		return nil, errBadHTTP
	}
	return b[:len(b)-2], nil
}

// pass hands the next n bytes on: first what the head's reader has taken in, then
// straight from the connection in large pieces.
func (c *client) pass(n int64, read func([]byte) error) error {
	if k := int(min(n, int64(c.br.Buffered()))); k > 0 {
		b, _ := c.br.Peek(k)
		if err := hand(read, b); err != nil {
			return err
		}
		_, _ = c.br.Discard(k)
		n -= int64(k)
	}
	if n == 0 {
		return nil
	}
	piece := takePiece()
	defer givePiece(piece)
	for n > 0 {
		k, err := c.in.Read(piece[:min(n, pieceSize)])
		if k > 0 {
			if err := hand(read, piece[:k]); err != nil {
				return err
			}
			n -= int64(k)
		}
		switch {
		case n == 0:
		case err == io.EOF:
			return io.ErrUnexpectedEOF
		case err != nil:
			return err
		}
	}
	return nil
}

func hand(read func([]byte) error, b []byte) error {
	if read == nil {
		return nil
	}
	return read(b)
}
