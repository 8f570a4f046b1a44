package config

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/goccy/go-yaml/ast"
)

// Duration is a time.Duration written as "250ms", "2s" or "15m".
type Duration time.Duration

// UnmarshalYAML parses a duration. A bare number is refused: its unit would be a guess.
func (d *Duration) UnmarshalYAML(n ast.Node) error {
	s := scalar(n)
	v, err := time.ParseDuration(s)
	if err != nil {
		return at(n, "%q is not a duration; write a number with its unit, for example 250ms, 2s or 15m", s)
	}
	*d = Duration(v)
	return nil
}

// MarshalText writes what UnmarshalText reads.
func (d Duration) MarshalText() ([]byte, error) { return []byte(time.Duration(d).String()), nil }

// D is the plain value.
func (d Duration) D() time.Duration { return time.Duration(d) }

// Size is a number of bytes, written as a number or with KiB, MiB, GiB.
type Size int64

// UnmarshalYAML parses a size.
func (v *Size) UnmarshalYAML(n ast.Node) error {
	s := scalar(n)
	num, unit := s, float64(1)
	for _, u := range []struct {
		suffix string
		bytes  float64
	}{{"KiB", 1 << 10}, {"MiB", 1 << 20}, {"GiB", 1 << 30}} {
		if n, ok := strings.CutSuffix(s, u.suffix); ok {
			num, unit = strings.TrimSpace(n), u.bytes
			break
		}
	}
	f, err := strconv.ParseFloat(num, 64)
	if err != nil || math.IsNaN(f) || f < 0 || f*unit > math.MaxInt32*16 {
		return at(n, "%q is not a size; write a number of bytes, or one with KiB, MiB or GiB", s)
	}
	*v = Size(f * unit)
	return nil
}

// MarshalText writes a number of bytes.
func (v Size) MarshalText() ([]byte, error) { return []byte(strconv.FormatInt(int64(v), 10)), nil }

// scalar is the text of a node without its quotes.
func scalar(n ast.Node) string { return strings.Trim(strings.TrimSpace(n.String()), `"'`) }

// at is an error that carries its place in the form that located reads.
func at(n ast.Node, format string, args ...any) error {
	p := n.GetToken().Position
	return fmt.Errorf("[%d:%d] %s", p.Line, p.Column, fmt.Sprintf(format, args...))
}
