package proxy

import (
	"encoding/hex"
	"strings"
	"testing"
)

// A key means the same plain and hashed; what else a file may hold is skipped.
func TestKeyFile(t *testing.T) {
	const key = "0123456789abcdef-long-enough"
	h := HashKey([]byte(key))
	got, err := ReadKeys(strings.NewReader("# of the shop\n\n  " + key + "  \r\nsha256:" + hex.EncodeToString(h[:]) + "\n"))
	if err != nil || len(got) != 2 || got[0] != h || got[1] != h {
		t.Fatalf("%x, %v", got, err)
	}
}

// A refusal names the line and never what stands in it.
func TestKeyFileRefusals(t *testing.T) {
	for name, file := range map[string]string{
		"empty":       "",
		"comments":    "# nothing\n",
		"short":       "\nsecret\n",
		"two words":   "\nsecret secret secret\n",
		"short hash":  "\nsha256:secret\n",
		"long hash":   "\nsha256:" + strings.Repeat("ab", 40) + "\n",
		"no hex":      "\nsha256:" + strings.Repeat("xy", 32) + "\n",
		"endless":     strings.Repeat("secret", 20000),
		"hash, empty": "\nsha256:\n",
	} {
		keys, err := ReadKeys(strings.NewReader(file))
		if err == nil || keys != nil {
			t.Errorf("%s: accepted", name)
			continue
		}
		if strings.Contains(err.Error(), "secret") || strings.Contains(err.Error(), "xy") {
			t.Errorf("%s: the error shows the key: %v", name, err)
		}
		if strings.HasPrefix(file, "\n") && !strings.Contains(err.Error(), "line 2") {
			t.Errorf("%s: no line in %v", name, err)
		}
	}
}
