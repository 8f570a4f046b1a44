package fingerprint

import (
	"encoding/json"
	"errors"
	"fmt"
	"unicode/utf8"

	"github.com/cespare/xxhash/v2"

	"github.com/prefixring/prefixring/internal/dialect"
)

// Named is a registered prefix: it keys every request that begins with it, whatever
// follows. Build one with NewNamed or NewNamedText; its hashes belong to this Version.
type Named struct {
	Name  string
	Model string // which model it is declared for; "" = any. Only a preference between equal prefixes

	Length  int    // canonical bytes of the last system message (or the prompt) that belong to it; 0 = tools only
	Digest  uint64 // of these bytes
	Context uint64 // of everything before them: template arguments, salt, tools, earlier messages, role
	Bytes   int    // decoded bytes of all that it covers
}

// Key is what Result.Key is when the prefix matches.
func (n *Named) Key() uint64 {
	return fold('k', n.Context, fold('d', n.Digest, uint64(n.Length)))
}

// NewNamed makes a Named from a request that carries the prefix: all of its template
// arguments, salt, tools and leading system or developer messages, the last of them cut
// to its first head decoded bytes (0 = whole). For a raw completion the prompt takes the
// place of the message, and head is required to leave the user's text out. The model is
// the body's.
func NewNamed(name string, proto dialect.Protocol, body []byte, head int) (Named, error) {
	fail := func(why error) (Named, error) {
		return Named{}, fmt.Errorf("cannot make named prefix %q: %w", name, why)
	}
	if head < 0 {
		return fail(fmt.Errorf("the head of %d bytes is negative", head))
	}
	s, err := NewScanner(Options{})
	if err != nil {
		return fail(err)
	}
	var r Result
	if err := s.Scan(proto, body, &r); err != nil {
		return fail(err)
	}
	n := Named{Name: name, Model: string(Text(body, r.Model, nil))}
	p := r.p
	last, chain := &p.prompt, p.base()
	n.Bytes = p.toolBytes + p.extraBytes
	switch {
	case p.hasPrompt && head == 0:
		return fail(errors.New("a completion's prefix needs the length of its static head"))
	case p.hasPrompt:
	case len(p.fixed) == 0 && head > 0:
		return fail(errors.New("there is no system message to cut"))
	case len(p.fixed) == 0 && p.tools == 0:
		return fail(errors.New("the body has neither tools nor a leading system message"))
	case len(p.fixed) == 0:
		n.Context = toolsContext(chain)
		return n, nil
	case len(p.fixed) > maxDetailed:
		return fail(fmt.Errorf("more than %d leading system messages", maxDetailed))
	default:
		last = &p.fixed[len(p.fixed)-1]
		for i := range p.fixed[:len(p.fixed)-1] {
			n.Bytes += p.fixed[i].decoded
			chain = fold('s', chain, p.fixed[i].hash())
		}
	}
	if head > last.decoded {
		return fail(fmt.Errorf("the head of %d bytes is longer than the text of %d bytes", head, last.decoded))
	}
	n.Context = namedContext(chain, last)
	n.Length, n.Digest = last.stream, last.content
	n.Bytes += last.decoded
	if head > 0 && head < last.decoded {
		n.Bytes += head - last.decoded
		if err := n.cutTo(head, last, body); err != nil {
			return fail(err)
		}
	}
	if n.Length == 0 {
		return fail(errors.New("the system message is empty"))
	}
	return n, nil
}

// cutTo shortens the prefix to the first head decoded bytes of the last message. The
// text is looked at here and not kept.
func (n *Named) cutTo(head int, last *message, body []byte) error {
	if last.kind != contentText {
		return errors.New("only plain text can be cut")
	}
	text := canonicalText(nil, body[last.text.Start:last.text.End])
	length := 0
	for decoded := 0; decoded < head; {
		size, means := canonicalUnit(text[length:])
		if decoded += means; decoded > head {
			return fmt.Errorf("the head of %d bytes ends inside a character", head)
		}
		length += size
	}
	n.Length, n.Digest = length, xxhash.Sum64(text[:length])
	return nil
}

// canonicalUnit returns the size of the first character of canonical text and how many
// bytes it decodes to.
func canonicalUnit(text []byte) (size, decoded int) {
	if text[0] != '\\' {
		_, size = utf8.DecodeRune(text)
		return size, size
	}
	if text[1] != 'u' {
		return 2, 1
	}
	r, _ := hex4(text[2:])
	return 6, decodedLen(r)
}

// NewNamedText makes a Named from the text of a system message without tools or
// template arguments. Requests in any of the chat protocols match it.
func NewNamedText(name, model, system string) (Named, error) {
	return newNamed(name, model, system, dialect.Chat, map[string]any{
		"messages": []any{map[string]string{"role": "system", "content": system}},
	}, 0)
}

// NewNamedPrompt makes a Named from the head that raw completions share.
func NewNamedPrompt(name, model, head string) (Named, error) {
	return newNamed(name, model, head, dialect.Completions, map[string]any{"prompt": head}, len(head))
}

func newNamed(name, model, text string, proto dialect.Protocol, body map[string]any, head int) (Named, error) {
	if !utf8.ValidString(text) { // Marshal would replace what is wrong, silently
		return Named{}, fmt.Errorf("cannot make named prefix %q: the text is not valid UTF-8", name)
	}
	if model != "" {
		body["model"] = model
	}
	raw, err := json.Marshal(body)
	if err != nil {
		return Named{}, fmt.Errorf("cannot make named prefix %q: %w", name, err)
	}
	return NewNamed(name, proto, raw, head)
}
