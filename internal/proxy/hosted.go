package proxy

import (
	"strings"

	"github.com/prefixring/prefixring/internal/channel"
	"github.com/prefixring/prefixring/internal/dialect"
	"github.com/prefixring/prefixring/internal/session"
	"github.com/prefixring/prefixring/ring"
)

// A channel is a pool of hosted accounts: each key is a node of its ring. What is special
// about it is here. Nothing polls it; answers are all that is known. A host gets the body,
// the fields that its protocol needs and its own key, and the client gets nothing that is
// said about the account.

// hostedRequest are the client's fields that a host gets. All else stays here: cookies,
// addresses, and whatever else a proxy in front of us adds.
var hostedRequest = map[string]bool{
	"content-type": true, "content-encoding": true, "accept": true, "accept-encoding": true, "user-agent": true,
	"anthropic-version": true, "anthropic-beta": true, "openai-beta": true, "idempotency-key": true,
}

// hostedReply are the host's fields that a client gets. Rates, organisation and cookies
// are the account's.
var hostedReply = map[string]bool{
	"content-type": true, "content-encoding": true, "retry-after": true, "cache-control": true,
	"date": true, "request-id": true, "x-request-id": true, "trailer": true, "vary": true,
}

// anthropicVersion is sent where a client names none: the host refuses requests without.
const anthropicVersion = "Anthropic-Version: 2023-06-01" + crlf

func listed(list map[string]bool, name []byte) bool { return list[strings.ToLower(string(name))] }

// appendHostedFields adds what a host gets of the client's fields, and the account's key.
func (c *call) appendHostedFields(dst []byte, up *Upstream) []byte {
	version := false
	for rest := c.ctx.Request.Header.RawHeaders(); ; {
		line, more, ok := cutLine(rest)
		if !ok || len(line) == 0 {
			break
		}
		rest = more
		name, _, err := splitField(line)
		if err != nil || !listed(hostedRequest, name) {
			continue
		}
		version = version || foldEqual(name, "anthropic-version")
		dst = append(append(dst, line...), crlf...)
	}
	if c.protocol == dialect.Messages && !version {
		dst = append(dst, anthropicVersion...)
	}
	return append(dst, up.credential(c.protocol)...)
}

// takes is the state in which a request of the call would find the account. A key that
// was refused is asked again once its file holds another one.
func (u *Upstream) takes(c *call, model string) channel.State {
	now := c.p.opts.Now()
	s := u.account.State(now, model, c.spend())
	if bad := u.refusedKey.Load(); s == channel.Refused && bad != nil && *bad != u.key() {
		u.account.Renew()
		u.refusedKey.Store(nil)
		s = u.account.State(now, model, c.spend())
	}
	return s
}

// spend is the tokens that a request takes of an account's rate: the estimated prompt and
// the output that it asks for, as hosts count it before they answer.
func (c *call) spend() int64 { return c.way.walk.Need.Tokens }

// admitHosted is Admit for an account.
func (g *gate) admitHosted(up *Upstream) (extra int64, ok bool) {
	c := g.c
	if !up.takes(c, c.route.model).Takes() {
		return 0, false
	}
	if !g.sick {
		if ok, g.probe = up.breaker.allow(g.now); !ok {
			g.skipped = true
			return 0, false
		}
	}
	g.mark, ok = up.account.Take(g.now, c.route.model, c.spend())
	if !ok && g.probe {
		up.breaker.abandon()
	}
	return 0, ok
}

// heard learns from the head of a host's answer. What the host says about the account is
// somebody else's turn, and never the client's business.
func (ex *exchange) heard() (v verdict, f *failure, done bool) {
	c, up := ex.c, ex.up
	if up.account.Heard(c.p.opts.Now(), channel.Answer{
		Status: ex.head.status, Field: ex.head.field, Model: c.route.model, Mark: ex.gate.mark,
	}) {
		key := up.key()
		up.refusedKey.Store(&key)
		c.p.opts.Log.Error("a hosted account refuses its key; it is not asked again until the key is replaced",
			"account", up.name, "status", ex.head.status)
	}
	switch ex.head.status {
	case 401, 403:
		return retryNext, &failNoEngine, true
	case 429, 503, 529:
		return retryNext, &failBound, true
	}
	return 0, nil, false
}

// unanswered tells the account that its host did not answer.
func (ex *exchange) unanswered(sent bool) {
	if a := ex.up.account; a != nil {
		now := ex.c.p.opts.Now()
		a.Failed(now, ex.c.route.model)
		if !sent {
			a.Undo(now, ex.c.spend())
		}
	}
}

// settleHosted corrects the account's count by what the host counted.
func (c *call) settleHosted(u dialect.Usage) {
	if up := c.ex.up; up != nil && up.account != nil && c.ex.answered && u.Prompt != dialect.Unknown {
		up.account.Settle(c.p.opts.Now(), c.spend(), used(u))
	}
}

// unfitHosted says why no binding may lead to an account now.
func (c *call) unfitHosted(up *Upstream) (why session.Refusal, unfit bool) {
	switch up.takes(c, c.route.model) {
	case channel.Fit:
		return 0, false
	case channel.Refused:
		return session.Ejected, true
	case channel.Short, channel.Spent:
		return session.ShortOfRate, true
	}
	return session.Resting, true
}

// hostedUp says if any account of a channel takes the call.
func (c *call) hostedUp(r *route) bool {
	for _, n := range r.pool.Ring.Nodes() {
		if up, ok := n.Value().(*Upstream); ok && up.takes(c, r.model).Takes() {
			return true
		}
	}
	return false
}

// hostedQuery lets the conversation choose the account, in proportion to the weights: the
// ring is asked with it as key. A binding comes before, and what an account cannot take
// goes on to the next one.
func (c *call) hostedQuery(q *ring.Query) {
	q.Key, q.Second, q.K = c.second, 0, 1
	if q.Key == 0 {
		q.Key = nonzero(mix(c.key, c.seq.Load()+c.p.nextID.Load()))
	}
}

// field finds a response field by its name in lower case.
func (h *replyHead) field(name string) string {
	for _, f := range h.fields {
		if foldEqual(f.name, name) {
			return string(f.value)
		}
	}
	return ""
}

// private reports that a response field is the account's and not the client's.
func (h *replyHead) private(name []byte) bool { return h.hosted && !listed(hostedReply, name) }
