package proxy

import (
	"math/bits"
	"sync"
	"unsafe"

	"github.com/valyala/fasthttp"
)

// Request bodies are read into buffers from here and not from fasthttp's pool. That
// pool forgets large buffers when small requests are the majority (it keeps what 95 %
// of them would use), and a 240 KB buffer made anew costs more than reading it.

// body sizes come in classes, four per doubling, from 4 KiB to 64 MiB.
const (
	minBodyBits = 12
	maxBodyBits = 26
	bodySteps   = 4
)

var bodyPools [(maxBodyBits-minBodyBits)*bodySteps + 1]sync.Pool

// bodyBox carries a buffer through a sync.Pool without an allocation per turn.
type bodyBox struct{ b []byte }

var bodyBoxes = sync.Pool{New: func() any { return new(bodyBox) }}

// classSize is the capacity of buffers in class i.
func classSize(i int) int {
	base := 1 << (minBodyBits + i/bodySteps)
	return base + base/bodySteps*(i%bodySteps)
}

// classOf returns the smallest class that holds n octets; ok is false above the
// largest.
func classOf(n int) (i int, ok bool) {
	if n <= 1<<minBodyBits {
		return 0, true
	}
	b := bits.Len(uint(n - 1)) // 2^(b-1) < n <= 2^b
	for i = (b - 1 - minBodyBits) * bodySteps; i < len(bodyPools); i++ {
		if classSize(i) >= n {
			return i, true
		}
	}
	return 0, false
}

// getBody returns an empty buffer with room for n octets.
func getBody(n int) []byte {
	i, ok := classOf(n)
	if !ok {
		return make([]byte, 0, n)
	}
	if v := bodyPools[i].Get(); v != nil {
		box := v.(*bodyBox)
		b := box.b
		box.b = nil
		bodyBoxes.Put(box)
		return b[:0]
	}
	return make([]byte, 0, classSize(i))
}

// putBody gives a buffer back. One whose capacity is no class (a chunked body grew
// it) goes to the largest class that it can serve.
func putBody(b []byte) {
	if cap(b) < 1<<minBodyBits {
		return
	}
	i, ok := classOf(cap(b))
	if !ok {
		return
	}
	if classSize(i) > cap(b) {
		i--
	}
	box := bodyBoxes.Get().(*bodyBox)
	box.b = b[:0]
	bodyPools[i].Put(box)
}

// lendBody gives the request that owns h a buffer for its body. fasthttp has no hook
// for this: the header that HeaderReceived gets is the field of the request about to
// be read (server.go, serveConnCounted), so the request is found around it.
// TestHeaderBelongsToRequest fails if a version of fasthttp changes that.
func lendBody(h *fasthttp.RequestHeader, n int) {
	requestOf(h).SwapBody(getBody(n))
}

func requestOf(h *fasthttp.RequestHeader) *fasthttp.Request {
	return (*fasthttp.Request)(unsafe.Add(unsafe.Pointer(h), -int(unsafe.Offsetof(fasthttp.Request{}.Header))))
}

// ctxOf finds the context around a request in the same way.
func ctxOf(h *fasthttp.RequestHeader) *fasthttp.RequestCtx {
	return (*fasthttp.RequestCtx)(unsafe.Add(unsafe.Pointer(requestOf(h)), -int(unsafe.Offsetof(fasthttp.RequestCtx{}.Request))))
}

// reclaimBody takes the buffer of a request back into the pool.
func reclaimBody(r *fasthttp.Request) {
	putBody(r.SwapBody(nil))
}
