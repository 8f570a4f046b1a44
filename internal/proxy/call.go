package proxy

import (
	"context"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/valyala/fasthttp"

	"github.com/prefixring/prefixring/internal/dialect"
	"github.com/prefixring/prefixring/internal/fingerprint"
	"github.com/prefixring/prefixring/internal/telemetry"
	"github.com/prefixring/prefixring/ring"
)

// phase is where a call is, for the janitor: each phase has its own limit.
type phase uint32

const (
	phaseIdle     phase = iota // not being served
	phaseRoute                 // admission, scan, pick, queue
	phaseConnect               // bounded by the dialer
	phaseWaiting               // the request is out, no event has come
	phaseBody                  // between two octets of the engine's body
	phaseDelivery              // writing to the client
)

// call is one request from its head to the close of its response body. It belongs
// to the goroutine that serves the connection; only the fields that say so may be
// touched from elsewhere. Calls are pooled: whoever cancels one names the sequence
// number it means.
type call struct {
	p   *Proxy
	ctx *fasthttp.RequestCtx

	seq   atomic.Uint64 // changes when the call is reused
	phase atomic.Uint32
	since atomic.Int64 // coarse time of the last progress in this phase
	begin atomic.Int64 // Unix nanoseconds

	mu       sync.Mutex // guards the following
	conn     *clientConn
	why      cause
	engines  [2]*engineConn // connections of the exchange and of its hedge
	wake     chan struct{}  // closed by cancel; made only when somebody waits
	stopDial context.CancelFunc

	request

	// Buffers that outlive a request.
	ex       *exchange // pooled on its own: a hedge may replace it
	splices  splices
	strip    usageFilter
	id       []byte
	scratch  []byte
	respID   []byte // of a Responses answer
	frameBuf []byte
	vec      [3][]byte
	vecs     net.Buffers
}

// request is the state of a call that begins as zero for each request.
type request struct {
	// What it is.
	start    time.Time
	sent     time.Time // of the last attempt
	head     head
	protocol dialect.Protocol
	table    *Table
	route    *route
	way      way // to it, when the name has tiers
	body     []byte
	scan     *fingerprint.Result // nil once the body has been given back
	scanned  bool
	reader   *fingerprint.Scanner // that made scan
	opaque   bool                 // the body is compressed and not looked at
	stream   bool                 // the client asked for a stream
	http10   bool
	explain  bool
	peeking  bool   // for an explanation: nothing is learned from it
	key      uint64 // routing key; 0 = none
	family   uint64 // digest that bindings are scoped to: the key's, and the same after it changes
	learned  learned
	second   uint64 // chooses among owners: the conversation
	work     int64  // in ring units, without what the gate adds
	tokens   int64  // estimated prompt tokens
	static   int64  // estimated tokens of the static prefix
	owes     bool   // the tenant is owed a Settle

	// Where it goes.
	bound           binding
	query           ring.Query
	refusal         ring.Refusal
	blocked         blocked
	reason          ring.Reason
	node            *ring.Node // of the last attempt
	rank            int
	tried           [8]*ring.Node
	ntried          int
	owners          int // of the key, counted once per request
	retries         int
	step            step
	again           bool // the stale-connection retry of this node has been used
	hedged          bool
	hedgeAt         time.Time
	inLine          *place
	last            *failure // of the attempt before
	refusedByEngine bool     // the exchange holds a refusal to pass on
	saved           *savedReply

	// What the client gets.
	committed bool // the response head is decided and is the engine's
	early     bool // it was committed for a heartbeat, before any engine answered
	nextBeat  time.Time
	computed  bool // the engine has computed the prompt: began has said so
	whole     bool // the body ended cleanly
	fixed     bool // the client's body has a length
	headed    bool // the head has left the server's buffer
	direct    bool // the socket takes several pieces in one write
	settled   bool
	failed    *failure
	status    int
	out       int64 // body octets given to the client
	tail      [4]byte

	record telemetry.Record
}

var calls = sync.Pool{New: func() any { return new(call) }}

// newCall begins a call for the request in ctx.
func (p *Proxy) newCall(ctx *fasthttp.RequestCtx) *call {
	c := calls.Get().(*call)
	c.p, c.ctx = p, ctx
	c.ex = exchanges.Get().(*exchange)
	c.ex.c = c
	c.start = p.opts.Now()
	c.begin.Store(c.start.UnixNano())
	c.enter(phaseRoute)
	cc, plain := p.clientOf(ctx)
	c.direct = plain && cc != nil && cc.raw != nil
	c.mu.Lock()
	c.conn = cc
	c.mu.Unlock()
	if cc != nil {
		cc.serve(c)
	}
	return c
}

// enter moves the call to a phase and restarts its clock.
func (c *call) enter(ph phase) {
	c.since.Store(c.p.conns.coarse.Load())
	c.phase.Store(uint32(ph))
}

// cancelFor cancels the call if it is still the one numbered seq on conn. Safe from
// any goroutine.
func (c *call) cancelFor(conn *clientConn, seq uint64, why cause) {
	c.mu.Lock()
	if c.conn != conn || c.seq.Load() != seq {
		c.mu.Unlock()
		return
	}
	c.cancelLocked(why)
}

// cancel cancels the call from its own goroutine.
func (c *call) cancel(why cause) {
	c.mu.Lock()
	c.cancelLocked(why)
}

// revive takes a first-byte timeout back, so that another node can be asked.
func (c *call) revive() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.why != causeFirstByte {
		return c.why == causeNone
	}
	c.why = causeNone
	return true
}

// cancelLocked cancels with mu held, and gives it back. The first cause stays.
func (c *call) cancelLocked(why cause) {
	if c.why != causeNone {
		c.mu.Unlock()
		return
	}
	c.why = why
	engines, wake, stop := c.engines, c.wake, c.stopDial
	c.wake, c.stopDial = nil, nil
	c.mu.Unlock()
	if wake != nil {
		close(wake)
	}
	if stop != nil {
		stop()
	}
	for _, e := range engines {
		if e != nil {
			e.Close()
		}
	}
}

// cancelled returns why the call was cancelled, or causeNone.
func (c *call) cancelled() cause {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.why
}

// attach makes e the engine connection that a cancel closes. It reports false when
// the call was cancelled already; the caller then drops e.
func (c *call) attach(i int, e *engineConn) bool {
	c.mu.Lock()
	if c.why != causeNone {
		c.mu.Unlock()
		return false
	}
	c.engines[i] = e
	c.mu.Unlock()
	return true
}

// detach takes the connection back from the reach of cancel. It reports false when
// a cancel has closed it.
func (c *call) detach(i int) bool {
	c.mu.Lock()
	c.engines[i] = nil
	ok := c.why == causeNone
	c.mu.Unlock()
	return ok
}

// waiter returns a channel that a cancel closes; nil when it has happened already.
func (c *call) waiter() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.why != causeNone {
		return nil
	}
	if c.wake == nil {
		c.wake = make(chan struct{})
	}
	return c.wake
}

// free gives the call back. Nothing of it may be used afterwards; a late cancel
// finds another sequence number or no connection.
func (c *call) free() {
	c.mu.Lock()
	cc := c.conn
	c.conn, c.why, c.wake, c.stopDial = nil, causeNone, nil, nil
	c.engines = [2]*engineConn{}
	c.seq.Add(1)
	c.mu.Unlock()
	if cc != nil {
		cc.cur.Store(nil)
	}
	c.phase.Store(uint32(phaseIdle))
	c.reset()
	calls.Put(c)
}

// reset clears what a request left, and keeps the buffers.
func (c *call) reset() {
	c.p, c.ctx = nil, nil
	c.request = request{}
	c.ex.reset()
	exchanges.Put(c.ex)
	c.ex = nil
	c.splices.reset()
	c.strip.reset()
	c.id, c.scratch, c.respID = c.id[:0], c.scratch[:0], c.respID[:0]
}

// scans keeps scan results with their boundary storage.
var scans = sync.Pool{New: func() any { return new(fingerprint.Result) }}

func newScan() *fingerprint.Result { return scans.Get().(*fingerprint.Result) }
