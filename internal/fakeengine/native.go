package fakeengine

import (
	"fmt"
	"net/http"
	"strconv"

	"github.com/prefixring/prefixring/internal/dialect"
)

// generate is the engine's own API: SGLang's /generate, with text or token ids and
// cumulative text in its stream, or vLLM's token-in token-out route.
func (e *Engine) generate(x *wire) {
	g, none, err := e.readNative(x)
	if err != nil {
		x.fail(err)
		return
	}
	ex := &exchange{g: g}
	e.run(x, ex, &nativeSpeaker{e: e, ex: ex, none: none})
}

func (e *Engine) readNative(x *wire) (g *generation, none bool, err *apiError) {
	if err := x.parse(); err != nil {
		return nil, false, err
	}
	b := x.body
	input, limit := b.get("token_ids"), "max_tokens"
	if e.opts.Dialect == dialect.SGLang {
		limit = "max_new_tokens"
		if input = b.get("text"); !input.given() {
			input = b.get("input_ids")
		}
	}
	if !input.given() {
		return nil, false, e.missing(b, "token_ids")
	}
	if g, err = e.begin(x, dialect.Opaque); err != nil {
		return nil, false, err
	}
	params := b.get("sampling_params")
	n, given := params.get(limit).integer()
	if none = given && n == 0 && e.opts.Dialect == dialect.SGLang; none { // prefill only
		params = nil
	}
	lim, err := e.limits(params, limit)
	if err != nil {
		return nil, false, err
	}
	if lim.max == 0 {
		lim.max = 128
	}
	if none {
		lim.max = 1
	}
	texts := promptTexts(input)
	if len(texts) == 0 || len(texts[0]) == 0 {
		return nil, false, badRequest("", "The prompt is empty.")
	}
	for _, text := range texts {
		if err := e.fits(tokensOf(len(text)), lim); err != nil {
			return nil, false, err
		}
		g.prompts = append(g.prompts, e.plan(g, text, 0, lim, e.root(g)))
	}
	return g, none, nil
}

type nativeSpeaker struct {
	e    *Engine
	ex   *exchange
	none bool // max_new_tokens was 0
}

func (s *nativeSpeaker) open(*wire)  {}
func (s *nativeSpeaker) first(*wire) {}

func (s *nativeSpeaker) tokens(x *wire, c *choice, _, to int) {
	finish := "null"
	if to == c.reply.tokens {
		finish = s.finish(c)
	}
	x.event(append(s.object([]byte("data: "), c, to, finish), "\n\n"...))
}

func (s *nativeSpeaker) finish(c *choice) string {
	if c.finish == "length" {
		return fmt.Sprintf(`{"type":"length","length":%d}`, c.reply.tokens)
	}
	return fmt.Sprintf(`{"type":"%s","matched":%s}`, c.finish, matched(c))
}

// object writes one SGLang result with the text of the first n tokens.
func (s *nativeSpeaker) object(b []byte, c *choice, n int, finish string) []byte {
	text := c.piece(0, n)
	if s.none {
		text, n = nil, 0
	}
	b = append(quote(append(b, `{"text":`...), text), `,"output_ids":`...)
	b = appendIDs(b, tokenIDs(text))
	prompt, _, _ := s.ex.usage()
	b = quote(append(b, `,"meta_info":{"id":`...), s.ex.g.id)
	return fmt.Appendf(b, `,"finish_reason":%s,"prompt_tokens":%d,"weight_version":"default","total_retractions":0,"completion_tokens":%d,"cached_tokens":%d}}`,
		finish, prompt, n, c.cached)
}

func appendIDs(b []byte, ids []uint32) []byte {
	b = append(b, '[')
	for i, id := range ids {
		if i > 0 {
			b = append(b, ',')
		}
		b = strconv.AppendUint(b, uint64(id), 10)
	}
	return append(b, ']')
}

func (s *nativeSpeaker) aborted(x *wire, c *choice) {
	x.event(append(s.object([]byte("data: "), c, c.sent, `{"type":"abort","message":"Abort in waiting queue or running batch"}`), "\n\n"...))
}

func (s *nativeSpeaker) end(x *wire) { done(x) }

func (s *nativeSpeaker) whole(*wire) []byte {
	if s.e.opts.Dialect == dialect.SGLang {
		if len(s.ex.choices) == 1 {
			c := s.ex.choices[0]
			return s.object(nil, c, c.sent, s.finish(c))
		}
		b := []byte{'['}
		for i, c := range s.ex.choices {
			if i > 0 {
				b = append(b, ',')
			}
			b = s.object(b, c, c.sent, s.finish(c))
		}
		return append(b, ']')
	}
	b := quote([]byte(`{"request_id":`), s.ex.g.id)
	b = append(b, `,"choices":[`...)
	for i, c := range s.ex.choices {
		if i > 0 {
			b = append(b, ',')
		}
		b = fmt.Appendf(b, `{"index":%d,"logprobs":null,"finish_reason":"%s","token_ids":`, c.index, c.finish)
		b = append(appendIDs(b, tokenIDs(c.text)), '}')
	}
	return append(b, `],"prompt_logprobs":null,"kv_transfer_params":null}`...)
}

// transcribe takes a multipart upload and answers at once.
func (e *Engine) transcribe(x *wire) {
	e.requests.Add(1)
	x.json(http.StatusOK, fmt.Appendf(nil, `{"text":"%d bytes of sound","usage":{"type":"duration","seconds":1}}`, len(x.body)))
}

// orca puts the load into a plain reply when the client asked for it; streams do
// not carry it (engine_contracts 4.3).
func (e *Engine) orca(x *wire) {
	if e.opts.Dialect != dialect.VLLM {
		return
	}
	s := e.ranks[0].stats()
	switch x.r.Header.Get("Endpoint-Load-Metrics-Format") {
	case "JSON":
		x.w.Header().Set("Endpoint-Load-Metrics", fmt.Sprintf(`JSON {"named_metrics": {"kv_cache_usage_perc": %g, "num_requests_waiting": %d}}`, s.Usage(), s.Waiting))
	case "TEXT":
		x.w.Header().Set("Endpoint-Load-Metrics", fmt.Sprintf("TEXT named_metrics.kv_cache_usage_perc=%g, named_metrics.num_requests_waiting=%d", s.Usage(), s.Waiting))
	}
}
