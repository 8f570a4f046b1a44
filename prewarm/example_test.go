package prewarm

import (
	"bytes"
	"encoding/json"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/goccy/go-yaml"

	"github.com/prefixring/prefixring/internal/dialect"
	"github.com/prefixring/prefixring/internal/fingerprint"
)

const exampleManifest = "../configs/prewarm.yaml"

// The shipped example loads, plans, and warms what traffic reads.
func TestShippedExample(t *testing.T) {
	m, err := LoadManifest(exampleManifest)
	if err != nil {
		t.Fatal(err)
	}
	f := Fleet{Nodes: []Node{
		{Name: "a", Models: []string{"shop-70b", "merchant-lora"}, KVTokens: 460_000, BlockSize: 16},
		{Name: "b", Models: []string{"shop-70b", "merchant-lora"}, KVTokens: 460_000, BlockSize: 16},
	}}
	now := time.Date(2026, 12, 12, 10, 0, 0, 0, time.UTC)
	p, err := NewPlan(m, f, PlanOptions{Now: now})
	if err != nil {
		t.Fatal(err)
	}
	if len(p.Prefixes) != 5 || p.Items < 8 {
		t.Errorf("%d prefixes, %d items", len(p.Prefixes), p.Items)
	}
	// The recorded request's key must be the one of a customer at another minute.
	named, err := m.Named(nil, now)
	if err != nil {
		t.Fatal(err)
	}
	s, err := fingerprint.NewScanner(fingerprint.Options{Named: named})
	if err != nil {
		t.Fatal(err)
	}
	body, err := os.ReadFile("../configs/prewarm/returns-desk.json")
	if err != nil {
		t.Fatal(err)
	}
	var r fingerprint.Result
	later := bytes.Replace(body, []byte("12:07"), []byte("19:59"), 1)
	if bytes.Equal(later, body) {
		t.Fatal("the example has no clock")
	}
	if err := s.Scan(dialect.Chat, later, &r); err != nil || r.Kind != fingerprint.KindNamed {
		t.Fatalf("%v, kind %s", err, r.Kind)
	}
	for _, x := range p.Prefixes {
		if x.Name == "returns-desk" && x.Key != r.Fingerprint("shop-70b", "", "") {
			t.Error("the plan's key is not traffic's")
		}
	}
}

// The schema, the struct and the example name the same fields.
func TestSchemaFollowsTheStruct(t *testing.T) {
	data, err := os.ReadFile("../configs/prewarm.schema.json")
	if err != nil {
		t.Fatal(err)
	}
	var schema struct {
		Properties map[string]any
		Defs       map[string]struct {
			Properties map[string]struct {
				Type    any
				Enum    []string
				Default any
			}
			AdditionalProperties any
		} `json:"$defs"`
	}
	if err := json.Unmarshal(data, &schema); err != nil {
		t.Fatal(err)
	}
	if got, want := keys(schema.Properties), fields(reflect.TypeFor[Manifest]()); got != want {
		t.Errorf("manifest: schema %s, struct %s", got, want)
	}
	prefix := schema.Defs["prefix"]
	if got, want := keys(prefix.Properties), fields(reflect.TypeFor[Entry]()); got != want {
		t.Errorf("prefix: schema %s, struct %s", got, want)
	}
	for name, want := range map[string]any{"static_bytes": "integer", "share": "number", "salts": "array", "fields": "object", "deadline": "string"} {
		if prefix.Properties[name].Type != want {
			t.Errorf("%s is %v, want %v", name, prefix.Properties[name].Type, want)
		}
	}
	for _, p := range prefix.Properties["protocol"].Enum {
		if _, ok := wires[p]; !ok {
			t.Errorf("protocol %q is unknown", p)
		}
	}
	example, err := os.ReadFile(exampleManifest)
	if err != nil {
		t.Fatal(err)
	}
	var doc struct{ Prefixes []map[string]any }
	if err := yaml.Unmarshal(example, &doc); err != nil {
		t.Fatal(err)
	}
	for _, e := range doc.Prefixes {
		for name := range e {
			if _, ok := prefix.Properties[name]; !ok {
				t.Errorf("the example has %q, the schema has not", name)
			}
		}
	}
}

// The documentation names every field of the manifest.
func TestDocsNameEveryField(t *testing.T) {
	doc, err := os.ReadFile("../docs/prewarm.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range strings.Fields(fields(reflect.TypeFor[Entry]())) {
		if !bytes.Contains(doc, []byte("`"+name+"`")) {
			t.Errorf("docs/prewarm.md does not name %s", name)
		}
	}
}

func keys[V any](m map[string]V) string {
	var out []string
	for k := range m {
		out = append(out, k)
	}
	slices.Sort(out)
	return strings.Join(out, " ")
}

func fields(t reflect.Type) string {
	var out []string
	for i := range t.NumField() {
		if tag := t.Field(i).Tag.Get("yaml"); tag != "" {
			out = append(out, tag)
		}
	}
	slices.Sort(out)
	return strings.Join(out, " ")
}
