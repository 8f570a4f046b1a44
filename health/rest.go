package health

import (
	"bufio"
	"io"
	"net"
	"sync/atomic"
	"time"
)

// maxIdle is how long a connection may rest before it is reused. Both engines close
// theirs after 5 s (VLLM_HTTP_TIMEOUT_KEEP_ALIVE, SGLANG_TIMEOUT_KEEP_ALIVE).
const maxIdle = 3 * time.Second

// line is a connection to an engine with what reads from it.
type line struct {
	conn   net.Conn
	in     io.Reader     // reads from conn
	br     *bufio.Reader // reads from in: heads and framing
	unhook func() bool   // undoes the cancellation of conn
	used   time.Time     // end of the last exchange
}

func (l *line) end() {
	l.unhook()
	_ = l.conn.Close()
}

// rest is where the one connection of an engine lies between exchanges, for whichever
// loop needs it next. The metrics loop keeps it young, so that the other loop, which
// comes each 5 s only, need not connect each time: connecting would cost a fifth of all
// polling. While one loop uses it the other makes a second one; one of the two is kept.
type rest struct{ idle atomic.Pointer[line] }

// take returns the resting connection, nil if there is none that is young enough.
func (r *rest) take(now time.Time) *line {
	l := r.idle.Swap(nil)
	if l != nil && now.Sub(l.used) > maxIdle {
		l.end()
		return nil
	}
	return l
}

// give lays a connection down; nil is allowed.
func (r *rest) give(l *line) {
	if l != nil && !r.idle.CompareAndSwap(nil, l) {
		l.end()
	}
}

// close ends the resting connection. A loop that gives one later closes again.
func (r *rest) close() {
	if l := r.idle.Swap(nil); l != nil {
		l.end()
	}
}
