package fakeengine

import (
	"bytes"
	"math"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/prefixring/prefixring/internal/dialect"
)

// page builds a Prometheus text page.
type page struct{ b []byte }

func (p *page) family(name, kind, help string) {
	p.b = append(append(append(p.b, "# HELP "...), name...), ' ')
	p.b = append(append(p.b, help...), "\n# TYPE "...)
	p.b = append(append(append(append(p.b, name...), ' '), kind...), '\n')
}

// sample writes one line. labels are ready text, sorted by name, without braces.
func (p *page) sample(name, labels string, v float64) {
	p.b = append(p.b, name...)
	if labels != "" {
		p.b = append(append(append(p.b, '{'), labels...), '}')
	}
	p.b = append(appendNumber(append(p.b, ' '), v), '\n')
}

// appendNumber spells a float as Python's repr does.
func appendNumber(b []byte, v float64) []byte {
	switch {
	case math.IsNaN(v):
		return append(b, "NaN"...)
	case math.IsInf(v, 1):
		return append(b, "+Inf"...)
	case v == math.Trunc(v) && math.Abs(v) < 1e9:
		return append(strconv.AppendInt(b, int64(v), 10), ".0"...)
	case math.Abs(v) >= 1e9:
		return strconv.AppendFloat(b, v, 'e', -1, 64)
	}
	return strconv.AppendFloat(b, v, 'f', -1, 64)
}

// set is the label set of one rank's series.
type set struct{ names, values []string }

func labels(pairs ...string) (s set) {
	for i := 0; i < len(pairs); i += 2 {
		s.names, s.values = append(s.names, pairs[i]), append(s.values, pairs[i+1])
	}
	return s
}

// with renders the set together with more pairs, in the order of the names, which
// is the order prometheus_client writes.
func (s set) with(pairs ...string) string {
	names, values := slices.Clone(s.names), slices.Clone(s.values)
	for i := 0; i < len(pairs); i += 2 {
		at, _ := slices.BinarySearch(names, pairs[i])
		names, values = slices.Insert(names, at, pairs[i]), slices.Insert(values, at, pairs[i+1])
	}
	var b strings.Builder
	for i := range names {
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteString(names[i])
		b.WriteString(`="`)
		b.WriteString(strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", `\n`).Replace(values[i]))
		b.WriteByte('"')
	}
	return b.String()
}

func (p *page) histogram(name string, s set, h *histogram) {
	sum := int64(0)
	for i, bound := range h.bounds {
		sum += h.counts[i]
		p.sample(name+"_bucket", s.with("le", string(appendNumber(nil, bound))), float64(sum))
	}
	p.sample(name+"_bucket", s.with("le", "+Inf"), float64(h.count))
	p.sample(name+"_count", s.with(), float64(h.count))
	p.sample(name+"_sum", s.with(), h.sum)
}

func (e *Engine) metrics(x *wire) {
	b := e.metricsPage()
	if f := x.faults[FaultMetrics]; f != nil {
		b = f.lie(b)
	}
	x.reply(http.StatusOK, "text/plain; version=1.0.0; charset=utf-8", b)
}

func (e *Engine) metricsPage() []byte {
	var p page
	p.family("process_start_time_seconds", "gauge", "When the process began, in Unix seconds.")
	p.sample("process_start_time_seconds", "", float64(e.startedAt().UnixMilli())/1e3)
	switch {
	case e.opts.NoMetrics:
	case e.opts.Dialect == dialect.SGLang:
		e.sglangPage(&p)
	default:
		e.vllmPage(&p)
	}
	return p.b
}

// lie rewrites a page as the fault says.
func (f *fault) lie(b []byte) []byte {
	if f.frozen != nil {
		b = f.frozen
	}
	var out []byte
	for line := range bytes.Lines(b) {
		name := string(line)
		comment := strings.HasPrefix(name, "# ")
		if comment {
			name = strings.Fields(name)[2]
		} else {
			name = name[:strings.IndexAny(name, "{ ")]
		}
		if slices.Contains(f.Remove, name) {
			continue
		}
		if to, ok := f.Rename[name]; ok {
			line = bytes.Replace(line, []byte(name), []byte(to), 1)
		}
		if v, ok := f.Metrics[name]; ok && !comment {
			line = append(bytes.Clone(line[:bytes.LastIndexByte(line, ' ')+1]), v+"\n"...)
		}
		out = append(out, line...)
	}
	return out
}

// createdAt is the value of a _created series.
func createdAt(t time.Time) float64 { return float64(t.UnixMicro()) / 1e6 }
