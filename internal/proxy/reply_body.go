package proxy

import (
	"bytes"
	"errors"
	"io"
	"sync"
)

// replyBuffer is the read buffer of one exchange: large enough for one loopback
// segment of many small events, small enough for 10,000 of them (DESIGN 8).
const replyBuffer = 16 << 10

var replyBuffers = sync.Pool{New: func() any { return new([replyBuffer]byte) }}

var (
	errBufferFull = errors.New("BUG: reply buffer full, undelivered bytes must be taken first")
	errBadChunk   = errors.New("cannot read response body: broken chunk")
	errCutReply   = errors.New("cannot read response body: connection ended before the body did")
)

// Chunk reader states. Each consumes at least one octet or ends the body, so raw
// octets never pile up and every split of the stream gives the same result.
type chunkState uint8

const (
	chunkSize chunkState = iota
	chunkExt
	chunkSizeLF
	chunkData
	chunkDataCR
	chunkDataLF
	trailerStart
	trailerLine
	trailerLF
	trailerEndLF
)

type bodyMode uint8

const (
	bodyNone bodyMode = iota
	bodyLength
	bodyChunked
	bodyClose
)

// maxChunkLine bounds a chunk-size line with its extensions and the whole trailer
// section: an engine that sends more is broken.
const maxChunkLine = 8 << 10

// reply reads one response from an engine connection. Decoded body octets
// [p0:p1) wait in the same buffer as the raw octets [r:w) that follow them, and
// p1 <= r always: removing chunk framing only ever moves octets down.
type reply struct {
	src    io.Reader
	buf    []byte
	pooled *[replyBuffer]byte
	lent   bool // buf is a larger one, out of the pool of request bodies
	p0, p1 int
	r, w   int

	mode    bodyMode
	state   chunkState
	digits  int   // of the chunk size being read
	line    int   // octets of the size line or trailer section so far
	left    int64 // octets left in the body or in the chunk
	done    bool  // the body ended cleanly
	begun   bool  // at least one octet of the response arrived
	trailer []byte
}

// reset prepares r for one exchange on src.
func (b *reply) reset(src io.Reader) {
	if b.pooled == nil {
		b.pooled = replyBuffers.Get().(*[replyBuffer]byte)
		b.buf = b.pooled[:]
	}
	b.src = src
	b.p0, b.p1, b.r, b.w = 0, 0, 0, 0
	b.mode, b.state, b.left, b.done, b.begun = bodyNone, chunkSize, 0, false, false
	b.digits, b.line, b.trailer = 0, 0, b.trailer[:0]
}

// release gives the buffer back. The caller must have closed or parked the
// connection before: nobody may read into the buffer any more.
func (b *reply) release() {
	b.giveBack()
	b.buf, b.src = nil, nil
	b.p0, b.p1, b.r, b.w = 0, 0, 0, 0
}

// giveBack returns the buffer to the pool that it is from.
func (b *reply) giveBack() {
	switch {
	case b.pooled != nil:
		replyBuffers.Put(b.pooled)
	case b.lent:
		putBody(b.buf)
	}
	b.pooled, b.lent = nil, false
}

// fill reads once from the connection behind the octets already held.
func (b *reply) fill() error {
	if b.r == b.w {
		b.r, b.w = b.p1, b.p1
		if b.p0 == b.p1 {
			b.p0, b.p1, b.r, b.w = 0, 0, 0, 0
		}
	}
	if b.w == len(b.buf) {
		n := copy(b.buf, b.buf[b.p0:b.p1])
		b.p0, b.p1 = 0, n
		m := copy(b.buf[n:], b.buf[b.r:b.w])
		b.r, b.w = n, n+m
		if b.w == len(b.buf) {
			return errBufferFull
		}
	}
	n, err := b.src.Read(b.buf[b.w:])
	if n > 0 {
		b.w += n
		b.begun = true
		return nil
	}
	if err == nil {
		err = io.ErrNoProgress
	}
	return err
}

// readHead reads the next final response head into h, skipping interim ones.
// It can be called again after a read deadline passed: what came so far is kept.
func (b *reply) readHead(h *replyHead) error {
	for range maxInterim {
		n, err := b.headLength()
		if err != nil {
			return err
		}
		if err := h.parse(b.buf[b.r : b.r+n]); err != nil {
			return err
		}
		b.r += n
		b.p0, b.p1 = b.r, b.r
		if h.status == 101 {
			return errHeadUpgrade
		}
		if h.status >= 200 {
			return nil
		}
	}
	return errHeadInterim
}

// headLength returns the length of the complete head at the raw octets.
func (b *reply) headLength() (int, error) {
	for {
		if i := bytes.Index(b.buf[b.r:b.w], crlfcrlf); i >= 0 {
			return i + len(crlfcrlf), nil
		}
		if b.w-b.r >= maxReplyHead {
			return 0, errHeadTooLarge
		}
		if bytes.Contains(b.buf[b.r:b.w], lflf) {
			return 0, errBadHead
		}
		b.p0, b.p1 = b.r, b.r
		if b.r == 0 && b.w == len(b.buf) {
			b.grow(maxReplyHead, 0)
		}
		if err := b.fill(); err != nil {
			return 0, err
		}
	}
}

var (
	crlfcrlf = []byte("\r\n\r\n")
	lflf     = []byte("\n\n")
)

// grow gives a head or held announcements a larger buffer, of about want octets and at
// most limit. It reports false when the buffer is that large already. The larger one
// is kept only until what is in it has been delivered.
func (b *reply) grow(limit, want int) bool {
	if len(b.buf) >= limit {
		return false
	}
	n := min(max(2*len(b.buf), want), limit)
	bigger := getBody(n)[:n]
	copy(bigger, b.buf[:b.w])
	b.giveBack()
	b.buf, b.lent = bigger, true
	return true
}

// shrink goes back to the usual buffer, so that a long stream does not hold a large
// one for its beginning.
func (b *reply) shrink() {
	if b.w-b.r > replyBuffer {
		return
	}
	small := replyBuffers.Get().(*[replyBuffer]byte)
	n := copy(small[:], b.buf[b.r:b.w])
	b.giveBack()
	b.pooled, b.buf = small, small[:]
	b.p0, b.p1, b.r, b.w = 0, 0, 0, n
}

// begin sets how the body that follows h is framed.
func (b *reply) begin(h *replyHead, headRequest bool) {
	switch {
	case h.bodyless(headRequest):
		b.mode, b.done = bodyNone, true
	case h.chunked:
		b.mode, b.state = bodyChunked, chunkSize
	case h.length >= 0:
		b.mode, b.left, b.done = bodyLength, h.length, h.length == 0
	default:
		b.mode = bodyClose
	}
	b.p0, b.p1 = b.r, b.r
}

// pending returns the decoded octets not yet taken. They are valid until the next
// call of more, take or release.
func (b *reply) pending() []byte { return b.buf[b.p0:b.p1] }

// take marks the pending octets as delivered.
func (b *reply) take() {
	if b.p0 = b.p1; b.lent {
		b.shrink()
	}
}

// more makes at least one more octet pending, reading from the connection if it
// must. io.EOF means that the body ended cleanly and nothing more is pending than
// was before; errBufferFull that the caller holds too much.
func (b *reply) more() error {
	had := b.p1 - b.p0
	for {
		if !b.done && b.r < b.w {
			if err := b.decode(); err != nil {
				return err
			}
		}
		if b.p1-b.p0 > had {
			return nil
		}
		if b.done {
			return io.EOF
		}
		if err := b.fill(); err != nil {
			if err != io.EOF {
				return err
			}
			if b.mode != bodyClose {
				return errCutReply
			}
			b.done = true
		}
	}
}

// clean reports that the connection is at the border of two responses: the body
// ended by its own framing and nothing came after it.
func (b *reply) clean() bool {
	return b.done && b.mode != bodyClose && b.r == b.w
}

// decode turns all raw octets it can into pending ones.
func (b *reply) decode() error {
	switch b.mode {
	case bodyChunked:
		return b.decodeChunks()
	case bodyLength:
		b.keep(int(min(b.left, int64(b.w-b.r))))
		b.done = b.left == 0
	case bodyClose:
		b.left = int64(b.w - b.r)
		b.keep(b.w - b.r)
	}
	return nil
}

// keep moves n raw octets to the end of the pending ones.
func (b *reply) keep(n int) {
	if b.p1 != b.r {
		copy(b.buf[b.p1:], b.buf[b.r:b.r+n])
	}
	b.p1 += n
	b.r += n
	b.left -= int64(n)
}

// decodeChunks runs the chunk reader over the raw octets.
func (b *reply) decodeChunks() error {
	for b.r < b.w {
		if b.state == chunkData {
			b.keep(int(min(b.left, int64(b.w-b.r))))
			if b.left == 0 {
				b.state = chunkDataCR
			}
			continue
		}
		c := b.buf[b.r]
		b.r++
		if err := b.step(c); err != nil {
			return err
		}
		if b.done {
			return nil
		}
	}
	return nil
}

// step consumes one octet of framing.
func (b *reply) step(c byte) error {
	if b.line++; b.line > maxChunkLine {
		return errBadChunk
	}
	switch b.state {
	case chunkSize:
		return b.stepSize(c)
	case chunkExt:
		if c == '\r' {
			b.state = chunkSizeLF
		} else if c == '\n' {
			return errBadChunk
		}
	case chunkSizeLF:
		if c != '\n' {
			return errBadChunk
		}
		b.line, b.digits = 0, 0
		if b.state = chunkData; b.left == 0 {
			b.state = trailerStart
		}
	case chunkDataCR:
		if c != '\r' {
			return errBadChunk
		}
		b.state = chunkDataLF
	case chunkDataLF:
		if c != '\n' {
			return errBadChunk
		}
		b.state, b.line = chunkSize, 0
	default:
		return b.stepTrailer(c)
	}
	return nil
}

// stepSize consumes one octet of a chunk-size line.
func (b *reply) stepSize(c byte) error {
	if v, ok := hexValue(c); ok {
		if b.digits++; b.digits > 15 {
			return errBadChunk
		}
		b.left = b.left<<4 | int64(v)
		return nil
	}
	if b.digits == 0 {
		return errBadChunk
	}
	switch c {
	case '\r':
		b.state = chunkSizeLF
	case ';', ' ', '\t':
		b.state = chunkExt
	default:
		return errBadChunk
	}
	return nil
}

// stepTrailer consumes one octet of the trailer section, which is kept for the
// client as it came.
func (b *reply) stepTrailer(c byte) error {
	switch b.state {
	case trailerStart:
		if c == '\r' {
			b.state = trailerEndLF
			return nil
		}
		if c == '\n' {
			return errBadChunk
		}
		b.state = trailerLine
	case trailerLine:
		if c == '\r' {
			b.state = trailerLF
		} else if c == '\n' {
			return errBadChunk
		}
	case trailerLF:
		if c != '\n' {
			return errBadChunk
		}
		b.state = trailerStart
	case trailerEndLF:
		if c != '\n' {
			return errBadChunk
		}
		b.done = true
		return nil
	}
	b.trailer = append(b.trailer, c)
	return nil
}

func hexValue(c byte) (byte, bool) {
	switch {
	case c >= '0' && c <= '9':
		return c - '0', true
	case c >= 'a' && c <= 'f':
		return c - 'a' + 10, true
	case c >= 'A' && c <= 'F':
		return c - 'A' + 10, true
	}
	return 0, false
}
