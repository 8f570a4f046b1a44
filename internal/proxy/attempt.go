package proxy

import (
	"errors"
	"os"
	"strconv"
	"time"

	"github.com/prefixring/prefixring/internal/dialect"
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
	// retryElsewhere: the node does not have the object that was asked for.
	retryElsewhere
	// timeUp: the read deadline passed; the exchange goes on when it is asked again.
	timeUp
	// giveUp: nothing more may be tried.
	giveUp
)

// attempt is the first half of step 5: send the request to the picked node.
func (ex *exchange) attempt(fresh bool) (verdict, *failure) {
	c := ex.c
	c.record.Tries++
	c.sent = c.p.opts.Now()
	if d := c.p.opts.Hedge; d > 0 {
		c.hedged = c.hedged || ex.up.account != nil // two hosts would both charge
		c.hedgeAt = time.Now().Add(d)
	}
	c.plan(ex.up)
	if v, f := ex.connect(fresh); v != replyReady {
		return v, f
	}
	if err := ex.send(); err != nil {
		return ex.broken(err)
	}
	c.enter(phaseWaiting)
	return replyReady, nil
}

// await is its second half: wait for the first event, so that nothing is committed
// that could still be saved.
func (ex *exchange) await() (verdict, *failure) {
	if err := ex.receive(); err != nil {
		return ex.broken(err)
	}
	return ex.judge()
}

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
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		return timeUp, nil
	case ex.conn.reused && !ex.reply.begun:
		return retrySame, &failClosed
	}
	c.p.report(ex.node, OutcomeClosed)
	ex.unanswered(true)
	if malformed(err) {
		// It answered, and would answer the next request the same way.
		return giveUp, &failReply
	}
	return retryNext, &failClosed
}

// malformed reports that an engine sent something that is no HTTP response.
func malformed(err error) bool {
	for _, e := range [...]error{errBadHead, errBadChunk, errHeadTooLarge, errHeadInterim, errHeadUpgrade} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

// judge looks at the response head, and for streams at the first event, and says
// what to do with it.
func (ex *exchange) judge() (verdict, *failure) {
	c := ex.c
	if ex.up.account != nil {
		if v, f, done := ex.heard(); done {
			return v, f
		}
	}
	if ex.head.status == 503 {
		return ex.refused(retryAfter(ex.head.retryAfter))
	}
	if ex.elsewhere() {
		return retryElsewhere, &failStored
	}
	if ex.head.status == 200 {
		st := ex.tap.State()
		switch {
		case ex.head.eventStream && st.ErrorEvent:
			return ex.judgeError(st.ErrorCode)
		case st.Aborted && !st.FirstToken && c.protocol != dialect.Opaque && ex.abortedEmpty():
			// An engine that is shutting down answers new work with an abort inside
			// a 200 (engine_contracts 1 fact 5).
			return ex.refused(0)
		}
	}
	c.p.report(ex.node, outcomeOf(ex.head.status))
	return replyReady, nil
}

// refused is an engine that will not take work now: somebody else's turn.
func (ex *exchange) refused(wish time.Duration) (verdict, *failure) {
	ex.up.setBusy(ex.c.p.opts.Now(), wish)
	ex.c.p.report(ex.node, OutcomeBusy)
	return retryNext, &failBound
}

// judgeError handles a stream of status 200 whose first event is an error: it gets
// the status it should have had, and a full queue is somebody else's turn
// (engine_contracts 1 fact 2).
func (ex *exchange) judgeError(code int) (verdict, *failure) {
	if code < 400 || code > 599 {
		code = 500
	}
	ex.status = code
	if code == 503 {
		return ex.refused(0)
	}
	ex.c.p.report(ex.node, outcomeOf(code))
	return replyReady, nil
}

// abortedEmpty reports that an aborted answer has no text in it.
func (ex *exchange) abortedEmpty() bool {
	if ex.head.eventStream {
		return true
	}
	return ex.reply.done && ex.end(true).Usage.Output == 0
}

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
