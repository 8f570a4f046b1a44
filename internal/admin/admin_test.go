package admin

import (
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// fixture is a port over facts that tests can change.
func fixture(t *testing.T, ready *error, operated *[]string) *httptest.Server {
	s := httptest.NewServer(Handler(Options{
		Ready:   func() error { return *ready },
		Metrics: func(w io.Writer) { io.WriteString(w, "prefixring_up 1\n") },
		Fleet:   func() any { return map[string]int{"nodes": 2} },
		Explain: func(path string, body []byte) (any, error) {
			if len(body) == 0 {
				return nil, errors.New("the body is empty")
			}
			return map[string]string{"path": path}, nil
		},
		Operate: func(action, node string) error {
			if node == "nobody" {
				return errors.New(`cannot drain node "nobody": there is no such node`)
			}
			*operated = append(*operated, action+" "+node)
			return nil
		},
	}))
	t.Cleanup(s.Close)
	return s
}

func TestPort(t *testing.T) {
	var ready error
	var operated []string
	s := fixture(t, &ready, &operated)
	ready = errors.New("no engine is ready")
	for _, tc := range []struct {
		method, path, body, operator string
		status                       int
		want                         string
	}{
		{"GET", "/healthz", "", "", 200, "ok"},
		{"GET", "/readyz", "", "", 503, "no engine is ready"},
		{"GET", "/metrics", "", "", 200, "prefixring_up 1"},
		{"POST", "/metrics", "", "", 405, ""},
		{"GET", "/api/v1/fleet", "", "", 200, `"nodes": 2`},
		{"POST", "/api/v1/explain", "{}", "", 200, "chat"},
		{"POST", "/api/v1/explain?path=/v1/messages", "{}", "", 200, "messages"},
		{"POST", "/api/v1/explain?path=/sleep", "{}", "", 400, "not served"},
		{"POST", "/api/v1/explain", "", "", 400, "empty"},
		{"POST", "/api/v1/nodes/n1/drain", "", "", 403, "X-Prefixring-Operator"},
		{"POST", "/api/v1/nodes/n1/drain", "", "ann", 200, "drain"},
		{"POST", "/api/v1/nodes/n1/explode", "", "ann", 404, "no action"},
		{"POST", "/api/v1/nodes/nobody/drain", "", "ann", 404, "no such node"},
		{"GET", "/nothing", "", "", 404, ""},
	} {
		req, err := http.NewRequest(tc.method, s.URL+tc.path, strings.NewReader(tc.body))
		if err != nil {
			t.Fatal(err)
		}
		if tc.operator != "" {
			req.Header.Set("X-Prefixring-Operator", tc.operator)
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		b, _ := io.ReadAll(resp.Body)
		resp.Body.Close()
		if resp.StatusCode != tc.status || !strings.Contains(string(b), tc.want) {
			t.Errorf("%s %s: %d %s, want %d with %q", tc.method, tc.path, resp.StatusCode, b, tc.status, tc.want)
		}
	}
	if len(operated) != 1 || operated[0] != "drain n1" {
		t.Errorf("operated %q", operated)
	}
	ready = nil
	if resp, err := http.Get(s.URL + "/readyz"); err != nil || resp.StatusCode != 200 {
		t.Errorf("ready: %v %v", resp, err)
	}
}
