package config

import (
	"bytes"
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"reflect"
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

// generate writes one section per struct, in the order of the file.
func generate(t *testing.T) []byte {
	t.Helper()
	var b bytes.Buffer
	b.WriteString("# Configuration\n\nOne YAML file, given with `--config`. Unknown keys are errors. Relative paths start at the folder of the file.\n" +
		"`prefixring check --config FILE` validates it; [configs/router.yaml](../configs/router.yaml) is a working example.\n" +
		"This page is made from the comments in internal/config.\n")
	for _, file := range []string{"config.go", "routes.go"} {
		f, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.ParseComments)
		if err != nil {
			t.Fatal(err)
		}
		sections(&b, f)
	}
	return b.Bytes()
}

// sections writes those of one file.
func sections(b *bytes.Buffer, f *ast.File) {
	for _, d := range f.Decls {
		g, ok := d.(*ast.GenDecl)
		if !ok || g.Tok != token.TYPE {
			continue
		}
		spec := g.Specs[0].(*ast.TypeSpec)
		if s, ok := spec.Type.(*ast.StructType); ok {
			section(b, spec.Name.Name, g.Doc.Text(), s)
		}
	}
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
