//go:build k8s

package discovery

import (
	"net"
	"sync"
	"testing"
)

// link is the network between a router and the API server, which tests can cut and
// silence: a silent one takes what it is given and delivers nothing, without an error on
// either side, as a firewall that has lost its state does.
type link struct {
	listener net.Listener
	to       string

	mu    sync.Mutex
	conns map[*linked]bool
	made  int
	down  bool // connections end at once
}

// linked is one connection through a link.
type linked struct {
	near, far net.Conn
	mute      chan struct{} // closed: nothing passes any more
}

func newLink(t *testing.T, to string) *link {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	k := &link{listener: l, to: to, conns: map[*linked]bool{}}
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			near, err := l.Accept()
			if err != nil {
				return
			}
			wg.Go(func() { k.carry(near) })
		}
	})
	t.Cleanup(func() { l.Close(); k.cut(true); wg.Wait() })
	return k
}

func (k *link) addr() string { return k.listener.Addr().String() }

func (k *link) carry(near net.Conn) {
	far, err := net.Dial("tcp", k.to)
	if err != nil {
		near.Close()
		return
	}
	c := &linked{near: near, far: far, mute: make(chan struct{})}
	k.mu.Lock()
	k.made++
	down := k.down
	k.conns[c] = true
	k.mu.Unlock()
	if down {
		c.end()
	}
	var wg sync.WaitGroup
	wg.Go(func() { c.pass(far, near) })
	wg.Go(func() { c.pass(near, far) })
	wg.Wait()
	k.mu.Lock()
	delete(k.conns, c)
	k.mu.Unlock()
}

func (c *linked) end() { c.near.Close(); c.far.Close() }

// pass copies one direction until an end closes.
func (c *linked) pass(to, from net.Conn) {
	defer c.end()
	buf := make([]byte, 32<<10)
	for {
		n, err := from.Read(buf)
		select {
		case <-c.mute:
			n = 0 // swallowed
		default:
		}
		if n > 0 {
			if _, err := to.Write(buf[:n]); err != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}

// cut ends all connections; down also those to come.
func (k *link) cut(down bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.down = down
	for c := range k.conns {
		c.end()
	}
}

// silence makes the present connections mute; new ones work.
func (k *link) silence() {
	k.mu.Lock()
	defer k.mu.Unlock()
	for c := range k.conns {
		select {
		case <-c.mute:
		default:
			close(c.mute)
		}
	}
}

func (k *link) connections() int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.made
}
