package proxy

import (
	"bytes"
	"context"
	"errors"
	"net"
	"strconv"
	"time"

	"github.com/prefixring/prefixring/internal/dialect"
	"github.com/prefixring/prefixring/ring"
)

// verdict is what an attempt found out. Retries follow verdicts, never habit.
type verdict uint8

const (
	// replyReady: a response can be committed.
	replyReady verdict = iota
	// retrySame: a pooled connection turned out to be closed before one octet of a
	// response came. The same node is asked once more, on a new connection.
	retrySame
	// retryUnsent: no connection could be made; the node never saw the request.
	retryUnsent
	// retryNext: the node refused the work, or died before its first event.
	retryNext
	// giveUp: nothing more may be tried.
	giveUp
)

// exchange is one request and response with one engine.
type exchange struct {
	c        *call
	slot     ring.Slot
	node     *ring.Node
	held     bool // the slot is ours to release
	answered bool // a response head came

	up    *Upstream
	conn  *engineConn
	reply reply
	head  replyHead
	tap   dialect.Tap
	taps  bool // the body can be read by the tap
	fed   int  // pending octets that the tap has seen
	ended bool
	out   dialect.Outcome

	bufs   net.Buffers
	pieces [][]byte // of the request, kept for its storage
}

// attempt is step 5: send the request to the picked node and wait for the first
// event, so that nothing is committed that could still be saved.
func (c *call) attempt(fresh bool) (verdict, *failure) {
	ex := &c.ex
	ex.c, ex.up = c, ex.node.Value().(*Upstream)
	c.record.Tries++
	c.sent = c.p.opts.Now()
	c.plan(ex.up)
	if v, f := ex.connect(fresh); v != replyReady {
		return v, f
	}
	if err := ex.send(); err != nil {
		return ex.broken(err)
	}
	c.enter(phaseWaiting)
	if err := ex.reply.readHead(&ex.head); err != nil {
		return ex.broken(err)
	}
	ex.answered = true
	ex.up.breaker.success()
	ex.reply.begin(&ex.head, c.ctx.Request.Header.IsHead())
	return ex.judge()
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
				ex.up.breaker.abandon()
				return giveUp, why.failure()
			}
			ex.up.breaker.failure(c.p.opts.Now())
			c.p.report(ex.node, OutcomeConnectFailed)
			if isTimeout(err) {
				return retryUnsent, &failConnectTime
			}
			return retryUnsent, &failConnect
		}
		ex.conn = conn
	}
	if !c.attach(0, ex.conn) {
		ex.up.breaker.abandon()
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
	c.heads = c.appendRequestHead(c.heads[:0], ex.up, length)
	pieces[0] = c.heads
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

// broken classifies an exchange that failed before its first event.
func (ex *exchange) broken(err error) (verdict, *failure) {
	c := ex.c
	// A cancel closes the connection, which looks like a dead engine: ask first.
	if why := c.cancelled(); why != causeNone {
		if why == causeFirstByte {
			c.p.report(ex.node, OutcomeTimeout)
			if c.p.opts.Retry.OnTimeout {
				return retryNext, why.failure()
			}
		}
		return giveUp, why.failure()
	}
	if ex.conn.reused && !ex.reply.begun {
		return retrySame, &failClosed
	}
	c.p.report(ex.node, OutcomeClosed)
	if errors.Is(err, errBadHead) || errors.Is(err, errBadChunk) || errors.Is(err, errHeadTooLarge) ||
		errors.Is(err, errHeadInterim) || errors.Is(err, errHeadUpgrade) {
		// It answered, and would answer the next request the same way.
		return giveUp, &failReply
	}
	return retryNext, &failClosed
}

// judge looks at the response head, and for streams at the first event, and says
// what to do with it.
func (ex *exchange) judge() (verdict, *failure) {
	c := ex.c
	ex.taps = !ex.head.encoded
	ex.tap.Reset(c.protocol, ex.head.status, b2s(ex.head.contentType))
	switch ex.head.status {
	case 503:
		ex.up.setBusy(c.p.opts.Now(), retryAfter(ex.head.retryAfter))
		c.p.report(ex.node, OutcomeBusy)
		return retryNext, &failBound
	case 401, 403:
		c.p.report(ex.node, OutcomeAuth)
	}
	if ex.head.status == 200 {
		if err := ex.awaitFirst(); err != nil {
			return ex.broken(err)
		}
		st := ex.tap.State()
		switch {
		case ex.head.eventStream && st.ErrorEvent:
			return ex.judgeError(st.ErrorCode)
		case st.Aborted && !st.FirstToken && c.protocol != dialect.Opaque && c.abortedEmpty():
			// An engine that is shutting down answers new work with an abort inside
			// a 200 (engine_contracts 1 fact 5).
			return retryNext, &failBound
		}
	}
	c.p.report(ex.node, outcomeOf(ex.head.status))
	return replyReady, nil
}

// abortedEmpty reports that an aborted answer has no text in it.
func (c *call) abortedEmpty() bool {
	if c.ex.head.eventStream {
		return true
	}
	return c.ex.reply.done && c.ex.end(true).Usage.Output == 0
}

// judgeError handles a stream of status 200 whose first event is an error: it gets
// the status it should have had, and a full queue is somebody else's turn
// (engine_contracts 1 fact 2).
func (ex *exchange) judgeError(code int) (verdict, *failure) {
	c := ex.c
	if code < 400 || code > 599 {
		code = 500
	}
	c.status = code
	if code == 503 {
		ex.up.setBusy(c.p.opts.Now(), 0)
		c.p.report(ex.node, OutcomeBusy)
		return retryNext, &failBound
	}
	c.p.report(ex.node, outcomeOf(code))
	return replyReady, nil
}

// awaitFirst reads until the response may be committed: a stream at its first event
// or comment; a body of known length that fits the buffer when it is whole, so that
// an engine that dies in the middle of it can still be replaced; any other body at
// its first octet.
func (ex *exchange) awaitFirst() error {
	b := &ex.reply
	stream := ex.head.eventStream && ex.taps
	whole := b.mode == bodyLength && b.left <= int64(len(b.buf)/2)
	for !b.done {
		err := b.more()
		if stream {
			if ex.feedFirst() || comment(b.pending()) {
				return nil
			}
		} else {
			ex.feed()
		}
		if err != nil {
			if errors.Is(err, errBufferFull) || b.done {
				break
			}
			return err
		}
		if !stream && !whole {
			return nil
		}
	}
	return nil
}

// feedFirst shows the tap what came, line by line, and stops behind the first event:
// what that event is decides more than what follows it in the same read.
func (ex *exchange) feedFirst() bool {
	p := ex.reply.pending()
	for ex.fed < len(p) {
		n := bytes.IndexByte(p[ex.fed:], '\n') + 1
		if n == 0 {
			n = len(p) - ex.fed
		}
		ex.tap.Write(p[ex.fed : ex.fed+n])
		ex.fed += n
		if st := ex.tap.State(); st.FirstEvent || st.ErrorEvent {
			ex.c.noteTimes(ex)
			return true
		}
	}
	return false
}

// feed shows the tap what came since it was shown something last.
func (ex *exchange) feed() {
	p := ex.reply.pending()
	if len(p) > ex.fed {
		if ex.taps {
			ex.tap.Write(p[ex.fed:])
		}
		ex.c.noteTimes(ex)
		ex.fed = len(p)
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
		if ex.taps {
			ex.out = ex.tap.End(eof)
		}
	}
	return ex.out
}

// hangUp drops a connection that turned out to be closed; the slot stays.
func (ex *exchange) hangUp() {
	ex.c.detach(0)
	ex.up.pool.drop(ex.conn)
	ex.conn = nil
}

// close ends the exchange: the connection is parked if the next response can begin
// on it, the slot is given back, and whoever waits is told.
func (ex *exchange) close() {
	if ex.conn != nil {
		ok := ex.c.detach(0)
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
		ex.c.gate.drop()
		ex.c.route.pool.queue.wake()
	}
}

// reset clears what the exchange left, and keeps the buffers.
func (ex *exchange) reset() {
	ex.c, ex.node, ex.up, ex.conn = nil, nil, nil, nil
	ex.slot = ring.Slot{}
	ex.taps, ex.ended, ex.answered, ex.fed = false, false, false, 0
	ex.out = dialect.Outcome{}
}

// comment reports that a stream began with a comment line: the engine is alive and
// wants the client to know (field case B05).
func comment(p []byte) bool { return len(p) > 1 && p[0] == ':' && p[len(p)-1] == '\n' }

// retryAfter reads Retry-After in seconds; dates and nonsense are 0.
func retryAfter(v []byte) time.Duration {
	n, err := strconv.Atoi(b2s(v))
	if err != nil || n < 0 || n > 3600 {
		return 0
	}
	return time.Duration(n) * time.Second
}

func isTimeout(err error) bool {
	var t interface{ Timeout() bool }
	return errors.As(err, &t) && t.Timeout()
}
