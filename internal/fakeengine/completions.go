package fakeengine

import (
	"fmt"
	"strconv"

	"github.com/prefixring/prefixring/internal/dialect"
)

func (e *Engine) completions(x *wire) {
	g, err := e.readCompletions(x)
	if err != nil {
		x.fail(err)
		return
	}
	ex := &exchange{g: g}
	e.run(x, ex, &completionsSpeaker{chatSpeaker{e, ex}})
}

func (e *Engine) readCompletions(x *wire) (*generation, *apiError) {
	if err := x.parse(); err != nil {
		return nil, err
	}
	p := x.body.get("prompt")
	if !p.given() {
		return nil, e.missing(x.body, "prompt")
	}
	g, err := e.begin(x, dialect.Completions)
	if err != nil {
		return nil, err
	}
	lim, err := e.limits(x.body, "max_tokens")
	if err != nil {
		return nil, err
	}
	if lim.max == 0 {
		lim.max = 16 // the protocol's default
	}
	for _, text := range promptTexts(p) {
		if len(text) == 0 {
			return nil, badRequest("prompt", "Either prompt or prompt_embeds must be provided and non-empty.")
		}
		if err := e.fits(tokensOf(len(text)), lim); err != nil {
			return nil, err
		}
		g.prompts = append(g.prompts, e.plan(g, text, 0, lim, e.root(g)))
	}
	if len(g.prompts) == 0 {
		return nil, badRequest("prompt", "Either prompt or prompt_embeds must be provided and non-empty.")
	}
	return g, nil
}

// promptTexts takes a string, token ids, or a list of either.
func promptTexts(p value) [][]byte {
	if p.is('"') {
		return [][]byte{p.appendText(nil)}
	}
	all := p.list()
	if len(all) == 0 {
		return nil
	}
	if !all[0].is('"') && !all[0].is('[') {
		return [][]byte{idsText(all)}
	}
	var texts [][]byte
	for _, v := range all {
		if v.is('"') {
			texts = append(texts, v.appendText(nil))
		} else {
			texts = append(texts, idsText(v.list()))
		}
	}
	return texts
}

func idsText(ids []value) (b []byte) {
	for _, id := range ids {
		n, _ := id.integer()
		b = appendToken(b, uint32(n))
	}
	return b
}

type completionsSpeaker struct{ chatSpeaker }

func (s *completionsSpeaker) first(*wire) {}

func (s *completionsSpeaker) head(prefix string) []byte {
	g := s.ex.g
	b := append([]byte(prefix+`{"id":"`), g.id...)
	b = append(b, `","object":"text_completion","created":`...)
	b = strconv.AppendInt(b, g.created, 10)
	return quote(append(b, `,"model":`...), g.model)
}

func (s *completionsSpeaker) tokens(x *wire, c *choice, from, to int) {
	finish := "null"
	if to == c.reply.tokens {
		finish = `"` + c.finish + `"`
	}
	s.piece(x, c, c.piece(from, to), finish)
}

func (s *completionsSpeaker) piece(x *wire, c *choice, text []byte, finish string) {
	b := s.head("data: ")
	b = fmt.Appendf(b, `,"choices":[{"index":%d,"text":`, c.index)
	b = append(append(quote(b, text), `,"logprobs":null,"finish_reason":`...), finish...)
	if s.sglang() {
		stop := "null"
		if finish != "null" {
			stop = matched(c)
		}
		b = append(b, `,"matched_stop":`+stop+`}],"usage":`...)
		if s.ex.g.usageAlways {
			b = append(b, s.usage(false)...)
		} else {
			b = append(b, "null"...)
		}
		x.event(append(b, "}\n\n"...))
		return
	}
	stop := "null"
	if finish != "null" {
		stop = stopReason(c)
	}
	b = append(b, `,"stop_reason":`+stop+`,"prompt_token_ids":null,"token_ids":null}]`...)
	if s.ex.g.usageAlways {
		b = append(append(b, `,"usage":`...), s.usage(false)...)
	}
	x.event(append(b, "}\n\n"...))
}

func (s *completionsSpeaker) aborted(x *wire, c *choice) { s.piece(x, c, nil, `"abort"`) }

func (s *completionsSpeaker) usage(final bool) []byte {
	if s.sglang() || !final {
		return s.chatSpeaker.usage(final)
	}
	prompt, cached, output := s.ex.usage()
	b := fmt.Appendf(nil, `{"prompt_tokens":%d,"total_tokens":%d,"completion_tokens":%d`, prompt, prompt+output, output)
	if s.e.opts.ReportCached {
		b = fmt.Appendf(b, `,"prompt_tokens_details":{"cached_tokens":%d}`, cached)
	}
	return append(b, '}')
}

func (s *completionsSpeaker) end(x *wire) {
	if s.ex.g.includeUsage {
		b := append(s.head("data: "), `,"choices":[],"usage":`...)
		b = append(b, s.usage(true)...)
		if !s.sglang() {
			b = append(b, `,"system_fingerprint":"`+s.e.fingerprint()+`"`...)
		}
		x.event(append(b, "}\n\n"...))
	}
	done(x)
}

func (s *completionsSpeaker) whole(*wire) []byte {
	b := append(s.head(""), `,"choices":[`...)
	for i, c := range s.ex.choices {
		if i > 0 {
			b = append(b, ',')
		}
		b = quote(fmt.Appendf(b, `{"index":%d,"text":`, c.index), c.text)
		b = append(b, `,"logprobs":null,"finish_reason":"`+c.finish+`",`...)
		if s.sglang() {
			b = append(b, `"matched_stop":`+matched(c)+`}`...)
		} else {
			b = append(b, `"stop_reason":`+stopReason(c)+`,"token_ids":null,"prompt_logprobs":null,"prompt_token_ids":null}`...)
		}
	}
	if s.sglang() {
		return append(append(append(b, `],"usage":`...), s.usage(true)...), `,"metadata":{"weight_version":"default"}}`...)
	}
	prompt, cached, output := s.ex.usage()
	b = fmt.Appendf(b, `],"service_tier":null,"system_fingerprint":"%s","usage":{"prompt_tokens":%d,"total_tokens":%d,"completion_tokens":%d,"prompt_tokens_details":`,
		s.e.fingerprint(), prompt, prompt+output, output)
	if s.e.opts.ReportCached {
		b = fmt.Appendf(b, `{"cached_tokens":%d}`, cached)
	} else {
		b = append(b, "null"...)
	}
	return append(b, `,"completion_tokens_details":null},"kv_transfer_params":null}`...)
}
