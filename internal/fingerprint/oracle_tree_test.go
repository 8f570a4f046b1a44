package fingerprint

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/cespare/xxhash/v2"
)

type tree struct {
	kind  byte // { [ " 0 t f n
	raw   []byte
	span  Span
	names []string // canonical
	items []*tree
}

// grow parses the one value at the start of body[from:].
func grow(body []byte, from int) *tree {
	dec := json.NewDecoder(bytes.NewReader(body[from:]))
	var raw json.RawMessage
	if err := dec.Decode(&raw); err != nil {
		panic(err)
	}
	at := from + int(dec.InputOffset()) - len(raw)
	t := &tree{kind: raw[0], raw: raw, span: Span{at, at + len(raw)}}
	if raw[0] != '{' && raw[0] != '[' {
		return t
	}
	dec = json.NewDecoder(bytes.NewReader(raw))
	if _, err := dec.Token(); err != nil {
		panic(err)
	}
	for dec.More() {
		if raw[0] == '{' {
			before := dec.InputOffset()
			if _, err := dec.Token(); err != nil {
				panic(err)
			}
			name := bytes.TrimLeft(raw[before:dec.InputOffset()], " \t\r\n,")
			t.names = append(t.names, spell(name))
		}
		var item json.RawMessage
		if err := dec.Decode(&item); err != nil {
			panic(err)
		}
		t.items = append(t.items, grow(body, at+int(dec.InputOffset())-len(item)))
	}
	return t
}

func (t *tree) get(name string) *tree {
	for i, n := range t.names {
		if n == name {
			return t.items[i]
		}
	}
	return nil
}

// units decodes a raw JSON string into UTF-16 code units and whole runes: a lone
// surrogate stays itself.
func units(raw []byte) (out []rune) {
	raw = raw[1 : len(raw)-1]
	for len(raw) > 0 {
		if raw[0] != '\\' {
			r, n := utf8.DecodeRune(raw)
			out, raw = append(out, r), raw[n:]
			continue
		}
		if raw[1] != 'u' {
			c := strings.IndexByte(`"\/bfnrt`, raw[1])
			out, raw = append(out, rune("\"\\/\b\f\n\r\t"[c])), raw[2:]
			continue
		}
		v, err := strconv.ParseUint(string(raw[2:6]), 16, 16)
		if err != nil {
			panic(err)
		}
		r := rune(v)
		raw = raw[6:]
		if n := len(out); n > 0 && utf16.IsSurrogate(out[n-1]) {
			// Only two escapes in a row pair up, and the first of them must not have
			// been the second of a pair.
			if full := utf16.DecodeRune(out[n-1], r); full != utf8.RuneError {
				out[n-1] = full
				continue
			}
		}
		out = append(out, r)
	}
	return out
}

// spell writes a raw JSON string in canonical spelling, without quotes.
func spell(raw []byte) string {
	var b strings.Builder
	for _, r := range units(raw) {
		switch {
		case r == '"' || r == '\\':
			b.WriteByte('\\')
			b.WriteRune(r)
		case strings.ContainsRune("\b\f\n\r\t", r):
			b.WriteByte('\\')
			b.WriteByte("bfnrt"[strings.IndexRune("\b\f\n\r\t", r)])
		case r < 0x20 || utf16.IsSurrogate(r):
			fmt.Fprintf(&b, "\\u%04x", r)
		default:
			b.WriteRune(r)
		}
	}
	return b.String()
}

func decodedSize(raw []byte) (n int) {
	for _, r := range units(raw) {
		if utf16.IsSurrogate(r) {
			n += 3
		} else {
			n += utf8.RuneLen(r)
		}
	}
	return n
}

// compact writes a value without white space, in canonical spelling, leaving out
// cache_control in objects down to depth marks.
func (t *tree) compact(marks int) string {
	switch t.kind {
	case '"':
		return `"` + spell(t.raw) + `"`
	case '{', '[':
		var parts []string
		for i, item := range t.items {
			if t.kind == '[' {
				parts = append(parts, item.compact(marks-1))
			} else if t.names[i] != "cache_control" || marks < 1 {
				parts = append(parts, `"`+t.names[i]+`":`+item.compact(marks-1))
			}
		}
		return string(t.kind) + strings.Join(parts, ",") + string(t.kind+2)
	}
	return string(t.raw)
}

func (t *tree) hash(marks int) uint64 {
	if t == nil || t.kind == 'n' {
		return 0
	}
	return xxhash.Sum64String(t.compact(marks))
}

func (t *tree) is(words ...string) bool {
	for _, w := range words {
		if string(t.raw) == w {
			return true
		}
	}
	return false
}
