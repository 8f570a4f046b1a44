package prewarm

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"
	"github.com/goccy/go-yaml/token"
)

// maxManifest bounds a manifest, maxSource each file it names. A prompt of 2 million
// tokens has about 8 MiB.
const (
	maxManifest = 64 << 20
	maxSource   = 64 << 20
)

// LoadManifest reads and checks a manifest file and every file it names. On any fault
// it returns a *ManifestError with all of them and no manifest.
func LoadManifest(path string) (*Manifest, error) {
	data, err := readFile(path, maxManifest)
	if err != nil {
		return nil, fmt.Errorf("cannot read manifest: %w", err)
	}
	return parseManifest(data, path, filepath.Dir(path))
}

// ParseManifest checks a manifest in memory. Files that it names are looked up in dir.
func ParseManifest(data []byte, dir string) (*Manifest, error) {
	return parseManifest(data, "", dir)
}

func parseManifest(data []byte, path, dir string) (*Manifest, error) {
	m := &Manifest{path: path, dir: dir}
	c := &checker{m: m}
	file, err := parser.ParseBytes(data, 0)
	if err != nil {
		return nil, c.syntax(err)
	}
	c.file = file
	err = yaml.NewDecoder(bytes.NewReader(data), yaml.Strict()).Decode(m)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, c.syntax(err)
	}
	c.check()
	if len(c.faults) > 0 {
		return nil, &ManifestError{c.faults}
	}
	return m, nil
}

// checker collects faults with the line where the field stands.
type checker struct {
	m      *Manifest
	file   *ast.File
	faults []Fault
}

// syntax turns the YAML library's error into a fault. Its own text would quote the
// source, and the source holds prompts: only message and position are taken.
func (c *checker) syntax(err error) error {
	f := Fault{File: c.m.path, Problem: "it is no valid YAML"}
	var y yaml.Error
	if errors.As(err, &y) {
		f.Problem = y.GetMessage()
		if t := y.GetToken(); t != nil && t.Position != nil {
			f.Line = t.Position.Line
		}
	}
	var unknown *yaml.UnknownFieldError
	var typed *yaml.TypeError
	switch {
	case errors.As(err, &unknown):
		if unknown.Token != nil {
			f.Field = unknown.Token.Value
		}
		f.Problem, f.Remedy = "there is no such field", "see configs/prewarm.schema.json for the fields"
	case errors.As(err, &typed):
		f.Problem = fmt.Sprintf("it must be %s, not %s", typed.DstType, typed.SrcType)
		f.Field = keyOf(typed.Token)
	}
	return &ManifestError{[]Fault{f}}
}

// keyOf is the key before a value's token: the library names only the outermost field.
func keyOf(t *token.Token) string {
	for t != nil && t.Type != token.MappingValueType {
		t = t.Prev
	}
	if t == nil || t.Prev == nil {
		return ""
	}
	return t.Prev.Value
}

// fault notes a problem of a field of entry i; i < 0 is the manifest itself.
func (c *checker) fault(i int, field, problem, remedy string) {
	f := Fault{File: c.m.path, Problem: problem, Remedy: remedy}
	path := "$"
	if i >= 0 {
		at := "prefixes[" + strconv.Itoa(i) + "]"
		f.Field, path = at, path+"."+at
	}
	f.Line = c.line(path)
	if field != "" {
		if i >= 0 {
			f.Field += "."
		}
		f.Field += field
		if l := c.line(path + "." + field); l > 0 {
			f.Line = l
		}
	}
	c.faults = append(c.faults, f)
}

// line is the line of a YAML path, 0 when it isn't there. A mapping's own position is
// that of its first key.
func (c *checker) line(path string) int {
	p, err := yaml.PathString(path)
	if err != nil || c.file == nil {
		return 0
	}
	node, err := p.FilterFile(c.file)
	if err != nil || node == nil {
		return 0
	}
	t := node.GetToken()
	if m, ok := node.(*ast.MappingNode); ok && len(m.Values) > 0 {
		t = m.Values[0].Key.GetToken()
	}
	if t == nil || t.Position == nil {
		return 0
	}
	return t.Position.Line
}

// readFile refuses what is no regular file (a pipe would block) and files over the limit;
// errors name the path.
func readFile(path string, limit int64) ([]byte, error) {
	if info, err := os.Stat(path); err == nil && !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is no regular file", path)
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err != nil {
		return nil, err
	}
	if int64(len(data)) > limit {
		return nil, fmt.Errorf("%s has more than %d bytes", path, limit)
	}
	return data, nil
}
