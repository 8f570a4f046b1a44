package prewarm

import (
	"encoding/json"
	"time"

	"github.com/prefixring/prefixring/internal/dialect"
)

// Manifest is what should be warm, as written by an operator. Use LoadManifest or
// ParseManifest, which check it; then it is read-only.
type Manifest struct {
	// Zone is the time zone (IANA name) of all local times that name none of their own.
	// Default UTC.
	Zone     string   `yaml:"zone"`
	Prefixes []*Entry `yaml:"prefixes"`

	path string // of the file, "" when parsed from memory
	dir  string // relative paths start here
}

// Path is the file that the manifest came from, "" when it was parsed from memory.
func (m *Manifest) Path() string { return m.path }

// Entry returns the entry of that name, nil if there is none.
func (m *Manifest) Entry(name string) *Entry {
	for _, e := range m.Prefixes {
		if e.Name == name {
			return e
		}
	}
	return nil
}

// Entry is one prefix. Exactly one of Text, File, Request and Template is its source.
type Entry struct {
	Name     string `yaml:"name"`
	Model    string `yaml:"model"`    // the model or route name that clients send
	Adapter  string `yaml:"adapter"`  // LoRA adapter; "" for the base model
	Protocol string `yaml:"protocol"` // chat (default), completions, responses, messages

	Text     string            `yaml:"text"`     // the system text itself
	File     string            `yaml:"file"`     // a file that holds the system text
	Request  string            `yaml:"request"`  // a file that holds a recorded request body
	Template string            `yaml:"template"` // a file in Go template syntax: {{ date "2006-01-02" }}, {{ .field }}
	Fields   map[string]string `yaml:"fields"`   // values for the template

	Tools        string         `yaml:"tools"`         // a JSON file, or JSON inline; order and keys are kept
	TemplateArgs map[string]any `yaml:"template_args"` // chat_template_kwargs, keys in sorted order
	// StaticBytes is the length, in decoded bytes, of the part of the leading text that is
	// the same for everybody; what follows may change with each request (a clock, a shop
	// name). 0 means all of it.
	StaticBytes int      `yaml:"static_bytes"`
	Salts       []string `yaml:"salts"`      // cache salts: the prefix is warmed once for each
	SaltsFile   string   `yaml:"salts_file"` // the same from a file, one on each line
	Tenants     []string `yaml:"tenants"`    // the same by tenant name, see Fleet.TenantSalt

	Where    string  `yaml:"where"`    // auto (default), broadcast, or a number of owners
	Share    float64 `yaml:"share"`    // expected share of the model's requests, 0..1; 0 = from Rate
	Rate     float64 `yaml:"rate"`     // expected requests/s at the peak
	Priority int     `yaml:"priority"` // higher is warmed first; default 0
	LateCost float64 `yaml:"late_cost"`
	Tokens   int64   `yaml:"tokens"` // prompt tokens of the static prefix, when known; 0 = estimated, then measured

	Zone      string `yaml:"zone"`       // overrides the manifest's
	NotBefore string `yaml:"not_before"` // local time or RFC 3339; "" = at once
	Deadline  string `yaml:"deadline"`   // local time, RFC 3339, or a time of day for each day; "" = none
	KeepUntil string `yaml:"keep_until"` // as NotBefore, or a duration after the deadline; "" = for ever
	// EngineDate says that the engine's own template writes the date into the prompt: the
	// zone of the engine's clock. The prefix is warmed again right after each midnight there.
	EngineDate string        `yaml:"engine_date"`
	Ahead      time.Duration `yaml:"ahead"` // how long before a change of the text the next version is warmed; default 15m

	protocol  dialect.Protocol
	zone      *time.Location
	engineTZ  *time.Location
	owners    int // 0 auto, -1 broadcast
	notBefore time.Time
	deadline  deadline
	keepUntil time.Time
	keepFor   time.Duration
	source    source
	tools     json.RawMessage
	salts     []string
	line      int
}

// Wire returns the protocol that the entry's traffic speaks.
func (e *Entry) Wire() dialect.Protocol { return e.protocol }

// Line is the line of the manifest where the entry starts, 0 when it has none.
func (e *Entry) Line() int { return e.line }

const (
	ownersAuto      = 0
	ownersBroadcast = -1
	defaultAhead    = 15 * time.Minute
)
