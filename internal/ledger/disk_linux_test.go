package ledger

import (
	"bytes"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/prefixring/prefixring/internal/cost"
)

// limitFiles makes writes beyond so many octets of a file fail, as a full disk does, and
// returns what takes the limit away.
func limitFiles(t *testing.T, octets uint64) (lift func()) {
	t.Helper()
	signal.Ignore(syscall.SIGXFSZ)
	var old syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_FSIZE, &old); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Setrlimit(syscall.RLIMIT_FSIZE, &syscall.Rlimit{Cur: octets, Max: old.Max}); err != nil {
		t.Fatal(err)
	}
	lift = func() {
		if err := syscall.Setrlimit(syscall.RLIMIT_FSIZE, &old); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(lift)
	return lift
}

// outOfSpace drives a recorder into a full disk and out of it again.
func outOfSpace(t *testing.T, path string, fill, free func()) {
	t.Helper()
	var log bytes.Buffer
	now := t0
	r := NewRecorder(Options{Path: path, Now: func() time.Time { return now }, Log: slog.New(slog.NewTextHandler(&log, nil))})
	defer r.close()
	counted := int64(0)
	count := func(rows int) {
		for i := range rows {
			r.ledger.Restore([]cost.Row{row(now, uint64(i), "shop-"+strconv.Itoa(i%50), "n")})
			counted++
		}
	}
	count(50)
	if err := r.Flush(); err != nil || !r.State().Recording {
		t.Fatalf("before: %v", err)
	}
	fill()
	for range 5 { // the disk stays full for a while; traffic goes on
		now = now.Add(time.Minute)
		count(2500)
		r.Flush()
	}
	s := r.State()
	if s.Recording || s.Failures == 0 || s.Error == "" || s.Rows == 0 {
		t.Fatalf("the disk is full and the state is %+v", s)
	}
	if n := strings.Count(log.String(), "does not record"); n != 1 {
		t.Errorf("%d alarms, want one: %s", n, log.String())
	}
	if rep, err := r.Report(nil, cost.ReportOptions{}); err != nil || rep.Total.Requests != counted {
		t.Errorf("while the disk is full: %v, %d requests of %d", err, rep.Total.Requests, counted)
	}
	free()
	if err := r.Flush(); err != nil {
		t.Fatalf("after: %v", err)
	}
	if s := r.State(); !s.Recording || s.Rows != 0 || !strings.Contains(log.String(), "records again") {
		t.Errorf("after: %+v %s", s, log.String())
	}
	r.close()
	rep, err := openStore(t, path).Report(nil, cost.ReportOptions{By: []cost.Dim{cost.ByMinute}})
	if err != nil || rep.Total.Requests != counted {
		t.Errorf("in the file: %v, %d requests of %d", err, rep.Total.Requests, counted)
	}
}

func TestALimitedFileStopsRecordingAndLosesNothing(t *testing.T) {
	path := filepath.Join(t.TempDir(), "ledger")
	var lift func()
	outOfSpace(t, path, func() { lift = limitFiles(t, 128<<10) }, func() { lift() })
}

// The same on a real file system that has no room left.
func TestAFullDiskStopsRecordingAndLosesNothing(t *testing.T) {
	dir := t.TempDir()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=2m"); err != nil {
		t.Skipf("cannot mount a small file system here: %v", err)
	}
	t.Cleanup(func() { syscall.Unmount(dir, syscall.MNT_DETACH) })
	filler := filepath.Join(dir, "filler")
	fill := func() {
		f, err := os.Create(filler)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		for err == nil {
			_, err = f.Write(make([]byte, 4096))
		}
	}
	outOfSpace(t, filepath.Join(dir, "ledger"), fill, func() { os.Remove(filler) })
}

// A file that cannot be made at the start is no reason not to start: it is made later.
func TestAFullDiskAtTheStart(t *testing.T) {
	path := filepath.Join(t.TempDir(), "ledger")
	lift := limitFiles(t, 0)
	r := NewRecorder(Options{Path: path, Now: func() time.Time { return t0 }})
	defer r.close()
	if s := r.State(); s.Recording || s.Error == "" {
		t.Errorf("state %+v", s)
	}
	r.ledger.Restore([]cost.Row{row(t0, 1, "shop", "n")})
	if err := r.Flush(); err == nil {
		t.Error("written to a disk without room")
	}
	lift()
	if err := r.Flush(); err != nil {
		t.Fatal(err)
	}
	if rep, err := r.Report(nil, cost.ReportOptions{}); err != nil || rep.Total.Requests != 1 {
		t.Errorf("%v, %+v", err, rep.Total)
	}
}
