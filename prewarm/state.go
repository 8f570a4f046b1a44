package prewarm

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"time"
)

// stateVersion changes with the file's shape.
const stateVersion = 1

// stateFile is the file on disk: digests, node names, times and figures.
type stateFile struct {
	Version int           `json:"version"`
	Plan    string        `json:"plan"`
	Items   []stateRecord `json:"items"`
}

type stateRecord struct {
	Node   string `json:"node"`
	Prefix string `json:"prefix"` // digest
	Proof  Proof  `json:"proof"`
}

type stateKey struct{ node, prefix string }

// state is the progress of a run. It is written after each proof, whole and in one
// rename, so that whatever stops the run leaves the last whole file.
type state struct {
	path string
	plan string

	mu    sync.Mutex // guards items and the file
	items map[stateKey]Proof
}

// openState reads the progress of an earlier run of the same plan; other plans' progress
// is dropped.
func openState(path, plan string) (*state, error) {
	s := &state{path: path, plan: plan, items: map[stateKey]Proof{}}
	if path == "" {
		return s, nil
	}
	data, err := readFile(path, 64<<20)
	if errors.Is(err, fs.ErrNotExist) {
		return s, nil
	}
	if err != nil {
		return nil, fmt.Errorf("cannot read state: %w", err)
	}
	var f stateFile
	if err := json.Unmarshal(data, &f); err != nil || f.Version != stateVersion {
		return nil, fmt.Errorf("cannot read state %s: it is not this program's; remove it to start over", path)
	}
	if f.Plan == plan {
		for _, it := range f.Items {
			s.items[stateKey{it.Node, it.Prefix}] = it.Proof
		}
	}
	return s, nil
}

// fresh is the proof of an item that is young enough to be believed. Proofs from the
// future are not: the clock has been set back.
func (s *state) fresh(node, prefix string, now time.Time, trust time.Duration) (Proof, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p, ok := s.items[stateKey{node, prefix}]
	age := now.Sub(p.At)
	return p, ok && p.Warm && age >= 0 && age < trust
}

func (s *state) put(node, prefix string, p Proof) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.items[stateKey{node, prefix}] = p
	if s.path == "" {
		return nil
	}
	f := stateFile{Version: stateVersion, Plan: s.plan, Items: make([]stateRecord, 0, len(s.items))}
	for k, p := range s.items {
		f.Items = append(f.Items, stateRecord{k.node, k.prefix, p})
	}
	data, err := json.MarshalIndent(f, "", " ")
	if err != nil {
		return fmt.Errorf("cannot write state: %w", err)
	}
	if err := replaceFile(s.path, data); err != nil {
		return fmt.Errorf("cannot write state: %w", err)
	}
	return nil
}

// replaceFile writes a file that is either the old or the new one, whole, whatever
// happens in between.
func replaceFile(path string, data []byte) error {
	tmp, err := os.CreateTemp(filepath.Dir(path), filepath.Base(path)+".*")
	if err != nil {
		return err
	}
	defer os.Remove(tmp.Name())
	if _, err := tmp.Write(data); err != nil {
		tmp.Close()
		return err
	}
	if err := tmp.Sync(); err != nil {
		tmp.Close()
		return err
	}
	if err := tmp.Close(); err != nil {
		return err
	}
	return os.Rename(tmp.Name(), path)
}
