package dialect

import "math/bits"

// take folds the finished event or body into what is known of the answer.
func (t *Tap) take() {
	e := &t.w.ev
	k := e.kind
	if k == kindNone {
		k = t.named // some servers name the event only in the framing
	}
	t.output = t.output || k != kindAnnounce
	if e.err || e.flat || k == kindError || t.named == kindError {
		t.failed = true
		if t.errCode == 0 {
			t.errCode = e.errorStatus()
		}
	}
	if e.usage {
		t.counts.merge(&e.counts)
	}
	if t.mode == modeStream {
		t.token = t.token || e.token || e.delta && k == kindDelta
	}
	switch t.protocol {
	case Responses:
		t.takeResponses(e, k)
	case Messages:
		t.takeMessages(e, k)
	default:
		t.takeChoices(e)
	}
}

func (t *Tap) takeChoices(e *event) {
	if e.choices == 0 {
		return
	}
	t.many = t.many || e.many
	for i := range t.seen {
		t.seen[i] |= e.seen[i]
		t.closed[i] |= e.ended[i]
	}
	if e.worst != reasonNone {
		t.finish = worse(t.finish, e.worst)
	}
}

// takeResponses believes the type and the status inside together: vLLM ends an
// answer that max_output_tokens cut in an event named response.completed whose
// status is incomplete (capture vllm_responses_stream).
func (t *Tap) takeResponses(e *event, k kind) {
	if e.finish != reasonNone {
		t.finish = e.finish
	}
	if t.mode == modeStream {
		switch k {
		case kindRespCompleted, kindRespIncomplete, kindRespFailed, kindRespCancelled:
			t.ended = true
		default:
			return // status in_progress of response.created is no evidence
		}
	}
	switch {
	case k == kindRespFailed || e.status == statusFailed:
		t.final = Failed
	case k == kindRespIncomplete || e.status == statusIncomplete:
		t.final = Incomplete
	case k == kindRespCancelled || e.status == statusCancelled:
		t.final = Cancelled
	case e.status == statusCompleted:
		t.final = Success
	default:
		t.final = Unproven
	}
}

func (t *Tap) takeMessages(e *event, k kind) {
	if e.finish != reasonNone {
		t.finish = e.finish
	}
	if k == kindMessageStop {
		t.ended = true
	}
}

// verdict weighs the evidence. An error beats everything: both engines send
// [DONE], and SGLang message_stop, after one.
func (t *Tap) verdict(eof bool) Verdict {
	if t.code < 200 || t.code > 299 || t.failed {
		return Failed
	}
	switch t.mode {
	case modeBlind:
		return Unproven
	case modeBody:
		if t.events == 0 || !t.w.whole() {
			return Unproven // empty, cut off, or not one JSON value
		}
	}
	switch t.protocol {
	case Responses:
		return t.final
	case Messages:
		return t.verdictMessages()
	default:
		return t.verdictChoices(eof)
	}
}

func (t *Tap) verdictMessages() Verdict {
	if t.mode == modeStream && !t.ended {
		return Unproven
	}
	return reasons[t.finish].verdict
}

// verdictChoices: every choice that was seen has ended. [DONE] is optional (field
// case B04) but without it the body must have ended cleanly.
func (t *Tap) verdictChoices(eof bool) Verdict {
	n := t.seen.size()
	if n == 0 && t.protocol == Opaque && t.mode == modeBody {
		return Success // embeddings, scores: a whole body without an error is all there is
	}
	if n == 0 || n < t.expect || t.many || t.seen != t.closed {
		return Unproven
	}
	if t.mode == modeStream && !t.done && !eof {
		return Unproven
	}
	return reasons[t.finish].verdict
}

func (s *choiceSet) size() int {
	n := 0
	for _, word := range s {
		n += bits.OnesCount64(word)
	}
	return n
}

// merge overwrites what a later usage object reports. Figures only grow more
// complete: vLLM's message_start has no cache figure, message_delta has.
func (c *counts) merge(n *counts) {
	set := func(to *int64, v int64) {
		if v != Unknown {
			*to = v
		}
	}
	set(&c.in, n.in)
	set(&c.out, n.out)
	set(&c.cached, n.cached)
	set(&c.write, n.write)
	set(&c.read, n.read)
	set(&c.create, n.create)
	set(&c.create1h, n.create1h)
	set(&c.reason, n.reason)
}

// usage turns wire counts into the router's: Prompt always includes the cached
// tokens. Only the Messages shape leaves them out of input_tokens (captures
// vllm_messages: 68 + 3584; engine_contracts 8).
func (c *counts) usage(p Protocol) Usage {
	u := Usage{Prompt: c.in, Cached: c.cached, CacheWrite: c.write, Write1h: c.create1h, Output: c.out, Reasoning: c.reason}
	if p != Messages {
		return u
	}
	u.Cached, u.CacheWrite = c.read, c.create
	if u.Prompt != Unknown {
		u.Prompt += known(c.read) + known(c.create)
	}
	return u
}

func known(n int64) int64 {
	if n == Unknown {
		return 0
	}
	return n
}
