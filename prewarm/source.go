package prewarm

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"text/template"
	"time"
	"unicode/utf8"
)

type sourceKind string

const (
	sourceText     sourceKind = "text"
	sourceFile     sourceKind = "file"
	sourceRequest  sourceKind = "request"
	sourceTemplate sourceKind = "template"
)

// source is where an entry's text comes from. File contents are read once, when the
// manifest is loaded, so that a plan and its run see the same text.
type source struct {
	kind sourceKind
	path string // "" for inline text
	data []byte
	sum  string // of data, to tell whether the file has changed since
	tmpl *template.Template
}

// remedied is an error that knows what to do about it.
type remedied struct {
	error
	remedy string
}

func (r remedied) Unwrap() error { return r.error }

func withRemedy(problem, remedy string) error { return remedied{errors.New(problem), remedy} }

func remedyOf(err error) string {
	var r remedied
	if errors.As(err, &r) {
		return r.remedy
	}
	return ""
}

func newSource(kind sourceKind, value, dir string) (source, error) {
	s := source{kind: kind, data: []byte(value)}
	if kind != sourceText {
		s.path = resolvePath(dir, value)
		data, err := readFile(s.path, maxSource)
		if err != nil {
			return source{}, err
		}
		if len(data) == 0 {
			return source{}, fmt.Errorf("%s is empty", s.path)
		}
		s.data = data
	}
	if !utf8.Valid(s.data) {
		return source{}, fmt.Errorf("the text is not UTF-8")
	}
	s.sum = sum(s.data)
	if kind == sourceTemplate {
		// The parser's message names a line of the template and quotes no text around it.
		t, err := template.New("template").Option("missingkey=error").Funcs(template.FuncMap{"date": func(string) string { return "" }}).Parse(string(s.data))
		if err != nil {
			return source{}, fmt.Errorf("cannot read template: %w", err)
		}
		s.tmpl = t
	}
	return s, nil
}

// text renders the source at a moment, in the zone of that moment.
func (s *source) text(at time.Time, fields map[string]string) (string, error) {
	if s.tmpl == nil {
		return string(s.data), nil
	}
	t, err := s.tmpl.Clone()
	if err != nil {
		return "", fmt.Errorf("cannot render template: %w", err)
	}
	t.Funcs(template.FuncMap{"date": at.Format})
	if fields == nil {
		fields = map[string]string{}
	}
	var b strings.Builder
	if err := t.Execute(&b, fields); err != nil {
		return "", remedied{fmt.Errorf("cannot render template: %w", err), "fields: must have a value for each {{ .name }}"}
	}
	return b.String(), nil
}

// changed reports what has happened to the file since it was read, "" for nothing.
func (s *source) changed() string {
	if s.path == "" {
		return ""
	}
	data, err := readFile(s.path, maxSource)
	switch {
	case err != nil:
		return err.Error()
	case sum(data) != s.sum:
		return s.path + " has changed since it was read"
	}
	return ""
}

// Changed reports every file of the manifest's texts that is missing or has changed
// since the manifest was read. Run refuses to start when there is one.
func (m *Manifest) Changed() error {
	var faults []Fault
	for i, e := range m.Prefixes {
		if why := e.source.changed(); why != "" {
			faults = append(faults, Fault{
				File: m.path, Line: e.line, Field: fmt.Sprintf("prefixes[%d].%s", i, e.source.kind),
				Problem: why, Remedy: "plan again",
			})
		}
	}
	if len(faults) > 0 {
		return &ManifestError{faults}
	}
	return nil
}

func sum(b []byte) string {
	h := sha256.Sum256(b)
	return hex.EncodeToString(h[:])
}

// nextChange is the first moment after t at which the rendered text is another one, as
// far as it lies within two days; ok is false when there is none. Texts may change on
// the hour only: see steady.
func (e *Entry) nextChange(t time.Time) (time.Time, bool) {
	var best time.Time
	if e.source.tmpl != nil {
		now, err := e.source.text(t.In(e.zone), e.Fields)
		if err != nil {
			return time.Time{}, false
		}
		// Zones differ by quarters of an hour, so their hours begin on quarters of UTC's.
		for at := t.Truncate(15 * time.Minute).Add(15 * time.Minute); at.Sub(t) <= 48*time.Hour; at = at.Add(15 * time.Minute) {
			if local := at.In(e.zone); local.Minute() != 0 {
				continue
			}
			if text, err := e.source.text(at.In(e.zone), e.Fields); err == nil && text != now {
				best = at
				break
			}
		}
	}
	if e.engineTZ != nil {
		midnight := atClock(t.In(e.engineTZ), 1, 0)
		if best.IsZero() || midnight.Before(best) {
			best = midnight
		}
	}
	return best, !best.IsZero()
}

// steady reports a text that changes within the hour: no version of it stays warm for
// long enough to be of use.
func (e *Entry) steady(t time.Time) bool {
	if e.source.tmpl == nil {
		return true
	}
	hour := t.In(e.zone).Truncate(time.Hour)
	a, errA := e.source.text(hour.Add(time.Minute), e.Fields)
	b, errB := e.source.text(hour.Add(2*time.Minute+3*time.Second), e.Fields)
	return errA != nil || errB != nil || a == b
}
