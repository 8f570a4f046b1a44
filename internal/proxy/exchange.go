package proxy

import (
	"context"
	"errors"
	"net"
	"sync"
	"time"

	"github.com/prefixring/prefixring/internal/dialect"
	"github.com/prefixring/prefixring/ring"
)

// exchange is one request and response with one engine: the slot it holds, its
// connection and what has been read. A call has one, and a second while it hedges.
type exchange struct {
	c      *call
	i      int // place in call.engines
	slot   ring.Slot
	node   *ring.Node
	reason ring.Reason
	gate   gate
	held   bool // the slot is ours to release

	up       *Upstream
	conn     *engineConn
	reply    reply
	head     replyHead
	answered bool      // a response head came
	begun    bool      // a body octet came
	armed    bool      // the connection has a read deadline
	spoke    bool      // a comment line came before the first event
	wake     time.Time // when the call wants its wait to be interrupted
	holdEnd  time.Time // until when announcements are held back; zero = no limit, or none came
	status   int       // that the client should get, if it differs from the head's

	tap    dialect.Tap
	tapped bool // the body can be read by the tap
	fed    int  // pending octets that the tap has seen
	ended  bool
	out    dialect.Outcome

	bufs   net.Buffers
	pieces [][]byte // of the request, kept for its storage
	heads  []byte   // request head
}

var exchanges = sync.Pool{New: func() any { return new(exchange) }}

// reset clears what an exchange left, and keeps the buffers.
func (ex *exchange) reset() {
	ex.c, ex.node, ex.up, ex.conn = nil, nil, nil, nil
	ex.slot, ex.gate = ring.Slot{}, gate{}
	ex.answered, ex.begun, ex.armed, ex.tapped, ex.ended = false, false, false, false, false
	ex.spoke, ex.wake, ex.holdEnd = false, time.Time{}, time.Time{}
	ex.status, ex.fed = 0, 0
	ex.out = dialect.Outcome{}
}

// connect gets a connection and puts it within reach of a cancel.
func (ex *exchange) connect(fresh bool) (verdict, *failure) {
	c, pool := ex.c, &ex.up.pool
	if !fresh {
		ex.conn = pool.take()
	}
	if ex.conn == nil {
		conn, err := ex.dial()
		if err != nil {
			if why := c.cancelled(); why != causeNone {
				return giveUp, why.failure()
			}
			ex.up.breaker.failure(c.p.opts.Now())
			c.p.report(ex.node, OutcomeConnectFailed)
			ex.unanswered(false)
			if isTimeout(err) {
				return retryUnsent, &failConnectTime
			}
			return retryUnsent, &failConnect
		}
		ex.conn = conn
		ex.up.breaker.success()
	}
	if !c.attach(ex.i, ex.conn) {
		pool.drop(ex.conn)
		ex.conn = nil
		return giveUp, c.cancelled().failure()
	}
	return replyReady, nil
}

// dial opens a connection; a cancel ends it.
func (ex *exchange) dial() (*engineConn, error) {
	c := ex.c
	c.enter(phaseConnect)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	c.mu.Lock()
	if c.why != causeNone {
		c.mu.Unlock()
		return nil, context.Canceled
	}
	c.stopDial = cancel
	c.mu.Unlock()
	conn, err := ex.up.pool.connect(ctx)
	c.mu.Lock()
	c.stopDial = nil
	c.mu.Unlock()
	return conn, err
}

// send writes head and body with one system call where the socket takes it: the
// body goes out from where it was read in.
func (ex *exchange) send() error {
	c := ex.c
	ex.reply.reset(ex.conn)
	pieces, length := c.splices.pieces(c.body, append(ex.pieces[:0], nil))
	ex.heads = c.appendRequestHead(ex.heads[:0], ex.up, length)
	pieces[0] = ex.heads
	ex.pieces = pieces
	if length == 0 {
		pieces = pieces[:1]
	}
	ex.bufs = pieces
	_, err := ex.bufs.WriteTo(ex.conn.Conn)
	clear(ex.pieces)
	ex.bufs = nil
	if err != nil {
		return ex.early(err)
	}
	return nil
}

// early looks for a response that an engine sent before it had read all of the
// request (a 413, a 401): it is worth more than the write error.
func (ex *exchange) early(werr error) error {
	ex.conn.SetReadDeadline(time.Now().Add(earlyReply))
	if ex.reply.fill() != nil {
		return werr
	}
	ex.conn.SetReadDeadline(time.Time{})
	ex.conn.spent = true
	return nil
}

// earlyReply is how long a response is waited for that the engine must have sent
// before it closed.
const earlyReply = 100 * time.Millisecond

// receive reads the response head and up to the first event. It can be called again
// after a read deadline has passed.
func (ex *exchange) receive() error {
	if !ex.answered {
		if err := ex.reply.readHead(&ex.head); err != nil {
			return err
		}
		ex.answered = true
		ex.head.hosted = ex.up.account != nil
		ex.up.breaker.success()
		ex.reply.begin(&ex.head, ex.c.ctx.Request.Header.IsHead())
		ex.tapped = !ex.head.encoded
		ex.tap.Reset(ex.c.protocol, ex.head.status, b2s(ex.head.contentType))
	}
	if ex.head.status != 200 {
		return nil
	}
	return ex.awaitFirst()
}

// awaitFirst reads until the response may be committed: a stream at its first event
// that is no announcement, or at a comment (announce.go); a body of known length that fits the buffer when it is whole, so that
// an engine that dies in the middle of it can still be replaced; any other body at
// its first octet.
func (ex *exchange) awaitFirst() error {
	b := &ex.reply
	stream := ex.head.eventStream && ex.tapped
	whole := b.mode == bodyLength && ex.head.length <= int64(len(b.buf)/2)
	for !b.done {
		err := b.more()
		if stream {
			if ex.feedFirst() {
				break
			}
		} else {
			ex.feed()
		}
		if err != nil {
			if stream && errors.Is(err, errBufferFull) && b.grow(maxHeld, 2*len(ex.c.body)) {
				continue
			}
			if errors.Is(err, errBufferFull) || b.done || ex.heldEnough(err) {
				break
			}
			return err
		}
		if !stream && !whole {
			break
		}
	}
	ex.endHold()
	return nil
}

// feed shows the tap what came since it was shown something last.
func (ex *exchange) feed() {
	if p := ex.reply.pending(); len(p) > ex.fed {
		if ex.tapped {
			ex.tap.Write(p[ex.fed:])
		}
		ex.fed = len(p)
		ex.begun = true
	}
}

// more reads on and shows the tap what came.
func (ex *exchange) more() error {
	err := ex.reply.more()
	ex.feed()
	return err
}

// take marks what is pending as delivered.
func (ex *exchange) take() {
	ex.reply.take()
	ex.fed = 0
}

// end closes the evidence.
func (ex *exchange) end(eof bool) dialect.Outcome {
	if !ex.ended {
		ex.ended = true
		ex.out = dialect.Outcome{Usage: dialect.NoUsage}
		if ex.tapped {
			ex.out = ex.tap.End(eof)
		}
	}
	return ex.out
}

// hangUp drops a connection that turned out to be closed; the slot stays.
func (ex *exchange) hangUp() {
	ex.c.detach(ex.i)
	ex.up.pool.drop(ex.conn)
	ex.conn = nil
}

// close ends the exchange: the connection is parked if the next response can begin
// on it, the slot is given back, and whoever waits is told.
func (ex *exchange) close() {
	if ex.conn != nil {
		ok := ex.c.detach(ex.i)
		pool := &ex.up.pool
		if ok && ex.reply.clean() && ex.head.keepAlive && !ex.conn.spent {
			pool.park(ex.conn)
		} else {
			pool.drop(ex.conn)
		}
		ex.conn = nil
	}
	ex.reply.release()
	if ex.held {
		ex.held = false
		ex.slot.Release()
		ex.gate.drop()
		if ex.gate.probe {
			ex.up.breaker.abandon()
		}
		ex.c.route.pool.queue.wake()
	}
}
