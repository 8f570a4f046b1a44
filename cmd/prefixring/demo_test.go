package main

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"

	"github.com/prefixring/prefixring/internal/config"
)

// What the demo invites to try works as printed: engines refuse a body without its type.
func TestDemoInvitesToCommandsThatWork(t *testing.T) {
	cfg, err := config.FromFlags([]string{"http://127.0.0.1:1"}, "127.0.0.1:0", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s, err := newServer(cfg, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	defer s.fleet.proxy.Close()
	if err := s.listen(); err != nil {
		t.Fatal(err)
	}
	defer s.data.Close()
	defer s.admin.Close()
	var out bytes.Buffer
	(&demoRouter{server: s}).invite(&out)
	posts := 0
	for line := range strings.Lines(out.String()) {
		if strings.Contains(line, " -d ") {
			posts++
			if !strings.Contains(line, "'Content-Type: application/json'") {
				t.Errorf("a body without its type: %s", line)
			}
		}
	}
	if posts == 0 {
		t.Errorf("no request to try in %q", out.String())
	}
}
