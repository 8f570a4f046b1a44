package report

import (
	"bytes"
	"encoding/csv"
	"encoding/json"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/prefixring/prefixring/bench"
	"github.com/prefixring/prefixring/bench/sim"
)

func quantiles(base float64) *bench.Quantiles {
	return &bench.Quantiles{P50: base, P90: 2 * base, P99: 3 * base, Max: 4 * base, Mean: base, Count: 100}
}

// sample is a measurement with everything in it, and names that try to break out.
func sample() *bench.Result {
	hit := 0.75
	cached := int64(7500)
	r := &bench.Result{Planned: 100, Sent: 100, Succeeded: 97, Errors: map[string]int64{"http_503": 2, "<script>": 1}, Valid: true,
		TTFT: quantiles(200), E2E: quantiles(900), TPOT: quantiles(12), FirstByte: quantiles(150), HitRate: &hit, CachedTokens: &cached,
		Curves: map[string]bench.Curve{}, Definitions: map[string]string{"ttft_ms": "first token"}, Mode: "open-loop", Seed: 7, OutputBasis: "usage"}
	r.Settings.Workload = bench.Workload{Name: `a "fat" <b>workload</b>`}
	for _, k := range []string{"ttft_ms", "e2e_ms"} {
		c := make(bench.Curve, len(bench.CurvePercentiles))
		for i := range c {
			c[i] = float64(i+1) * 50
		}
		r.Curves[k] = c
	}
	for i := range 20 {
		p50, p99 := 100+float64(i), 300+float64(i)
		b := bench.Bucket{At: float64(i), Width: 1, Sent: 5, Done: 5, TTFT50: &p50, TTFT99: &p99}
		if i == 7 {
			b.TTFT50, b.TTFT99 = nil, nil // a second without an answer breaks the line
		}
		r.Series = append(r.Series, b)
	}
	for p := range 3 {
		r.Prefixes = append(r.Prefixes, bench.Group{Name: fmt.Sprint("prefix ", p), Requests: 10, TTFT: quantiles(100)})
		r.Heat = append(r.Heat, bench.Cell{Prefix: p, Node: "engine <&>", Requests: 10, Cold: int64(p)})
	}
	return r
}

func render(t *testing.T, d *Document) string {
	t.Helper()
	var b bytes.Buffer
	if err := d.HTML(&b); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

var svgs = regexp.MustCompile(`(?s)<svg.*?</svg>`)

func TestPageStandsAlone(t *testing.T) {
	page := render(t, FromRun("A run", sample()))
	for _, bad := range []string{"http://", "https://", "src=", "@import", "url(", "<script", "<link", "NaN", "Inf", "%!"} {
		if strings.Contains(page, bad) {
			t.Errorf("the page contains %q", bad)
		}
	}
	for _, want := range []string{"prefers-color-scheme:dark", "width=device-width", "&lt;b&gt;workload", "75.0 %", "first token", "http_503"} {
		if !strings.Contains(page, want) {
			t.Errorf("the page lacks %q", want)
		}
	}
	found := svgs.FindAllString(page, -1)
	if len(found) != 4 {
		t.Fatalf("%d drawings, want three charts and a heat map", len(found))
	}
	for _, s := range found {
		dec := xml.NewDecoder(strings.NewReader(s))
		for {
			if _, err := dec.Token(); err == io.EOF {
				break
			} else if err != nil {
				t.Fatalf("a drawing is not well formed: %v\n%s", err, s)
			}
		}
	}
}

func TestInvalidRunsSaySoFirst(t *testing.T) {
	r := sample()
	r.Valid, r.InvalidFor = false, []string{"a request left 250 ms late"}
	page := render(t, FromRun("A run", r))
	warn, tile := strings.Index(page, "250 ms late"), strings.Index(page, `class="tile"`)
	if warn < 0 || warn > tile {
		t.Error("the warning does not stand above the figures")
	}
}

func TestEmptyResultsMakeAPage(t *testing.T) {
	page := render(t, FromRun("Nothing", &bench.Result{}))
	if !strings.Contains(page, "No samples") {
		t.Error("a run without samples does not say so")
	}
	render(t, FromSim("Nothing", sim.Scenario{}, 1, nil))
}

func TestLinesStayInsideTheChart(t *testing.T) {
	c := Chart{Lines: []Line{{Name: "x", X: []float64{0, 10, 20, 30}, Y: []float64{1e-3, math.NaN(), 5e6, 3}}}}
	number := regexp.MustCompile(`[ML](-?[0-9.]+) (-?[0-9.]+)`)
	for _, c.LogY = range []bool{false, true} {
		m := number.FindAllStringSubmatch(c.svg(), -1)
		if len(m) != 3 {
			t.Fatalf("%d points drawn, want 3", len(m))
		}
		for _, p := range m {
			var x, y float64
			fmt.Sscan(p[1], &x)
			fmt.Sscan(p[2], &y)
			if x < padL-1 || x > chartW-padR+1 || y < padT-1 || y > chartH-padB+1 {
				t.Errorf("a point at %v,%v lies outside (log %v)", x, y, c.LogY)
			}
		}
	}
}

func TestSaveWritesThreeFilesOrNone(t *testing.T) {
	dir := t.TempDir()
	d := FromRun("A run", sample())
	files, err := d.Save(filepath.Join(dir, "out.html"))
	if err != nil || len(files) != 3 {
		t.Fatalf("%v %v", files, err)
	}
	raw, err := os.ReadFile(filepath.Join(dir, "out.json"))
	if err != nil {
		t.Fatal(err)
	}
	var back bench.Result
	if err := json.Unmarshal(raw, &back); err != nil || back.Sent != 100 || back.TTFT.P50 != 200 {
		t.Errorf("the JSON does not come back: %v", err)
	}
	table, err := os.Open(filepath.Join(dir, "out.csv"))
	if err != nil {
		t.Fatal(err)
	}
	defer table.Close()
	c := csv.NewReader(table)
	c.FieldsPerRecord = -1
	if rows, err := c.ReadAll(); err != nil || len(rows) < 40 {
		t.Errorf("%d rows of CSV, %v", len(rows), err)
	}
	if _, err := d.Save(filepath.Join(dir, "none", "out.html")); err == nil {
		t.Error("a folder that is not there was written to")
	}
	// A writer that fails half way, as a full disk does, leaves nothing behind.
	full := errors.New("no space left on device")
	target := filepath.Join(dir, "half.html")
	err = whole(target, func(w io.Writer) error {
		io.WriteString(w, "half")
		return full
	})
	if !errors.Is(err, full) {
		t.Errorf("a full disk gave %v", err)
	}
	left, err := filepath.Glob(filepath.Join(dir, "*half*"))
	hidden, _ := filepath.Glob(filepath.Join(dir, ".report-*"))
	if err != nil || len(left)+len(hidden) != 0 {
		t.Errorf("left behind: %v %v", left, hidden)
	}
}

func TestDiffNamesChangesAndUnfairComparisons(t *testing.T) {
	a, b := sample(), sample()
	b.TTFT = quantiles(100)
	page := render(t, Diff("before", "after", a, b))
	if !strings.Contains(page, "-50.0 %") || strings.Contains(page, "two different loads") {
		t.Error("the change of the first token is missing, or a fair comparison is called unfair")
	}
	b.Seed = 8
	if page := render(t, Diff("before", "after", a, b)); !strings.Contains(page, "two different loads") {
		t.Error("two seeds are compared without a word")
	}
}

func TestSimulationsAreShownByStageAndOverTime(t *testing.T) {
	r := func(stage string, n int64) sim.Result {
		return sim.Result{Stage: stage, Requests: n, TTFT: quantiles(300), TPOT: quantiles(20), HitRate: 0.9,
			Minutes: []sim.Minute{{At: 0, Width: 10, Requests: 5, Cold: 1, TTFTMean: 300}, {At: 10, Width: 10, Requests: 6, TTFTMean: 280}}}
	}
	steps := render(t, FromSim("Steps", sim.Scenario{About: "steps", Engines: 4}, 1, []sim.Outcome{{Policy: "ring", Results: []sim.Result{r("3 req/s", 10), r("4 req/s", 20)}}}))
	once := render(t, FromSim("Once", sim.Scenario{About: "once", Engines: 4}, 1, []sim.Outcome{{Policy: "ring", Results: []sim.Result{r("sale", 10)}}}))
	if !strings.Contains(steps, "4 req/s") || !strings.Contains(once, "Cold prefills by the time") || !strings.Contains(once, "90.00 %") {
		t.Error("stages, series or figures are missing")
	}
}
