package discovery

import (
	"context"
	"encoding/binary"
	"net"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"
)

// nameServer is a DNS server with scripted answers.
type nameServer struct {
	conn net.PacketConn

	mu      sync.Mutex
	a       map[string][]string // host -> addresses of both families
	srv     map[string][]string // name -> targets, all with port 8000
	ttl     uint32
	broken  bool // SERVFAIL
	queries int
}

func newNameServer(t *testing.T) *nameServer {
	t.Helper()
	c, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	n := &nameServer{conn: c, a: map[string][]string{}, srv: map[string][]string{}, ttl: 1}
	done := make(chan struct{})
	go func() {
		defer close(done)
		b := make([]byte, 4096)
		for {
			size, from, err := c.ReadFrom(b)
			if err != nil {
				return
			}
			_, _ = c.WriteTo(n.answer(b[:size]), from)
		}
	}()
	t.Cleanup(func() { c.Close(); <-done })
	return n
}

func (n *nameServer) dial(ctx context.Context, _, _ string) (net.Conn, error) {
	return (&net.Dialer{}).DialContext(ctx, "udp", n.conn.LocalAddr().String())
}

func (n *nameServer) set(f func()) { n.mu.Lock(); defer n.mu.Unlock(); f() }

// answer builds the answer to a query of one question.
func (n *nameServer) answer(q []byte) []byte {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.queries++
	end := skipName(q, 12)
	name := readName(q, 12)
	kind := binary.BigEndian.Uint16(q[end:])
	m := append([]byte{}, q[:end+4]...)
	m[2], m[3] = 0x84, 0x80 // answer, authoritative, recursion available
	binary.BigEndian.PutUint16(m[6:], 0)
	binary.BigEndian.PutUint16(m[8:], 0)
	binary.BigEndian.PutUint16(m[10:], 0)
	if n.broken {
		m[3] |= 2
		return m
	}
	var data [][]byte
	switch kind {
	case 1, 28:
		for _, s := range n.a[name] {
			if ip := netip.MustParseAddr(s); ip.Is4() == (kind == 1) {
				data = append(data, ip.AsSlice())
			}
		}
	case 33:
		for _, target := range n.srv[name] {
			data = append(data, append([]byte{0, 0, 0, 1, 0x1F, 0x40}, writeName(target)...))
		}
	}
	if _, a := n.a[name]; !a && n.srv[name] == nil {
		m[3] |= 3 // NXDOMAIN
	}
	binary.BigEndian.PutUint16(m[6:], uint16(len(data)))
	for _, d := range data {
		m = append(m, 0xC0, 12) // the name of the question
		m = binary.BigEndian.AppendUint16(m, kind)
		m = binary.BigEndian.AppendUint16(m, 1)
		m = binary.BigEndian.AppendUint32(m, n.ttl)
		m = binary.BigEndian.AppendUint16(m, uint16(len(d)))
		m = append(m, d...)
	}
	return m
}

func readName(m []byte, i int) string {
	var b strings.Builder
	for m[i] != 0 {
		b.Write(m[i+1 : i+1+int(m[i])])
		b.WriteByte('.')
		i += 1 + int(m[i])
	}
	return strings.ToLower(b.String())
}

func writeName(s string) (b []byte) {
	for _, label := range strings.Split(strings.TrimSuffix(s, "."), ".") {
		b = append(append(b, byte(len(label))), label...)
	}
	return append(b, 0)
}

func (n *nameServer) hosts(family string) *DNS {
	return &DNS{Name: "engines.test.", Port: 8000, Family: family, Dial: n.dial, Min: time.Millisecond, Max: 20 * time.Millisecond}
}

func TestDNSAddresses(t *testing.T) {
	n := newNameServer(t)
	n.set(func() { n.a["engines.test."] = []string{"10.0.0.2", "10.0.0.1", "fd00::1"} })
	four, six := "10.0.0.1:8000=http://10.0.0.1:8000, 10.0.0.2:8000=http://10.0.0.2:8000", "[fd00::1]:8000=http://[fd00::1]:8000"
	sets := watchSets(t, n.hosts(""))
	until(t, sets, four)
	until(t, watchSets(t, n.hosts("6")), six)
	n.set(func() { n.a["engines.test."] = []string{"10.0.0.2", "fd00::1"} })
	until(t, sets, "10.0.0.2:8000=http://10.0.0.2:8000")
	n.set(func() { n.a["engines.test."] = []string{"fd00::1"} })
	until(t, sets, six) // none of IPv4 left
	n.set(func() { delete(n.a, "engines.test.") })
	until(t, sets, "") // the keeper holds on to the last set for its grace
}

func TestB62SRVTargetsKeepTheirNames(t *testing.T) {
	n := newNameServer(t)
	n.set(func() {
		n.srv["_http._tcp.engines.test."] = []string{"e-0.engines.test.", "e-1.engines.test.", "e-2.engines.test."}
	})
	n.set(func() { n.a["e-0.engines.test."] = []string{"10.0.0.1", "fd00::1"} })
	n.set(func() { n.a["e-1.engines.test."] = []string{"fd00::2"} }) // e-2 has no address yet
	d := n.hosts("")
	d.Name, d.SRV, d.Port = "_http._tcp.engines.test.", true, 0
	sets := watchSets(t, d)
	until(t, sets, "e-0.engines.test:8000=http://10.0.0.1:8000, e-1.engines.test:8000=http://[fd00::2]:8000")
	n.set(func() { n.a["e-0.engines.test."] = []string{"10.0.7.7"} })
	until(t, sets, "e-0.engines.test:8000=http://10.0.7.7:8000, e-1.engines.test:8000=http://[fd00::2]:8000")
}

func TestDNSFailureIsNoAnswer(t *testing.T) {
	n := newNameServer(t)
	n.set(func() { n.broken = true })
	d := n.hosts("4")
	d.Timeout = time.Second
	out := make(chan []Endpoint)
	if err := d.Run(t.Context(), out); err == nil || !strings.Contains(err.Error(), "cannot look up engines") {
		t.Errorf("Run = %v, want the failure and no set", err)
	}
	if err := (&DNS{Name: "x"}).Run(t.Context(), out); err == nil {
		t.Error("no port: accepted")
	}
}

func TestDNSTTLDecidesWhenToAskAgain(t *testing.T) {
	n := newNameServer(t)
	n.set(func() { n.a["engines.test."] = []string{"10.0.0.1", "10.0.0.2"} })
	for _, c := range []struct {
		ttl  uint32
		want time.Duration
	}{{7, 7 * time.Second}, {0, time.Millisecond}, {1 << 31, time.Millisecond}} {
		n.set(func() { n.ttl = c.ttl })
		set, ttl, err := n.hosts("4").find(t.Context())
		if err != nil || len(set) != 2 || ttl != c.want {
			t.Errorf("TTL %d: %d engines, ask again after %v, %v", c.ttl, len(set), ttl, err)
		}
	}
}

func FuzzShortestTTL(f *testing.F) {
	q := append([]byte{0, 1, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0}, append(writeName("a.test"), 0, 1, 0, 1)...)
	n := &nameServer{a: map[string][]string{"a.test.": {"10.0.0.1", "10.0.0.2"}}, ttl: 30}
	f.Add(n.answer(q))
	f.Fuzz(func(t *testing.T, m []byte) {
		if ttl, ok := shortestTTL(m); ok && ttl > 1<<31-1 {
			t.Fatalf("TTL %d", ttl)
		}
	})
}
