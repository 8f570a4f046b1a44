package discovery

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"time"

	"github.com/goccy/go-yaml"
)

// File is a watched list of engines in YAML or JSON: a list of base URLs, or of
// objects
//
//   - name: gpu-0            # default: host:port of the URL
//     url: http://10.0.0.7:8000
//     models: [llama]        # the rest may be left out
//     dialect: sglang
//     rank: "0"
//     weight: 1.5
//     ready: false
//     terminating: true
//
// It is polled, not watched by notification: a Kubernetes ConfigMap is a chain of
// symbolic links and editors replace files, which polling sees alike. Changed content
// counts once two readings, Settle apart, agree, so that a half-written file is never
// taken for a shorter list. Content that cannot be read changes nothing and is logged
// once.
type File struct {
	Path   string
	Period time.Duration // default 2 s
	Settle time.Duration // default 300 ms
	Logger *slog.Logger  // nil means slog.Default()
}

// maxFile bounds the list.
const maxFile = 16 << 20

// Run implements Source.
func (f *File) Run(ctx context.Context, out chan<- []Endpoint) error {
	period, settle, log := f.Period, f.Settle, f.Logger
	if period <= 0 {
		period = 2 * time.Second
	}
	if settle <= 0 {
		settle = 300 * time.Millisecond
	}
	if log == nil {
		log = slog.Default()
	}
	w := fileWatch{path: f.Path}
	t := time.NewTimer(0)
	defer t.Stop()
	var said string
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-t.C:
		}
		set, again, err := w.look()
		switch {
		case err != nil:
			if err.Error() != said {
				said = err.Error()
				log.Warn("engine list is not used", "file", f.Path, "error", err)
			}
		case again:
			t.Reset(settle)
			continue
		default:
			said = ""
			if send(ctx, out, set) != nil {
				return nil
			}
		}
		t.Reset(period)
	}
}

// fileWatch holds what has been read so far.
type fileWatch struct {
	path    string
	stat    os.FileInfo // of the content in use
	pending []byte      // changed content that has been read once
	used    []byte      // the content in use
	set     []Endpoint
}

// look reads the file if it has changed. again asks for a second look soon.
func (w *fileWatch) look() (set []Endpoint, again bool, err error) {
	st, err := os.Stat(w.path)
	if err != nil {
		return nil, false, err
	}
	if w.set != nil && w.pending == nil && os.SameFile(st, w.stat) && st.ModTime().Equal(w.stat.ModTime()) && st.Size() == w.stat.Size() {
		return w.set, false, nil
	}
	b, err := readFile(w.path)
	if err != nil {
		return nil, false, err
	}
	if w.set != nil && bytes.Equal(b, w.used) {
		w.stat, w.pending = st, nil
		return w.set, false, nil
	}
	if w.pending == nil || !bytes.Equal(b, w.pending) {
		w.pending = b
		return nil, true, nil
	}
	set, err = parseList(b)
	if err != nil {
		return nil, false, err // pending stays: the file is read again, and logged once
	}
	w.stat, w.used, w.pending, w.set = st, b, nil, set
	return set, false, nil
}

func readFile(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err != nil {
		return nil, err
	}
	if len(b) > maxFile {
		return nil, fmt.Errorf("cannot read an engine list of more than %d bytes", maxFile)
	}
	return append([]byte{}, b...), nil
}

// listed is an entry of the list as it is written.
type listed struct {
	Name        string   `yaml:"name"`
	URL         string   `yaml:"url"`
	ServerName  string   `yaml:"server_name"`
	Models      []string `yaml:"models"`
	Dialect     string   `yaml:"dialect"`
	Rank        string   `yaml:"rank"`
	Weight      float64  `yaml:"weight"`
	Ready       *bool    `yaml:"ready"`
	Terminating bool     `yaml:"terminating"`
}

// UnmarshalYAML takes a bare URL or an object.
func (l *listed) UnmarshalYAML(b []byte) error {
	var s string
	if yaml.Unmarshal(b, &s) == nil {
		l.URL = s
		return nil
	}
	type plain listed
	return yaml.UnmarshalWithOptions(b, (*plain)(l), yaml.Strict())
}

// parseList reads a list. An empty file is an accident, not an empty list; "[]" is one.
func parseList(b []byte) (set []Endpoint, err error) {
	defer func() {
		// The YAML decoder panics on some broken input, such as a tag before a scalar where a
		// list is wanted (testdata/fuzz has one).
		if p := recover(); p != nil {
			set, err = nil, fmt.Errorf("cannot read the engine list: %v", p)
		}
	}()
	if len(bytes.TrimSpace(b)) == 0 {
		return nil, errors.New("cannot read an engine list from an empty file; write [] for none")
	}
	var list []listed
	if err := yaml.UnmarshalWithOptions(b, &list, yaml.Strict()); err != nil {
		return nil, fmt.Errorf("cannot read the engine list: %w", err)
	}
	if list == nil {
		return nil, errors.New("cannot read an engine list without a list in it; write [] for none")
	}
	set = make([]Endpoint, 0, len(list))
	for i, l := range list {
		u, err := base(l.URL)
		if err != nil {
			return nil, fmt.Errorf("cannot use engine %d of the list: %w", i+1, err)
		}
		e := Endpoint{Name: l.Name, URL: u.String(), ServerName: l.ServerName, Ready: l.Ready == nil || *l.Ready,
			Terminating: l.Terminating, Dialect: l.Dialect, Models: l.Models, Rank: l.Rank, Weight: l.Weight}
		if e.Name == "" {
			e.Name = u.Host
		}
		set = append(set, e)
	}
	return set, check(set)
}
