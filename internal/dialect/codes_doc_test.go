package dialect

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write docs/errors.md anew")

// docs/errors.md is what Codes says.
func TestErrorReferenceIsCurrent(t *testing.T) {
	var b strings.Builder
	b.WriteString(`# Errors that the router makes

An error of the router carries ` + "`X-Prefixring-Error: CODE`" + ` and the body shape of the protocol that was spoken; an engine's
own error passes untouched, without that header. A code never changes its meaning; metrics and the access log use the
same. In a stream that has begun, the error is the last event. This page is generated:
` + "`go test ./internal/dialect -run Reference -update`" + `.

| code | status | OpenAI type | Anthropic type | meaning |
|---|---|---|---|---|
`)
	for _, c := range Codes {
		fmt.Fprintf(&b, "| `%s` | %d | `%s` | `%s` | %s |\n", c.Code, c.Status, c.OpenAI, c.Claude, c.Meaning)
	}
	const file = "../../docs/errors.md"
	if *update {
		if err := os.WriteFile(file, []byte(b.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	have, err := os.ReadFile(file)
	if err != nil || string(have) != b.String() {
		t.Errorf("docs/errors.md is not current (%v); run go test ./internal/dialect -run Reference -update", err)
	}
}
