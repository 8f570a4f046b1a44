package bench

import (
	"bufio"
	"errors"
	"fmt"
	"io"

	"github.com/valyala/fasthttp"
)

// errCut says that the body ended before its framing said so.
var errCut = errors.New("body cut short")

// body reads the body of one response straight from the connection's buffer: no copy,
// no goroutine. Each call to next gives what has arrived.
type body struct {
	br      *bufio.Reader
	left    int64 // bytes of the current chunk or of the whole body
	chunked bool
	toEOF   bool // no framing: the body ends with the connection
	first   bool
	taken   int // bytes given out and not yet discarded
	ended   bool
}

// start prepares for the body that the header announces.
func (r *body) start(br *bufio.Reader, h *fasthttp.ResponseHeader) {
	*r = body{br: br}
	code := h.StatusCode()
	switch n := h.ContentLength(); {
	case code == fasthttp.StatusNoContent || code == fasthttp.StatusNotModified:
		r.ended = true
	case n >= 0:
		r.left = int64(n)
		r.ended = n == 0
	case n == -1:
		r.chunked, r.first = true, true
	default:
		r.toEOF = true
	}
}

// next returns bytes that are valid until the next call. At the clean end of the body
// it returns io.EOF; any other error means that the body was cut.
func (r *body) next() ([]byte, error) {
	if r.taken > 0 {
		if _, err := r.br.Discard(r.taken); err != nil {
			panic("BUG: cannot discard what was peeked: " + err.Error())
		}
		r.left -= int64(r.taken)
		r.taken = 0
		r.ended = !r.chunked && !r.toEOF && r.left == 0
	}
	if r.ended {
		return nil, io.EOF
	}
	if r.chunked && r.left == 0 {
		if err := r.chunk(); err != nil {
			return nil, err
		}
	}
	if _, err := r.br.Peek(1); err != nil {
		if r.toEOF && errors.Is(err, io.EOF) {
			r.ended = true
			return nil, io.EOF
		}
		return nil, fmt.Errorf("%w: %w", errCut, err)
	}
	n := r.br.Buffered()
	if !r.toEOF {
		n = int(min(int64(n), r.left))
	}
	b, err := r.br.Peek(n)
	if err != nil {
		panic("BUG: buffered bytes are gone: " + err.Error())
	}
	r.taken = n
	return b, nil
}

// chunk reads the frame between two chunks; at the last one it eats the trailer and
// returns io.EOF.
func (r *body) chunk() error {
	if !r.first {
		if line, err := r.line(); err != nil || len(line) != 0 {
			return fmt.Errorf("%w: no line end behind a chunk", errCut)
		}
	}
	r.first = false
	line, err := r.line()
	if err != nil {
		return fmt.Errorf("%w: %w", errCut, err)
	}
	size, ok := chunkSize(line)
	if !ok {
		return fmt.Errorf("%w: chunk size %q is not hexadecimal", errCut, line)
	}
	if size > 0 {
		r.left = size
		return nil
	}
	for {
		line, err = r.line()
		if err != nil {
			return fmt.Errorf("%w: %w", errCut, err)
		}
		if len(line) == 0 {
			r.ended = true
			return io.EOF
		}
	}
}

// line reads one line without its end.
func (r *body) line() ([]byte, error) {
	b, err := r.br.ReadSlice('\n')
	if err != nil {
		return nil, err
	}
	b = b[:len(b)-1]
	if n := len(b); n > 0 && b[n-1] == '\r' {
		b = b[:n-1]
	}
	return b, nil
}

func chunkSize(line []byte) (int64, bool) {
	var n int64
	digits := 0
	for _, c := range line {
		switch {
		case c >= '0' && c <= '9':
			n = n<<4 | int64(c-'0')
		case c|0x20 >= 'a' && c|0x20 <= 'f':
			n = n<<4 | int64(c|0x20-'a'+10)
		case c == ';' || c == ' ' || c == '\t': // extensions say nothing to us
			return n, digits > 0
		default:
			return 0, false
		}
		if digits++; digits > 15 {
			return 0, false
		}
	}
	return n, digits > 0
}
