// Package e2e runs the built binary as a user would, with the official clients,
// unmodified. It is a module of its own so that they are no dependency of the product.
package e2e

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"
)

// fleet is serve in front of two simulated vLLM engines.
var fleet struct {
	url, admin string
	engines    []string
}

// TestMain builds the binary, starts the processes and ends them.
func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	dir, err := os.MkdirTemp("", "prefixring-e2e")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	bin := filepath.Join(dir, "prefixring")
	build := exec.Command("go", "build", "-o", bin, "./cmd/prefixring")
	build.Dir = ".."
	if out, err := build.CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "cannot build: %v\n%s", err, out)
		return 1
	}
	var stops []func()
	defer func() {
		for i := len(stops) - 1; i >= 0; i-- {
			stops[i]()
		}
	}()
	start := func(pattern string, args ...string) []string {
		urls, stop, err := spawn(bin, pattern, args...)
		stops = append(stops, stop)
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return nil
		}
		return urls
	}
	serve := []string{"serve", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"}
	for range 2 {
		u := start(`on (http://\S+)`, "engine", "--listen", "127.0.0.1:0", "--model", "m1", "--preset", "8b-tp1", "--speed", "50")
		if u == nil {
			return 1
		}
		fleet.engines = append(fleet.engines, u[0])
		serve = append(serve, "--engine", u[0])
	}
	data := start(`data\s+(http://\S+)(?s:.*?)admin\s+(http://\S+)`, serve...)
	if data == nil {
		return 1
	}
	fleet.url, fleet.admin = data[0], data[1]
	if err := awaitReady(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return m.Run()
}

// spawn starts the binary and reads its first lines until they match the pattern.
func spawn(bin, pattern string, args ...string) (found []string, stop func(), err error) {
	cmd := exec.Command(bin, args...)
	cmd.Stderr = os.Stderr
	if strings.Contains(args[0], "serve") {
		cmd.Stderr = io.Discard // access lines
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, func() {}, err
	}
	if err := cmd.Start(); err != nil {
		return nil, func() {}, err
	}
	stop = func() {
		cmd.Process.Signal(syscall.SIGTERM)
		kill := time.AfterFunc(20*time.Second, func() { cmd.Process.Kill() })
		io.Copy(io.Discard, out)
		cmd.Wait()
		kill.Stop()
	}
	re := regexp.MustCompile(pattern)
	lines := ""
	for r := bufio.NewReader(out); ; {
		line, err := r.ReadString('\n')
		lines += line
		if m := re.FindStringSubmatch(lines); m != nil {
			return m[1:], stop, nil
		}
		if err != nil {
			return nil, stop, fmt.Errorf("%v said %q and ended", args, lines)
		}
	}
}

// awaitReady asks /readyz until it says yes.
func awaitReady() error {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		if resp, err := http.Get(fleet.admin + "/readyz"); err == nil {
			resp.Body.Close()
			if resp.StatusCode == http.StatusOK {
				return nil
			}
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("the router did not become ready: %w", ctx.Err())
		case <-tick.C:
		}
	}
}

// fat is a system prompt of about 4,000 tokens, different for each name.
func fat(name string) string {
	return strings.Repeat("Rule of "+name+": answer with facts about the order. ", 330)
}
