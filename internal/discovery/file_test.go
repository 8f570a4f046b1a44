package discovery

import (
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

// listFile is a list under watch.
type listFile struct {
	*testing.T
	path string
	sets <-chan []Endpoint
	log  *logBuffer
}

type logBuffer struct {
	mu sync.Mutex
	b  strings.Builder
}

func (l *logBuffer) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(b)
}
func (l *logBuffer) String() string { l.mu.Lock(); defer l.mu.Unlock(); return l.b.String() }

func watchFile(t *testing.T, text string) *listFile {
	f := &listFile{T: t, path: filepath.Join(t.TempDir(), "engines.yaml"), log: &logBuffer{}}
	f.write(text)
	f.sets = watchSets(t, &File{Path: f.path, Period: 20 * time.Millisecond, Settle: 10 * time.Millisecond,
		Logger: slog.New(slog.NewTextHandler(f.log, nil))})
	return f
}

func (f *listFile) write(text string) {
	f.Helper()
	if err := os.WriteFile(f.path, []byte(text), 0o600); err != nil {
		f.Fatal(err)
	}
}

// replace puts a whole new file in place.
func (f *listFile) replace(text string) {
	f.Helper()
	if err := os.WriteFile(f.path+".new", []byte(text), 0o600); err != nil {
		f.Fatal(err)
	}
	if err := os.Rename(f.path+".new", f.path); err != nil {
		f.Fatal(err)
	}
}

// confirmed reads n further sets, all of which have to look as wanted.
func (f *listFile) confirmed(n int, want string) {
	f.Helper()
	for range n {
		select {
		case set := <-f.sets:
			if got := show(set); got != want {
				f.Fatalf("set: %s\nwant: %s", got, want)
			}
		case <-time.After(10 * time.Second):
			f.Fatal("no set")
		}
	}
}

const oneEngine = "- name: a\n  url: http://10.0.0.1:8000\n"

func TestFileIsWatched(t *testing.T) {
	f := watchFile(t, oneEngine)
	until(t, f.sets, "a=http://10.0.0.1:8000")
	f.confirmed(5, "a=http://10.0.0.1:8000")
	f.replace(oneEngine + "- \"[fd00::1]:8000\"\n")
	until(t, f.sets, "a=http://10.0.0.1:8000, [fd00::1]:8000=http://[fd00::1]:8000")
	f.write(`[{"name":"b","url":"https://b.svc/base","ready":false},{"name":"c","url":"c:1","terminating":true}]`)
	until(t, f.sets, "b=https://b.svc/base unready, c=http://c:1 terminating")
	f.replace("[]\n")
	until(t, f.sets, "")
}

// What is not understood changes nothing and confirms nothing: the set stays, and its
// age grows until readiness shows it.
func TestFileThatIsHalfWrittenIsIgnored(t *testing.T) {
	for name, half := range map[string]string{
		"empty":               "",
		"white space":         "\n\n",
		"cut within a key":    "- name: a\n  ur",
		"not a list":          "engines: 5\n",
		"unknown key":         oneEngine + "  wieght: 2\n",
		"no URL":              "- name: a\n",
		"twice":               oneEngine + oneEngine,
		"comment only":        "# soon\n",
		"broken address":      "- http://fd00::1:8000\n",
		"cut within a string": "- \"http://10.0",
	} {
		t.Run(name, func(t *testing.T) {
			f := watchFile(t, oneEngine)
			until(t, f.sets, "a=http://10.0.0.1:8000")
			f.write(half)
			deadline := time.After(10 * time.Second)
			for f.log.String() == "" { // whatever is still sent meanwhile is the old set
				select {
				case set := <-f.sets:
					if got := show(set); got != "a=http://10.0.0.1:8000" {
						t.Fatalf("set %q from a broken file", got)
					}
				case <-deadline:
					t.Fatal("the broken file was not noticed")
				case <-time.After(time.Millisecond):
				}
			}
			f.write(oneEngine + "- http://b:1\n")
			until(t, f.sets, "a=http://10.0.0.1:8000, b:1=http://b:1")
			if n := strings.Count(f.log.String(), "not used"); n != 1 {
				t.Errorf("logged %d times:\n%s", n, f.log)
			}
		})
	}
}

func TestFileThatVanishesKeepsItsSet(t *testing.T) {
	f := watchFile(t, oneEngine)
	until(t, f.sets, "a=http://10.0.0.1:8000")
	if err := os.Remove(f.path); err != nil {
		t.Fatal(err)
	}
	for f.log.String() == "" {
		select {
		case set := <-f.sets:
			if len(set) != 1 {
				t.Fatal("a missing file is no empty list")
			}
		case <-time.After(time.Millisecond):
		}
	}
	f.write(oneEngine)
	f.confirmed(1, "a=http://10.0.0.1:8000")
}

// A ConfigMap is a chain of symbolic links of which a middle one is exchanged.
func TestFileBehindASymbolicLinkIsFollowed(t *testing.T) {
	dir := t.TempDir()
	for v, text := range map[string]string{"v1": oneEngine, "v2": "- http://b:1\n"} {
		if err := os.Mkdir(filepath.Join(dir, v), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, v, "engines.yaml"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	link := func(v string) {
		if err := os.Symlink(v, filepath.Join(dir, "data.new")); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(filepath.Join(dir, "data.new"), filepath.Join(dir, "data")); err != nil {
			t.Fatal(err)
		}
	}
	link("v1")
	sets := watchSets(t, &File{Path: filepath.Join(dir, "data", "engines.yaml"), Period: 10 * time.Millisecond, Settle: time.Millisecond,
		Logger: slog.New(slog.NewTextHandler(io.Discard, nil))})
	until(t, sets, "a=http://10.0.0.1:8000")
	link("v2")
	until(t, sets, "b:1=http://b:1")
}

// A list that grows by whole entries is valid at each of them; only the second look
// tells that it is not whole yet.
func TestFileCutBetweenEntriesIsNotTaken(t *testing.T) {
	w := fileWatch{path: filepath.Join(t.TempDir(), "f")}
	write := func(text string) {
		if err := os.WriteFile(w.path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	look := func(wantAgain bool, want string) {
		t.Helper()
		set, again, err := w.look()
		if err != nil || again != wantAgain || show(set) != want {
			t.Fatalf("set %q, again %v, error %v", show(set), again, err)
		}
	}
	write("- http://a:1\n")
	look(true, "")
	write("- http://a:1\n- http://b:1\n") // the writer goes on
	look(true, "")
	look(false, "a:1=http://a:1, b:1=http://b:1")
	write("- http://a:1\n")
	look(true, "")
	write("- http://a:1\n- http://b:1\n- http://c:1\n")
	look(true, "")
	look(false, "a:1=http://a:1, b:1=http://b:1, c:1=http://c:1")
	look(false, "a:1=http://a:1, b:1=http://b:1, c:1=http://c:1")
}

func FuzzParseList(f *testing.F) {
	for _, s := range []string{oneEngine, "[]", "- http://a:1\n", `[{"name":"b","url":"b:1","weight":1e9}]`, "- &a {url: a}\n- *a\n"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		set, err := parseList(b)
		if err == nil && check(set) != nil {
			t.Fatalf("accepted a set that cannot be used: %+v", set)
		}
	})
}
