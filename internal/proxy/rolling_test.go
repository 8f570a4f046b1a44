package proxy

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/prefixring/prefixring/internal/fingerprint"
	"github.com/prefixring/prefixring/ring"
)

// childEnv makes the test binary a router process. Its value is the engine's URL.
const childEnv = "PREFIXRING_TEST_ROUTER_ENGINE"

// childRouter is that process: it says where it listens, and on SIGTERM that it is
// not ready any more, as /readyz would; then it retires, drains and exits.
func childRouter(engine string) {
	fail := func(err error) {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	up, err := NewUpstream(UpstreamOptions{Name: "e", URL: engine, Rank: -1})
	if err != nil {
		fail(err)
	}
	rg, err := ring.New(ring.Options{})
	if err != nil {
		fail(err)
	}
	if err := rg.Apply([]ring.Member{{Name: "e", Value: up}}); err != nil {
		fail(err)
	}
	rg.Nodes()[0].SetLevel(ring.Open)
	sc, err := fingerprint.NewScanner(fingerprint.Options{})
	if err != nil {
		fail(err)
	}
	table, err := NewTable([]*Pool{{Name: "p", Models: []string{"m"}, Ring: rg, Scanner: sc}})
	if err != nil {
		fail(err)
	}
	p, err := New(Options{})
	if err != nil {
		fail(err)
	}
	p.SetTable(table)
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		fail(err)
	}
	term, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	go func() { _ = p.Serve(ln) }()
	fmt.Println(ln.Addr())
	<-term.Done()
	fmt.Println("not ready")
	p.Retire()
	<-time.After(300 * time.Millisecond) // the drain delay: balancers and clients move on
	grace, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if err := p.Drain(grace); err != nil {
		fail(err)
	}
}

// process is a router process behind the balancer.
type process struct {
	cmd   *exec.Cmd
	addr  string
	ready atomic.Bool
	out   *bufio.Reader
}

func startProcess(t *testing.T, engine string) *process {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	p := &process{cmd: exec.Command(exe)}
	p.cmd.Env = append(os.Environ(), childEnv+"="+engine)
	p.cmd.Stderr = os.Stderr
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.cmd.Process.Kill() })
	p.out = bufio.NewReader(out)
	line, err := p.out.ReadString('\n')
	if err != nil {
		t.Fatalf("router did not start: %v", err)
	}
	p.addr = strings.TrimSpace(line)
	p.ready.Store(true)
	return p
}

// stop ends the process the way an orchestrator does, and waits for it.
func (p *process) stop(t *testing.T) {
	t.Helper()
	p.cmd.Process.Signal(syscall.SIGTERM)
	if line, err := p.out.ReadString('\n'); err != nil || line != "not ready\n" {
		t.Fatalf("router said %q, %v", line, err)
	}
	p.ready.Store(false)
	if err := p.cmd.Wait(); err != nil {
		t.Fatalf("router ended badly: %v", err)
	}
}

// balancer passes connections to ready routers, as a layer 4 balancer does.
type balancer struct {
	ln       net.Listener
	mu       sync.Mutex // guards backends
	backends []*process
	turn     int
	wg       sync.WaitGroup
}

func newBalancer(t *testing.T, backends ...*process) *balancer {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	b := &balancer{ln: ln, backends: backends}
	b.wg.Go(func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			b.wg.Go(func() { b.pass(c) })
		}
	})
	t.Cleanup(func() { ln.Close(); b.wg.Wait() })
	return b
}

func (b *balancer) pick() *process {
	b.mu.Lock()
	defer b.mu.Unlock()
	for range b.backends {
		b.turn++
		if p := b.backends[b.turn%len(b.backends)]; p.ready.Load() {
			return p
		}
	}
	return nil
}

func (b *balancer) pass(c net.Conn) {
	defer c.Close()
	p := b.pick()
	if p == nil {
		return
	}
	up, err := net.Dial("tcp", p.addr)
	if err != nil {
		return
	}
	defer up.Close()
	done := make(chan struct{}, 2)
	go func() { io.Copy(up, c); up.(*net.TCPConn).CloseWrite(); done <- struct{}{} }()
	go func() { io.Copy(c, up); c.(*net.TCPConn).CloseWrite(); done <- struct{}{} }()
	<-done
	<-done
}

// Two routers behind a balancer are restarted one after the other under load, and no
// client loses a request.
func TestRollingRestartLosesNothing(t *testing.T) {
	e := newEngine(t, func(x *engineCall) {
		if strings.Contains(string(x.body), `"stream":true`) {
			x.write(sseHead)
			for range 10 {
				x.chunk(delta("x"))
				<-time.After(10 * time.Millisecond)
			}
			x.chunk(stopEvent)
			x.write("0\r\n\r\n")
			return
		}
		x.json(200, okJSON)
	})
	b := newBalancer(t, startProcess(t, e.url()), startProcess(t, e.url()))

	stop := make(chan struct{})
	var sent, lost atomic.Int64
	var wg sync.WaitGroup
	for w := range 6 {
		wg.Go(func() { restartClient(t, b.ln.Addr().String(), w, stop, &sent, &lost) })
	}
	for i := range 2 {
		<-time.After(200 * time.Millisecond)
		b.backends[i].stop(t)
		fresh := startProcess(t, e.url())
		b.mu.Lock()
		b.backends[i] = fresh
		b.mu.Unlock()
	}
	<-time.After(200 * time.Millisecond)
	close(stop)
	wg.Wait()
	if lost.Load() != 0 || sent.Load() < 100 {
		t.Fatalf("%d of %d requests lost", lost.Load(), sent.Load())
	}
	t.Logf("%d requests, none lost", sent.Load())
	for _, p := range b.backends {
		p.stop(t)
	}
}

// restartClient asks over one connection as long as the router keeps it open.
func restartClient(t *testing.T, addr string, w int, stop chan struct{}, sent, lost *atomic.Int64) {
	var c net.Conn
	var br *bufio.Reader
	for i := 0; ; i++ {
		select {
		case <-stop:
			if c != nil {
				c.Close()
			}
			return
		case <-time.After(2 * time.Millisecond):
		}
		if c == nil {
			var err error
			if c, err = net.Dial("tcp", addr); err != nil {
				lost.Add(1)
				t.Error(err)
				return
			}
			br = bufio.NewReader(c)
		}
		body := chatBody
		if (w+i)%3 == 0 {
			body = streamBody
		}
		sent.Add(1)
		io.WriteString(c, rawRequest("/v1/chat/completions", body))
		resp, err := http.ReadResponse(br, nil)
		if err == nil {
			_, err = io.Copy(io.Discard, resp.Body)
		}
		if err != nil || resp.StatusCode != 200 {
			lost.Add(1)
			t.Errorf("worker %d, request %d: %v", w, i, err)
		}
		if err != nil || resp.Close {
			c.Close()
			c = nil
		}
	}
}
