package discovery

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// apiClient trusts the authorities in a file; without one, those of the system.
func apiClient(caFile string) (*http.Client, error) {
	var pool *x509.CertPool
	if caFile != "" {
		pem, err := os.ReadFile(caFile)
		if err != nil {
			return nil, fmt.Errorf("cannot watch Kubernetes: %w", err)
		}
		pool = x509.NewCertPool()
		if !pool.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("cannot watch Kubernetes: %s holds no certificate", filepath.Base(caFile))
		}
	}
	return &http.Client{Transport: &http.Transport{
		TLSClientConfig:       &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12},
		DialContext:           (&net.Dialer{Timeout: 5 * time.Second, KeepAlive: 15 * time.Second}).DialContext,
		TLSHandshakeTimeout:   5 * time.Second,
		ResponseHeaderTimeout: 15 * time.Second, // of the head; a watch's body may take as long as it likes
		ForceAttemptHTTP2:     true,
		// A connection that went dead without an error is found by its own pings, watch or no
		// watch: the next list would go over the same one (field case B61).
		HTTP2: &http.HTTP2Config{SendPingTimeout: 10 * time.Second, PingTimeout: 5 * time.Second},
	}}, nil
}

// get asks for the watcher's objects and returns the body of a 200.
func (w *watcher) get(ctx context.Context, extra url.Values) (io.ReadCloser, error) {
	q := url.Values{}
	for _, v := range []url.Values{w.query, extra} {
		for key, values := range v {
			q[key] = values
		}
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, strings.TrimRight(w.k.API, "/")+w.path+"?"+q.Encode(), nil)
	if err != nil {
		return nil, fmt.Errorf("cannot ask Kubernetes: %w", err)
	}
	req.Header.Set("Accept", "application/json")
	req.Header.Set("User-Agent", "prefixring")
	if w.k.TokenFile != "" {
		token, err := os.ReadFile(w.k.TokenFile)
		if err != nil {
			return nil, fmt.Errorf("cannot ask Kubernetes: %w", err)
		}
		req.Header.Set("Authorization", "Bearer "+strings.TrimSpace(string(token)))
	}
	resp, err := w.client.Do(req)
	if err != nil {
		return nil, fmt.Errorf("cannot ask Kubernetes: %w", err)
	}
	if resp.StatusCode == http.StatusOK {
		return resp.Body, nil
	}
	b, _ := io.ReadAll(io.LimitReader(resp.Body, 64<<10))
	resp.Body.Close()
	if resp.StatusCode == http.StatusGone {
		return nil, errExpired
	}
	return nil, fmt.Errorf("cannot ask Kubernetes: GET %s: status %d: %s", w.path, resp.StatusCode, message(b))
}
