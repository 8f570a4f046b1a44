package proxy

import (
	"crypto/rand"
	"crypto/tls"
	"encoding/hex"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/valyala/fasthttp"
)

// Proxy is the data plane. Its methods may be called from any goroutine.
type Proxy struct {
	opts  Options
	table atomic.Pointer[Table]

	admission atomic.Pointer[Admission] // nil = everyone may

	server *fasthttp.Server
	conns  connSet
	budget budget

	idPrefix string // random per process, so that ids of two routers never meet
	nextID   atomic.Uint64
	born     int64       // Unix seconds, the "created" of models
	retiring atomic.Bool // responses close their connections
	cutting  atomic.Bool // new requests are refused

	counts counts

	starting sync.Once
	started  error
	stopping sync.Once
	quit     chan struct{}
	tended   sync.WaitGroup
}

// counts are cheap totals for Stats.
type counts struct {
	settled atomic.Int64
	panics  atomic.Int64
}

// New returns a proxy without a routing table: it answers 503 until SetTable.
func New(o Options) (*Proxy, error) {
	o = o.withDefaults()
	if err := o.validate(); err != nil {
		return nil, err
	}
	p := &Proxy{opts: o, quit: make(chan struct{})}
	var id [4]byte
	if _, err := rand.Read(id[:]); err != nil {
		return nil, err
	}
	p.born = o.Now().Unix()
	p.idPrefix = hex.EncodeToString(id[:])
	p.budget.init(o.Retry.Ratio, o.Retry.Burst)
	p.conns.watch.halfClose = o.KeepHalfClosed
	p.conns.coarse.Store(o.Now().UnixNano())
	p.SetAdmission(o.Admission)
	p.server = p.newServer()
	return p, nil
}

// SetAdmission decides who may from now on; nil means everyone, without limits.
// Requests under way settle with the tenant that they were admitted as.
func (p *Proxy) SetAdmission(a Admission) {
	if a == nil {
		p.admission.Store(nil)
		return
	}
	p.admission.Store(&a)
}

// newServer sets fasthttp up as a transparent front: it adds nothing to messages,
// and holds no buffer for connections that are idle or streaming.
func (p *Proxy) newServer() *fasthttp.Server {
	t := &p.opts.Timeouts
	return &fasthttp.Server{
		Handler:            p.Handler,
		ErrorHandler:       p.onError,
		HeaderReceived:     p.headerReceived,
		ExpectHandler:      p.onExpect,
		ReadBufferSize:     p.opts.MaxHeader,
		WriteBufferSize:    4096,
		MaxRequestBodySize: p.opts.MaxBody,
		ReadTimeout:        t.ReadRequest,
		IdleTimeout:        t.ClientIdle,
		// WriteTimeout would be one limit for a whole stream; the janitor cuts
		// clients that stop reading.

		// With this the 64 KiB read buffer is lent per request and not kept by idle
		// and streaming connections; clientConn.Read makes up for its price.
		ReduceMemoryUsage:            true,
		CloseOnShutdown:              true,
		DisablePreParseMultipartForm: true,
		NoDefaultServerHeader:        true,
		NoDefaultDate:                true,
		NoDefaultContentType:         true,
		SecureErrorLogMessage:        true,
		Logger:                       discard{},
	}
}

// SetTable swaps the routing snapshot. Calls that run keep the one they began with.
func (p *Proxy) SetTable(t *Table) { p.table.Store(t) }

// Table returns the snapshot in use, or nil.
func (p *Proxy) Table() *Table { return p.table.Load() }

// Serve accepts clients on ln until Drain or Close, and closes it. It may be called
// for several listeners.
func (p *Proxy) Serve(ln net.Listener) error {
	if err := p.start(); err != nil {
		ln.Close()
		return err
	}
	var l net.Listener = listener{ln, &p.conns, p.quit, p.opts.Log}
	if p.opts.TLS != nil {
		l = tls.NewListener(l, p.opts.TLS)
	}
	return p.server.Serve(l)
}

// start begins the watch and the janitor.
func (p *Proxy) start() error {
	p.starting.Do(func() {
		if p.started = p.conns.watch.start(); p.started != nil {
			return
		}
		p.tended.Add(1)
		go p.tend()
	})
	return p.started
}

// stop ends what start began and waits for it.
func (p *Proxy) stop() {
	p.stopping.Do(func() {
		close(p.quit)
		p.tended.Wait()
		p.conns.watch.stop()
	})
}

// tick is how often the janitor looks: limits are kept to within it.
const tick = 50 * time.Millisecond

// tend is the janitor's goroutine. It ends in stop.
func (p *Proxy) tend() {
	defer p.tended.Done()
	t := time.NewTicker(tick)
	defer t.Stop()
	for n := 0; ; n++ {
		select {
		case <-p.quit:
			return
		case <-t.C:
			now := p.opts.Now()
			p.sweep(now)
			if n%20 == 0 {
				p.prune(now)
			}
		}
	}
}

// sweep enforces every limit on running calls and idle clients.
func (p *Proxy) sweep(now time.Time) {
	p.conns.coarse.Store(now.UnixNano())
	p.conns.each(func(c *clientConn) {
		if cl := c.cur.Load(); cl != nil {
			p.check(c, cl, now)
		} else {
			c.expire(now)
		}
	})
	if t := p.table.Load(); t != nil {
		for _, pool := range t.pools {
			// A node may have opened without a slot being released.
			pool.queue.wake()
		}
	}
}

// check looks at one running call. The call may end and be reused meanwhile: the
// sequence number is read first, and cancelFor compares it.
func (p *Proxy) check(c *clientConn, cl *call, now time.Time) {
	seq := cl.seq.Load()
	t := &p.opts.Timeouts
	if w := c.writing.Load(); w != 0 {
		if overdue(now, w, t.ClientStall) {
			cl.cancelFor(c, seq, causeClientStalled)
			c.Conn.SetWriteDeadline(longAgo)
		}
		return
	}
	since := cl.since.Load()
	switch phase(cl.phase.Load()) {
	case phaseWaiting:
		if overdue(now, since, t.FirstByte) {
			cl.cancelFor(c, seq, causeFirstByte)
		}
	case phaseBody:
		if overdue(now, since, t.BetweenEvents) {
			cl.cancelFor(c, seq, causeIdle)
		}
	}
	if overdue(now, cl.begin.Load(), t.Total) {
		cl.cancelFor(c, seq, causeTotal)
	}
}

// overdue reports that more than limit has passed since the given Unix nanoseconds.
func overdue(now time.Time, since int64, limit time.Duration) bool {
	return limit > 0 && since != 0 && now.UnixNano()-since > int64(limit)
}

// prune closes engine connections that are too old to be used again.
func (p *Proxy) prune(now time.Time) {
	t := p.table.Load()
	if t == nil {
		return
	}
	for _, pool := range t.pools {
		for _, n := range pool.Ring.Nodes() {
			if up, ok := n.Value().(*Upstream); ok {
				up.pool.prune(now)
			}
		}
	}
}

// clientOf returns the connection below a request, or nil when the handler runs
// under a server that is not ours, and if nothing (no TLS) lies between.
func (p *Proxy) clientOf(ctx *fasthttp.RequestCtx) (cc *clientConn, plain bool) {
	switch c := ctx.Conn().(type) {
	case *clientConn:
		return c, true
	case *tls.Conn:
		cc, _ = c.NetConn().(*clientConn)
		return cc, false
	}
	return nil, false
}

// discard swallows fasthttp's own messages: they may quote what a client sent, and
// whatever they are about is answered and logged by onError.
type discard struct{}

func (discard) Printf(string, ...any) {}
