package bench

import (
	"archive/tar"
	"bufio"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// TraceKinds are the formats that OpenTrace reads.
func TraceKinds() []string { return []string{"mooncake", "claude", "azure", "access-log"} }

// OpenTrace reads a trace file of a kind, compressed with gzip or not; a claude trace
// may be one conversation, a directory of them, or a tar of them. system is the depth of
// the system message in a mooncake trace (0 means 2 blocks).
func OpenTrace(kind, path string, system int, co ClaudeOptions) (*Trace, error) {
	if !slices.Contains(TraceKinds(), kind) {
		return nil, fmt.Errorf("%w: unknown trace kind %q, known are %v", ErrUsage, kind, TraceKinds())
	}
	if kind == "claude" {
		return openClaude(path, co)
	}
	var t *Trace
	err := open(path, func(r io.Reader) (err error) {
		switch kind {
		case "azure":
			t, err = ReadAzure(r)
		case "access-log":
			t, err = ReadAccessLog(r)
		default:
			t, err = ReadMooncake(r, orInt(system, 2))
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("cannot read trace %s: %w", path, err)
	}
	return t.Shape(ReplayOptions{})
}

func openClaude(path string, co ClaudeOptions) (*Trace, error) {
	c := NewClaudeTraces(co)
	info, err := os.Stat(path)
	switch {
	case err != nil:
	case info.IsDir():
		var files []string
		if files, err = filepath.Glob(filepath.Join(path, "*.json")); err == nil {
			slices.Sort(files)
			for _, f := range files {
				if err = open(f, c.Add); err != nil {
					break
				}
			}
		}
	case strings.Contains(filepath.Base(path), ".tar"):
		err = open(path, c.addTar)
	default:
		err = open(path, c.Add)
	}
	if err != nil {
		return nil, fmt.Errorf("cannot read trace %s: %w", path, err)
	}
	return c.Trace()
}

// addTar reads every JSON file of a tar in its order.
func (c *ClaudeTraces) addTar(r io.Reader) error {
	for t := tar.NewReader(r); ; {
		h, err := t.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if h.Typeflag == tar.TypeReg && strings.HasSuffix(h.Name, ".json") {
			if err := c.Add(t); err != nil {
				return fmt.Errorf("%s: %w", h.Name, err)
			}
		}
	}
}

// open calls read with the file's content, unpacked if it begins as gzip does.
func open(path string, read func(io.Reader) error) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	b := bufio.NewReaderSize(f, 1<<16)
	if magic, err := b.Peek(2); err == nil && magic[0] == 0x1f && magic[1] == 0x8b {
		z, err := gzip.NewReader(b)
		if err != nil {
			return err
		}
		defer z.Close()
		return read(z)
	}
	return read(b)
}
