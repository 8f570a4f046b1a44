package proxy

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"math/big"
	"net"
	"testing"
	"time"
)

// certs is a private authority with one server and one client certificate.
type certs struct {
	roots          *x509.CertPool
	server, client *tls.Config
}

// testCert makes certificates for engine-0.svc and for one client.
func testCert(t testing.TB) certs {
	t.Helper()
	caKey, ca, caDER := issue(t, "test authority", nil, nil)
	_ = caDER
	roots := x509.NewCertPool()
	roots.AddCert(ca)
	leaf := func(name string) tls.Certificate {
		key, _, der := issue(t, name, ca, caKey)
		return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
	}
	return certs{
		roots:  roots,
		server: &tls.Config{Certificates: []tls.Certificate{leaf("engine-0.svc")}, MinVersion: tls.VersionTLS12},
		client: &tls.Config{Certificates: []tls.Certificate{leaf("router")}, RootCAs: roots, ServerName: "engine-0.svc"},
	}
}

func issue(t testing.TB, name string, ca *x509.Certificate, caKey *ecdsa.PrivateKey) (*ecdsa.PrivateKey, *x509.Certificate, []byte) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	serial, err := rand.Int(rand.Reader, big.NewInt(1<<60))
	if err != nil {
		t.Fatal(err)
	}
	c := &x509.Certificate{
		SerialNumber: serial, Subject: pkix.Name{CommonName: name}, DNSNames: []string{name},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		KeyUsage:    x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
		IsCA:        ca == nil, BasicConstraintsValid: true,
	}
	if ca == nil {
		ca, caKey = c, key
	}
	der, err := x509.CreateCertificate(rand.Reader, c, ca, &key.PublicKey, caKey)
	if err != nil {
		t.Fatal(err)
	}
	c, err = x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return key, c, der
}

// dialTLS is dial for a router that listens with the test certificate.
func (r *router) dialTLS(t testing.TB) net.Conn {
	t.Helper()
	c, err := tls.Dial("tcp", r.addr, &tls.Config{InsecureSkipVerify: true, MinVersion: tls.VersionTLS12})
	if err != nil {
		t.Fatal(err)
	}
	c.SetDeadline(time.Now().Add(20 * time.Second))
	t.Cleanup(func() { c.Close() })
	return c
}
