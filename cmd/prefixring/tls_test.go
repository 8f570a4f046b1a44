package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net/url"
	"path/filepath"
	"testing"
	"time"
)

// pemPair makes a self-signed certificate for a name and its key, in PEM.
func pemPair(t *testing.T, name string) (cert, key string) {
	t.Helper()
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	c := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: name}, DNSNames: []string{name},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), BasicConstraintsValid: true, IsCA: true,
		KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, c, c, &k.PublicKey, k)
	if err != nil {
		t.Fatal(err)
	}
	secret, err := x509.MarshalPKCS8PrivateKey(k)
	if err != nil {
		t.Fatal(err)
	}
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})),
		string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: secret}))
}

// served is the name in the certificate that the data port shows now.
func served(t *testing.T, data string) string {
	t.Helper()
	u, err := url.Parse(data)
	if err != nil {
		t.Fatal(err)
	}
	c, err := tls.Dial("tcp", u.Host, &tls.Config{InsecureSkipVerify: true}) // its name is what is asked for
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	return c.ConnectionState().PeerCertificates[0].Subject.CommonName
}

// A new certificate is served without a restart; while the files hold a pair that does
// not fit, the old one is.
func TestCertificateIsReadAnew(t *testing.T) {
	_, engine := instant(t)
	dir := t.TempDir()
	cert, key := pemPair(t, "first.example")
	put(t, dir, "cert.pem", cert)
	put(t, dir, "key.pem", key)
	put(t, dir, "router.yaml", "tls: {cert_file: cert.pem, key_file: key.pem}\nlimits: {drain_delay: 1ms}\npools:\n  - engines: [{url: '"+engine+"'}]\n")
	s := serveT(t, "--config", filepath.Join(dir, "router.yaml"), "--reload-interval", "5ms")
	if got := served(t, s.data); got != "first.example" {
		t.Fatalf("shows %s", got)
	}
	cert, key = pemPair(t, "second.example")
	put(t, dir, "cert.pem", cert) // its key is not there yet
	if got := served(t, s.data); got != "first.example" {
		t.Fatalf("shows %s beside a key that does not fit", got)
	}
	put(t, dir, "key.pem", key)
	until(t, "the new certificate is shown", func() bool { return served(t, s.data) == "second.example" })
}

// Files that cannot be used leave the last good pair in force, for as long as they are
// there; at the start they are an error.
func TestBadCertificateLeavesTheGoodOne(t *testing.T) {
	dir := t.TempDir()
	now := time.Unix(1000, 0)
	c := &certFiles{cert: filepath.Join(dir, "cert.pem"), key: filepath.Join(dir, "key.pem"), now: func() time.Time { return now }}
	if _, err := c.load(); err == nil {
		t.Fatal("no files, no error")
	}
	cert, key := pemPair(t, "good.example")
	other, _ := pemPair(t, "other.example")
	put(t, dir, "cert.pem", cert)
	put(t, dir, "key.pem", key)
	good, err := c.load()
	if err != nil {
		t.Fatal(err)
	}
	for _, bad := range []string{"", "rubbish", other, cert[:len(cert)/2]} {
		put(t, dir, "cert.pem", bad)
		now = now.Add(recheck + time.Second)
		if pair, err := c.load(); err != nil || pair != good {
			t.Errorf("%.20q took the place of a good certificate (%v)", bad, err)
		}
	}
	put(t, dir, "cert.pem", cert)
	now = now.Add(recheck + time.Second)
	if pair, err := c.load(); err != nil || pair == good {
		t.Errorf("the files are good again and were not read (%v)", err)
	}
}
