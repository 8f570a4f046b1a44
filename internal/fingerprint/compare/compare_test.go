// Package compare measures the scanner beside the JSON libraries that a router would else
// use, on the same bytes in the same run. None of them does the same work: each is asked
// for the least that a router by model and prefix needs, which is the model, a hash of the
// system text, and (encoding/json, sonic) a check of the whole body.
package compare

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"
	"unsafe"

	"github.com/bytedance/sonic"
	"github.com/bytedance/sonic/ast"
	"github.com/cespare/xxhash/v2"
	"github.com/tidwall/gjson"

	"github.com/prefixring/prefixring/internal/dialect"
	"github.com/prefixring/prefixring/internal/fingerprint"
)

type request struct {
	Model    string `json:"model"`
	Messages []struct {
		Role    string          `json:"role"`
		Content json.RawMessage `json:"content"`
	} `json:"messages"`
	Tools  json.RawMessage `json:"tools"`
	Stream bool            `json:"stream"`
}

// body is a chat of 240 KB: a system message with a line break every 100 bytes, and
// tools.
func body(tb testing.TB) []byte {
	const line = "Refunds are paid to the card that was charged, within five working days of the return being scan\n"
	var tools []any
	for i := range 100 {
		tools = append(tools, map[string]any{"type": "function", "function": map[string]any{"name": fmt.Sprint("f", i),
			"description": strings.TrimSpace(line), "parameters": map[string]any{"type": "object",
				"properties": map[string]any{"id": map[string]string{"type": "string"}}}}})
	}
	b, err := json.Marshal(map[string]any{"model": "m", "stream": true, "tools": tools, "messages": []any{
		map[string]string{"role": "system", "content": strings.Repeat(line, 2150)},
		map[string]string{"role": "user", "content": "Where is my parcel?"}}})
	if err != nil {
		tb.Fatal(err)
	}
	return b
}

var hash uint64

func BenchmarkCompare(b *testing.B) {
	data := body(b)
	run := func(name string, f func() error) {
		b.Run(name, func(b *testing.B) {
			if err := f(); err != nil {
				b.Fatal(err)
			}
			b.ReportAllocs()
			best := time.Hour
			for b.Loop() {
				t := time.Now()
				if err := f(); err != nil {
					b.Fatal(err)
				}
				best = min(best, time.Since(t))
			}
			// The fastest call: a neighbour on the machine cannot tilt it.
			b.ReportMetric(float64(best.Nanoseconds())/1e3, "us-best")
		})
	}
	s, err := fingerprint.NewScanner(fingerprint.Options{})
	if err != nil {
		b.Fatal(err)
	}
	var r fingerprint.Result
	run("Prefixring", func() error { return s.Scan(dialect.Chat, data, &r) })
	run("HashOnly", func() error { hash = xxhash.Sum64(data); return nil })
	run("EncodingJSON", func() error {
		var q request
		err := json.Unmarshal(data, &q)
		hash = xxhash.Sum64(q.Tools) ^ xxhash.Sum64(q.Messages[0].Content)
		return err
	})
	run("EncodingJSONValid", func() error {
		if !json.Valid(data) {
			return fmt.Errorf("not valid")
		}
		return nil
	})
	run("GjsonFields", func() error {
		got := gjson.GetManyBytes(data, "model", "messages.0.content", "tools")
		hash = xxhash.Sum64String(got[1].String()) ^ xxhash.Sum64String(got[2].Raw)
		return nil
	})
	run("GjsonValid", func() error {
		if !gjson.ValidBytes(data) {
			return fmt.Errorf("not valid")
		}
		return nil
	})
	run("SonicStruct", func() error {
		var q request
		err := sonic.Unmarshal(data, &q)
		hash = xxhash.Sum64(q.Tools) ^ xxhash.Sum64(q.Messages[0].Content)
		return err
	})
	run("SonicSearcher", func() error {
		search := ast.NewSearcher(unsafe.String(unsafe.SliceData(data), len(data)))
		for _, path := range [][]any{{"model"}, {"messages", 0, "content"}, {"tools"}} {
			n, err := search.GetByPath(path...)
			if err != nil {
				return err
			}
			raw, err := n.Raw()
			if err != nil {
				return err
			}
			hash ^= xxhash.Sum64String(raw)
		}
		return nil
	})
	run("SonicValid", func() error {
		if !sonic.Valid(data) {
			return fmt.Errorf("not valid")
		}
		return nil
	})
}

// TestWhoRefusesWhat pins why a library that reads fields lazily cannot be the gate: what
// the engine will refuse, or read as another model, passes it.
func TestWhoRefusesWhat(t *testing.T) {
	s, err := fingerprint.NewScanner(fingerprint.Options{})
	if err != nil {
		t.Fatal(err)
	}
	for _, bad := range []string{`{"model":"a"`, `{"model":"a"}}}}`, `{"model":"a",,,}`, `{"model":"cheap","model":"dear"}`} {
		var r fingerprint.Result
		if s.Scan(dialect.Chat, []byte(bad), &r) == nil {
			t.Errorf("%s was accepted", bad)
		}
		if got := gjson.Get(bad, "model").String(); got != "a" && got != "cheap" {
			t.Errorf("gjson now refuses %s: %q; docs/fingerprint.md says otherwise", bad, got)
		}
	}
}
