package proxy

import (
	"github.com/prefixring/prefixring/internal/dialect"
	"github.com/prefixring/prefixring/internal/residency"
)

// observe tells residency what the engine said about its cache for this prefix. No
// report is no evidence: unknown is not zero (field case B67).
func (c *call) observe(out dialect.Outcome) {
	table := c.route.pool.Residency
	if table == nil || c.key == 0 || out.Usage.Prompt == dialect.Unknown {
		return
	}
	table.Observe(c.node.ID(), c.key, residency.Evidence{
		Kind: residency.Usage, Prompt: out.Usage.Prompt, Cached: out.Usage.Cached, Static: c.static,
	})
}
