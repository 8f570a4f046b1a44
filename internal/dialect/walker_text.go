package dialect

import (
	"bytes"
	"encoding/binary"
	"math/bits"
)

func (w *walker) inString(b []byte, i int) int {
	j, esc := closing(b, i, w.esc)
	if j < 0 {
		w.some = w.some || len(b) > i
		if w.val >= lType && w.val <= lBlockType {
			w.keep(b[i:])
		}
		w.esc = esc
		return len(b)
	}
	if w.val != nSkip {
		w.string(b[i:j])
	}
	w.closed()
	return j + 1
}

// string handles the last slice of a string value of interest.
func (w *walker) string(last []byte) {
	switch {
	case w.val < lType || w.val > lBlockType:
		if w.some || len(last) > 0 {
			w.present()
		}
		return
	case w.n > 0 || w.over:
		last = w.joined(last)
	case len(last) > maxWord:
		last = tooLong
	}
	w.words(last)
}

// tooLong stands for a word that is longer than every word of interest.
var tooLong = []byte("\x00")

func (w *walker) words(s []byte) {
	e := &w.ev
	switch w.val {
	case lType:
		e.kind = kindOf(s)
	case lStatus:
		e.status = statusOf(s)
	case lFinish:
		e.finish = reasonOf(s)
	case lObject:
		e.flat = string(s) == "error"
	case lErrType:
		e.byType = errorStatus(s)
	case lCode:
		w.status(errorStatus(s))
	case lBlockType:
		// The name of a tool is generated text (field case B68).
		if string(s) == "tool_use" {
			e.token = true
		}
	}
}

// status notes the HTTP status that a code stands for.
func (w *walker) status(n int) {
	if w.cur == nError {
		w.ev.code = n
	} else {
		w.ev.flatly = n
	}
}

// errorStatus is the best that an error said: its code, its type, a code beside it.
func (e *event) errorStatus() int {
	if e.code != 0 {
		return e.code
	}
	if e.byType != 0 {
		return e.byType
	}
	return e.flatly
}

// keep appends a slice of a split word to buf.
func (w *walker) keep(b []byte) {
	if len(b) > maxWord-int(w.n) {
		w.over = true
		return
	}
	w.n += uint8(copy(w.buf[w.n:], b))
}

func (w *walker) joined(last []byte) []byte {
	w.keep(last)
	if w.over {
		return tooLong
	}
	return w.buf[:w.n]
}

// closing returns the index of the quote that ends the string whose next byte is
// b[i], or -1 and whether the slice ends in an odd run of backslashes. esc is
// that answer for the slice before. Only quotes stop the search, so long texts
// pass at the speed of bytes.IndexByte.
func closing(b []byte, i int, esc bool) (int, bool) {
	from := i
	if !esc {
		// Most strings of an event are keys and ids of a few bytes: eight at a time
		// costs a third of a call to IndexByte.
		for end := min(i+32, len(b)-7); from < end; from += 8 {
			x := binary.LittleEndian.Uint64(b[from:])
			quote, slash := hits(x, quotes), hits(x, slashes)
			if quote|slash == 0 {
				continue
			}
			if first := bits.TrailingZeros64(quote); first < bits.TrailingZeros64(slash) {
				return from + first>>3, false
			}
			break
		}
	}
	for {
		k := bytes.IndexByte(b[from:], '"')
		end := len(b)
		if k >= 0 {
			end = from + k
		}
		run := end
		for run > i && b[run-1] == '\\' {
			run--
		}
		odd := (end-run)&1 == 1
		if run == i && esc {
			odd = !odd
		}
		if k < 0 {
			return -1, odd
		}
		if !odd {
			return end, false
		}
		from = end + 1
	}
}

const (
	lowBits  = 0x0101010101010101
	highBits = 0x8080808080808080
	quotes   = lowBits * '"'
	slashes  = lowBits * '\\'
)

// hits returns a word whose lowest set bit marks the first byte of x that equals
// the byte repeated in pattern; zero when there is none.
func hits(x, pattern uint64) uint64 {
	x ^= pattern
	return (x - lowBits) &^ x & highBits
}
