package admin

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// port is a running port over facts that tests can change.
type port struct {
	*httptest.Server
	ready    error
	operated []string
	tag      string
	log      bytes.Buffer
}

func newPort(t *testing.T, a Access) *port {
	p := &port{tag: "open-1"}
	a.Audit = slog.New(slog.NewJSONHandler(&p.log, nil))
	p.Server = httptest.NewServer(Handler(p.options(a)))
	t.Cleanup(p.Close)
	return p
}

func (p *port) options(a Access) Options {
	return Options{
		Access:   a,
		Ready:    func() error { return p.ready },
		Warnings: func() []string { return []string{"engine list is old"} },
		Metrics:  func(w io.Writer) { io.WriteString(w, "prefixring_up 1\n") },
		Fleet:    func() any { return map[string]int{"nodes": 2} },
		Node: func(node string) (any, string, error) {
			if node == "nobody" {
				return nil, "", fmt.Errorf(`cannot show node "nobody": %w`, ErrNoNode)
			}
			return map[string]string{"name": node}, p.tag, nil
		},
		Explain: func(path string, body []byte) (any, error) {
			if len(body) == 0 {
				return nil, errors.New("the body is empty")
			}
			return map[string]string{"path": path}, nil
		},
		Operate: func(action, node string) error {
			if node == "nobody" {
				return fmt.Errorf(`cannot drain node "nobody": %w`, ErrNoNode)
			}
			p.operated = append(p.operated, action+" "+node)
			p.tag = action + "-1"
			return nil
		},
	}
}

// call is one request and what is expected of it. Headers are "Name: value".
type call struct {
	method, path, body string
	headers            []string
	status             int
	want               string // in the body
}

const asJSON = "Content-Type: application/json"

func (p *port) do(t *testing.T, c *call) *http.Response {
	t.Helper()
	req, err := http.NewRequest(c.method, p.URL+c.path, strings.NewReader(c.body))
	if err != nil {
		t.Fatal(err)
	}
	for _, h := range c.headers {
		name, value, _ := strings.Cut(h, ": ")
		if name == "Host" {
			req.Host = value
		}
		req.Header.Set(name, value)
	}
	resp, err := p.Client().Do(req)
	if err != nil {
		t.Fatal(err)
	}
	b, _ := io.ReadAll(resp.Body)
	resp.Body.Close()
	if resp.StatusCode != c.status || !strings.Contains(string(b), c.want) {
		t.Errorf("%s %s %q: %d %s, want %d with %q", c.method, c.path, c.headers, resp.StatusCode, b, c.status, c.want)
	}
	return resp
}

func TestPort(t *testing.T) {
	p := newPort(t, Access{})
	p.ready = errors.New("no engine is ready")
	ann := []string{"X-Prefixring-Operator: ann", asJSON}
	for _, c := range []call{
		{"GET", "/healthz", "", nil, 200, "ok"},
		{"GET", "/readyz", "", nil, 503, "no engine is ready"},
		{"GET", "/metrics", "", nil, 200, "prefixring_up 1"},
		{"POST", "/metrics", "", nil, 405, "GET"},
		{"DELETE", "/healthz", "", nil, 405, "GET"},
		{"GET", "/api/v1/fleet", "", nil, 200, `"nodes": 2`},
		{"GET", "/api/v1/nodes/n1", "", nil, 200, `"name": "n1"`},
		{"GET", "/api/v1/nodes/nobody", "", nil, 404, "no such node"},
		{"GET", "/debug/pprof/", "", nil, 200, "goroutine"},
		{"POST", "/api/v1/explain", "{}", []string{asJSON}, 200, "chat"},
		{"POST", "/api/v1/explain?path=/v1/messages", "{}", []string{"Content-Type: application/json; charset=utf-8"}, 200, "messages"},
		{"POST", "/api/v1/explain?path=/sleep", "{}", []string{asJSON}, 400, "not served"},
		{"POST", "/api/v1/explain", "", []string{asJSON}, 400, "empty"},
		{"POST", "/api/v1/explain", "{}", nil, 415, "Content-Type"},
		{"POST", "/api/v1/nodes/n1/drain", "", []string{asJSON}, 403, "X-Prefixring-Operator"},
		{"POST", "/api/v1/nodes/n1/drain", "", []string{"X-Prefixring-Operator: ann"}, 415, "application/json"},
		{"POST", "/api/v1/nodes/n1/drain", "{}", ann, 200, "drain"},
		{"POST", "/api/v1/nodes/n1/explode", "", ann, 404, "no action"},
		{"POST", "/api/v1/nodes/nobody/drain", "", ann, 404, "no such node"},
		{"GET", "/api/v1/nodes/n1/drain", "", nil, 405, "POST"},
		{"GET", "/nothing", "", nil, 404, "openapi"},
	} {
		p.do(t, &c)
	}
	if len(p.operated) != 1 || p.operated[0] != "drain n1" {
		t.Errorf("operated %q", p.operated)
	}
	p.ready = nil
	p.do(t, &call{"GET", "/readyz", "", nil, 200, "warning: engine list is old"})
}

// A body beyond the limit is refused, however it is announced, and changes nothing.
func TestHugePaste(t *testing.T) {
	p := newPort(t, Access{})
	headers := []string{"X-Prefixring-Operator: ann", asJSON}
	p.do(t, &call{"POST", "/api/v1/nodes/n1/drain", strings.Repeat(" ", maxChange+1), headers, 413, "larger than 65536"})
	if len(p.operated) != 0 {
		t.Errorf("operated %q", p.operated)
	}
	if !strings.Contains(p.log.String(), `"status":413`) {
		t.Errorf("no audit line: %s", p.log.String())
	}
}
