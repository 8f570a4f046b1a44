package prewarm

import (
	"errors"
	"fmt"
	"time"

	"github.com/prefixring/prefixring/internal/fingerprint"
)

// TokenSource says where a token count comes from.
type TokenSource string

// The sources, from the weakest to the strongest.
const (
	TokensEstimated TokenSource = "estimated" // from the length in bytes
	TokensGiven     TokenSource = "given"     // by the manifest
	TokensCounted   TokenSource = "counted"   // by an engine's tokenizer, over two requests
)

// Prefix is one entry's text as it renders at one moment, with one cache salt.
type Prefix struct {
	Name        string      `json:"name"` // the entry's, "#2" and so on for the further salts
	Entry       *Entry      `json:"-"`
	Key         uint64      `json:"-"` // the ring key
	Fingerprint string      `json:"fingerprint"`
	Digest      string      `json:"digest"` // of everything that is rendered; tells versions apart
	Model       string      `json:"model"`
	Tokens      int64       `json:"tokens"` // of the static prefix
	TokensFrom  TokenSource `json:"tokens_from"`
	StaticBytes int         `json:"static_bytes"`
	K           int         `json:"owners"`
	Spare       int         `json:"spares"` // further nodes in ring order, where bursts overflow to
	Nodes       []string    `json:"nodes"`
	Changes     *time.Time  `json:"changes,omitempty"` // when the text becomes another one

	head   *head
	salt   string
	target Target
	date   string // today in the engine's zone, when the engine writes it into the prompt
}

// Sample is a request body as traffic sends it, with the given turn (letters and digits)
// as the user's. It is what the ring key is made of.
func (p *Prefix) sample(turn string) []byte {
	return p.head.request(wire{model: p.head.model, salt: p.salt, turn: turn})
}

// Named renders the entries at the given moments and returns them as named prefixes, for
// the scanner that keys traffic: one for each text and salt. A text that several moments
// share is returned once. Entries that cannot be rendered are left out and named in the
// error. Register the next version of a changing text (NextChange)
// together with the present one, or its key changes with the text.
func (m *Manifest) Named(tenantSalt func(string) (string, bool), at ...time.Time) ([]fingerprint.Named, error) {
	var out []fingerprint.Named
	var faults []error
	seen := map[string]bool{}
	for _, e := range m.Prefixes {
		for _, t := range at {
			named, err := e.named(tenantSalt, t, seen)
			out = append(out, named...)
			if err != nil {
				faults = append(faults, fmt.Errorf("cannot render prefix %s: %w", e.Name, err))
			}
		}
	}
	return out, errors.Join(faults...)
}

func (e *Entry) named(tenantSalt func(string) (string, bool), at time.Time, seen map[string]bool) ([]fingerprint.Named, error) {
	h, err := e.head(at)
	if err != nil {
		return nil, err
	}
	salts, err := e.saltsFor(h, tenantSalt)
	if err != nil {
		return nil, err
	}
	var out []fingerprint.Named
	for _, salt := range salts {
		id := h.digest() + salt
		if seen[id] {
			continue
		}
		seen[id] = true
		body := h.request(wire{model: h.model, salt: salt, turn: sampleTurn})
		n, err := fingerprint.NewNamed(e.Name, e.protocol, body, h.open)
		if err != nil {
			return out, err
		}
		out = append(out, n)
	}
	return out, nil
}

// NextChange is the first moment after t at which the text of an entry becomes another
// one, within two days; ok is false when there is none.
func (m *Manifest) NextChange(t time.Time) (at time.Time, ok bool) {
	for _, e := range m.Prefixes {
		if c, changes := e.nextChange(t); changes && (!ok || c.Before(at)) {
			at, ok = c, true
		}
	}
	return at, ok
}

// sampleTurn is a turn for bodies that are read here and never sent.
const sampleTurn = "a1"

func (e *Entry) saltsFor(h *head, tenantSalt func(string) (string, bool)) ([]string, error) {
	salts := append([]string(nil), e.salts...)
	for _, tenant := range e.Tenants {
		if tenantSalt == nil {
			return nil, withRemedy("tenants have no salts here", "give salts, or run with the router's configuration")
		}
		salt, ok := tenantSalt(tenant)
		if !ok {
			return nil, withRemedy(fmt.Sprintf("tenant %q is unknown", tenant), "check the router's tenants")
		}
		salts = append(salts, salt)
	}
	if len(salts) == 0 {
		salts = []string{h.salt}
	}
	return salts, nil
}

// render makes the entry's prefixes at a moment, one for each salt.
func (e *Entry) render(at time.Time, f *Fleet, target Target) ([]*Prefix, error) {
	h, err := e.head(at)
	if err != nil {
		return nil, fmt.Errorf("cannot render: %w", err)
	}
	salts, err := e.saltsFor(h, f.TenantSalt)
	if err != nil {
		return nil, err
	}
	var changes *time.Time
	if c, ok := e.nextChange(at); ok {
		changes = &c
	}
	out := make([]*Prefix, len(salts))
	for i, salt := range salts {
		p := &Prefix{Name: e.Name, Entry: e, Model: h.model, Changes: changes, head: h, salt: salt, target: target}
		if i > 0 {
			p.Name = fmt.Sprintf("%s#%d", e.Name, i+1)
		}
		if e.engineTZ != nil {
			p.date = at.In(e.engineTZ).Format(time.DateOnly)
		}
		if err := p.identify(f); err != nil {
			return nil, err
		}
		out[i] = p
	}
	return out, nil
}

// identify fills key and digest, and checks that the warm request has the key of the
// recorded one: if not, it would fill a cache entry that nobody reads (field case B58).
func (p *Prefix) identify(f *Fleet) error {
	key, err := f.Key(p.head.protocol, p.sample(sampleTurn), p.target)
	if err != nil {
		return fmt.Errorf("cannot read the warm request: %w", err)
	}
	if key.StaticBytes == 0 {
		return withRemedy("the router finds no static prefix in it", "give it a system text, tools, or static_bytes")
	}
	if p.head.record != nil && p.salt == p.head.salt && p.Entry.Model == "" {
		real, err := f.Key(p.head.protocol, p.head.record, p.target)
		if err != nil {
			return fmt.Errorf("cannot read the recorded request: %w", err)
		}
		if real.Fingerprint != key.Fingerprint {
			return withRemedy("the warm request would fill another cache entry than the recorded one reads",
				"give static_bytes if the end of its system text changes with each request")
		}
	}
	p.Key, p.StaticBytes = key.Fingerprint, key.StaticBytes
	p.Digest = sum([]byte(p.head.digest() + "\x00" + p.target.Model + "\x00" + p.target.Adapter + "\x00" + p.salt + "\x00" + p.date))[:32]
	p.Fingerprint = digestKey(p.Key)
	p.Tokens, p.TokensFrom = p.Entry.Tokens, TokensGiven
	if n := f.Counted[p.Digest]; n > 0 {
		p.Tokens, p.TokensFrom = n, TokensCounted
	}
	if p.Tokens == 0 {
		p.Tokens, p.TokensFrom = int64(float64(p.StaticBytes)/f.bytesPerToken()), TokensEstimated
	}
	return nil
}

// digestKey shows a ring key without showing the key itself.
func digestKey(key uint64) string {
	return sum(fmt.Appendf(nil, "prefixring key %016x", key))[:16]
}
