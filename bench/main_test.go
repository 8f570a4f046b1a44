package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m,
		// fasthttp's server, used by the benchmarks, has two of its own that outlive Shutdown.
		goleak.IgnoreAnyFunction("github.com/valyala/fasthttp.updateServerDate.func1"),
		goleak.IgnoreAnyFunction("github.com/valyala/fasthttp.(*workerPool).Start.func2"))
}

// pipes is a listener and its dialer inside one process, so that a whole client and
// server run on the clock of a synctest bubble: a minute of load takes milliseconds
// and every measured time is exact.
type pipes struct {
	conns chan net.Conn
	done  chan struct{}
	once  sync.Once
}

func newPipes() *pipes { return &pipes{conns: make(chan net.Conn), done: make(chan struct{})} }

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.done:
		return nil, net.ErrClosed
	}
}

func (p *pipes) Close() error {
	p.once.Do(func() { close(p.done) })
	return nil
}

func (p *pipes) Addr() net.Addr { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 1} }

func (p *pipes) dial(ctx context.Context, _, _ string) (net.Conn, error) {
	a, b := net.Pipe()
	select {
	case p.conns <- b:
		return a, nil
	case <-p.done:
	case <-ctx.Done():
	}
	return nil, errors.New("connection refused")
}

// serve runs a load against a handler on the bubble's clock.
func serve(t *testing.T, h http.HandlerFunc, o Options) Result {
	t.Helper()
	var res Result
	synctest.Test(t, func(t *testing.T) {
		p := newPipes()
		srv := &http.Server{Handler: h}
		ended := make(chan error, 1)
		go func() { ended <- srv.Serve(p) }()
		o.URL, o.Model, o.Dial, o.SkipPreflight = "http://engine.test", "m", p.dial, true
		var err error
		if res, err = Run(t.Context(), o); err != nil {
			t.Fatal(err)
		}
		srv.Close()
		if err := <-ended; !errors.Is(err, http.ErrServerClosed) {
			t.Fatal(err)
		}
	})
	return res
}

// say writes raw bytes to the client now, as one write to the wire.
func say(w http.ResponseWriter, format string, args ...any) {
	fmt.Fprintf(w, format, args...)
	w.(http.Flusher).Flush()
}

func sse(w http.ResponseWriter) { w.Header().Set("Content-Type", "text/event-stream") }

const (
	roleChunk  = `data: {"id":"x","object":"chat.completion.chunk","choices":[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}]}` + "\n\n"
	emptyChunk = `data: {"id":"x","object":"chat.completion.chunk","choices":[{"index":0,"delta":{"content":""},"finish_reason":null}]}` + "\n\n"
	textChunk  = `data: {"id":"x","object":"chat.completion.chunk","choices":[{"index":0,"delta":{"content":"hello"},"finish_reason":null}]}` + "\n\n"
	stopChunk  = `data: {"id":"x","object":"chat.completion.chunk","choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}` + "\n\n"
	doneEvent  = "data: [DONE]\n\n"
)

func usageChunk(prompt, cached, output int) string {
	return fmt.Sprintf(`data: {"id":"x","choices":[],"usage":{"prompt_tokens":%d,"completion_tokens":%d,"prompt_tokens_details":{"cached_tokens":%d}}}`+"\n\n", prompt, output, cached)
}

func drain(r *http.Request) { io.Copy(io.Discard, r.Body) }

// once is a load of one request.
func once() Options {
	return Options{Arrivals: Arrivals{Kind: "constant", Rate: 1, Duration: time.Second}, Workload: Workload{User: Exactly(5), Output: Exactly(10)}}
}

func near(t *testing.T, what string, got, want, tolerance float64) {
	t.Helper()
	if got < want-tolerance || got > want+tolerance {
		t.Errorf("%s is %v, want %v +- %v", what, got, want, tolerance)
	}
}

// wait lets the bubble's clock move on; no wall time passes.
func wait(d time.Duration) { <-time.After(d) }
