package prewarm

import (
	"bytes"
	"fmt"
	"strings"

	"github.com/goccy/go-yaml"

	"github.com/prefixring/prefixring/internal/dialect"
)

// Captured is a manifest entry made from a real request.
type Captured struct {
	// Body is the request cut to what every user shares, with a turn of ours in place of
	// the customer's. It still renders as the real one does.
	Body []byte
	// YAML is the entry, ready to be put under prefixes:. It names BodyFile.
	YAML string
	// BodyFile is the name under which the entry expects Body, beside the manifest.
	BodyFile string
	// Dropped are the fields that were left out, in the request's order.
	Dropped []string
	Model   string
}

// CaptureOptions tune Capture.
type CaptureOptions struct {
	Name string // of the entry; required
	// Protocol of the route that the request was sent to. Opaque = told from the body's
	// fields.
	Protocol dialect.Protocol
	// StaticBytes is the shared length of the leading text in decoded bytes, 0 = all of it.
	StaticBytes int
}

// Capture makes an entry from the body of a real request. Nothing of the customer's
// turns, and nothing that identifies the customer, is in the result.
func Capture(body []byte, o CaptureOptions) (*Captured, error) {
	if o.Name == "" {
		return nil, withRemedy("the entry has no name", "give one")
	}
	all, err := members(body)
	if err != nil {
		return nil, fmt.Errorf("cannot capture: %w", err)
	}
	p := o.Protocol
	if p == dialect.Opaque {
		if p = guess(all); p == dialect.Opaque {
			return nil, withRemedy("cannot capture: the protocol cannot be told from the body", "name it: chat, completions, responses or messages")
		}
	}
	h, err := cut(p, body, o.StaticBytes)
	if err != nil {
		return nil, fmt.Errorf("cannot capture: %w", err)
	}
	if h.model == "" {
		return nil, withRemedy("cannot capture: the request names no model", "record the body that a client sends")
	}
	c := &Captured{Model: h.model, BodyFile: fileName(o.Name)}
	for _, f := range all {
		if dropped[f.name] {
			c.Dropped = append(c.Dropped, f.name)
		}
	}
	// A salt is a secret of a tenant: it goes to the body, which is as secret as the
	// prompt, and not to the manifest.
	c.Body = h.request(wire{model: h.model, salt: h.salt, turn: "hi"})
	entry := struct {
		Name        string `yaml:"name"`
		Model       string `yaml:"model"`
		Protocol    string `yaml:"protocol"`
		Request     string `yaml:"request"`
		StaticBytes int    `yaml:"static_bytes,omitempty"`
	}{o.Name, h.model, p.String(), c.BodyFile, 0}
	if o.StaticBytes > 0 {
		entry.StaticBytes = o.StaticBytes
	}
	text, err := yaml.MarshalWithOptions([]any{entry}, yaml.IndentSequence(true))
	if err != nil {
		return nil, fmt.Errorf("cannot capture: %w", err)
	}
	c.YAML = string(text)
	return c, nil
}

// guess tells the protocol by the fields that only one of them has.
func guess(all []member) dialect.Protocol {
	have := map[string][]byte{}
	for _, f := range all {
		have[f.name] = f.raw
	}
	switch {
	case have["prompt"] != nil:
		return dialect.Completions
	case have["input"] != nil:
		return dialect.Responses
	case have["messages"] != nil && have["system"] != nil:
		return dialect.Messages
	case have["messages"] != nil:
		// Anthropic's tools have input_schema where the others have a function object.
		if bytes.Contains(have["tools"], []byte(`"input_schema"`)) {
			return dialect.Messages
		}
		return dialect.Chat
	}
	return dialect.Opaque
}

// fileName makes a plain file name of an entry's name.
func fileName(name string) string {
	clean := strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z', r >= 'A' && r <= 'Z', r >= '0' && r <= '9', r == '-', r == '_':
			return r
		}
		return '-'
	}, name)
	return strings.Trim(clean, "-") + ".json"
}
