package prewarm

import (
	"errors"
	"strings"
	"testing"
	"time"
)

// Each kind of bad input is named with line, field and remedy, all at once.
func TestManifestFaultsAreLocated(t *testing.T) {
	cases := []struct {
		name, yaml  string
		line        int
		field, want string
	}{
		{"no yaml", "prefixes: [\n", 1, "", ""},
		{"unknown field", "prefixes:\n  - name: a\n    modle: m\n", 3, "modle", "no such field"},
		{"wrong type", "prefixes:\n  - name: a\n    model: m\n    text: t\n    rate: many\n", 5, "rate", "must be float64"},
		{"repeated key", "zone: UTC\nzone: UTC\n", 2, "", "zone"},
		{"nothing", "zone: UTC\n", 1, "prefixes", "there is none"},
		{"empty entry", "prefixes:\n  - name: a\n    model: m\n    text: t\n  -\n", 5, "prefixes[1]", "empty"},
		{"no name", "prefixes:\n  - model: m\n    text: t\n", 2, "prefixes[0].name", "missing"},
		{"two names", "prefixes:\n  - {name: a, model: m, text: t}\n  - {name: a, model: m, text: u}\n", 3, "prefixes[1].name", "prefixes[0] too"},
		{"no model", "prefixes:\n  - name: a\n    text: t\n", 2, "prefixes[0].model", "missing"},
		{"no text", "prefixes:\n  - name: a\n    model: m\n", 2, "prefixes[0]", "no text"},
		{"two texts", "prefixes:\n  - name: a\n    model: m\n    text: t\n    file: x\n", 4, "prefixes[0].text", "file as well"},
		{"missing file", "prefixes:\n  - name: a\n    model: m\n    file: nowhere.txt\n", 4, "prefixes[0].file", "nowhere.txt"},
		{"bad zone", "zone: Mars/Olympus\nprefixes:\n  - {name: a, model: m, text: t}\n", 1, "zone", "no time zone"},
		{"local zone", "zone: Local\nprefixes:\n  - {name: a, model: m, text: t}\n", 1, "zone", "no time zone"},
		{"bad deadline", "prefixes:\n  - name: a\n    model: m\n    text: t\n    deadline: tomorrow\n", 5, "prefixes[0].deadline", "no time"},
		{"left-out hour", "prefixes:\n  - name: a\n    model: m\n    text: t\n    zone: Europe/Berlin\n    deadline: \"2026-03-29 02:30:00\"\n", 6, "prefixes[0].deadline", "leave out"},
		{"doubled hour", "prefixes:\n  - name: a\n    model: m\n    text: t\n    zone: Europe/Berlin\n    deadline: \"2026-10-25 02:30:00\"\n", 6, "prefixes[0].deadline", "twice"},
		{"start behind end", "prefixes:\n  - name: a\n    model: m\n    text: t\n    deadline: 2026-11-11 20:00\n    not_before: 2026-11-11 21:00\n", 6, "prefixes[0].not_before", "not before the deadline"},
		{"kept too short", "prefixes:\n  - name: a\n    model: m\n    text: t\n    deadline: 2026-11-11 20:00\n    keep_until: 2026-11-11 19:00\n", 6, "prefixes[0].keep_until", "before the deadline"},
		{"kept from nowhere", "prefixes:\n  - name: a\n    model: m\n    text: t\n    keep_until: 6h\n", 5, "prefixes[0].keep_until", "counts from the deadline"},
		{"share", "prefixes:\n  - name: a\n    model: m\n    text: t\n    share: 30\n", 5, "prefixes[0].share", "outside 0..1"},
		{"where", "prefixes:\n  - name: a\n    model: m\n    text: t\n    where: everywhere\n", 5, "prefixes[0].where", "no place"},
		{"protocol", "prefixes:\n  - name: a\n    model: m\n    text: t\n    protocol: smtp\n", 5, "prefixes[0].protocol", "unknown"},
		{"tools", "prefixes:\n  - name: a\n    model: m\n    text: t\n    tools: \"[{]\"\n", 5, "prefixes[0].tools", "no JSON array"},
		{"same prefix", "prefixes:\n  - {name: a, model: m, text: t}\n  - {name: b, model: m, text: t}\n", 3, "prefixes[1].name", "same prefix as prefixes[0]"},
		{"salt twice", "prefixes:\n  - name: a\n    model: m\n    text: t\n    salts: [x, x]\n", 5, "prefixes[0].salts", "twice"},
		{"static too long", "prefixes:\n  - name: a\n    model: m\n    text: t\n    static_bytes: 9\n", 4, "prefixes[0].text", "static_bytes is 9"},
		{"static cuts a letter", "prefixes:\n  - name: a\n    model: m\n    text: 跨界\n    static_bytes: 4\n", 4, "prefixes[0].text", "within a character"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			m, err := ParseManifest([]byte(c.yaml), t.TempDir())
			var me *ManifestError
			if m != nil || !errors.As(err, &me) {
				t.Fatalf("manifest %v, error %v", m, err)
			}
			f := me.Faults[0]
			if f.Line != c.line || f.Field != c.field || !strings.Contains(f.Problem, c.want) {
				t.Errorf("%+v", f)
			}
		})
	}
}

func TestAllFaultsAreListedAtOnce(t *testing.T) {
	_, err := ParseManifest([]byte("prefixes:\n  - {name: a, model: m, text: t, share: 2, where: no}\n  - {name: a, model: m}\n"), "")
	var me *ManifestError
	if !errors.As(err, &me) || len(me.Faults) != 4 {
		t.Fatalf("%v", err)
	}
	if got := strings.Count(err.Error(), "\n"); got != 4 {
		t.Errorf("%d lines: %v", got, err)
	}
}

func TestYAMLErrorsQuoteNoText(t *testing.T) {
	for _, y := range []string{
		"prefixes:\n  - name: a\n    model: m\n    text: the secret rules\n    nonsense: the secret rules\n",
		"prefixes:\n  - name: a\n    text: the secret rules\n   bad: [indent\n",
		"prefixes:\n  - name: a\n    model: m\n    text: the secret rules\n    rate: the secret rules\n",
	} {
		_, err := ParseManifest([]byte(y), "")
		if err == nil || strings.Contains(err.Error(), "secret") {
			t.Errorf("%v", err)
		}
	}
}

func TestTemplateFaults(t *testing.T) {
	for text, want := range map[string]string{
		"rules {{ .shop":                   "cannot read template",
		"rules {{ .shop }}":                "cannot render template",
		"rules {{ date \"2006\" | nope }}": "cannot read template",
	} {
		path := write(t, map[string]string{"manifest.yaml": "prefixes:\n  - {name: a, model: m, template: t.tmpl}\n", "t.tmpl": text})
		if _, err := LoadManifest(path); err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), ":2:") {
			t.Errorf("%s: %v", text, err)
		}
	}
}

func TestDeadlinesAreLocal(t *testing.T) {
	m, err := ParseManifest([]byte("zone: Asia/Shanghai\nprefixes:\n  - {name: a, model: m, text: t, deadline: 2026-11-11 20:00:00}\n  - {name: b, model: m, text: u, deadline: 2026-11-11T20:00:00-05:00}\n  - {name: c, model: m, text: v, deadline: \"20:00\", zone: America/New_York}\n"), "")
	if err != nil {
		t.Fatal(err)
	}
	at := func(s string) time.Time {
		x, err := time.Parse(time.RFC3339, s)
		if err != nil {
			t.Fatal(err)
		}
		return x
	}
	for i, c := range []struct{ now, want string }{
		{"2026-11-11T00:00:00Z", "2026-11-11T12:00:00Z"},
		{"2026-11-11T00:00:00Z", "2026-11-12T01:00:00Z"},
		{"2026-11-01T03:00:00Z", "2026-11-02T01:00:00Z"}, // the night the clocks go back
	} {
		got, ok := m.Prefixes[i].deadline.next(at(c.now))
		if !ok || !got.Equal(at(c.want)) {
			t.Errorf("%s: %v", m.Prefixes[i].Name, got.UTC())
		}
	}
	if _, ok := m.Prefixes[0].deadline.next(at("2026-11-11T12:00:01Z")); ok {
		t.Error("a past deadline is still to come")
	}
	if got, ok := m.Prefixes[2].deadline.last(at("2026-11-02T02:00:00Z")); !ok || !got.Equal(at("2026-11-02T01:00:00Z")) {
		t.Errorf("the last deadline was %v", got)
	}
}

func TestDailyDeadlineAcrossClockChanges(t *testing.T) {
	berlin, err := time.LoadLocation("Europe/Berlin")
	if err != nil {
		t.Fatal(err)
	}
	d, err := parseDeadline("08:00", berlin)
	if err != nil {
		t.Fatal(err)
	}
	at := time.Date(2026, 3, 27, 12, 0, 0, 0, berlin)
	for range 5 {
		next, ok := d.next(at)
		if !ok || next.In(berlin).Hour() != 8 {
			t.Fatalf("after %s: %s", at, next.In(berlin))
		}
		if gap := next.Sub(at); gap > 25*time.Hour {
			t.Fatalf("after %s: %s", at, gap)
		}
		at = next.Add(time.Second)
	}
}

func TestTextChangesAtMidnight(t *testing.T) {
	m := manifest(t, map[string]string{
		"manifest.yaml": "zone: Asia/Shanghai\nprefixes:\n  - {name: a, model: m, template: a.tmpl, fields: {shop: Nine}}\n  - {name: b, model: m, text: t, engine_date: UTC}\n  - {name: c, model: m, text: u}\n",
		"a.tmpl":        `Today is {{ date "2 January 2006" }} at {{ .shop }}.`,
	})
	want := time.Date(2026, 11, 11, 16, 0, 0, 0, time.UTC) // midnight in Shanghai
	if got, ok := m.Prefixes[0].nextChange(t0); !ok || !got.Equal(want) {
		t.Errorf("the template changes at %v", got)
	}
	if got, ok := m.Prefixes[1].nextChange(t0); !ok || !got.Equal(time.Date(2026, 11, 12, 0, 0, 0, 0, time.UTC)) {
		t.Errorf("the engine's date changes at %v", got)
	}
	if _, ok := m.Prefixes[2].nextChange(t0); ok {
		t.Error("a fixed text changes")
	}
	text, err := m.Prefixes[0].source.text(t0.In(m.Prefixes[0].zone), m.Prefixes[0].Fields)
	if err != nil || text != "Today is 11 November 2026 at Nine." {
		t.Errorf("%q %v", text, err)
	}
}

func FuzzManifest(f *testing.F) {
	f.Add([]byte(threeShops))
	f.Add([]byte("prefixes:\n  - {name: a, model: m, text: t, deadline: 2026-11-11 20:00, template_args: {a: [1, {b: c}]}}\n"))
	dir := f.TempDir()
	f.Fuzz(func(t *testing.T, data []byte) {
		m, err := ParseManifest(data, dir)
		var me *ManifestError
		if err != nil && (!errors.As(err, &me) || m != nil || len(me.Faults) == 0) {
			t.Fatalf("%v", err)
		}
		if err == nil {
			for _, e := range m.Prefixes {
				if _, err := e.head(t0); err != nil {
					t.Fatalf("accepted and not renderable: %v", err)
				}
			}
		}
	})
}
