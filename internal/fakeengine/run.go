package fakeengine

import (
	"errors"
	"net/http"

	"github.com/prefixring/prefixring/internal/dialect"
	"github.com/prefixring/prefixring/internal/fakeengine/core"
)

// speaker puts the progress of a generation on the wire in one protocol.
type speaker interface {
	open(x *wire)                            // the request was accepted, nothing is generated yet
	first(x *wire)                           // the first token of any choice is there
	tokens(x *wire, c *choice, from, to int) // tokens [from,to) of a choice; to == c.tokens ends it
	aborted(x *wire, c *choice)              // the engine gave it up
	end(x *wire)                             // all choices have ended
	whole(x *wire) []byte                    // the plain reply
}

// choice is one answer as its speaker sees it.
type choice struct {
	*reply
	index  int
	sent   int // tokens on the wire
	cached int
	job    *job
	ended  bool
}

// exchange is a generation in flight.
type exchange struct {
	g       *generation
	choices []*choice
}

func (ex *exchange) usage() (prompt, cached, output int) {
	per := len(ex.choices) / max(len(ex.g.prompts), 1)
	for i, c := range ex.choices {
		output += c.sent
		if i%per == 0 {
			prompt += ex.g.prompts[i/per].core.Tokens
			cached += c.cached
		}
	}
	return prompt, cached, output
}

// created is how many tokens the request newly put into whole blocks.
func (ex *exchange) created(block int) (n int) {
	per := len(ex.choices) / max(len(ex.g.prompts), 1)
	for i := 0; i < len(ex.choices); i += per {
		n += max(ex.g.prompts[i/per].core.Tokens/block*block-ex.choices[i].cached, 0)
	}
	return n
}

// rankOf picks the data-parallel rank: the pinned one, else the next in turn,
// whatever is cached where (field case B55).
func (e *Engine) rankOf(g *generation) *rank {
	if g.rank >= 0 {
		return e.ranks[g.rank]
	}
	return e.ranks[int(e.turn.Add(1)-1)%len(e.ranks)]
}

// run schedules a generation and speaks until it has ended or the client has left.
func (e *Engine) run(x *wire, ex *exchange, s speaker) {
	notify := make(chan struct{}, 1)
	if err := e.submit(x, ex, notify); err != nil {
		e.refuse(x, ex.g, err)
		return
	}
	defer func() { // after a panic too: nothing may go on generating for nobody
		for _, c := range ex.choices {
			c.job.abort()
		}
	}()
	e.requests.Add(1)
	if ex.g.stream {
		if e.opts.Dialect == dialect.VLLM {
			x.open()
		}
		s.open(x)
		if len(x.pending) > 0 {
			x.flush()
		}
	}
	started := false
	for {
		select {
		case <-notify:
		case <-x.r.Context().Done(): // left, or half-closed, which uvicorn takes for leaving
			x.drop()
		case <-e.stop:
			x.drop()
		}
		if e.advance(x, ex, s, &started) {
			break
		}
		if ex.g.stream && len(x.pending) > 0 {
			x.flush()
		}
	}
	if ex.g.stream {
		s.end(x)
		x.finish()
		return
	}
	e.orca(x)
	x.json(http.StatusOK, s.whole(x))
}

// advance speaks what is new and reports whether all choices have ended.
func (e *Engine) advance(x *wire, ex *exchange, s speaker, started *bool) bool {
	all := true
	for _, c := range ex.choices {
		if c.ended {
			continue
		}
		now := c.job.look()
		c.cached = now.cached
		if now.killed == killCut {
			x.drop()
		}
		if now.produced > 0 && !*started {
			*started = true
			for _, o := range ex.choices {
				o.cached = o.job.look().cached
			}
			if ex.g.stream {
				s.first(x)
			}
		}
		for c.sent < now.produced {
			to := c.sent + e.opts.TokensPerEvent
			if to > now.produced {
				if !now.done {
					break
				}
				to = now.produced
			}
			from := c.sent
			c.sent = to
			if ex.g.stream {
				s.tokens(x, c, from, to)
			}
		}
		if now.killed == killAbort {
			c.finish, c.match = "abort", ""
			c.ended = true
			if ex.g.stream {
				s.aborted(x, c)
			} else {
				c.reply.text = c.piece(0, c.sent)
			}
		}
		c.ended = c.ended || now.done && c.sent == c.reply.tokens
		all = all && c.ended
	}
	return all
}

// submit hands all prompts to one rank.
func (e *Engine) submit(x *wire, ex *exchange, notify chan struct{}) error {
	e.mu.Lock()
	draining := e.draining && e.opts.Dialect == dialect.VLLM
	e.mu.Unlock()
	r := e.rankOf(ex.g)
	for i := range ex.g.prompts {
		p := &ex.g.prompts[i]
		jobs, err := r.submit(p, ex.g.priority, notify)
		if err != nil {
			for _, c := range ex.choices {
				c.job.abort()
			}
			return err
		}
		for k, j := range jobs {
			ex.choices = append(ex.choices, &choice{reply: &p.answers[k], index: len(ex.choices), job: j})
		}
	}
	if draining { // vLLM aborts what arrives while it drains, inside a 200
		r.killJobs(ex.choices)
	}
	return nil
}

// refuse answers a request that the scheduler did not take.
func (e *Engine) refuse(x *wire, g *generation, err error) {
	if !errors.Is(err, core.ErrQueueFull) {
		x.fail(badRequest("", "%s", err))
		return
	}
	full := e.queueFull()
	if g.stream && e.opts.Dialect == dialect.SGLang { // status 200: engine_contracts 1, fact 2
		x.event(e.errorEvent(full, x.r.URL.Path))
		x.finish()
		return
	}
	x.fail(full)
}
