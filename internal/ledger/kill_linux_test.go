package ledger

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/prefixring/prefixring/internal/cost"
)

const childEnv = "PREFIXRING_LEDGER_CHILD"

// child flushes as fast as it can and prints how many requests each flush has written.
func child(path string) {
	r := NewRecorder(Options{Path: path, Now: func() time.Time { return t0 }})
	for i := int64(1); ; i++ {
		for n := range 40 {
			one := row(t0.Add(time.Duration(i)*time.Minute), uint64(n), "shop-"+strconv.Itoa(int(i)%7), "n")
			r.ledger.Restore([]cost.Row{one})
		}
		if err := r.Flush(); err != nil {
			fmt.Println("error", err)
			os.Exit(1)
		}
		fmt.Println(40 * i)
	}
}

// kill -9 in the middle of writing loses at most what came since the last flush, and the
// file opens and adds up afterwards, time and again.
func TestKill9LosesAtMostOneFlush(t *testing.T) {
	if path := os.Getenv(childEnv); path != "" {
		child(path)
	}
	path := filepath.Join(t.TempDir(), "ledger")
	written := int64(0)
	for round := range 6 {
		written += killed(t, path, 3+7*round)
		s := openStore(t, path)
		rep, err := s.Report(nil, cost.ReportOptions{})
		if err != nil {
			t.Fatal(err)
		}
		got := rep.Total.Requests
		// The flush that was under way may be in the file as a whole, or not at all.
		if got != written && got != written+40 {
			t.Fatalf("round %d: %d requests in the file, %d were flushed", round, got, written)
		}
		written = got
		for _, by := range []cost.Dim{cost.ByMinute, cost.ByHour, cost.ByDay} {
			rep, err := s.Report(nil, cost.ReportOptions{By: []cost.Dim{by}})
			if err != nil || rep.Total.Requests != got || len(rep.Notes) > 0 {
				t.Fatalf("round %d: %v: %d requests by %s, want %d; %q", round, err, rep.Total.Requests, by, got, rep.Notes)
			}
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// killed starts a child, lets it flush a number of times, kills it and returns how many
// requests it had said were written.
func killed(t *testing.T, path string, flushes int) int64 {
	t.Helper()
	cmd := exec.Command(os.Args[0], "-test.run=^TestKill9LosesAtMostOneFlush$")
	cmd.Env = append(os.Environ(), childEnv+"="+path)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	said := int64(0)
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		n, err := strconv.ParseInt(strings.TrimSpace(lines.Text()), 10, 64)
		if err != nil {
			cmd.Process.Kill()
			t.Fatalf("the child says %q", lines.Text())
		}
		said = n
		if flushes--; flushes == 0 {
			cmd.Process.Kill() // SIGKILL, while the next flush is on its way
		}
	}
	io.Copy(io.Discard, out)
	if err := cmd.Wait(); err == nil || flushes > 0 {
		t.Fatalf("the child ended by itself: %v", err)
	}
	return said
}
