//go:build k8s

package discovery

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// cluster is a real kube-apiserver on a real etcd. There are no controllers and no
// kubelets: the tests write the objects that those would write.
type cluster struct {
	t      *testing.T
	dir    string
	url    string
	addr   string
	caPEM  []byte
	client *http.Client
	ended  *atomic.Bool // a program has ended by itself
}

const adminToken = "admin-token-of-the-test"

// startCluster starts both programs for the length of a test.
func startCluster(t *testing.T) *cluster {
	t.Helper()
	bin := os.Getenv("PREFIXRING_K8S_BIN")
	if bin == "" {
		t.Skip("PREFIXRING_K8S_BIN names no folder with kube-apiserver and etcd: run make e2e-k8s")
	}
	c := &cluster{t: t, dir: t.TempDir(), ended: new(atomic.Bool)}
	client, peer, api := freePort(t), freePort(t), freePort(t)
	c.addr = fmt.Sprintf("127.0.0.1:%d", api)
	c.url = "https://" + c.addr
	c.certificates()
	c.file("tokens.csv", []byte(adminToken+`,admin,1,"system:masters"`))
	etcd := fmt.Sprintf("http://127.0.0.1:%d", client)
	c.program(bin, "etcd", "--data-dir", c.path("etcd"), "--listen-client-urls", etcd, "--advertise-client-urls", etcd,
		"--listen-peer-urls", fmt.Sprintf("http://127.0.0.1:%d", peer), "--unsafe-no-fsync", "--log-level", "error")
	c.program(bin, "kube-apiserver", "--etcd-servers", etcd, "--bind-address", "127.0.0.1", "--advertise-address", "192.0.2.1", "--endpoint-reconciler-type", "none",
		"--secure-port", fmt.Sprint(api), "--tls-cert-file", c.path("tls.crt"), "--tls-private-key-file", c.path("tls.key"),
		"--token-auth-file", c.path("tokens.csv"), "--authorization-mode", "RBAC", "--service-cluster-ip-range", "10.96.0.0/16",
		"--service-account-issuer", "https://prefixring.test", "--service-account-key-file", c.path("sa.key"),
		"--service-account-signing-key-file", c.path("sa.key"), "--disable-admission-plugins", "ServiceAccount",
		// Old versions are forgotten within seconds and not kept in memory, so that 410 Gone comes soon.
		"--etcd-compaction-interval", "1s", "--watch-cache=false")
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(c.caPEM)
	c.client = &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}}}
	t.Cleanup(c.client.CloseIdleConnections)
	c.awaitReady()
	c.do("POST", "/api/v1/namespaces", map[string]any{"metadata": map[string]any{"name": "shop"}})
	return c
}

func (c *cluster) path(name string) string { return filepath.Join(c.dir, name) }

func (c *cluster) file(name string, text []byte) {
	c.t.Helper()
	if err := os.WriteFile(c.path(name), text, 0o600); err != nil {
		c.t.Fatal(err)
	}
}

func freePort(t *testing.T) int {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port
}

// program runs until the end of the test; its output is shown when the test fails.
func (c *cluster) program(bin, name string, args ...string) {
	c.t.Helper()
	log, err := os.Create(c.path(name + ".log"))
	if err != nil {
		c.t.Fatal(err)
	}
	cmd := exec.Command(filepath.Join(bin, name), args...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		c.t.Fatal(err)
	}
	done := make(chan struct{})
	go func() { defer close(done); _ = cmd.Wait(); c.ended.Store(true) }()
	c.t.Cleanup(func() {
		_ = cmd.Process.Kill()
		<-done
		log.Close()
		if c.t.Failed() {
			b, _ := os.ReadFile(c.path(name + ".log"))
			c.t.Logf("%s: %s", name, b[max(0, len(b)-3000):])
		}
	})
}

func (c *cluster) awaitReady() {
	c.t.Helper()
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(2 * time.Minute); time.Now().Before(deadline) && !c.ended.Load(); <-tick.C {
		req, _ := http.NewRequest("GET", c.url+"/readyz", nil)
		req.Header.Set("Authorization", "Bearer "+adminToken)
		resp, err := c.client.Do(req)
		if err != nil {
			continue
		}
		resp.Body.Close()
		if resp.StatusCode == http.StatusOK {
			return
		}
	}
	c.t.Fatal("kube-apiserver has ended, or is not ready after 2 minutes")
}

// do asks as the administrator and wants success.
func (c *cluster) do(method, path string, body any) map[string]any {
	c.t.Helper()
	text, err := json.Marshal(body)
	if err != nil {
		c.t.Fatal(err)
	}
	req, err := http.NewRequestWithContext(context.Background(), method, c.url+path, bytes.NewReader(text))
	if err != nil {
		c.t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+adminToken)
	req.Header.Set("Content-Type", "application/json")
	if method == "PATCH" {
		req.Header.Set("Content-Type", "application/merge-patch+json")
	}
	resp, err := c.client.Do(req)
	if err != nil {
		c.t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode >= 300 {
		c.t.Fatalf("%s %s: %d %s %v", method, path, resp.StatusCode, b, err)
	}
	out := map[string]any{}
	if err := json.Unmarshal(b, &out); err != nil {
		c.t.Fatal(err)
	}
	return out
}

// certificates makes an authority, the server's certificate and the key of service
// accounts.
func (c *cluster) certificates() {
	c.t.Helper()
	key := func() *ecdsa.PrivateKey {
		k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			c.t.Fatal(err)
		}
		return k
	}
	keep := func(name, kind string, der []byte, err error) []byte {
		if err != nil {
			c.t.Fatal(err)
		}
		b := pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
		c.file(name, b)
		return b
	}
	now := time.Now()
	ca := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test"}, NotBefore: now.Add(-time.Hour), NotAfter: now.Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign}
	caKey, tlsKey, saKey := key(), key(), key()
	der, err := x509.CreateCertificate(rand.Reader, ca, ca, &caKey.PublicKey, caKey)
	c.caPEM = keep("ca.crt", "CERTIFICATE", der, err)
	leaf := &x509.Certificate{SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: "kube-apiserver"}, NotBefore: now.Add(-time.Hour), NotAfter: now.Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}}
	der, err = x509.CreateCertificate(rand.Reader, leaf, ca, &tlsKey.PublicKey, caKey)
	keep("tls.crt", "CERTIFICATE", der, err)
	der, err = x509.MarshalECPrivateKey(tlsKey)
	keep("tls.key", "EC PRIVATE KEY", der, err)
	der, err = x509.MarshalECPrivateKey(saKey)
	keep("sa.key", "EC PRIVATE KEY", der, err)
}

// account makes a service account with the given rights and mounts it as a pod would
// find it, behind the given address of the API server.
func (c *cluster) account(name, address string, rules ...map[string]any) {
	c.t.Helper()
	meta := map[string]any{"name": name, "namespace": "shop"}
	c.do("POST", "/api/v1/namespaces/shop/serviceaccounts", map[string]any{"metadata": meta})
	if len(rules) > 0 {
		c.grant(name, rules...)
	}
	answer := c.do("POST", "/api/v1/namespaces/shop/serviceaccounts/"+name+"/token", map[string]any{
		"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": map[string]any{"expirationSeconds": 3600}})
	dir := c.t.TempDir() + "/"
	for file, text := range map[string]string{"ca.crt": string(c.caPEM), "namespace": "shop", "token": sub(answer, "status")["token"].(string)} {
		if err := os.WriteFile(dir+file, []byte(text), 0o600); err != nil {
			c.t.Fatal(err)
		}
	}
	host, port, _ := strings.Cut(address, ":")
	c.t.Setenv("KUBERNETES_SERVICE_HOST", host)
	c.t.Setenv("KUBERNETES_SERVICE_PORT", port)
	old := account
	account = dir
	c.t.Cleanup(func() { account = old })
}

// grant binds a role of these rules to the account.
func (c *cluster) grant(name string, rules ...map[string]any) {
	c.t.Helper()
	const rbac = "/apis/rbac.authorization.k8s.io/v1/namespaces/shop/"
	meta := map[string]any{"name": name, "namespace": "shop"}
	c.do("POST", rbac+"roles", map[string]any{"metadata": meta, "rules": rules})
	c.do("POST", rbac+"rolebindings", map[string]any{"metadata": meta,
		"subjects": []any{map[string]any{"kind": "ServiceAccount", "name": name, "namespace": "shop"}},
		"roleRef":  map[string]any{"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": name}})
}
