package session

import (
	"strconv"
	"strings"
	"time"
)

// The environment variables that override the configuration.
const (
	EnvEnabled = "PROMPT_CACHE_AFFINITY_ENABLED"
	EnvTTL     = "PROMPT_CACHE_AFFINITY_TTL_SECONDS"
)

// Settings are what the environment may override.
type Settings struct {
	Enabled bool
	TTL     time.Duration
}

// Override applies the values of EnvEnabled and EnvTTL to the configured settings.
// Empty values change nothing; a TTL of zero in base becomes DefaultTTL. A malformed
// value switches bindings off, and warning names the setting, never its value: a
// misplaced secret must not end up in a log. warning is empty when all is well.
func Override(base Settings, enabled, ttl string) (s Settings, warning string) {
	s = base
	if s.TTL == 0 {
		s.TTL = DefaultTTL
	}
	var bad []string
	if v := strings.TrimSpace(enabled); v != "" {
		on, ok := parseSwitch(v)
		if !ok {
			bad = append(bad, EnvEnabled+" is not true or false")
		}
		s.Enabled = on
	}
	if v := strings.TrimSpace(ttl); v != "" {
		n, err := strconv.ParseUint(v, 10, 32)
		d := time.Duration(n) * time.Second
		if err != nil || d < MinTTL || d > MaxTTL {
			bad = append(bad, EnvTTL+" is not a whole number in 1..86400")
		} else {
			s.TTL = d
		}
	}
	if len(bad) > 0 {
		s.Enabled = false
		warning = "bindings are off: " + strings.Join(bad, ", ")
	}
	return s, warning
}

func parseSwitch(v string) (on, ok bool) {
	switch strings.ToLower(v) {
	case "1", "true", "yes", "on":
		return true, true
	case "0", "false", "no", "off":
		return false, true
	}
	return false, false
}
