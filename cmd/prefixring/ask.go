package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/user"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/prefixring/prefixring/internal/config"
)

// routerFlags say where the admin port of a running router is, and who asks.
func routerFlags() []cli.Flag {
	return []cli.Flag{
		&cli.StringFlag{Name: "router", Value: "http://" + config.DefaultAdmin, EnvVars: []string{"PREFIXRING_ROUTER"}, Usage: "`URL` of the router's admin port"},
		&cli.StringFlag{Name: "token-file", EnvVars: []string{"PREFIXRING_TOKEN_FILE"}, Usage: "`FILE` that holds an operator's token for it"},
		&cli.StringFlag{Name: "router-ca", EnvVars: []string{"PREFIXRING_ROUTER_CA"}, Usage: "PEM `FILE` with the roots of its certificate (default: the system's)"},
		&cli.StringFlag{Name: "router-cert", EnvVars: []string{"PREFIXRING_ROUTER_CERT"}, Usage: "PEM `FILE` with a client certificate for it"},
		&cli.StringFlag{Name: "router-key", EnvVars: []string{"PREFIXRING_ROUTER_KEY"}, Usage: "PEM `FILE` with the key of --router-cert"},
	}
}

// ask sends one request to a router's admin port and returns its answer. A body is JSON;
// without one, a POST sends {}. Flags of the command say where and as whom.
func ask(c *cli.Context, method, path string, body []byte) ([]byte, error) {
	client, err := adminClient(c)
	if err != nil {
		return nil, usageError(err)
	}
	defer client.CloseIdleConnections()
	ctx, cancel := context.WithTimeout(c.Context, 10*time.Second)
	defer cancel()
	if body == nil && method != http.MethodGet {
		body = []byte("{}")
	}
	req, err := http.NewRequestWithContext(ctx, method, strings.TrimRight(c.String("router"), "/")+path, bytes.NewReader(body))
	if err != nil {
		return nil, usageError(err)
	}
	if err := sign(c, req); err != nil {
		return nil, usageError(err)
	}
	resp, err := client.Do(req)
	if err != nil {
		return nil, failed{exitUnreachable, fmt.Errorf("cannot reach the router: %w", err)}
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		return nil, failed{exitUnreachable, fmt.Errorf("cannot read the router's answer: %w", err)}
	}
	if resp.StatusCode != http.StatusOK {
		return nil, failed{exitNo, fmt.Errorf("the router says: %s", refusal(resp, b))}
	}
	return b, nil
}

// refusal is why the router said no, with a remedy where it lies with this command.
func refusal(resp *http.Response, b []byte) string {
	var e struct {
		Error string `json:"error"`
	}
	if json.Unmarshal(b, &e); e.Error == "" {
		e.Error = http.StatusText(resp.StatusCode)
	}
	if resp.StatusCode == http.StatusUnauthorized {
		e.Error += " (--token-file, or PREFIXRING_TOKEN_FILE)"
	}
	return e.Error
}

// sign says who asks: by token where there is one; the name of this account is only
// taken where the port asks for no credential.
func sign(c *cli.Context, req *http.Request) error {
	if req.Method != http.MethodGet {
		req.Header.Set("Content-Type", "application/json")
	}
	if u, err := user.Current(); err == nil {
		req.Header.Set("X-Prefixring-Operator", u.Username)
	}
	path := c.String("token-file")
	if path == "" {
		return nil
	}
	b, err := os.ReadFile(path)
	if err != nil {
		return fmt.Errorf("cannot read the token (--token-file): %w", err)
	}
	fields := strings.Fields(string(b))
	if len(fields) == 0 || len(fields) > 2 {
		return fmt.Errorf("cannot use the token (--token-file): %s must hold one line, TOKEN or NAME TOKEN", path)
	}
	if strings.HasPrefix(fields[len(fields)-1], "sha256:") {
		return fmt.Errorf("cannot use the token (--token-file): %s holds its hash; the token itself is needed", path)
	}
	req.Header.Set("Authorization", "Bearer "+fields[len(fields)-1])
	return nil
}

func adminClient(c *cli.Context) (*http.Client, error) {
	conf := &tls.Config{MinVersion: tls.VersionTLS12}
	if path := c.String("router-ca"); path != "" {
		roots, err := readRoots(path)
		if err != nil {
			return nil, fmt.Errorf("cannot use --router-ca: %w", err)
		}
		conf.RootCAs = roots
	}
	cert, key := c.String("router-cert"), c.String("router-key")
	if (cert == "") != (key == "") {
		return nil, errors.New("--router-cert and --router-key go together")
	}
	if cert != "" {
		pair, err := tls.LoadX509KeyPair(cert, key)
		if err != nil {
			return nil, fmt.Errorf("cannot use --router-cert: %w", err)
		}
		conf.Certificates = []tls.Certificate{pair}
	}
	return &http.Client{Transport: &http.Transport{TLSClientConfig: conf, Proxy: http.ProxyFromEnvironment}}, nil
}
