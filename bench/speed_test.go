package bench

import (
	"bufio"
	"bytes"
	"context"
	"net"
	"testing"
	"time"

	"github.com/valyala/fasthttp"
)

// loopback serves with fasthttp on a real socket, for the figures that need one.
func loopback(tb testing.TB, h fasthttp.RequestHandler) (url string) {
	tb.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	srv := &fasthttp.Server{Handler: h, NoDefaultServerHeader: true, CloseOnShutdown: true}
	done := make(chan error, 1)
	go func() { done <- srv.Serve(ln) }()
	tb.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		if err := srv.ShutdownWithContext(ctx); err != nil {
			tb.Error(err)
		}
		if err := <-done; err != nil {
			tb.Error(err)
		}
	})
	return "http://" + ln.Addr().String()
}

// BenchmarkSmallRequests is the rate of small streams from this machine, client and
// server on the same cores. Reported: requests per second and client+server CPU.
func BenchmarkSmallRequests(b *testing.B) {
	reply := []byte(roleChunk + textChunk + stopChunk + usageChunk(100, 50, 1) + doneEvent)
	url := loopback(b, func(ctx *fasthttp.RequestCtx) {
		ctx.SetContentType("text/event-stream")
		ctx.SetBody(reply)
	})
	for b.Loop() {
		res, err := Run(b.Context(), Options{URL: url, Model: "m", SkipPreflight: true,
			Arrivals: Arrivals{Kind: "constant", Rate: 10000, Duration: time.Second},
			Workload: Workload{Prefixes: 16, Prefix: Exactly(128), User: Exactly(32), Output: Exactly(1)}})
		if err != nil || res.Succeeded != 10000 {
			b.Fatal(err, res.Succeeded, res.Errors)
		}
		b.ReportMetric(res.AchievedRate, "req/s")
		b.ReportMetric(res.OwnCPU, "cores")
		b.ReportMetric(res.MaxSendLagMS, "max-lag-ms")
		b.ReportMetric(res.TTFT.P99, "ttft-p99-ms")
	}
}

// BenchmarkOpenStreams holds 2,000 streams open at 10 events a second each.
func BenchmarkOpenStreams(b *testing.B) {
	url := loopback(b, func(ctx *fasthttp.RequestCtx) {
		ctx.SetContentType("text/event-stream")
		ctx.SetBodyStreamWriter(func(w *bufio.Writer) {
			tick := time.NewTicker(100 * time.Millisecond)
			defer tick.Stop()
			w.WriteString(roleChunk)
			for range 20 {
				<-tick.C
				w.WriteString(textChunk)
				if w.Flush() != nil {
					return
				}
			}
			w.WriteString(stopChunk + usageChunk(100, 50, 20) + doneEvent)
		})
	})
	for b.Loop() {
		res, err := Run(b.Context(), Options{URL: url, Model: "m", SkipPreflight: true,
			Arrivals: Arrivals{Kind: "constant", Rate: 1000, Duration: 3 * time.Second},
			Workload: Workload{Prefixes: 16, Prefix: Exactly(128), User: Exactly(32), Output: Exactly(20)}})
		if err != nil || res.Succeeded != 3000 {
			b.Fatal(err, res.Succeeded, res.Errors)
		}
		b.ReportMetric(res.OwnCPU, "cores")
		b.ReportMetric(res.MaxSendLagMS, "max-lag-ms")
		b.ReportMetric(res.ITL.P99, "itl-p99-ms")
	}
}

// BenchmarkEvent is what one token event costs the reader.
func BenchmarkEvent(b *testing.B) {
	var a answer
	a.reset(0, false)
	all := bytes.Repeat([]byte(textChunk), 100)
	now := time.Now()
	b.SetBytes(int64(len(all)))
	for b.Loop() {
		a.ticks = a.ticks[:0]
		a.feed(all, now)
	}
	if a.tokens == 0 || a.tokens%100 != 0 {
		b.Fatal(a.tokens)
	}
}

// BenchmarkFatBody is what making one 240 KB request costs, on a built prefix.
func BenchmarkFatBody(b *testing.B) {
	o := Options{Model: "m", Nonce: "n", Workload: Workload{Prefixes: 1, Prefix: Exactly(60000), User: Exactly(200), Output: Exactly(500)}}
	c := newComposer(&o)
	shots := o.Workload.plan(make([]time.Duration, 1), 1)
	var scratch []byte
	i := 0
	for b.Loop() {
		p := c.body(&shots[0], i, 0, nil, scratch)
		scratch = p.rest
		i++
		if len(p.head)+len(p.rest) < 240000 {
			b.Fatal("short body")
		}
	}
}
