package proxy

import (
	"bytes"
	"errors"
	"os"
	"time"
)

// A Responses or Messages stream begins with announcements: events that say that an
// answer will come and nothing of it (dialect.TapState.Output). vLLM sends
// response.created and response.in_progress before it has computed one prompt token,
// so a client that got them would be lost with the engine. They are held back until
// the first event of the answer itself, and then go out with it: until then another
// engine can take over, and an error gets the status that it should have.
//
// Holding ends early, and the stream is committed as it stands, after
// Timeouts.Announce, so that a long prefill does not look like a dead connection; when
// more than maxHeld octets have come; and at a comment line, with which an engine asks
// for its client to be told that it is alive. With heartbeats the client sees that
// anyhow, and time is no limit.

// maxHeld bounds what is held back. Engines repeat the instructions and tools of the
// request in each of two announcements, so this is enough for prompts of 500 KB.
const maxHeld = 1 * mib

// feedFirst shows the tap what came, line by line, and stops behind the event that
// commits the response: what that event is decides more than what follows it in the
// same read.
func (ex *exchange) feedFirst() bool {
	p := ex.reply.pending()
	for ex.fed < len(p) {
		n := bytes.IndexByte(p[ex.fed:], '\n') + 1
		if n == 0 {
			ex.tap.Write(p[ex.fed:])
			ex.fed = len(p)
			break
		}
		ex.tap.Write(p[ex.fed : ex.fed+n])
		ex.fed += n
		st := ex.tap.State()
		ex.begun = ex.begun || st.FirstEvent
		if st.Output || st.ErrorEvent || st.FirstEvent && ex.c.p.opts.Timeouts.Announce == 0 {
			return true
		}
		ex.spoke = ex.spoke || isComment(p[:ex.fed])
		if st.FirstEvent && ex.holdEnd.IsZero() {
			ex.hold()
		}
	}
	return ex.spoke
}

// isComment reports that the last line of p, which is whole, is a comment.
func isComment(p []byte) bool {
	return p[bytes.LastIndexByte(p[:len(p)-1], '\n')+1] == ':'
}

// hold begins the time for which announcements are held back.
func (ex *exchange) hold() {
	if ex.c.beats() {
		return
	}
	ex.holdEnd = time.Now().Add(ex.c.p.opts.Timeouts.Announce)
	ex.arm(ex.wake)
}

// heldEnough decides, when reading on failed, if what is held is to be passed on as it
// is.
func (ex *exchange) heldEnough(err error) bool {
	return errors.Is(err, os.ErrDeadlineExceeded) && !ex.holdEnd.IsZero() && !time.Now().Before(ex.holdEnd)
}

// endHold takes back the deadline that hold has set.
func (ex *exchange) endHold() {
	if !ex.holdEnd.IsZero() {
		ex.holdEnd = time.Time{}
		ex.arm(ex.wake)
	}
}

// arm interrupts the wait for the first event at a time; zero = not at all. The end of
// a hold interrupts it as well.
func (ex *exchange) arm(at time.Time) {
	ex.wake = at
	if end := ex.holdEnd; !end.IsZero() && (at.IsZero() || end.Before(at)) {
		at = end
	}
	if at.IsZero() && !ex.armed {
		return
	}
	ex.armed = !at.IsZero()
	ex.conn.SetReadDeadline(at)
}
