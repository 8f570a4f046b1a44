package cost

import (
	"fmt"
	"strconv"
	"time"

	"github.com/prefixring/prefixring/internal/dialect"
)

// Class says whose request it was.
type Class uint8

// The classes. Only Traffic is a client's; the others make the ledger's totals
// agree with the engines' own counters and are billed to nobody.
const (
	Traffic Class = iota
	Prewarm       // warm-up and verification requests of the router
	Probe         // other requests of the router itself

	classes = Probe + 1
)

// String returns the name used in exports.
func (c Class) String() string {
	switch c {
	case Prewarm:
		return "prewarm"
	case Probe:
		return "probe"
	default:
		return "traffic"
	}
}

// Key is what rows are kept by. All strings come from configuration (a model or
// adapter that is served, a named prefix, a node), never from a client.
type Key struct {
	Minute  int64  // minutes since 1970-01-01 UTC
	Tenant  uint64 // digest of the tenant's name, 0 for none
	Model   string
	Prefix  string // named prefix, "" for none
	Node    string
	Channel string // "" for own engines
	Tier    string // tier of the route, "" where routes are not used
	Class   Class
}

// Start returns the beginning of the row's minute.
func (k *Key) Start() time.Time { return time.Unix(k.Minute*60, 0) }

// Sums are the counted facts of many requests. Every field is additive.
type Sums struct {
	Requests int64 `json:"requests"`
	// By verdict, in the order of the dialect's constants.
	Verdicts [5]int64 `json:"verdicts"`

	// Known requests: the engine reported prompt, cached and output tokens.
	Known  int64  `json:"known"`
	Tokens Tokens `json:"tokens"`

	// Partial requests: the engine reported some of the three. What it reported is
	// counted here; it is in no ratio and in no estimate.
	Partial       int64 `json:"partial"`
	PartialPrompt int64 `json:"partial_prompt"`
	PartialCached int64 `json:"partial_cached"`
	PartialOutput int64 `json:"partial_output"`

	// Silent requests: the engine reported nothing (failed, aborted, no usage).
	Silent int64 `json:"silent"`
}

// Add adds o field by field.
func (s *Sums) Add(o *Sums) {
	s.Requests += o.Requests
	for i := range s.Verdicts {
		s.Verdicts[i] += o.Verdicts[i]
	}
	s.Known += o.Known
	s.Tokens.Add(&o.Tokens)
	s.Partial += o.Partial
	s.PartialPrompt += o.PartialPrompt
	s.PartialCached += o.PartialCached
	s.PartialOutput += o.PartialOutput
	s.Silent += o.Silent
}

// Prompt returns all prompt tokens that were counted, cached ones included.
func (s *Sums) Prompt() int64 { return s.Tokens.Prompt() + s.PartialPrompt }

// Cached returns all cached prompt tokens that were counted.
func (s *Sums) Cached() int64 { return s.Tokens.CacheRead + s.PartialCached }

// Output returns all generated tokens that were counted.
func (s *Sums) Output() int64 { return s.Tokens.Output + s.PartialOutput }

// one adds a request.
func (s *Sums) one(u dialect.Usage, v dialect.Verdict) {
	s.Requests++
	if int(v) < len(s.Verdicts) {
		s.Verdicts[v]++
	}
	if t, ok := Split(u); ok {
		s.Known++
		s.Tokens.Add(&t)
		return
	}
	if u.Prompt < 0 && u.Cached < 0 && u.Output < 0 {
		s.Silent++
		return
	}
	s.Partial++
	s.PartialPrompt += max(u.Prompt, 0)
	s.PartialCached += max(u.Cached, 0)
	s.PartialOutput += max(u.Output, 0)
}

// Row is one line of the ledger. Two rows with the same key may exist (a late
// request settles after its minute was drained, or the router was restarted): a
// store adds them.
type Row struct {
	Key
	Sums
}

// Columns are the names of a row's fields in CSV exports, in the order of Record.
func Columns() []string {
	return []string{"minute", "tenant", "model", "prefix", "node", "channel", "tier", "class", "requests",
		"unproven", "success", "incomplete", "failed", "cancelled",
		"known", "input", "cache_read", "cache_write_5m", "cache_write_1h", "output", "reasoning",
		"partial", "partial_prompt", "partial_cached", "partial_output", "silent"}
}

// Record returns the row's fields as text, in the order of Columns. The minute is
// RFC 3339 in UTC, the tenant 16 hexadecimal digits.
func (r *Row) Record() []string {
	out := []string{r.Start().UTC().Format(time.RFC3339), fmt.Sprintf("%016x", r.Tenant), r.Model, r.Prefix, r.Node, r.Channel, r.Tier, r.Class.String()}
	for _, n := range r.Numbers() {
		out = append(out, strconv.FormatInt(*n, 10))
	}
	return out
}

// Counters is how many additive fields Sums has.
const Counters = 18

// Numbers lists the additive fields in the order of Columns.
func (s *Sums) Numbers() [Counters]*int64 {
	t, v := &s.Tokens, &s.Verdicts
	return [Counters]*int64{
		&s.Requests, &v[0], &v[1], &v[2], &v[3], &v[4],
		&s.Known, &t.Input, &t.CacheRead, &t.Write5m, &t.Write1h, &t.Output, &t.Reasoning,
		&s.Partial, &s.PartialPrompt, &s.PartialCached, &s.PartialOutput, &s.Silent,
	}
}
