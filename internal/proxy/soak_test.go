//go:build soak

package proxy

import (
	"fmt"
	"io"
	"net"
	"os"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prefixring/prefixring/internal/dialect"
	"github.com/prefixring/prefixring/internal/residency"
	"github.com/prefixring/prefixring/internal/session"
	"github.com/prefixring/prefixring/internal/telemetry"
)

// TestSoak mixes all faults with 2,000 client connections for PREFIXRING_SOAK (default
// 10 minutes) and wants memory and goroutines flat: what a fixed amount of work needs
// must not grow with the time it has run. Run it with -tags soak -timeout 20m.
func TestSoak(t *testing.T) {
	length := 10 * time.Minute
	if v := os.Getenv("PREFIXRING_SOAK"); v != "" {
		d, err := time.ParseDuration(v)
		if err != nil {
			t.Fatal(err)
		}
		length = d
	}
	const clients = 2000
	moody := moodyEngine()
	store, err := session.New(session.Options{})
	if err != nil {
		t.Fatal(err)
	}
	sink := &tally{}
	r := newRouter(t, setup{
		opts: Options{Sink: sink, Timeouts: Timeouts{BetweenEvents: 5 * time.Second, FirstByte: 5 * time.Second}},
		pool: func(p *Pool) {
			p.Residency = residency.New(residency.Options{})
			p.Bindings = store
		},
	}, newEngine(t, moody).url(), newEngine(t, moody).url(), newEngine(t, moody).url(), newEngine(t, moody).url())

	stop := make(chan struct{})
	var asked, wrong atomic.Int64
	var wg sync.WaitGroup
	for w := range clients {
		wg.Go(func() { soakClient(t, r, w, stop, &asked, &wrong) })
	}
	var heap []uint64
	var routines []int
	const samples = 10
	for i := range samples {
		<-time.After(length / samples)
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		heap, routines = append(heap, m.HeapInuse>>10), append(routines, runtime.NumGoroutine())
		t.Logf("%2d/%d: %d requests, %d wrong, heap %d KiB, %d goroutines, %+v", i+1, samples, asked.Load(), wrong.Load(), heap[i], routines[i], r.Stats())
	}
	close(stop)
	wg.Wait()
	eventually(t, func() bool { return sink.n.Load() >= asked.Load() }, "all requests settled")
	if sink.n.Load() != asked.Load() || wrong.Load() != 0 {
		t.Errorf("%d requests, %d settled, %d with wrong octets", asked.Load(), sink.n.Load(), wrong.Load())
	}
	// The first third warms pools up.
	early, late := heap[samples/3], heap[samples-1]
	if late > early+early/4+16<<10 {
		t.Errorf("the heap grew from %d to %d KiB", early, late)
	}
	if a, b := routines[samples/3], routines[samples-1]; b > a+a/4+200 {
		t.Errorf("goroutines grew from %d to %d", a, b)
	}
	eventually(t, func() bool { return serving() == 0 }, "no goroutine serves any more")
}

// moodyEngine misbehaves in turn.
func moodyEngine() func(*engineCall) {
	var n atomic.Int64
	return func(x *engineCall) {
		s := shapes[protoOf(x)]
		wire := wireOf(s, x.body)
		switch turn := n.Add(1); turn % 23 {
		case 1:
			panic(errHangUp)
		case 3:
			x.write(wire[:len(wire)/3])
			reset(x.conn)
			panic(errHangUp)
		case 5:
			busy(x)
		case 7:
			x.write(wire[:len(wire)*2/3])
			panic(errHangUp)
		case 9: // mute until the client loses patience
			x.write(wire[:len(wire)/2])
			x.gone(30 * time.Second)
			panic(errHangUp)
		case 11:
			for i := 0; i < len(wire); i += 7 {
				x.write(wire[i:min(i+7, len(wire))])
			}
		case 13:
			x.sse(queueFullEvent, doneEvent)
		default:
			x.write(wire)
		}
	}
}

// tally counts settled requests.
type tally struct{ n atomic.Int64 }

func (t *tally) Settle(*telemetry.Record) { t.n.Add(1) }

func protoOf(x *engineCall) dialect.Protocol {
	for p, s := range shapes {
		if strings.Contains(x.head, " "+s.path+" ") {
			return p
		}
	}
	return dialect.Chat
}

// soakClient asks, sometimes leaves in the middle, and pauses.
func soakClient(t *testing.T, r *router, w int, stop chan struct{}, asked, wrong *atomic.Int64) {
	protos := []dialect.Protocol{dialect.Chat, dialect.Completions, dialect.Responses, dialect.Messages}
	for i := 0; ; i++ {
		select {
		case <-stop:
			return
		case <-time.After(time.Duration(50+(w*7+i*13)%400) * time.Millisecond):
		}
		s, stream := shapes[protos[(w+i)%4]], (w+i)%2 == 0
		id := fmt.Sprintf("client-%d-%d", w, i)
		asked.Add(1)
		if (w+i)%11 == 0 { // leaves early
			c, err := net.Dial("tcp", r.addr)
			if err != nil {
				asked.Add(-1)
				continue
			}
			io.WriteString(c, rawRequest(s.path, s.request(id, stream)))
			c.SetReadDeadline(time.Now().Add(20 * time.Millisecond))
			c.Read(make([]byte, 64))
			c.Close()
			continue
		}
		e := ask(r, s, id, stream)
		if e.err != nil {
			continue
		}
		before := t.Failed()
		if lawful(s, stream, e) {
			continue
		}
		wrong.Add(1)
		if !before {
			t.Errorf("%s: status %d, %v, %q", id, e.reply.status, e.reply.bodyErr, e.reply.body)
		}
	}
}
