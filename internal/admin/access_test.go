package admin

import (
	"crypto/sha256"
	"fmt"
	"net/http"
	"strings"
	"testing"
)

const annsToken = "ann-has-a-long-token"

func tokens(t *testing.T, text string) *Tokens {
	t.Helper()
	list, err := ReadTokens(strings.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	return list
}

// With tokens, all but the probes need one, and the probes tell nothing of the fleet.
func TestTokens(t *testing.T) {
	list := tokens(t, fmt.Sprintf("# operators\nann %s\nbob sha256:%x\n", annsToken, sha256.Sum256([]byte("bobs-own-long-token"))))
	p := newPort(t, Access{Tokens: func() *Tokens { return list }})
	drain := func(status int, headers ...string) {
		p.do(t, &call{"POST", "/api/v1/nodes/n1/drain", "{}", append(headers, asJSON), status, ""})
	}
	for _, path := range []string{"/metrics", "/api/v1/fleet", "/api/v1/nodes/n1", "/debug/pprof/", "/debug/pprof/heap", "/nothing"} {
		resp := p.do(t, &call{"GET", path, "", nil, 401, "credential"})
		if resp.Header.Get("WWW-Authenticate") == "" {
			t.Errorf("%s: no WWW-Authenticate", path)
		}
		p.do(t, &call{"GET", path, "", []string{"Authorization: Bearer wrong-but-quite-long"}, 401, "credential"})
		p.do(t, &call{"GET", path, "", []string{"Authorization: Basic YW5uOmFubi1oYXMtYS1sb25nLXRva2Vu"}, 401, "credential"})
	}
	p.do(t, &call{"GET", "/healthz", "", nil, 200, "ok"})
	if resp := p.do(t, &call{"GET", "/readyz", "", nil, 200, "ready"}); resp.ContentLength != int64(len("ready\n")) {
		t.Error("readiness tells warnings to everyone")
	}
	p.do(t, &call{"GET", "/readyz", "", []string{"Authorization: Bearer " + annsToken}, 200, "warning"})
	drain(401)
	drain(401, "X-Prefixring-Operator: ann")
	if len(p.operated) != 0 {
		t.Fatalf("operated %q without a token", p.operated)
	}
	drain(200, "Authorization: Bearer "+annsToken, "X-Prefixring-Operator: mallory")
	drain(200, "Authorization: bearer bobs-own-long-token")
	p.do(t, &call{"GET", "/api/v1/fleet", "", []string{"Authorization: Bearer " + annsToken, "Host: router.example"}, 200, ""})
	log := p.log.String()
	for _, want := range []string{`"operator":"ann"`, `"operator":"bob"`, `"status":401`} {
		if !strings.Contains(log, want) {
			t.Errorf("the log lacks %s:\n%s", want, log)
		}
	}
	if strings.Contains(log, annsToken) || strings.Contains(log, "mallory") || strings.Contains(log, "wrong-but") {
		t.Errorf("the log tells a token, or a name that nobody has proven:\n%s", log)
	}
	list = tokens(t, "carol carols-much-newer-token")
	drain(401, "Authorization: Bearer "+annsToken)
}

// A token file says what is wrong with it by line, and never what is in it.
func TestBadTokenFiles(t *testing.T) {
	for text, want := range map[string]string{
		"":                                   "no token",
		"# none\n\n":                         "no token",
		"ann\n":                              "line 1: write NAME TOKEN",
		"x y-long-enough-token\nann short\n": "line 2: the token is shorter than 16",
		"ann sha256:12ab\n":                  "line 1: what follows sha256:",
		"a some-long-token-here\nb some-long-token-here\n": "line 2: this token is there twice",
		"a b c\n": "NAME TOKEN",
	} {
		_, err := ReadTokens(strings.NewReader(text))
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
		if err != nil && (strings.Contains(err.Error(), "some-long") || strings.Contains(err.Error(), "12ab")) {
			t.Errorf("%q: the error tells a token: %v", text, err)
		}
	}
}

// What a browser sends for another site's page is refused, with and without headers that
// the page may set; so is a name in Host that could be another site's (DNS rebinding).
func TestOtherSites(t *testing.T) {
	p := newPort(t, Access{})
	ann := "X-Prefixring-Operator: ann"
	for _, headers := range [][]string{
		{asJSON, ann, "Sec-Fetch-Site: cross-site"},
		{asJSON, ann, "Sec-Fetch-Site: same-site"}, // another port of this machine
		{asJSON, ann, "Sec-Fetch-Site: cross-site", "Sec-Fetch-Mode: navigate"},
		{asJSON, ann, "Origin: https://evil.example"},
		{asJSON, ann, "Origin: null"},
	} {
		p.do(t, &call{"POST", "/api/v1/nodes/n1/drain", "{}", headers, 403, "another site"})
		p.do(t, &call{"POST", "/api/v1/explain", "{}", headers, 403, "another site"})
	}
	for _, kind := range []string{"text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""} {
		p.do(t, &call{"POST", "/api/v1/nodes/n1/drain", "{}", []string{ann, "Content-Type: " + kind}, 415, ""})
	}
	for _, path := range []string{"/debug/pprof/profile", "/api/v1/fleet", "/metrics"} {
		p.do(t, &call{"GET", path, "", []string{"Sec-Fetch-Site: cross-site", "Sec-Fetch-Mode: no-cors"}, 403, ""})
	}
	for host, status := range map[string]int{
		"evil.example": 421, "evil.example:8081": 421, "127.0.0.1.evil.example": 421, "localhost.evil.example": 421,
		"localhost": 200, "LOCALHOST:8081": 200, "127.0.0.1:8081": 200, "[::1]:8081": 200,
	} {
		p.do(t, &call{"GET", "/api/v1/fleet", "", []string{"Host: " + host}, status, ""})
	}
	if len(p.operated) != 0 {
		t.Errorf("operated %q", p.operated)
	}
	if lines := strings.Count(p.log.String(), "admin request refused"); lines < 14 {
		t.Errorf("%d audit lines", lines)
	}
	for _, headers := range [][]string{{asJSON, ann}, {asJSON, ann, "Sec-Fetch-Site: same-origin", "Origin: " + p.URL}} {
		p.do(t, &call{"POST", "/api/v1/nodes/n1/drain", "{}", headers, 200, ""})
	}
}

// A change that was decided on an older state is refused and changes nothing.
func TestStaleETag(t *testing.T) {
	p := newPort(t, Access{})
	seen := p.do(t, &call{"GET", "/api/v1/nodes/n1", "", nil, 200, ""}).Header.Get("ETag")
	ann := "X-Prefixring-Operator: ann"
	drain := func(status int, match string) *http.Response {
		return p.do(t, &call{"POST", "/api/v1/nodes/n1/drain", "{}", []string{ann, asJSON, "If-Match: " + match}, status, ""})
	}
	resp := drain(200, seen)
	after := resp.Header.Get("ETag")
	if seen == "" || after == "" || after == seen {
		t.Fatalf("tags %q, then %q", seen, after)
	}
	if now := drain(412, seen).Header.Get("ETag"); now != after {
		t.Errorf("a stale change is told %q, not %q", now, after)
	}
	drain(412, `"drain"`)
	drain(412, strings.Trim(after, `"`)) // no tag at all
	if len(p.operated) != 1 || !strings.Contains(p.log.String(), `"status":412`) {
		t.Errorf("operated %q; log %s", p.operated, p.log.String())
	}
	drain(200, `"other", `+after)
	drain(200, "*")
	p.do(t, &call{"POST", "/api/v1/nodes/nobody/drain", "{}", []string{ann, asJSON, "If-Match: *"}, 404, ""})
}

// What clients write into the log is bounded and stays one line.
func TestAuditLinesAreBounded(t *testing.T) {
	p := newPort(t, Access{})
	long := strings.Repeat("x", 5000)
	p.do(t, &call{"POST", "/" + long + "%0Aadmin", "{}", []string{"X-Prefixring-Operator: " + long}, 404, ""})
	if log := p.log.String(); strings.Count(log, "\n") != 1 || len(log) > 700 {
		t.Errorf("%d bytes in %d lines", len(log), strings.Count(log, "\n"))
	}
}
