package admin

import (
	"bufio"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"strings"
)

// Tokens are those of operators, by hash: the tokens themselves are not kept. It is
// immutable and safe for concurrent use.
type Tokens struct {
	list []namedToken
}

type namedToken struct {
	name string
	hash [sha256.Size]byte
}

// minToken is the shortest token that is taken, in characters: shorter ones can be guessed.
const minToken = 16

// ReadTokens reads lines of NAME TOKEN; the token is plain or sha256:HEX. Empty lines and
// # lines are skipped. An error names the line and not what is in it; a file without a
// token is an error, because it would lock everyone out.
func ReadTokens(r io.Reader) (*Tokens, error) {
	t := &Tokens{}
	seen := map[string]bool{}
	lines := bufio.NewScanner(r)
	for n := 1; lines.Scan(); n++ {
		fields := strings.Fields(lines.Text())
		if len(fields) == 0 || strings.HasPrefix(fields[0], "#") {
			continue
		}
		if len(fields) != 2 {
			return nil, fmt.Errorf("line %d: write NAME TOKEN", n)
		}
		hash, err := tokenHash(fields[1])
		if err != nil {
			return nil, fmt.Errorf("line %d: %w", n, err)
		}
		if seen[string(hash[:])] {
			return nil, fmt.Errorf("line %d: this token is there twice; the log could not say who did what", n)
		}
		seen[string(hash[:])] = true
		t.list = append(t.list, namedToken{fields[0], hash})
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("cannot read the tokens: %w", err)
	}
	if len(t.list) == 0 {
		return nil, errors.New("there is no token in it")
	}
	return t, nil
}

func tokenHash(s string) (hash [sha256.Size]byte, err error) {
	digest, hashed := strings.CutPrefix(s, "sha256:")
	if !hashed {
		if len(s) < minToken {
			return hash, fmt.Errorf("the token is shorter than %d characters", minToken)
		}
		return sha256.Sum256([]byte(s)), nil
	}
	if n, err := hex.Decode(hash[:], []byte(digest)); err != nil || n != len(hash) {
		return hash, errors.New("what follows sha256: is not 64 hex digits")
	}
	return hash, nil
}

// Whose is the name that a token belongs to, empty when it is nobody's. It takes as long
// whichever token is right, and whether one is.
func (t *Tokens) Whose(token string) string {
	hash := sha256.Sum256([]byte(token))
	at := -1
	for i := range t.list {
		at = subtle.ConstantTimeSelect(subtle.ConstantTimeCompare(t.list[i].hash[:], hash[:]), i, at)
	}
	if at < 0 {
		return ""
	}
	return t.list[at].name
}
