package proxy

import (
	"bytes"

	"github.com/prefixring/prefixring/internal/dialect"
	"github.com/prefixring/prefixring/internal/session"
)

// Engines keep stored responses in their own memory, so a later request that names one
// can only be answered where it was made (engine_contracts 2: previous_response_id,
// GET /v1/responses/{id}). Where that was is remembered as a binding of the response's
// id. What is not remembered any more is asked for on one node after the other.

// longestResponseID bounds what is copied out of a response.
const longestResponseID = 256

// noteResponse takes the id of a response out of its first octets.
func (c *call) noteResponse() {
	if c.protocol != dialect.Responses || (c.bindings() == nil && c.way.route == nil) || len(c.respID) > 0 {
		return
	}
	c.respID = append(c.respID[:0], responseID(c.ex.reply.pending())...)
}

// responseID finds the id in the beginning of a body or stream. Both engines write it
// as the first string that looks like one.
func responseID(b []byte) []byte {
	const mark = `"resp_`
	b = b[:min(len(b), 2*kib)]
	i := bytes.Index(b, []byte(mark))
	if i < 0 {
		return nil
	}
	b = b[i+1:]
	j := bytes.IndexByte(b, '"')
	if j < 0 || j > longestResponseID {
		return nil
	}
	return b[:j]
}

// storedKey is the binding of a response's id. The route is not part of it: a request
// for a stored response names no model.
func (c *call) storedKey(id []byte) session.Key {
	return c.bindings().Key(&session.Scope{
		Tenant: b2s(c.bound.scope[:]), Conversation: b2s(id), Lane: "response",
	})
}

// recallStored looks up the node that made the response which this request goes on
// from, or asks for. It reports whether there is such a response.
func (c *call) recallStored() bool {
	var id []byte
	switch {
	case c.head.route.Stored:
		id = storedID(c.head.path)
	case c.scanned && c.scan.PreviousResponseID.Present():
		id = c.text(c.scan.PreviousResponseID)
	default:
		return false
	}
	if c.bindings() != nil {
		c.bound.now = c.storedKey(id)
		c.bound.found = c.bindings().Lookup(c.bound.now)
		if c.bound.found.Found() {
			c.bound.node = nodeByID(c.route.pool.Ring, uint32(c.bound.found.Target))
		}
	}
	return true
}

// bindStored remembers where a response was made.
func (c *call) bindStored() {
	if store := c.bindings(); store != nil && len(c.respID) > 0 && c.status == 200 {
		store.Bind(c.storedKey(c.respID), uint64(c.node.ID()), store.Lookup(c.storedKey(c.respID)).Stamp)
	}
}

// storedID is the id in /v1/responses/{id} and /v1/responses/{id}/cancel.
func storedID(path string) []byte {
	id := path[len("/v1/responses/"):]
	if i := bytes.IndexByte([]byte(id), '/'); i >= 0 {
		id = id[:i]
	}
	return []byte(id)
}

// elsewhere reports that a node does not have the stored response that was asked for,
// and that another may: asking is free, as the engine does no work for it.
func (ex *exchange) elsewhere() bool {
	c := ex.c
	return c.head.route.Stored && ex.head.status == 404 && c.ntried < len(c.tried)-1 &&
		c.ntried < len(c.route.pool.Ring.Nodes())-1
}
