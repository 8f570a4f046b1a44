package config

import "reflect"

// NeedRestart names the top-level keys whose change takes effect only at the next
// start. All others are put in force by a reload.
func NeedRestart(old, next *Config) []string {
	var out []string
	for _, part := range []struct {
		key       string
		old, next any
	}{
		{"listen", old.Listen, next.Listen}, {"admin", old.Admin, next.Admin}, {"tls", old.TLS, next.TLS},
		{"admin_access", old.AdminAccess, next.AdminAccess},
		{"limits", old.Limits, next.Limits}, {"access", old.Access, next.Access}, {"retry", old.Retry, next.Retry},
		{"work", old.Work, next.Work}, {"bindings", old.Bindings, next.Bindings}, {"telemetry", old.Telemetry, next.Telemetry},
		{"prewarm", old.Prewarm.Manifest == "", next.Prewarm.Manifest == ""},
	} {
		if !reflect.DeepEqual(part.old, part.next) {
			out = append(out, part.key)
		}
	}
	return out
}
