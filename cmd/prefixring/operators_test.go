package main

import (
	"crypto/tls"
	"crypto/x509"
	"io"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
)

// asked is the status that the admin port answers with.
func asked(t *testing.T, c *http.Client, method, url string, headers ...string) (int, http.Header) {
	t.Helper()
	req, err := http.NewRequest(method, url, strings.NewReader("{}"))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	for i := 0; i+1 < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	resp, err := c.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	io.Copy(io.Discard, resp.Body)
	return resp.StatusCode, resp.Header
}

// putAt is put, and says where.
func putAt(t *testing.T, dir, name, text string) string {
	t.Helper()
	put(t, dir, name, text)
	return filepath.Join(dir, name)
}

// An admin port that others can reach is refused until somebody is asked who they are.
func TestAdminPortThatOthersReachNeedsCredentials(t *testing.T) {
	dir := t.TempDir()
	put(t, dir, "tokens", "ann a-token-of-some-length\n")
	put(t, dir, "short", "ann tooshort\n")
	pools := "pools:\n  - engines: [{url: 'http://127.0.0.1:1'}]\n"
	open := putAt(t, dir, "open.yaml", "admin: 0.0.0.0:0\n"+pools)
	for _, tc := range []struct {
		args []string
		code int
		want string
	}{
		{[]string{"-c", open}, exitUsage, "admin_access.token_file"},
		{[]string{"-c", open, "--admin", "127.0.0.1:0"}, exitUsage, "open.yaml:1: admin"}, // the file stays wrong
		{[]string{"-c", putAt(t, dir, "a.yaml", pools), "--admin", ":0"}, exitUsage, "can be reached from other machines"},
		{[]string{"-c", putAt(t, dir, "b.yaml", pools), "--admin", "router.example:0"}, exitUsage, "can be reached"},
		{[]string{"-c", putAt(t, dir, "c.yaml", "admin: '[::1]:0'\n"+pools)}, 0, ""},
		{[]string{"-c", putAt(t, dir, "d.yaml", "admin: 0.0.0.0:0\nadmin_access: {token_file: tokens}\n"+pools)}, 0, ""},
		{[]string{"-c", putAt(t, dir, "e.yaml", "admin: 0.0.0.0:0\nadmin_access: {token_file: short}\n"+pools)}, exitUsage, "line 1: the token is shorter"},
		{[]string{"-c", putAt(t, dir, "f.yaml", "admin: 0.0.0.0:0\nadmin_access: {token_file: none}\n"+pools)}, exitUsage, "none"},
		{[]string{"-c", putAt(t, dir, "g.yaml", "admin_access: {client_ca_file: ca.pem}\n"+pools)}, exitUsage, "need TLS"},
		{[]string{"-c", putAt(t, dir, "h.yaml", "admin_access: {cert_file: c.pem}\n"+pools)}, exitUsage, "go together"},
		{[]string{"--engine", "http://127.0.0.1:1", "--admin", "0.0.0.0:0"}, exitUsage, "--admin-token-file"},
		{[]string{"--engine", "http://127.0.0.1:1", "--admin", "0.0.0.0:0", "--admin-token-file", filepath.Join(dir, "tokens")}, 0, ""},
	} {
		code, _, errs := invoke(t, append([]string{"check"}, tc.args...)...)
		if code != tc.code || !strings.Contains(errs, tc.want) || strings.Contains(errs, "tooshort") {
			t.Errorf("check %q: %d %s, want %d with %q", tc.args, code, errs, tc.code, tc.want)
		}
	}
}

// Tokens hold for the port and the commands, and change with their file, no restart.
func TestOperatorTokens(t *testing.T) {
	_, engine := instant(t)
	dir := t.TempDir()
	put(t, dir, "tokens", "ann anns-first-long-token\n")
	mine := putAt(t, dir, "mine", "anns-first-long-token\n")
	put(t, dir, "router.yaml", "admin_access: {token_file: tokens}\nlimits: {drain_delay: 1ms}\npools:\n  - engines: [{name: e1, url: '"+engine+"'}]\n")
	s := serveT(t, "--config", filepath.Join(dir, "router.yaml"), "--reload-interval", "5ms")
	drain := s.admin + "/api/v1/nodes/e1/drain"
	if code, _ := asked(t, http.DefaultClient, "POST", drain, "X-Prefixring-Operator", "ann"); code != 401 {
		t.Errorf("without a token: %d", code)
	}
	if code, _ := asked(t, http.DefaultClient, "POST", drain, "Authorization", "Bearer anns-first-long-token"); code != 200 {
		t.Errorf("with a token: %d", code)
	}
	if code, _, errs := invoke(t, "status", "--router", s.admin); code != exitNo || !strings.Contains(errs, "--token-file") {
		t.Errorf("status without a token: %d %s", code, errs)
	}
	if code, out, errs := invoke(t, "status", "--router", s.admin, "--token-file", mine); code != 0 || !strings.Contains(out, "draining") {
		t.Errorf("status with a token: %d %s %s", code, out, errs)
	}
	put(t, dir, "tokens", "broken\n")
	put(t, dir, "tokens", "bob bobs-much-newer-token\n")
	until(t, "the new token is in force", func() bool {
		code, _ := asked(t, http.DefaultClient, "GET", s.admin+"/api/v1/fleet", "Authorization", "Bearer bobs-much-newer-token")
		return code == 200
	})
	if code, _ := asked(t, http.DefaultClient, "GET", s.admin+"/api/v1/fleet", "Authorization", "Bearer anns-first-long-token"); code != 401 {
		t.Errorf("the old token: %d", code)
	}
}

// The tag of a node follows what operators set, and a change on an older one is refused.
func TestNodeETags(t *testing.T) {
	_, engine := instant(t)
	s := serveT(t, "--engine", engine+",name=e1")
	node := s.admin + "/api/v1/nodes/e1"
	_, h := asked(t, http.DefaultClient, "GET", node)
	before := h.Get("ETag")
	if before != `"open-1"` {
		t.Fatalf("tag %s", before)
	}
	change := func(action, match string) (int, string) {
		code, h := asked(t, http.DefaultClient, "POST", node+"/"+action, "X-Prefixring-Operator", "ann", "If-Match", match)
		return code, h.Get("ETag")
	}
	if code, tag := change("drain", before); code != 200 || tag != `"drained-1"` {
		t.Errorf("drain: %d %s", code, tag)
	}
	if code, tag := change("cordon", before); code != 412 || tag != `"drained-1"` {
		t.Errorf("stale cordon: %d %s", code, tag)
	}
	if code, tag := change("resume", `"drained-1"`); code != 200 || tag != before {
		t.Errorf("resume: %d %s", code, tag)
	}
	if code, _ := asked(t, http.DefaultClient, "GET", s.admin+"/api/v1/nodes/nobody"); code != 404 {
		t.Errorf("nobody: %d", code)
	}
}

// A client certificate under the configured roots is as good as a token; another one ends
// the handshake, and without one only probes are answered.
func TestOperatorCertificates(t *testing.T) {
	_, engine := instant(t)
	dir := t.TempDir()
	file := func(name string) (cert, key string) {
		c, k := pemPair(t, name)
		return putAt(t, dir, name+".crt", c), putAt(t, dir, name+".key", k)
	}
	cert, key := file("localhost")
	annCert, annKey := file("ann")
	malloryCert, malloryKey := file("mallory")
	conf := putAt(t, dir, "router.yaml", "admin_access: {cert_file: localhost.crt, key_file: localhost.key, client_ca_file: ann.crt}\n"+
		"limits: {drain_delay: 1ms}\npools:\n  - engines: [{name: e1, url: '"+engine+"'}]\n")
	s := serveT(t, "--config", conf)
	url := strings.Replace(s.admin, "127.0.0.1", "localhost", 1)
	if !strings.HasPrefix(url, "https://") {
		t.Fatalf("admin port at %s", url)
	}
	roots, err := readRoots(cert)
	if err != nil {
		t.Fatal(err)
	}
	plain := tlsClient(t, roots)
	if code, _ := asked(t, plain, "GET", url+"/api/v1/fleet"); code != 401 {
		t.Errorf("without a certificate: %d", code)
	}
	if code, _ := asked(t, plain, "GET", url+"/healthz"); code != 200 {
		t.Errorf("a probe without a certificate: %d", code)
	}
	with := []string{"status", "--router", url, "--router-ca", cert}
	if code, out, errs := invoke(t, append(with, "--router-cert", annCert, "--router-key", annKey)...); code != 0 || !strings.Contains(out, "e1") {
		t.Errorf("status of ann: %d %s %s", code, out, errs)
	}
	if code, _, errs := invoke(t, append(with, "--router-cert", malloryCert, "--router-key", malloryKey)...); code != exitNo || !strings.Contains(errs, "credential") {
		t.Errorf("status of mallory: %d %s", code, errs)
	}
	forced := tlsClient(t, roots)
	forced.Transport.(*http.Transport).TLSClientConfig.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
		pair, err := tls.LoadX509KeyPair(malloryCert, malloryKey) // though the port did not ask for one of these
		return &pair, err
	}
	if resp, err := forced.Get(url + "/healthz"); err == nil {
		resp.Body.Close()
		t.Error("a certificate of nobody's ends no handshake")
	}
	if code, _, errs := invoke(t, append(with, "--router-cert", key)...); code != exitUsage {
		t.Errorf("a certificate without its key: %d %s", code, errs)
	}
}

func tlsClient(t *testing.T, roots *x509.CertPool) *http.Client {
	c := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots}}}
	t.Cleanup(c.CloseIdleConnections)
	return c
}
