package proxy

import (
	"strings"
)

// serveModels answers GET /v1/models and /v1/models/{name} from the routing table:
// the union over all pools (field case B32), less what the tenant may not use. No engine
// is asked.
func (c *call) serveModels() *failure {
	t := c.p.table.Load()
	if t == nil {
		return &failNoEngine
	}
	path := c.head.path
	var body []byte
	if name, one := strings.CutPrefix(path, "/v1/models/"); one {
		name = unescapeModel(name)
		r := t.routes[name]
		if r == nil || !c.head.mayUse(name) {
			return t.unknownModel([]byte(name), &c.head)
		}
		body = appendModel(nil, name, r, c.p.born)
	} else {
		body = append(body, `{"object":"list","data":[`...)
		first := len(body)
		for _, name := range t.names {
			if !c.head.mayUse(name) {
				continue
			}
			if len(body) > first {
				body = append(body, ',')
			}
			body = appendModel(body, name, t.routes[name], c.p.born)
		}
		body = append(body, `]}`...)
	}
	resp := &c.ctx.Response
	resp.Header.SetContentType("application/json")
	resp.Header.SetBytesV("X-Request-Id", c.id)
	if c.p.retiring.Load() {
		c.ctx.SetConnectionClose()
	}
	resp.SetBodyRaw(body)
	c.status, c.whole, c.committed = 200, true, true
	c.out = int64(len(body))
	c.releaseBody()
	c.settle()
	return nil
}

// appendModel writes one entry in the shape that both engines use. An alias names
// what it stands for as its root.
func appendModel(dst []byte, name string, r *route, born int64) []byte {
	dst = append(dst, `{"id":`...)
	dst = appendJSONString(dst, name)
	dst = append(dst, `,"object":"model","created":`...)
	dst = append(dst, itoa(int(born))...)
	dst = append(dst, `,"owned_by":"prefixring","root":`...)
	dst = appendJSONString(dst, r.model)
	return append(dst, '}')
}

// unescapeModel undoes the two escapes that the allow-list lets through.
func unescapeModel(name string) string {
	if !strings.Contains(name, "%") {
		return name
	}
	return strings.NewReplacer("%2F", "/", "%2f", "/", "%3A", ":", "%3a", ":").Replace(name)
}
