package prewarm

import (
	"context"
	"fmt"
	"math"
	"time"

	"github.com/prefixring/prefixring/health"
	"github.com/prefixring/prefixring/internal/dialect"
)

// Evidence names what a proof rests on.
type Evidence string

// The kinds of evidence, from the strongest to none.
const (
	EvidenceUsage    Evidence = "cached_tokens"   // the engine reported how many tokens it found cached
	EvidenceCounters Evidence = "engine_counters" // its prefix-cache counters moved by exactly this request
	EvidenceTime     Evidence = "time"            // it answered far faster than a cold prefill takes
	EvidenceNone     Evidence = ""
)

// Proof is what is known of one prefix on one node after asking.
type Proof struct {
	Warm     bool        `json:"warm"`
	Evidence Evidence    `json:"evidence,omitempty"`
	At       time.Time   `json:"at"`
	Cached   int64       `json:"cached_tokens"` // -1 = unknown
	Need     int64       `json:"needed_tokens"` // static tokens less one block
	Static   int64       `json:"static_tokens"`
	From     TokenSource `json:"static_from"`
	Prompt   int64       `json:"prompt_tokens"` // of the request that proved it; -1 = unknown
	Tries    int         `json:"tries"`         // requests sent
	Already  bool        `json:"already,omitempty"`
	// Cold is the time to the first byte of the first request when it was a cold prefill,
	// Probe that of the request that proved warmth, in seconds.
	Cold  float64 `json:"cold_seconds,omitempty"`
	Probe float64 `json:"probe_seconds,omitempty"`
	Why   string  `json:"why,omitempty"` // it is not warm
}

// Evidence thresholds.
const (
	// defaultBlock is assumed where the engine does not say: it costs at most 127 tokens
	// of strictness.
	defaultBlock = 128
	// turnTokens is taken off the engine's prompt count where no tokenizer was asked: our
	// turn and what templates write around it.
	turnTokens = 64
	// timeRatio is how much faster than cold an answer must be to count as warm by time.
	timeRatio = 4
	// minCold is the shortest cold prefill from which a ratio tells anything.
	minCold = 200 * time.Millisecond
	// maxProofs is how often a prefix is asked before it counts as not warm. Hybrid models
	// keep the shared part only once two requests have diverged from it, so that the
	// second proof may be the first to hit (engine_contracts 5).
	maxProofs = 3
)

// prober proves prefixes on one node.
type prober struct {
	*engine
	r *runner
}

// blockSize is the node's block, assumed where unknown and never more than half the
// prefix.
func (b *prober) blockSize(static int64) int64 {
	block := b.node.BlockSize
	if block <= 0 {
		block = defaultBlock
	}
	return min(block, max(static/2, 1))
}

// expect fills the number of tokens that must be cached, from the best count there is.
func (b *prober) expect(pr *Proof, p *Prefix, c counted) {
	switch {
	case c.ok && (pr.Prompt == dialect.Unknown || within(pr.Prompt, c.total, 2)):
		// The total may differ by a token: turns of the same length need not have the same
		// number of tokens.
		pr.Static, pr.From = c.static, TokensCounted
	case p.TokensFrom == TokensGiven:
		pr.Static, pr.From = p.Tokens, TokensGiven
	case pr.Prompt != dialect.Unknown:
		pr.Static, pr.From = max(pr.Prompt-turnTokens, pr.Prompt/2), TokensEstimated
	default:
		pr.Static, pr.From = p.Tokens, TokensEstimated
	}
	pr.Need = max(pr.Static-b.blockSize(pr.Static), 1)
}

func within(a, b, d int64) bool { return a-b <= d && b-a <= d }

// warm makes the prefix warm and proves it: send, send again with another turn, and
// believe only what the second one shows. The error is the engine's; a prefix that
// could not be proved is a Proof with Warm false.
func (b *prober) warm(ctx context.Context, p *Prefix) (Proof, error) {
	pr := Proof{Cached: dialect.Unknown, Prompt: dialect.Unknown}
	c, err := b.r.tokens.count(ctx, b.engine, p, b.r.turn(), b.r.turn())
	if err != nil {
		return pr, err
	}
	first, err := b.send(ctx, p, b.r.turn())
	if err != nil {
		return pr, err
	}
	pr.Tries++
	b.note(&pr, p, c, first)
	if b.judgeUsage(&pr) && b.spread() == 1 {
		pr.Already = true
		return pr, nil
	}
	if !pr.Warm {
		pr.Cold = first.first.Seconds()
	}
	cold := first.first
	if b.node.PrefillRate > 0 { // it may have been warm already, and fast
		cold = max(cold, b.node.prefillTime(p.Tokens))
	}
	return b.prove(ctx, p, c, pr, cold, maxProofs)
}

// spread is over how many caches the engine distributes requests by itself.
func (b *prober) spread() int {
	if b.node.Pinned || b.node.Ranks <= 1 {
		return 1
	}
	return b.node.Ranks
}

// verify proves without warming first: the first request counts.
func (b *prober) verify(ctx context.Context, p *Prefix) (Proof, error) {
	pr := Proof{Cached: dialect.Unknown, Prompt: dialect.Unknown}
	c, err := b.r.tokens.count(ctx, b.engine, p, b.r.turn(), b.r.turn())
	if err != nil {
		return pr, err
	}
	return b.prove(ctx, p, c, pr, b.node.prefillTime(p.Tokens), 1)
}

// prove sends proof requests until the prefix is proven or tries are used up. With data
// parallel ranks behind one port it takes as many warm answers in a row as there are
// ranks, within four times as many requests (field case B55).
func (b *prober) prove(ctx context.Context, p *Prefix, c counted, pr Proof, cold time.Duration, tries int) (Proof, error) {
	ranks := b.spread()
	if ranks > 1 {
		tries = 4 * ranks
	}
	streak := 0
	for try := 0; try < tries && streak < ranks; try++ {
		if err := b.proveOnce(ctx, p, c, &pr, cold); err != nil {
			return pr, err
		}
		streak++
		if !pr.Warm {
			streak = 0
		}
	}
	if pr.Warm = streak >= ranks; pr.Warm {
		pr.Why = ""
	} else if pr.Why == "" {
		pr.Why = fmt.Sprintf("%d data-parallel ranks and not that many warm answers in a row", ranks)
	}
	return pr, nil
}

// proveOnce sends one proof request and judges it by the best evidence there is.
func (b *prober) proveOnce(ctx context.Context, p *Prefix, c counted, pr *Proof, cold time.Duration) error {
	before := b.quiet(ctx)
	s, err := b.send(ctx, p, b.r.turn())
	if err != nil {
		return err
	}
	pr.Tries++
	pr.Warm, pr.Why, pr.Evidence = false, "", EvidenceNone
	b.note(pr, p, c, s)
	pr.Probe = s.first.Seconds()
	if pr.Cached != dialect.Unknown {
		b.judgeUsage(pr)
		return nil
	}
	if before != nil {
		if err := b.judgeCounters(ctx, pr, before); err != nil || pr.Evidence != EvidenceNone {
			return err
		}
	}
	b.judgeTime(pr, cold, s.first)
	return nil
}

func (b *prober) note(pr *Proof, p *Prefix, c counted, s sent) {
	pr.At, pr.Cached, pr.Prompt = b.clock.Now(), s.usage.Cached, s.usage.Prompt
	b.expect(pr, p, c)
}

// judgeUsage believes the engine's own count.
func (b *prober) judgeUsage(pr *Proof) bool {
	if pr.Cached == dialect.Unknown {
		return false
	}
	pr.Evidence = EvidenceUsage
	if pr.Warm = pr.Cached >= pr.Need; !pr.Warm {
		pr.Why = fmt.Sprintf("%d of at least %d tokens were cached", pr.Cached, pr.Need)
	}
	return pr.Warm
}

// quiet is the metrics page before a proof, nil when there is none that could serve.
func (b *prober) quiet(ctx context.Context) *health.Signals {
	s, err := b.metrics(ctx)
	if err != nil || math.IsNaN(s.PrefixHits) || math.IsNaN(queries(s)) {
		return nil
	}
	return s
}

// queries is the counter of tokens looked up. SGLang has none: there the prompt tokens
// are.
func queries(s *health.Signals) float64 {
	if math.IsNaN(s.PrefixQueries) {
		return s.PromptTokens
	}
	return s.PrefixQueries
}

const (
	counterWait = 100 * time.Millisecond
	counterFor  = 5 * time.Second
)

// judgeCounters believes the prefix-cache counters, if they moved by exactly the prompt
// tokens of this request: then no other request was counted with it. They lag a request
// by up to a second (real-engine notes), so the page is read until they have moved.
func (b *prober) judgeCounters(ctx context.Context, pr *Proof, before *health.Signals) error {
	if pr.Prompt == dialect.Unknown {
		return nil
	}
	for waited := time.Duration(0); waited <= counterFor; waited += counterWait {
		after, err := b.metrics(ctx)
		if err != nil {
			return ctx.Err()
		}
		switch moved := queries(after) - queries(before); {
		case moved == float64(pr.Prompt):
			pr.Evidence = EvidenceCounters
			pr.Cached = int64(after.PrefixHits - before.PrefixHits)
			if pr.Warm = pr.Cached >= pr.Need; !pr.Warm {
				pr.Why = fmt.Sprintf("%d of at least %d tokens were cached by the engine's counters", pr.Cached, pr.Need)
			}
			return nil
		case moved != 0: // others' requests are in it, or the engine has started again
			return nil
		}
		if err := b.clock.Sleep(ctx, counterWait); err != nil {
			return err
		}
	}
	return nil
}

// judgeTime compares with a cold prefill: the one just measured, or what one takes at
// the node's speed.
func (b *prober) judgeTime(pr *Proof, cold, probe time.Duration) {
	why := "the engine reports no cached tokens, other requests are in its counters, and "
	if flag := dialect.CachedTokensFlag(b.node.Engine); flag.Name != "" {
		why = "the engine reports no cached tokens (start it with " + flag.Name + "), its counters prove nothing, and "
	}
	switch {
	case cold < minCold:
		pr.Why = why + fmt.Sprintf("a cold prefill of %.0f ms is too short to compare with", float64(cold.Microseconds())/1e3)
	case probe*timeRatio > cold:
		pr.Why = why + fmt.Sprintf("the answer took %.2f s where a cold prefill takes %.2f s", probe.Seconds(), cold.Seconds())
	default:
		pr.Warm, pr.Evidence = true, EvidenceTime
	}
}
