package fakeengine

import (
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// client talks to one engine of a test.
type client struct {
	t    *testing.T
	url  string
	http *http.Client
}

func start(t *testing.T, o Options) (*Engine, *client) {
	t.Helper()
	if o.Model == "" {
		o.Model = "tiny"
	}
	e, url := StartT(t, o)
	return e, dialer(t, url)
}

func dialer(t *testing.T, url string) *client {
	c := &client{t: t, url: url, http: &http.Client{Transport: &http.Transport{DisableCompression: true}, Timeout: 20 * time.Second}}
	t.Cleanup(c.http.CloseIdleConnections)
	return c
}

// do sends a request; an empty body is a GET. Headers come in pairs.
func (c *client) do(path, body string, headers ...string) (*http.Response, string) {
	c.t.Helper()
	resp, text, err := c.try(path, body, headers...)
	if err != nil {
		c.t.Fatalf("%s: %v", path, err)
	}
	return resp, text
}

func (c *client) try(path, body string, headers ...string) (*http.Response, string, error) {
	method := http.MethodPost
	if body == "" {
		method = http.MethodGet
	}
	req, err := http.NewRequest(method, c.url+path, strings.NewReader(body))
	if err != nil {
		return nil, "", err
	}
	if body != "" {
		req.Header.Set("Content-Type", "application/json")
	}
	for i := 0; i < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return nil, "", err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	return resp, string(b), err
}

// ok is do that insists on 200.
func (c *client) ok(path, body string, headers ...string) string {
	c.t.Helper()
	resp, text := c.do(path, body, headers...)
	if resp.StatusCode != http.StatusOK {
		c.t.Fatalf("%s: %s %s", path, resp.Status, text)
	}
	return text
}

// eventually polls a condition with a deadline.
func eventually(t *testing.T, what string, cond func() bool) {
	t.Helper()
	deadline := time.Now().Add(10 * time.Second)
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for !cond() {
		if time.Now().After(deadline) {
			t.Fatalf("it never became true that %s", what)
		}
		<-tick.C
	}
}

// policy is a system text of about n tokens.
func policy(n int) string {
	return strings.Repeat("Answer with facts about orders. ", n*tokenBytes/32+1)[:n*tokenBytes]
}

func chatBody(system, user, more string) string {
	return `{"model":"tiny","messages":[{"role":"system","content":"` + system + `"},{"role":"user","content":"` + user + `"}]` + more + `}`
}
