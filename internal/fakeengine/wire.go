package fakeengine

import (
	"bytes"
	"compress/gzip"
	"errors"
	"net/http"
	"strconv"
	"time"
)

// wire writes one response, with the faults that struck it. All responses go
// through it, so every fault works on every path.
type wire struct {
	e      *Engine
	w      http.ResponseWriter
	r      *http.Request
	rc     *http.ResponseController
	faults map[FaultKind]*fault
	body   value // the request's body

	refused bool // the key was wrong: that middleware runs before the one that sets Vary
	opened  bool
	events  int
	pending []byte
	zip     *gzip.Writer
	zipped  bytes.Buffer
}

// drop ends the connection without another byte.
func (x *wire) drop() { panic(http.ErrAbortHandler) }

// reset ends it with RST.
func (x *wire) reset() {
	if c := tracked(x.r); c != nil {
		c.reset.Store(true)
		_ = c.Close()
	}
	x.drop()
}

// wait sleeps, or leaves when the client does. d <= 0 waits for ever; gone ends it early.
func (x *wire) wait(d time.Duration, gone <-chan struct{}) {
	var due <-chan time.Time
	if d > 0 {
		t := time.NewTimer(d)
		defer t.Stop()
		due = t.C
	}
	select {
	case <-due:
	case <-gone:
	case <-x.r.Context().Done():
		x.drop()
	case <-x.e.stop:
		x.drop()
	}
}

// before applies the faults that strike before the request is looked at; true
// means that it has been answered.
func (x *wire) before() bool {
	if f := x.faults[FaultDelay]; f != nil {
		x.wait(time.Duration(f.Delay), f.gone)
	}
	if f := x.faults[FaultHang]; f != nil {
		x.wait(0, f.gone)
		x.drop()
	}
	if x.faults[FaultClose] != nil {
		x.drop()
	}
	if f := x.faults[FaultReset]; f != nil && f.After == 0 {
		x.reset()
	}
	if f := x.faults[FaultStatus]; f != nil {
		x.scripted(f)
		return true
	}
	return false
}

func (x *wire) scripted(f *fault) {
	kind, body := f.ContentType, []byte(f.Body)
	if kind == "" {
		kind = "application/json"
	}
	if f.Body == "" {
		code := f.Code
		if code == 0 {
			code = f.Status
		}
		body = x.e.errorBody(&apiError{status: code, kind: http.StatusText(f.Status), message: "scripted fault"}, false)
	}
	x.reply(f.Status, kind, body)
}

func (x *wire) header(contentType string) http.Header {
	h := x.w.Header()
	h.Set("Server", "uvicorn")
	if !x.refused {
		h.Set("Vary", "Origin")
	}
	if contentType != "" {
		h.Set("Content-Type", contentType)
	}
	if f := x.faults[FaultHeaders]; f != nil {
		for k, v := range f.Headers {
			h[http.CanonicalHeaderKey(k)] = v
		}
	}
	if c := tracked(x.r); c != nil {
		if x.faults[FaultCloseAfter] != nil || x.faults[FaultResetAfter] != nil {
			c.reset.Store(x.faults[FaultResetAfter] != nil)
			c.closing.Store(true)
		}
	}
	return h
}

// reply writes a whole response of known length.
func (x *wire) reply(status int, contentType string, body []byte) {
	h := x.header(contentType)
	if x.faults[FaultEmpty] != nil {
		body = nil
	}
	if x.faults[FaultGzip] != nil {
		h.Set("Content-Encoding", "gzip")
		z := gzip.NewWriter(&x.zipped)
		_, _ = z.Write(body) // a bytes.Buffer does not fail
		_ = z.Close()
		body = x.zipped.Bytes()
	}
	h.Set("Content-Length", strconv.Itoa(len(body)))
	x.w.WriteHeader(status)
	if x.r.Method == http.MethodHead {
		return
	}
	reset := x.faults[FaultReset] != nil
	if reset || x.faults[FaultCut] != nil || x.faults[FaultCutMid] != nil {
		x.put(body[:len(body)/2])
		if reset {
			x.reset()
		}
		x.drop()
	}
	if f := x.faults[FaultPause]; f != nil {
		x.put(body[:len(body)/2])
		x.wait(time.Duration(f.Delay), f.gone)
		body = body[len(body)/2:]
	}
	if x.faults[FaultSplit] != nil {
		x.put(body)
		return
	}
	_, _ = x.w.Write(body) // net/http frames it; a client that left is noticed by the context
}

func (x *wire) json(status int, body []byte) { x.reply(status, "application/json", body) }

func (x *wire) fail(err *apiError) {
	x.json(err.status, x.e.errorBody(err, x.r.URL.Path == "/v1/messages"))
}

// open writes the head of a stream. vLLM sends it as soon as the request is
// valid, SGLang with the first event.
func (x *wire) open() {
	if x.opened {
		return
	}
	x.opened = true
	h := x.header("text/event-stream; charset=utf-8")
	if x.faults[FaultGzip] != nil {
		h.Set("Content-Encoding", "gzip")
		x.zip = gzip.NewWriter(&x.zipped)
	}
	x.w.WriteHeader(http.StatusOK)
	_ = x.rc.Flush()
}

// event queues one SSE event, blank line included. Nothing is sent before flush,
// so that events which are due together leave in one write.
func (x *wire) event(b []byte) {
	if x.faults[FaultEmpty] != nil {
		x.open()
		return
	}
	x.eventFaults(b)
	if x.faults[FaultComments] != nil {
		x.pending = append(x.pending, ": keep-alive\n\n"...)
	}
	x.pending = append(x.pending, b...)
	x.events++
}

func (x *wire) eventFaults(b []byte) {
	if f := x.faults[FaultPause]; f != nil && x.events == f.After {
		x.send()
		delete(x.faults, FaultPause)
		x.wait(time.Duration(f.Delay), f.gone)
	}
	if f := x.faults[FaultReset]; f != nil && x.events >= f.After {
		x.send()
		x.reset()
	}
	if f := x.faults[FaultCut]; f != nil && x.events >= f.After {
		x.send()
		x.drop()
	}
	if f := x.faults[FaultCutMid]; f != nil && x.events >= f.After {
		x.pending = append(x.pending, b[:len(b)/2]...)
		x.send()
		x.drop()
	}
	if f := x.faults[FaultErrorEvent]; f != nil && x.events >= f.After {
		code := f.Code
		if code == 0 {
			code = http.StatusInternalServerError
		}
		x.pending = append(x.pending, x.e.errorEvent(&apiError{status: code, kind: "InternalServerError", message: "scripted fault"}, x.r.URL.Path)...)
		x.send()
		panic(errEnded)
	}
}

// errEnded unwinds a handler whose response is complete.
var errEnded = errors.New("the response has ended")

// flush sends what is queued.
func (x *wire) flush() {
	if f := x.faults[FaultCoalesce]; f != nil {
		size := f.Bytes
		if size == 0 {
			size = 64 << 10
		}
		if len(x.pending) < size {
			return
		}
	}
	x.send()
}

func (x *wire) send() {
	x.open()
	if len(x.pending) == 0 {
		return
	}
	x.put(x.pending)
	x.pending = x.pending[:0]
}

// put writes bytes to the network now, as split asks for.
func (x *wire) put(b []byte) {
	if x.zip != nil {
		x.zipped.Reset()
		_, _ = x.zip.Write(b)
		_ = x.zip.Flush()
		b = x.zipped.Bytes()
	}
	size := len(b)
	if f := x.faults[FaultSplit]; f != nil {
		size = max(f.Bytes, 1)
	}
	for len(b) > 0 {
		n := min(size, len(b))
		if _, err := x.w.Write(b[:n]); err != nil {
			x.drop()
		}
		if err := x.rc.Flush(); err != nil {
			x.drop()
		}
		b = b[n:]
	}
}

// finish ends a stream properly.
func (x *wire) finish() {
	x.send()
	if x.zip != nil {
		x.zipped.Reset()
		_ = x.zip.Close()
		_, _ = x.w.Write(x.zipped.Bytes())
	}
}
