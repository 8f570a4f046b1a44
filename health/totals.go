package health

import (
	"math"

	"github.com/prefixring/prefixring/internal/dialect"
)

// get is a rank's number, and whether the page had it; NaN if not.
func (s *slot) get(f field) (float64, bool) {
	if s.seen&(1<<f) == 0 {
		return math.NaN(), false
	}
	return s.v[f], true
}

// first is the field a wherever the page had it for any rank, else b. A nonsensical
// value under a newer name does not fall back to an older name, because both come from
// one engine.
func (p *parser) first(s *slot, a, b field) (float64, bool) {
	if p.seen&(1<<a) != 0 {
		return s.get(a)
	}
	return s.get(b)
}

// sum adds a number over the ranks that reported it; it is unknown if none did, or if
// one of them reported nonsense.
func (p *parser) sum(a, b field) float64 {
	total, any := math.NaN(), false
	for i := range p.slots {
		v, ok := p.first(&p.slots[i], a, b)
		switch {
		case !ok:
		case !any:
			total, any = v, true
		default:
			total += v
		}
	}
	return total
}

// total fills the sums and the ranks.
func (p *parser) total() {
	o := p.out
	o.Sleep = p.awake
	o.BlockSize = int64(p.blockSize)
	if p.loraAt < 0 {
		o.LoRARunning, o.LoRAWaiting = "", ""
	}
	o.Running = p.sum(fRunning, fRunningPrio)
	o.Waiting = p.sum(fWaiting, fWaitingPrio)
	o.WaitingCapacity = o.Waiting
	if p.seen&(1<<fCapacity) != 0 {
		o.WaitingCapacity = p.sum(fCapacity, fCapacity)
	}
	o.Preemptions = p.sum(fPreemptions, fPreemptions)
	o.PromptTokens = p.sum(fPrompt, fPrompt)
	o.GenerationTokens = p.sum(fGeneration, fGeneration)
	o.Finished = p.sum(fFinished, fFinished)
	o.Steps = p.sum(fSteps, fSteps)
	o.QueueSeconds = p.sum(fQueueSum, fQueueSum)
	o.QueueCount = p.sum(fQueueCount, fQueueCount)
	o.UsedTokens = p.sum(fUsed, fUsed)
	o.EvictableTokens = p.sum(fEvictable, fEvictable)
	o.Throughput = p.sum(fThroughput, fThroughput)
	o.PrefixHits = p.sum(fHitsNew, fHitsOld)
	o.PrefixQueries = p.sum(fQueriesNew, fQueriesOld)
	if p.engine == dialect.SGLang {
		o.PrefixQueries = o.PromptTokens // every prompt token is looked up
	}
	p.ranks()
}

// ranks fills the ranks and what is derived from them. Series without a rank label
// form a rank of their own only where no series has one: SGLang's front end counts for
// all ranks together.
func (p *parser) ranks() {
	labelled := false
	for i := range p.slots {
		labelled = labelled || p.slots[i].label != ""
	}
	for i := range p.slots {
		r := p.rank(&p.slots[i])
		p.out.KVTokens += r.KVTokens
		if !(p.out.KVUsage >= r.KVUsage) && !math.IsNaN(r.KVUsage) {
			p.out.KVUsage = r.KVUsage // the fullest: an average hides one full rank (field case B55)
		}
		if r.Label != "" || !labelled {
			p.out.Ranks = append(p.out.Ranks, r)
		}
	}
}

func (p *parser) rank(s *slot) Rank {
	r := Rank{Label: s.label}
	r.Running, _ = p.first(s, fRunning, fRunningPrio)
	r.Waiting, _ = p.first(s, fWaiting, fWaitingPrio)
	r.KVUsage, _ = p.first(s, fKVNew, fKVOld)
	r.GenerationTokens, _ = s.get(fGeneration)
	r.Steps, _ = s.get(fSteps)
	r.Preemptions, _ = s.get(fPreemptions)
	r.PrefixQueries, _ = p.first(s, fQueriesNew, fQueriesOld)
	r.PrefixHits, _ = p.first(s, fHitsNew, fHitsOld)
	r.WaitingCapacity = r.Waiting
	if p.seen&(1<<fCapacity) != 0 {
		r.WaitingCapacity, _ = s.get(fCapacity)
	}
	if p.engine == dialect.SGLang {
		r.PrefixQueries, _ = s.get(fPrompt) // every prompt token is looked up
	}
	t, _ := s.get(fCapacityTokens)
	switch {
	case s.tokens > 0:
		r.KVTokens = int64(s.tokens)
	case t > 0 && t <= 1<<53:
		r.KVTokens = int64(t)
	case s.blocks > 0 && p.blockSize > 0 && s.blocks*p.blockSize <= 1<<53:
		r.KVTokens = int64(s.blocks * p.blockSize)
	}
	return r
}
