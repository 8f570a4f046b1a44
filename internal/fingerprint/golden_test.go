package fingerprint

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"testing"

	"github.com/prefixring/prefixring/internal/dialect"
)

var update = flag.Bool("update", false, "write testdata/golden.json anew; raise Version if old vectors change")

// golden pins fingerprints across releases and machines: two routers of the same Version
// must agree on owners without talking.
type golden struct {
	Version int      `json:"version"`
	Vectors []vector `json:"vectors"`
}

type vector struct {
	Protocol    string `json:"protocol"`
	Body        string `json:"body"`
	Kind        string `json:"kind"`
	Prefix      string `json:"prefix"`
	Fingerprint string `json:"fingerprint"` // for model "m", adapter "a", salt "s"
	Last        string `json:"last,omitempty"`
}

func TestGoldenVectors(t *testing.T) {
	const file = "testdata/golden.json"
	raw, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var g golden
	if err := json.Unmarshal(raw, &g); err != nil {
		t.Fatal(err)
	}
	if g.Version != Version && !*update {
		t.Fatalf("the vectors are of version %d, the code is version %d", g.Version, Version)
	}
	if len(g.Vectors) < 30 {
		t.Fatalf("only %d vectors", len(g.Vectors))
	}
	s := newScanner(t, Options{})
	seen := map[string]int{}
	for i := range g.Vectors {
		v := &g.Vectors[i]
		var p dialect.Protocol
		for _, q := range protocols {
			if q.String() == v.Protocol {
				p = q
			}
		}
		r := scanWith(t, s, p, v.Body)
		got := vector{v.Protocol, v.Body, r.Kind.String(), hex(r.Prefix), hex(r.Fingerprint("m", "a", "s")), ""}
		if last, ok := r.Last(); ok {
			got.Last = hex(last)
		}
		if *update {
			*v = got
		} else if got != *v {
			t.Errorf("vector %d\n got %+v\nwant %+v", i, got, *v)
		}
		seen[v.Protocol+v.Kind]++
	}
	for _, want := range []string{"chatprefix", "chatsession", "chatnone", "completionslead", "responsesprefix", "messagesprefix", "othernone"} {
		if seen[want] == 0 {
			t.Errorf("no vector covers %s", want)
		}
	}
	if *update {
		g.Version = Version
		out, err := json.MarshalIndent(g, "", " ")
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, append(out, '\n'), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

func hex(h uint64) string { return fmt.Sprintf("%016x", h) }
