package proxy

import (
	"time"

	"github.com/valyala/fasthttp"
)

// savedReply is an engine's refusal, kept while other nodes are asked: if they do no
// better, the client gets it as it came (field case B44).
type savedReply struct {
	status int
	head   replyHead
	body   []byte
}

// A refusal is short and comes at once; one that is not is not worth keeping.
const (
	maxSaved  = 64 * kib
	savedWait = 500 * time.Millisecond
)

// save reads the response of the exchange to its end and keeps it.
func (c *call) save() {
	ex := c.ex
	s := &savedReply{status: ex.head.status}
	if ex.status != 0 {
		s.status = ex.status
	}
	ex.conn.SetReadDeadline(time.Now().Add(savedWait))
	for {
		s.body = append(s.body, ex.reply.pending()...)
		ex.take()
		if len(s.body) > maxSaved {
			return
		}
		if err := ex.more(); err != nil {
			break
		}
	}
	if !ex.reply.done {
		return
	}
	ex.conn.SetReadDeadline(time.Time{})
	// The head's fields point into its buffer: hand both over.
	s.head, ex.head = ex.head, replyHead{}
	c.saved = s
}

// answerSaved answers with the kept refusal, or says f where there is none.
func (c *call) answerSaved(f *failure) *failure {
	s := c.saved
	if s == nil || c.cancelled() != causeNone {
		return f
	}
	c.ex.close()
	c.status, c.committed, c.whole = s.status, true, true
	resp := &c.ctx.Response
	copyReplyHead(&resp.Header, &s.head, s.status)
	c.ex.head.eventStream = s.head.eventStream
	c.decorate(&resp.Header)
	if len(s.head.retryAfter) == 0 {
		resp.Header.Set(fasthttp.HeaderRetryAfter, "1")
	}
	c.out = int64(len(s.body))
	resp.SetBodyRaw(s.body)
	c.releaseBody()
	c.settle()
	return nil
}
