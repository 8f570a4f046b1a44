package fingerprint

import "github.com/cespare/xxhash/v2"

// finish combines what was found, in canonical order, whatever the order in the body.
func (p *parser) finish() {
	r := p.r
	if over := len(r.Boundaries) - p.s.maxBoundaries; over > 0 {
		n := copy(r.Boundaries, r.Boundaries[over:])
		r.Boundaries = r.Boundaries[:n]
	}
	rendered := p.toolBytes + p.extraBytes
	r.PromptBytes += rendered
	chain := p.base()
	for i := range p.fixed {
		chain = fold('s', chain, p.fixed[i].hash())
	}
	if p.fixedRest != 0 {
		chain = fold('s', chain, p.fixedRest)
	}
	r.Prefix = fold('p', chain, 0)
	r.Key = r.Prefix
	switch {
	case p.matchNamed():
		r.Kind = KindNamed
	case p.hasPrompt && p.prompt.stream > 0:
		r.Kind = KindLead
		p.leadKey(r, p.s.cuts, p.s.lead)
	case r.SystemBytes > 0 || p.tools != 0:
		r.Kind = KindPrefix
		r.StaticBytes = r.SystemBytes + rendered
	default:
		p.sessionKey()
	}
}

// base hashes all that comes before the messages.
func (p *parser) base() uint64 {
	var w [1 + 9*(argCount+1)]byte
	w[0] = Version
	n := 1
	for i, h := range &p.args {
		if h != 0 {
			w[n] = byte(i)
			putUint64(w[n+1:], h)
			n += 9
		}
	}
	if p.tools != 0 {
		w[n] = argCount
		putUint64(w[n+1:], p.tools)
		n += 9
	}
	return xxhash.Sum64(w[:n])
}

// matchNamed finds the longest registered prefix that the request begins with.
func (p *parser) matchNamed() bool {
	if len(p.s.named) == 0 {
		return false
	}
	if p.hasPrompt {
		return p.matchMessage(p.base(), &p.prompt)
	}
	// A later message implies that all before it match, so the last hit is the longest.
	chain, hit := p.base(), p.matchTools()
	for i := range p.fixed {
		hit = p.matchMessage(chain, &p.fixed[i]) || hit
		chain = fold('s', chain, p.fixed[i].hash())
	}
	return hit
}

func namedContext(chain uint64, m *message) uint64 { return fold('n', chain, m.head()) }

func toolsContext(base uint64) uint64 { return fold('t', base, 0) }

func (p *parser) matchTools() bool {
	if len(p.s.toolsOnly) == 0 || p.tools == 0 {
		return false
	}
	return p.choose(p.s.toolsOnly, toolsContext(p.base()), 0)
}

func (p *parser) matchMessage(chain uint64, m *message) bool {
	context := namedContext(chain, m)
	for i := m.sumsN - 1; i >= 0; i-- {
		if p.s.cuts[i].named && p.choose(p.s.ends[i], context, p.content.sums[m.sumsAt+i]) {
			return true
		}
	}
	return false
}

// choose takes the first of the candidates that match, one registered for the model that
// the body names before others. The key is the same for all of them.
func (p *parser) choose(candidates []int32, context, digest uint64) bool {
	hit := false
	for _, i := range candidates {
		n := &p.s.named[i]
		if n.Context != context || n.Digest != digest {
			continue
		}
		mine := n.Model != "" && p.modelIs(n.Model)
		if hit && !mine {
			continue
		}
		hit = true
		p.r.Named, p.r.Key, p.r.StaticBytes = int(i), n.Key(), n.Bytes
		if mine {
			break
		}
	}
	return hit
}

func (p *parser) modelIs(name string) bool {
	s := p.r.Model
	return s.End-s.Start == len(name)+2 && string(p.b[s.Start+1:s.End-1]) == name
}

// leadKey keys a raw completion by the head of its prompt that ends at cut at.
func (p *parser) leadKey(r *Result, cuts []cut, at int) {
	m := &p.prompt
	context := namedContext(p.base(), m)
	if m.sumsN > at {
		r.StaticBytes = cuts[at].length
		r.Key = fold('l', context, p.content.sums[m.sumsAt+at])
		return
	}
	r.StaticBytes, r.Key = 0, fold('l', context, m.content)
}

// sessionKey keys a request without a static prefix by its conversation, so that it
// spreads over the nodes and its next turn comes back.
func (p *parser) sessionKey() {
	r := p.r
	if s := r.Explicit(); s.Present() {
		r.Kind = KindSession
		r.Key = fold('e', r.Prefix, p.canonicalHash(s))
		return
	}
	if r.Turns > 0 {
		r.Kind = KindSession
		r.Key = fold('r', r.Prefix, r.Root)
	}
}

// Explicit is the span of the conversation id that the client named itself:
// prompt_cache_key, else conversation, else session id. User is not one: a user may
// hold many conversations.
func (r *Result) Explicit() Span {
	for _, s := range [...]Span{r.PromptCacheKey, r.Conversation, r.SessionID} {
		if s.Present() {
			return s
		}
	}
	return Span{}
}

// canonicalHash hashes the scalar at s independently of its escape style.
func (p *parser) canonicalHash(s Span) uint64 {
	p.i = s.Start
	sum, _ := p.hash(0)
	return sum
}
