package proxy

import (
	"strings"
	"unicode/utf8"
)

// Bounds of what an error says about names.
const (
	maxToldModel  = 64 // octets of the name that the client asked for
	maxToldModels = 8  // names that are there
)

// unknownModel tells the client which name it asked for and which names there are for
// it, as engines do themselves. A model that its tenant may not use does not exist.
func (t *Table) unknownModel(asked []byte, h *head) *failure {
	f := failModel
	var b strings.Builder
	b.WriteString("the model ")
	if name := string(asked); name != "" && len(name) <= maxToldModel && utf8.ValidString(name) {
		b.WriteString("`" + name + "` ")
	}
	b.WriteString("is not served here")
	i := 0
	for _, n := range t.names {
		if !h.mayUse(n) {
			continue
		}
		switch {
		case i == maxToldModels:
			b.WriteString(", ...")
		case i > maxToldModels:
		case i == 0:
			b.WriteString("; there is " + n)
		default:
			b.WriteString(", " + n)
		}
		i++
	}
	f.message = b.String()
	return &f
}
