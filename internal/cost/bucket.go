package cost

import "github.com/prefixring/prefixring/internal/dialect"

// Tokens is one request's or many requests' counted tokens, by what they cost. The
// buckets do not overlap, except that Reasoning is part of Output. The prompt is
// the sum of the first four.
type Tokens struct {
	Input     int64 `json:"input"`          // prompt tokens computed and not written to a priced cache
	CacheRead int64 `json:"cache_read"`     // prompt tokens served from the prefix cache
	Write5m   int64 `json:"cache_write_5m"` // prompt tokens newly cached, kept for minutes (on own engines: until evicted)
	Write1h   int64 `json:"cache_write_1h"` // prompt tokens newly cached, kept for an hour
	Output    int64 `json:"output"`         // generated tokens, reasoning included
	Reasoning int64 `json:"reasoning"`      // part of Output; 0 also where the engine does not tell
}

// Prompt returns all prompt tokens.
func (t *Tokens) Prompt() int64 { return t.Input + t.CacheRead + t.Write5m + t.Write1h }

// Add adds o bucket by bucket.
func (t *Tokens) Add(o *Tokens) {
	t.Input += o.Input
	t.CacheRead += o.CacheRead
	t.Write5m += o.Write5m
	t.Write1h += o.Write1h
	t.Output += o.Output
	t.Reasoning += o.Reasoning
}

// Split sorts a request's usage into buckets. ok is false when the engine did not
// report prompt, cached and output tokens, or when what it reported contradicts
// itself (more cached than prompt tokens); nothing is then known of the buckets.
//
// dialect.Usage counts cached tokens inside Prompt whatever the wire shape, so the
// cached ones are taken out here, once.
func Split(u dialect.Usage) (t Tokens, ok bool) {
	if u.Prompt < 0 || u.Cached < 0 || u.Output < 0 {
		return Tokens{}, false
	}
	write, hour := max(u.CacheWrite, 0), max(u.Write1h, 0)
	if hour > write {
		return Tokens{}, false
	}
	// Subtracted one by one: a sum of two absurd counts could overflow.
	input := u.Prompt - u.Cached
	if input < 0 || input < write {
		return Tokens{}, false
	}
	return Tokens{
		Input:     input - write,
		CacheRead: u.Cached,
		Write5m:   write - hour,
		Write1h:   hour,
		Output:    u.Output,
		Reasoning: min(max(u.Reasoning, 0), u.Output),
	}, true
}
