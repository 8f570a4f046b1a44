package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/prefixring/prefixring/"

// listed is what the go command says of a package. Tests may import what they like.
type listed struct {
	ImportPath string
	Imports    []string
}

// packages lists all packages of the module.
func packages(t *testing.T) []listed {
	t.Helper()
	out, err := exec.Command("go", "list", "-json=ImportPath,Imports", module+"...").Output()
	if err != nil {
		t.Fatalf("cannot list the packages: %v", err)
	}
	var all []listed
	dec := json.NewDecoder(bytes.NewReader(out))
	for {
		var p listed
		if err := dec.Decode(&p); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		p.ImportPath = strings.TrimPrefix(p.ImportPath, module)
		all = append(all, p)
	}
	if len(all) < 10 {
		t.Fatalf("only %d packages listed", len(all))
	}
	return all
}

// within says if a package is one of the rooms or lies below one.
func within(pkg string, rooms ...string) bool {
	return slices.ContainsFunc(rooms, func(r string) bool { return pkg == r || strings.HasPrefix(pkg, r+"/") })
}

// The laws of direction (DESIGN section 2): who may import what, for packages of ours
// and of others. A path that ends in a slash stands for everything below it.
func TestImportLaws(t *testing.T) {
	pure := []string{"ring", "internal/fingerprint", "internal/residency", "internal/session", "internal/cost", "internal/dialect", "internal/route", "internal/channel"}
	laws := []struct {
		imports string
		only    []string
	}{
		{module + "internal/config", []string{"cmd"}},
		{module + "cmd/", nil},
		{"github.com/valyala/fasthttp", []string{"internal/proxy", "bench", "prewarm", "internal/admin"}},
		{"github.com/urfave/cli/", []string{"cmd"}},
		{"go.etcd.io/bbolt", []string{"internal/ledger"}},
		{module + "internal/ledger", []string{"cmd"}},
		{"github.com/buraksezer/consistent", []string{"ring"}},
		{"github.com/cespare/xxhash/", []string{"internal/fingerprint", "ring"}},
		{"github.com/sourcegraph/conc", []string{"health", "prewarm", "bench"}},
	}
	for _, p := range packages(t) {
		for _, imp := range p.Imports {
			for _, law := range laws {
				hit := imp == law.imports || strings.HasPrefix(imp, strings.TrimSuffix(law.imports, "/")+"/")
				if hit && !within(p.ImportPath, law.only...) {
					t.Errorf("%s imports %s; only %v may", p.ImportPath, imp, law.only)
				}
			}
			if within(p.ImportPath, pure...) && impure(imp) {
				t.Errorf("%s is pure but imports %s", p.ImportPath, imp)
			}
		}
	}
}

// impure packages do I/O or start goroutines.
func impure(imp string) bool {
	return slices.Contains([]string{"os", "net", "net/http", "os/exec", "os/signal", "io/fs", "log", "log/slog", "math/rand", "math/rand/v2", "context"}, imp)
}
