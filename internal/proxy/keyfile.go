package proxy

import (
	"bufio"
	"encoding/hex"
	"fmt"
	"io"
	"strings"
)

// shortestKey is the least number of octets of a plain key in a file: anything shorter
// is more likely a slip than a secret.
const shortestKey = 16

// ReadKeys reads client keys, one per line: as they are, or as "sha256:" and the 64 hex
// digits of their SHA-256, which is all that is kept of them. Empty lines and those
// that begin with # are skipped. An error names the line and never its content.
func ReadKeys(r io.Reader) ([][32]byte, error) {
	var out [][32]byte
	lines := bufio.NewScanner(r)
	for n := 1; lines.Scan(); n++ {
		s := strings.TrimSpace(lines.Text())
		if s == "" || s[0] == '#' {
			continue
		}
		key, err := readKey(s)
		if err != nil {
			return nil, fmt.Errorf("line %d: %w", n, err)
		}
		out = append(out, key)
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("a line is too long for a key")
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("there is no key in it; write one per line")
	}
	return out, nil
}

func readKey(s string) (key [32]byte, err error) {
	if digits, ok := strings.CutPrefix(s, "sha256:"); ok {
		if n, err := hex.Decode(key[:], []byte(digits[:min(len(digits), 64)])); err != nil || n != 32 || len(digits) != 64 {
			return key, fmt.Errorf("sha256: is not followed by 64 hex digits")
		}
		return key, nil
	}
	switch {
	case strings.ContainsAny(s, " \t"):
		return key, fmt.Errorf("a key must not hold white space")
	case len(s) < shortestKey:
		return key, fmt.Errorf("a key of fewer than %d characters is too easy to guess", shortestKey)
	}
	return HashKey([]byte(s)), nil
}
