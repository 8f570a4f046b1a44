package health

import (
	"math"

	"github.com/prefixring/prefixring/internal/dialect"
)

// get is a rank's number, NaN if the page had none.
func (s *slot) get(f field) float64 {
	v, _ := s.first(f, f)
	return v
}

// first is the first of the two fields that the page had, and whether it had any. A
// nonsensical value under a newer name does not fall back to an older name, because
// both come from one engine.
func (s *slot) first(a, b field) (float64, bool) {
	switch {
	case s.seen&(1<<a) != 0:
		return s.v[a], true
	case s.seen&(1<<b) != 0:
		return s.v[b], true
	}
	return math.NaN(), false
}

// sum adds a number over the ranks that reported it; it is unknown if none did, or if
// one of them reported nonsense.
func (p *parser) sum(a, b field) float64 {
	total, any := math.NaN(), false
	for i := range p.slots {
		v, ok := p.slots[i].first(a, b)
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
	if v, ok := p.sumIfSeen(fCapacity); ok {
		o.WaitingCapacity = v
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

func (p *parser) sumIfSeen(f field) (float64, bool) {
	for i := range p.slots {
		if p.slots[i].seen&(1<<f) != 0 {
			return p.sum(f, f), true
		}
	}
	return 0, false
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
	r := Rank{
		Label:            s.label,
		GenerationTokens: s.get(fGeneration),
		Steps:            s.get(fSteps),
		Preemptions:      s.get(fPreemptions),
	}
	r.Running, _ = s.first(fRunning, fRunningPrio)
	r.Waiting, _ = s.first(fWaiting, fWaitingPrio)
	r.KVUsage, _ = s.first(fKVNew, fKVOld)
	r.PrefixQueries, _ = s.first(fQueriesNew, fQueriesOld)
	r.PrefixHits, _ = s.first(fHitsNew, fHitsOld)
	r.WaitingCapacity = r.Waiting
	if s.seen&(1<<fCapacity) != 0 {
		r.WaitingCapacity = s.v[fCapacity]
	}
	if p.engine == dialect.SGLang {
		r.PrefixQueries = s.get(fPrompt) // every prompt token is looked up
	}
	switch t := s.get(fCapacityTokens); {
	case s.tokens > 0:
		r.KVTokens = int64(s.tokens)
	case t > 0 && t <= 1<<53:
		r.KVTokens = int64(t)
	case s.blocks > 0 && p.blockSize > 0 && s.blocks*p.blockSize <= 1<<53:
		r.KVTokens = int64(s.blocks * p.blockSize)
	}
	return r
}
