package proxy

import (
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
)

// The body of the client's response. The server calls WriteTo once and Close at the
// end, whatever happens; both run in the goroutine of the connection.

var errAborted = errors.New("response ended early")

// SupportsBodyWriteTo tells the server that WriteTo does all that Read does.
func (c *call) SupportsBodyWriteTo() bool { return true }

// Read serves callers that insist on it; the server uses WriteTo.
func (c *call) Read(p []byte) (int, error) {
	ex := c.ex
	for len(ex.reply.pending()) == 0 {
		if err := ex.more(); err != nil {
			return 0, err
		}
	}
	n := copy(p, ex.reply.pending())
	ex.reply.p0 += n
	ex.fed = len(ex.reply.pending())
	c.out += int64(n)
	return n, nil
}

// WriteTo passes the body on, one write for each read from the engine, until it
// ends or is cut. An error makes the server close the client's connection without
// ending the body, which is how the client learns that it is not whole.
func (c *call) WriteTo(w io.Writer) (n int64, err error) {
	defer func() {
		if r := recover(); r != nil {
			c.p.panicked(r)
			c.cancel(causePanic)
			err = errAborted
		}
	}()
	if c.early {
		if goOn, err := c.keepAlive(w); !goOn {
			return c.out, err
		}
	}
	ex := c.ex
	for {
		if p := ex.reply.pending(); len(p) > 0 {
			ex.feed()
			if c.noteTimes(); !c.computed {
				c.began()
			}
			if err := c.deliver(w, c.strip.feed(p)); err != nil {
				return c.out, c.lost(err)
			}
			ex.take()
		}
		c.enter(phaseBody)
		if err := ex.more(); err == io.EOF {
			break
		} else if err != nil {
			return c.out, c.cut(w, err)
		}
	}
	if err := c.deliver(w, c.strip.rest()); err != nil {
		return c.out, c.lost(err)
	}
	c.whole = true
	c.sendTrailer()
	return c.out, nil
}

// deliver writes one piece to the client: small ones through the server's buffer,
// which frames and flushes them with one system call, larger ones past it.
func (c *call) deliver(w io.Writer, p []byte) error {
	if len(p) == 0 {
		return nil
	}
	c.enter(phaseDelivery)
	var err error
	switch {
	case c.fixed && c.headed:
		_, err = c.ctx.Conn().Write(p)
	case !c.fixed && c.headed && c.direct && !c.http10 && len(p) > directFrom:
		err = c.writeChunk(p)
	default:
		_, err = w.Write(p)
	}
	c.headed = c.headed || !c.fixed // the first chunk has flushed the head
	if err != nil {
		return err
	}
	c.out += int64(len(p))
	c.keepTail(p)
	return nil
}

// directFrom is the piece length from which copying through the server's 4 KiB
// buffer would take more than one write.
const directFrom = 4000

// writeChunk frames p as a chunk and writes it without a copy.
func (c *call) writeChunk(p []byte) error {
	c.frameBuf = append(strconv.AppendUint(c.frameBuf[:0], uint64(len(p)), 16), crlf...)
	c.vec = [3][]byte{c.frameBuf, p, []byte(crlf)}
	c.vecs = c.vec[:]
	_, err := c.conn.writeBuffers((*net.Buffers)(&c.vecs))
	c.vec = [3][]byte{}
	return err
}

// keepTail remembers the last octets given to the client, to know if the stream
// stands between two events.
func (c *call) keepTail(p []byte) {
	for _, b := range p[max(0, len(p)-len(c.tail)):] {
		copy(c.tail[:], c.tail[1:])
		c.tail[len(c.tail)-1] = b
	}
}

// betweenEvents reports that the client's stream is at an event's end.
func (c *call) betweenEvents() bool {
	t := c.tail
	return c.out == 0 || (t[3] == '\n' && (t[2] == '\n' || (t[2] == '\r' && t[1] == '\n')))
}

// lost is the end of a client that left or stopped reading while being written to.
func (c *call) lost(err error) error {
	c.cancel(causeClientGone)
	return fmt.Errorf("cannot write to client: %w", err)
}

// cut is the end of a response whose engine stopped in the middle. Streams get one
// last event that says why; nothing ever looks like a clean end.
func (c *call) cut(w io.Writer, err error) error {
	why := c.cancelled()
	f := &failCut
	if why != causeNone {
		f = why.failure()
	} else {
		c.p.report(c.ex.node, OutcomeClosed)
	}
	if why == causeIdle {
		c.p.report(c.ex.node, OutcomeStalled)
	}
	c.failed = f
	if why == causeClientGone || why == causeClientStalled || !c.ex.head.eventStream || c.fixed || c.ex.head.encoded {
		return fmt.Errorf("%w: %w", errAborted, err)
	}
	if rest := c.strip.rest(); len(rest) > 0 {
		// Half an event that the filter held: the client gets what came.
		if err := c.deliver(w, rest); err != nil {
			return err
		}
	}
	if c.betweenEvents() {
		_, werr := w.Write(f.stream(c.protocol))
		err = errors.Join(err, werr)
	}
	return fmt.Errorf("%w: %w", errAborted, err)
}

// sendTrailer hands announced trailer fields to the server.
func (c *call) sendTrailer() {
	for rest := c.ex.reply.trailer; len(rest) > 0; {
		line, more, ok := cutLine(rest)
		if !ok {
			return
		}
		rest = more
		if name, value, err := splitField(line); err == nil && !replyDropped(name) {
			c.ctx.Response.Header.AddBytesKV(name, value)
		}
	}
}

// Close ends the response and settles the call, exactly once. The server calls it
// when the body was written, when it could not be, and when the head could not.
func (c *call) Close() error {
	c.settle()
	return nil
}
