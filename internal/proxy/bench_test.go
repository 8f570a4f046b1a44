package proxy

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"

	"github.com/valyala/fasthttp"

	"github.com/prefixring/prefixring/internal/telemetry"
)

// newCtx is a context outside of a server.
func newCtx() *fasthttp.RequestCtx {
	ctx := &fasthttp.RequestCtx{}
	ctx.Init(&fasthttp.Request{}, nil, nil)
	return ctx
}

// benchEngine answers every request with the same octets, without looking at it more
// than its length needs.
func benchEngine(b *testing.B, wire string) string {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { ln.Close() })
	octets := []byte(wire)
	go func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				br := bufio.NewReaderSize(c, 64<<10)
				for {
					length := 0
					for {
						line, err := br.ReadSlice('\n')
						if err != nil {
							return
						}
						if len(line) == 2 {
							break
						}
						if hasFoldPrefix(line, "content-length: ") {
							n, _ := parseLength(trimOWS(line[16 : len(line)-2]))
							length = int(n)
						}
					}
					if _, err := br.Discard(length); err != nil {
						return
					}
					if _, err := c.Write(octets); err != nil {
						return
					}
				}
			}()
		}
	}()
	return "http://" + ln.Addr().String()
}

// benchmark sends one request after the other over one connection and reads answers
// of a known length.
func benchmark(b *testing.B, body string, wire string) {
	r := newRouter(b, setup{opts: Options{Sink: nopSink{}}}, benchEngine(b, wire))
	c := r.dial(b)
	br := bufio.NewReaderSize(c, 64<<10)
	text := rawRequest("/v1/chat/completions", body)
	raw := []byte(text)
	first := exchangeOn(b, c, br, text)
	if first.status != 200 {
		b.Fatalf("%d %s", first.status, first.body)
	}
	c.Write(raw)
	resp, err := http.ReadResponse(br, nil)
	if err != nil {
		b.Fatal(err)
	}
	io.Copy(io.Discard, resp.Body)
	// The octets on the wire of one answer: read them blindly from now on.
	c.Write(raw)
	n := wireLength(b, br)
	b.SetBytes(int64(len(body)))
	b.ReportAllocs()
	b.ResetTimer()
	for range b.N {
		if _, err := c.Write(raw); err != nil {
			b.Fatal(err)
		}
		if _, err := br.Discard(n); err != nil {
			b.Fatal(err)
		}
	}
}

// wireLength reads one answer and returns its length on the wire; ids have a fixed
// length for the next few thousand million requests.
func wireLength(b *testing.B, br *bufio.Reader) int {
	n := 0
	length, chunked := 0, false
	for {
		line, err := br.ReadString('\n')
		if err != nil {
			b.Fatal(err)
		}
		n += len(line)
		if line == "\r\n" {
			break
		}
		if v, ok := strings.CutPrefix(line, "Content-Length: "); ok {
			l, _ := parseLength(trimOWS([]byte(strings.TrimSpace(v))))
			length = int(l)
		}
		chunked = chunked || strings.HasPrefix(line, "Transfer-Encoding")
	}
	if chunked {
		b.Fatal("bench answers must have a length")
	}
	br.Discard(length)
	return n + length
}

func okWire() string {
	return "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: " + itoa(len(okJSON)) + "\r\nx-request-id: fixed\r\n\r\n" + okJSON
}

func BenchmarkProxyThin(b *testing.B) { benchmark(b, chatBody, okWire()) }

func BenchmarkProxyFat(b *testing.B) {
	benchmark(b, `{"model":"m","messages":[{"role":"system","content":"`+strings.Repeat("static text, ", 18400)+`"},{"role":"user","content":"u"}]}`, okWire())
}

// BenchmarkProxyEvents relays one-token events as fast as one core can.
func BenchmarkProxyEvents(b *testing.B) {
	const events = 100000
	ev := delta("token")
	stream := sseHead
	one := itoaHex(len(ev)) + "\r\n" + ev + "\r\n"
	stream += strings.Repeat(one, events) + "0\r\n\r\n"
	r := newRouter(b, setup{opts: Options{Sink: nopSink{}}}, benchEngine(b, stream))
	c := r.dial(b)
	br := bufio.NewReaderSize(c, 256<<10)
	raw := rawRequest("/v1/chat/completions", streamBody)
	b.SetBytes(int64(len(ev) * events))
	b.ReportAllocs()
	b.ResetTimer()
	for range b.N {
		io.WriteString(c, raw)
		resp, err := http.ReadResponse(br, nil)
		if err != nil {
			b.Fatal(err)
		}
		n, err := io.Copy(io.Discard, resp.Body)
		if err != nil || n != int64(len(ev)*events) {
			b.Fatal(n, err)
		}
	}
	b.ReportMetric(float64(events)*float64(b.N)/b.Elapsed().Seconds(), "events/s")
}

// nopSink takes records and drops them.
type nopSink struct{}

func (nopSink) Settle(*telemetry.Record) {}
