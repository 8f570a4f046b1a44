package prewarm

import "math"

// steadyLoad is an engine under a constant rate of warm requests.
type steadyLoad struct {
	perRequest  float64 // engine seconds that one more request costs when the engine is full
	utilisation float64 // rate x perRequest
	step        float64 // seconds of one step, +Inf when overloaded
	batch       float64 // sequences decoding
}

// perRequest is the engine time of one warm request: what the step equation charges it
// over all its steps when the weights are read for many at a time.
//
//	A(u+out) + B u (P+u/2) + (K (P+u+out/2) + D) out
//
// At a prefix of 60k the third term, reading the context for each token, is 9 tenths.
func (m EngineModel) perRequest(prefix float64, user, output int64) float64 {
	u, out := float64(user), float64(output)
	return m.TokenTime*(u+out) + m.PairTime*u*(prefix+u/2) + (m.ReadTime*(prefix+u+out/2)+m.SeqTime)*out
}

// load is the engine in its steady state. With B sequences decoding a step takes a + b B,
// where a is the fixed part and b what one sequence adds. Under Poisson arrivals B then
// has a negative binomial distribution (a birth-death chain with the death rate
// B / (out (a + b B))), whose mean gives a token time of (a + b) / (1 - load). The fluid
// limit a / (1 - load) leaves out that a sequence is more often in a large batch, and is
// up to 29 % too low. With few tokens in a step the floor W is paid instead of A per token.
func (m EngineModel) load(in *CapacityInput, prefix, rate float64) steadyLoad {
	c := m.perRequest(prefix, in.User, in.Output)
	l := steadyLoad{perRequest: c, utilisation: rate * c}
	perToken := m.TokenTime * float64(in.User+in.Output)
	solve := func(fixed, marginal float64) float64 {
		if rest := 1 - rate*marginal; rest > 0 {
			return (fixed + marginal/float64(in.Output)) / rest
		}
		return math.Inf(1)
	}
	l.step = solve(m.Overhead+m.Floor, c-perToken)
	if tokens := rate * l.step * float64(in.User+in.Output); m.TokenTime*tokens > m.Floor {
		l.step = solve(m.Overhead, c)
	}
	l.batch = rate * float64(in.Output) * l.step
	return l
}

// needOf is how many nodes of a model the peak needs: by utilisation, and by memory for
// one copy of each prefix.
func needOf(m EngineModel, in *CapacityInput) NeedOfModel {
	c := m.perRequest(in.meanPrefix(), in.User, in.Output)
	n := NeedOfModel{Model: m.Name, EngineSeconds: c}
	tokens := 0.0
	for _, p := range in.Prefixes {
		tokens += float64(wholeBlocks(p.Tokens, in.BlockSize))
	}
	n.ByMemory = int(math.Ceil(tokens / math.Max((1-in.Headroom)*float64(m.KVTokens), 1)))
	n.Nodes = max(int(math.Ceil(in.Rate*c/in.Utilisation)), n.ByMemory, 1)
	return n
}

// steady fills each prefix's expected hit rate by the approximation of Che and others: on
// each node an idle prefix lives for a time T after its last use, where T is such that
// all that was used within T fills the cache. What users and answers write into the cache
// counts as content that is used once.
func (c *Capacity) steady(pl *placement) {
	in := &c.Input
	type item struct{ tokens, rate float64 }
	items := make([][]item, len(pl.names))
	touch := 0.0
	if in.Touch > 0 {
		touch = 1 / in.Touch.Seconds()
	}
	for i, p := range in.Prefixes {
		for j, n := range pl.nodes[i] {
			items[n] = append(items[n], item{float64(wholeBlocks(p.Tokens, in.BlockSize)), pl.flow[i][j] + touch})
		}
	}
	life := make([]float64, len(pl.names))
	for n := range life {
		node := &c.Nodes[n]
		room := float64(in.KVTokens) - float64(in.Model.load(in, c.meanPrefix(), node.Rate).batch)*(float64(in.User)+float64(in.Output)/2)
		fill := func(t float64) float64 {
			sum := node.Rate * float64(in.User+in.Output) * t
			for _, it := range items[n] {
				sum += it.tokens * -math.Expm1(-it.rate*t)
			}
			return sum
		}
		life[n] = lifetime(fill, room)
	}
	for i, p := range in.Prefixes {
		u := CapacityUse{Name: p.Name, Tokens: p.Tokens, Share: p.Share, Rate: in.Rate * p.Share, K: pl.k[i], Copies: len(pl.nodes[i]), ColdSeconds: in.Model.Prefill(0, float64(p.Tokens))}
		for j, n := range pl.nodes[i] {
			part := 1 / float64(u.Copies)
			if u.Rate > 0 {
				part = pl.flow[i][j] / u.Rate
			}
			if used := pl.flow[i][j] + touch; used > 0 { // 0 x an endless life is no number
				u.HitRate += part * -math.Expm1(-used*life[n])
			}
		}
		c.Use = append(c.Use, u)
	}
}

// lifetime solves fill(t) = room for a growing fill; +Inf when it never gets there.
func lifetime(fill func(float64) float64, room float64) float64 {
	if room <= 0 {
		return 0
	}
	low, high := 0.0, 1.0
	for fill(high) < room {
		if high *= 2; high > 1e9 {
			return math.Inf(1)
		}
	}
	for range 80 {
		if mid := (low + high) / 2; fill(mid) < room {
			low = mid
		} else {
			high = mid
		}
	}
	return low
}

// peak fills the figures of the peak.
func (c *Capacity) peak(pl *placement) {
	in, p := &c.Input, &c.Peak
	mean := in.Model.load(in, c.meanPrefix(), in.Rate/float64(len(c.Nodes)))
	p.EngineSeconds, p.Utilisation, p.Batch, p.TokenTime = mean.perRequest, mean.utilisation, finite(mean.batch), finite(mean.step)
	hot, wait := 0.0, make([]float64, len(c.Nodes))
	for _, n := range c.Nodes {
		hot = math.Max(hot, n.Rate*mean.perRequest)
	}
	p.Busiest = hot
	could, hits := 0.0, 0.0
	for i, u := range c.Use {
		could += u.Rate * float64(u.Tokens)
		hits += u.Rate * float64(u.Tokens) * u.HitRate
		p.ColdPerSecond += u.Rate * (1 - u.HitRate)
		if u.Rate > 0 {
			p.ColdGated += float64(u.Copies)
			p.ColdNeither += float64(u.Copies) * math.Max(1, u.Rate/float64(u.Copies)*u.ColdSeconds)
		}
		for _, n := range pl.nodes[i] {
			wait[n] += u.ColdSeconds
		}
	}
	if p.HitRate = 1; could > 0 {
		p.HitRate = hits / could
	}
	p.ColdPrewarmed = 60 * p.ColdPerSecond
	for _, w := range wait {
		p.ColdWait = math.Max(p.ColdWait, w)
	}
	m := in.Model
	warm := m.Prefill(c.meanPrefix(), float64(in.User))
	p.TTFT = m.Front + m.FrontTok*(c.meanPrefix()+float64(in.User)) + finite(mean.step)/2 + math.Max(warm, finite(mean.step))
}

// finite makes an overload readable in JSON, which has no infinity: -1.
func finite(v float64) float64 {
	if math.IsInf(v, 0) || math.IsNaN(v) {
		return -1
	}
	return v
}
