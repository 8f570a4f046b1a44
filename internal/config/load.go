package config

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"
)

// Load reads, parses and checks a file. The error joins every fault found, each on a
// line of its own: "file:line: field: what is wrong; remedy".
func Load(path string) (*Config, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("cannot read the configuration: %w", err)
	}
	c, err := Parse(path, b)
	if err != nil {
		return nil, err
	}
	c.file = path
	return c, nil
}

// File is where the configuration was read; empty when it came from flags.
func (c *Config) File() string { return c.file }

// Parse is Load for bytes that are at hand. name is used in errors, and its folder is
// where relative paths inside start.
func Parse(name string, b []byte) (c *Config, err error) {
	// The YAML library panics on some malformed input (seen in v1.19.2 with a tag before
	// a long zero): a bad file must be an error, whatever is wrong with it.
	defer func() {
		if p := recover(); p != nil {
			c, err = nil, fmt.Errorf("%s: not valid YAML", name)
		}
	}()
	return parse(name, b)
}

func parse(name string, b []byte) (*Config, error) {
	c := &Config{}
	dec := yaml.NewDecoder(bytes.NewReader(b), yaml.Strict())
	if err := dec.Decode(c); err != nil && !errors.Is(err, io.EOF) {
		return nil, located(name, err)
	}
	c.dir = filepath.Dir(name)
	file, err := parser.ParseBytes(b, 0)
	if err != nil {
		return nil, located(name, err)
	}
	v := &validator{name: name, file: file}
	c.check(v)
	if err := v.err(); err != nil {
		return nil, err
	}
	c.fill()
	return c, nil
}

// Path resolves a path of the configuration against the folder of its file.
func (c *Config) Path(p string) string {
	if p == "" || filepath.IsAbs(p) {
		return p
	}
	return filepath.Join(c.dir, p)
}

// position finds "[line:column] message" at the head of the library's errors.
var position = regexp.MustCompile(`^\[(\d+):(\d+)\] ?`)

// located rewrites an error of the YAML library to our form. Its first line holds
// position and message; the rest is an excerpt, which might show a secret.
func located(name string, err error) error {
	first, _, _ := strings.Cut(err.Error(), "\n")
	m := position.FindStringSubmatch(first)
	if m == nil {
		return fmt.Errorf("%s: %s", name, first)
	}
	msg := strings.TrimPrefix(first, m[0])
	if field, ok := strings.CutPrefix(msg, "unknown field "); ok {
		msg = "unknown key " + field + "; remove it, or look for its name in docs/configuration.md"
	}
	return fmt.Errorf("%s:%s: %s", name, m[1], msg)
}

// validator collects faults and finds their lines.
type validator struct {
	name   string
	file   *ast.File
	faults []error
}

// fail notes a fault of the field at a path such as "pools[0].engines[2].url".
func (v *validator) fail(path, format string, args ...any) {
	where := v.name
	if line := v.line(path); line > 0 {
		where += ":" + strconv.Itoa(line)
	}
	v.faults = append(v.faults, fmt.Errorf("%s: %s: %s", where, path, fmt.Sprintf(format, args...)))
}

// line is that of the field, or of the nearest parent that the file has.
func (v *validator) line(path string) int {
	for path != "" && v.file != nil {
		if p, err := yaml.PathString("$." + path); err == nil {
			if n, err := p.FilterFile(v.file); err == nil && n != nil {
				return n.GetToken().Position.Line
			}
		}
		cut := strings.LastIndexAny(path, ".[")
		if cut < 0 {
			return 0
		}
		path = path[:cut]
	}
	return 0
}

func (v *validator) err() error { return errors.Join(v.faults...) }
