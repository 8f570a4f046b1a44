package fingerprint

// completion reads the prompt of a raw completion: a text, a list of texts, token ids,
// or a list of lists of them. The first one of a list is the key; a batch goes to one
// engine in any case.
func (p *parser) completion() bool {
	m := &p.prompt
	*m = message{role: RolePrompt, turn: RolePrompt, roleHash: promptRole, sumsAt: len(p.content.sums)}
	p.content.reset(p.s.cuts)
	ok := true
	switch {
	case p.at('n'):
		return p.literal("null")
	case p.at('"'):
		m.kind, p.hasPrompt = contentText, true
		ok = p.text(m)
	case p.at('['):
		ok = p.promptList(m)
	default: // an engine's error to make
		_, ok = p.skip()
	}
	p.endContent(m)
	p.r.PromptBytes += m.decoded
	return ok
}

func (p *parser) promptList(m *message) bool {
	if !p.push(false) {
		return false
	}
	p.space()
	if p.i < len(p.b) && (p.b[p.i] == '-' || p.b[p.i]-'0' <= 9) {
		m.kind, m.roleHash, p.hasPrompt = contentTokens, tokensRole, true
		return p.tokenIDs(m, true)
	}
	for first := true; p.element(first); first = false {
		if !p.promptElement(m, !p.hasPrompt) {
			return false
		}
	}
	return p.err == nil
}

// promptElement reads one prompt of a list. Only the first is hashed.
func (p *parser) promptElement(m *message, hashed bool) bool {
	switch {
	case p.at('"') && hashed:
		m.kind, p.hasPrompt = contentText, true
		return p.text(m)
	case p.at('"'):
		decoded, ok := p.str()
		m.decoded += decoded
		return ok
	case p.at('['):
		if !p.push(false) {
			return false
		}
		if hashed {
			m.kind, m.roleHash, p.hasPrompt = contentTokens, tokensRole, true
		}
		return p.tokenIDs(m, hashed)
	}
	_, ok := p.skip()
	return ok
}

// tokenIDs reads the rest of a list of numbers up to its closing bracket. Their stream
// is the list in compact spelling without the brackets.
func (p *parser) tokenIDs(m *message, hashed bool) bool {
	p.space()
	if hashed {
		p.out, p.run = &p.content, p.i
	}
	if p.at(']') {
		p.run = -1
		p.i++
		p.depth--
		return true
	}
	for {
		if !p.tokenID() {
			return false
		}
		m.decoded += tokenBytes
		if !p.at(',') {
			p.space()
		}
		if p.at(']') {
			break
		}
		if !p.at(',') {
			return p.fail(p.i, p.endOr(ReasonComma))
		}
		p.i++
		p.space()
	}
	if hashed {
		p.flush(p.i)
	}
	p.run = -1
	p.i++
	p.depth--
	return true
}

// tokenID passes one element; a plain number without sign or leading zero is all that a
// well-made list has.
func (p *parser) tokenID() bool {
	b, i := p.b, p.i
	if i < len(b) && b[i]-'1' <= 8 {
		for i++; i < len(b) && b[i]-'0' <= 9; i++ {
		}
		if i < len(b) && (b[i] == ',' || b[i] == ']') {
			p.i = i
			return true
		}
	}
	return p.value(0)
}
