package health

import (
	"bufio"
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// get asks a live server once and returns the body.
func get(t *testing.T, c *client, path string) (result, string) {
	t.Helper()
	var body bytes.Buffer
	r := c.get(t.Context(), path, 5*time.Second, func(b []byte) error { body.Write(b); return nil })
	return r, body.String()
}

func dialTo(t *testing.T, target Target) *client {
	t.Helper()
	var o Options
	if err := o.fill(); err != nil {
		t.Fatal(err)
	}
	c, err := newClient(&o, &target)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.close)
	return c
}

func TestWireReadsEveryFraming(t *testing.T) {
	big := strings.Repeat("0123456789abcdef", 10_000)
	var conns atomic.Int64
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/base/length":
			w.Header().Set("Content-Length", fmt.Sprint(len(big)))
			_, _ = io.WriteString(w, big)
		case "/base/chunked":
			for i := 0; i < len(big); i += 7000 {
				_, _ = io.WriteString(w, big[i:min(i+7000, len(big))])
				w.(http.Flusher).Flush()
			}
		case "/base/close":
			w.Header().Set("Connection", "close")
			_, _ = io.WriteString(w, big)
		case "/base/hints":
			w.WriteHeader(http.StatusEarlyHints)
			_, _ = io.WriteString(w, "after hints")
		case "/base/none":
			w.WriteHeader(204)
		case "/base/cut":
			w.Header().Set("Content-Length", "100")
			_, _ = io.WriteString(w, "short")
			panic(http.ErrAbortHandler)
		default:
			http.Error(w, "what?", 404)
		}
	}))
	s.Config.ConnState = func(_ net.Conn, st http.ConnState) {
		if st == http.StateNew {
			conns.Add(1)
		}
	}
	s.Start()
	defer s.Close()
	c := dialTo(t, Target{URL: s.URL + "/base/"})
	for _, path := range []string{"/length", "/chunked", "/close", "/length"} {
		if r, body := get(t, c, path); !r.ok() || body != big {
			t.Errorf("%s: %+v, %d bytes", path, r, len(body))
		}
	}
	if n := conns.Load(); n != 2 {
		t.Errorf("%d connections for 4 requests of which one closed, want 2", n)
	}
	if r, body := get(t, c, "/hints"); !r.ok() || body != "after hints" {
		t.Errorf("early hints: %+v %q", r, body)
	}
	if r, body := get(t, c, "/none"); r.status != 204 || body != "" {
		t.Errorf("204: %+v %q", r, body)
	}
	if r, body := get(t, c, "/nowhere"); r.answer != answered || r.status != 404 || body != "" {
		t.Errorf("404: %+v %q", r, body)
	}
	if r, _ := get(t, c, "/cut"); r.answer != broken || r.err == nil {
		t.Errorf("cut body: %+v", r)
	}
}

// The engine may close a resting connection at any moment; that is no failure of it.
func TestB48StaleConnectionIsReplacedOnce(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	served := make(chan struct{}, 8)
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			req, err := http.ReadRequest(bufio.NewReader(conn))
			if err == nil && req.URL.Path == "/ok" {
				_, _ = io.WriteString(conn, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
			}
			_ = conn.Close() // without having said so
			served <- struct{}{}
		}
	}()
	c := dialTo(t, Target{URL: l.Addr().String()})
	for range 3 {
		r, body := get(t, c, "/ok")
		if !r.ok() || body != "ok" {
			t.Fatalf("%+v %q", r, body)
		}
		<-served
	}
	// A fresh connection that ends without an answer is a failure, and is not retried.
	c.close()
	if r, _ := get(t, c, "/die"); r.answer != broken {
		t.Errorf("%+v", r)
	}
	<-served
	if len(served) != 0 {
		t.Error("a failed fresh connection was retried")
	}
}

func TestWireTellsRefusedFromSilent(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	c := dialTo(t, Target{URL: l.Addr().String()})
	if r := c.get(t.Context(), "/health", 50*time.Millisecond, nil); r.answer != timedOut { // nobody accepts
		t.Errorf("silent: %+v", r)
	}
	l.Close()
	if r := c.get(t.Context(), "/health", time.Second, nil); r.answer != refused {
		t.Errorf("refused: %+v", r)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if r := c.get(ctx, "/health", time.Second, nil); r.answer == answered {
		t.Errorf("cancelled: %+v", r)
	}
}

func TestWireEndsWithItsContext(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	accepted := make(chan net.Conn, 1)
	go func() {
		if c, err := l.Accept(); err == nil {
			accepted <- c
		}
	}()
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		conn := <-accepted
		_, _ = bufio.NewReader(conn).ReadString('\n') // the request has arrived
		cancel()
		_, _ = io.Copy(io.Discard, conn)
		conn.Close()
	}()
	c := dialTo(t, Target{URL: l.Addr().String()})
	start := time.Now()
	if r := c.get(ctx, "/health", time.Minute, nil); r.answer == answered {
		t.Errorf("%+v", r)
	}
	if d := time.Since(start); d > 10*time.Second {
		t.Errorf("took %v after the context had ended", d)
	}
}

func TestWireRefusesAKeyThatWouldSplitTheRequest(t *testing.T) {
	c := dialTo(t, Target{URL: "http://127.0.0.1:1", APIKey: func() string { return "k\r\nX-Evil: 1" }})
	if r, _ := get(t, c, "/health"); !errors.Is(r.err, errBadKey) || strings.Contains(r.err.Error(), "Evil") {
		t.Errorf("%+v", r)
	}
}

func TestB62AddressesOfEveryForm(t *testing.T) {
	for _, c := range []struct{ in, addr, host string }{
		{"[::1]:8000", "[::1]:8000", "[::1]:8000"},
		{"http://[fd00::1]:8100", "[fd00::1]:8100", "[fd00::1]:8100"},
		{"http://[fd00::1]", "[fd00::1]:80", "[fd00::1]"},
		{"https://[fd00::1]", "[fd00::1]:443", "[fd00::1]"},
		{"10.0.0.7:8000", "10.0.0.7:8000", "10.0.0.7:8000"},
		{"http://engine-0.svc:8000/base/", "engine-0.svc:8000", "engine-0.svc:8000"},
		{"localhost:8000", "localhost:8000", "localhost:8000"},
	} {
		cl := dialTo(t, Target{URL: c.in})
		if cl.addr != c.addr || cl.host != c.host {
			t.Errorf("%s: dials %s with host %s", c.in, cl.addr, cl.host)
		}
	}
	for _, bad := range []string{"http://fd00::1:8100/metrics", "", "http://", "ws://x:1"} {
		if _, err := parseURL(bad); err == nil {
			t.Errorf("%q accepted", bad)
		}
	}
}

func TestB62ProbesOverIPv6(t *testing.T) {
	l, err := net.Listen("tcp", "[::1]:0")
	if err != nil {
		t.Fatalf("this test needs an IPv6 loopback: %v", err)
	}
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, r.Host)
	}))
	s.Listener = l
	s.Start()
	defer s.Close()
	for _, form := range []string{l.Addr().String(), "http://" + l.Addr().String()} {
		if r, body := get(t, dialTo(t, Target{URL: form}), "/health"); !r.ok() || body != l.Addr().String() {
			t.Errorf("%s: %+v, host %q", form, r, body)
		}
	}
}

// authority signs certificates for the TLS tests.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	pool *x509.CertPool
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	a := &authority{pool: x509.NewCertPool()}
	a.cert, a.key = sign(t, nil, &x509.Certificate{IsCA: true, BasicConstraintsValid: true, Subject: pkix.Name{CommonName: "test CA"}})
	a.pool.AddCert(a.cert)
	return a
}

func sign(t *testing.T, by *authority, c *x509.Certificate) (*x509.Certificate, *ecdsa.PrivateKey) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	c.SerialNumber = big.NewInt(time.Now().UnixNano())
	c.NotBefore, c.NotAfter = time.Now().Add(-time.Hour), time.Now().Add(time.Hour)
	parent, signer := c, key
	if by != nil {
		parent, signer = by.cert, by.key
	}
	der, err := x509.CreateCertificate(rand.Reader, c, parent, &key.PublicKey, signer)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return cert, key
}

func (a *authority) leaf(t *testing.T, name string) tls.Certificate {
	cert, key := sign(t, a, &x509.Certificate{
		Subject: pkix.Name{CommonName: name}, DNSNames: []string{name},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	})
	return tls.Certificate{Certificate: [][]byte{cert.Raw}, PrivateKey: key}
}

func TestB64ProbesOverTLS(t *testing.T) {
	ca, other := newAuthority(t), newAuthority(t)
	plain := atomic.Int64{}
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.TLS == nil {
			plain.Add(1)
		}
		_, _ = io.WriteString(w, r.TLS.PeerCertificates[0].Subject.CommonName)
	}))
	s.TLS = &tls.Config{Certificates: []tls.Certificate{ca.leaf(t, "engine-0.svc")}, ClientCAs: ca.pool, ClientAuth: tls.RequireAndVerifyClientCert}
	s.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, 0)
	s.StartTLS()
	defer s.Close()
	byIP := s.URL
	var renewed atomic.Pointer[tls.Certificate]
	first := ca.leaf(t, "router-1")
	renewed.Store(&first)
	client := func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return renewed.Load(), nil }
	for _, c := range []struct {
		name string
		tls  *tls.Config
		want string // "" = it works
	}{
		{"without the CA", &tls.Config{ServerName: "engine-0.svc", GetClientCertificate: client}, "unknown authority"},
		{"without the server name", &tls.Config{RootCAs: ca.pool, GetClientCertificate: client}, "127.0.0.1"},
		{"another CA", &tls.Config{RootCAs: other.pool, ServerName: "engine-0.svc", GetClientCertificate: client}, "unknown authority"},
		{"system defaults", nil, "failed to verify certificate"},
		{"without a client certificate", &tls.Config{RootCAs: ca.pool, ServerName: "engine-0.svc"}, "certificate required"},
		{"all of it", &tls.Config{RootCAs: ca.pool, ServerName: "engine-0.svc", GetClientCertificate: client}, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			cl := dialTo(t, Target{URL: byIP, TLS: c.tls})
			r, body := get(t, cl, "/metrics")
			if c.want != "" {
				if r.err == nil || !strings.Contains(r.err.Error(), c.want) {
					t.Errorf("%+v, want an error about %q", r, c.want)
				}
				return
			}
			if !r.ok() || body != "router-1" {
				t.Fatalf("%+v %q", r, body)
			}
			second := ca.leaf(t, "router-2")
			renewed.Store(&second)
			cl.close()
			if r, body := get(t, cl, "/metrics"); !r.ok() || body != "router-2" {
				t.Errorf("renewed certificate: %+v %q", r, body)
			}
		})
	}
	if plain.Load() != 0 {
		t.Error("a probe went out in plain text")
	}
}

// FuzzWireAgainstNetHTTP compares what is read from any answer with what net/http
// reads. Ours may refuse what net/http accepts, never the other way round.
func FuzzWireAgainstNetHTTP(f *testing.F) {
	for _, s := range []string{
		"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello",
		"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5;x=y\r\nhello\r\n0\r\nA: b\r\n\r\n",
		"HTTP/1.0 200 OK\r\n\r\nto the end",
		"HTTP/1.1 503 Service Unavailable\nConnection: Close\ncontent-length: 0\n\n",
		"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 204 No Content\r\n\r\n",
		"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello",
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		in := bytes.NewReader(raw)
		c := &client{line: &line{br: bufio.NewReaderSize(in, 4096), in: in}}
		h, err := c.head()
		var body []byte
		if err == nil {
			err = c.body(&h, func(b []byte) error { body = append(body, b...); return nil })
		}
		if err != nil {
			return
		}
		br := bufio.NewReaderSize(bytes.NewReader(raw), 4096)
		resp, err := http.ReadResponse(br, nil)
		for err == nil && resp.StatusCode < 200 {
			resp, err = http.ReadResponse(br, nil)
		}
		if err != nil {
			// net/http looks into fields that probes never read.
			return
		}
		theirs, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		if err != nil && strings.Contains(err.Error(), "trailer") {
			return // a body that is whole; trailers are of no interest to probes
		}
		if err != nil {
			t.Fatalf("net/http finds the body broken (%v), we read %q", err, body)
		}
		if resp.StatusCode != h.status || !bytes.Equal(theirs, body) {
			t.Fatalf("status %d, body %q; net/http: %d, %q", h.status, body, resp.StatusCode, theirs)
		}
	})
}
