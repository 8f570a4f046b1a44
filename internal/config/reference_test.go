package config

import (
	"bytes"
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write docs/configuration.md anew")

const reference = "../../docs/configuration.md"

// TestReferenceIsCurrent holds docs/configuration.md against the comments of the structs.
// go test ./internal/config -update writes it anew.
func TestReferenceIsCurrent(t *testing.T) {
	want := generate(t)
	if *update {
		if err := os.WriteFile(reference, want, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	have, err := os.ReadFile(reference)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(have, want) {
		t.Error("docs/configuration.md is not current; run go test ./internal/config -update")
	}
}

// generate writes one section per struct: config.go first, then what has a file of its own.
func generate(t *testing.T) []byte {
	t.Helper()
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	files = slices.DeleteFunc(files, func(f string) bool { return f == "config.go" || strings.HasSuffix(f, "_test.go") })
	var b bytes.Buffer
	b.WriteString("# Configuration\n\nOne YAML file, given with `--config`. Unknown keys are errors. Relative paths start at the folder of the file.\n" +
		"`prefixring check --config FILE` validates it; [configs/router.yaml](../configs/router.yaml) is a working example.\n" +
		"This page is made from the comments in internal/config.\n")
	for _, name := range append([]string{"config.go"}, files...) {
		f, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.ParseComments)
		if err != nil {
			t.Fatal(err)
		}
		sections(&b, f)
	}
	return b.Bytes()
}

func sections(b *bytes.Buffer, f *ast.File) {
	for _, d := range f.Decls {
		g, ok := d.(*ast.GenDecl)
		if !ok || g.Tok != token.TYPE {
			continue
		}
		spec := g.Specs[0].(*ast.TypeSpec)
		if s, ok := spec.Type.(*ast.StructType); ok && hasKeys(s) {
			section(b, spec.Name.Name, g.Doc.Text(), s)
		}
	}
}

func hasKeys(s *ast.StructType) bool {
	return slices.ContainsFunc(s.Fields.List, func(f *ast.Field) bool { return f.Tag != nil })
}

func section(b *bytes.Buffer, name, doc string, s *ast.StructType) {
	fmt.Fprintf(b, "\n## %s\n\n%s\n| key | meaning |\n|---|---|\n", name, doc)
	for _, f := range s.Fields.List {
		if f.Tag == nil {
			continue
		}
		key := reflect.StructTag(strings.Trim(f.Tag.Value, "`")).Get("yaml")
		text := strings.TrimSpace(strings.ReplaceAll(f.Comment.Text(), "\n", " "))
		if text == "" {
			text = "see below"
		}
		fmt.Fprintf(b, "| `%s` | %s |\n", key, strings.ReplaceAll(text, "|", `\|`))
	}
}
