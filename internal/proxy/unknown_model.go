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

// unknownModel tells the client which name it asked for and which names there are, as
// engines do themselves.
func (t *Table) unknownModel(asked []byte) *failure {
	f := failModel
	var b strings.Builder
	b.WriteString("the model ")
	if name := string(asked); name != "" && len(name) <= maxToldModel && utf8.ValidString(name) {
		b.WriteString("`" + name + "` ")
	}
	b.WriteString("is not served here")
	for i, n := range t.names {
		switch {
		case i == maxToldModels:
			b.WriteString(", ...")
		case i > maxToldModels:
		case i == 0:
			b.WriteString("; there is " + n)
		default:
			b.WriteString(", " + n)
		}
	}
	f.message = b.String()
	return &f
}
