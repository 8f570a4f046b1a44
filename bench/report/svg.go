package report

import (
	"fmt"
	"html"
	"math"
	"strings"
)

// The drawing area of a chart in SVG units; the page scales it to the window.
const (
	chartW, chartH     = 720.0, 300.0
	padL, padR         = 58.0, 14.0
	padT, padB         = 12.0, 44.0
	maxLines           = 9 // as many as there are colours that can be told apart
	heatCell, heatHead = 26.0, 120.0
)

// svg draws a line chart. Values are also in title elements, which browsers show when
// the pointer rests on a point.
func (c *Chart) svg() string {
	xlo, xhi, ylo, yhi := c.bounds()
	if xlo > xhi {
		return `<p class="note">No samples.</p>`
	}
	px := func(x float64) float64 { return padL + (x-xlo)/(xhi-xlo)*(chartW-padL-padR) }
	py := func(y float64) float64 {
		if c.LogY {
			return chartH - padB - (math.Log10(y)-math.Log10(ylo))/(math.Log10(yhi)-math.Log10(ylo))*(chartH-padT-padB)
		}
		return chartH - padB - (y-ylo)/(yhi-ylo)*(chartH-padT-padB)
	}
	var b strings.Builder
	fmt.Fprintf(&b, `<svg viewBox="0 0 %g %g" role="img" aria-label="%s">`, chartW, chartH, html.EscapeString(c.Title))
	for _, t := range c.yTicks(ylo, yhi) {
		y := py(t)
		fmt.Fprintf(&b, `<line class="grid" x1="%g" x2="%g" y1="%.1f" y2="%.1f"/><text class="tick" x="%g" y="%.1f" text-anchor="end">%s</text>`,
			padL, chartW-padR, y, y, padL-6, y+4, short(t))
	}
	ticks := c.XTicks
	if len(ticks) == 0 {
		for _, t := range nice(xlo, xhi, 8) {
			ticks = append(ticks, Tick{t, short(t)})
		}
	}
	for _, t := range ticks {
		fmt.Fprintf(&b, `<text class="tick" x="%.1f" y="%g" text-anchor="middle">%s</text>`, px(t.At), chartH-padB+16, html.EscapeString(t.Label))
	}
	fmt.Fprintf(&b, `<text class="axis" x="%g" y="%g" text-anchor="middle">%s</text>`, (padL+chartW-padR)/2, chartH-8, html.EscapeString(c.X))
	fmt.Fprintf(&b, `<text class="axis" transform="translate(14 %g) rotate(-90)" text-anchor="middle">%s</text>`, (padT+chartH-padB)/2, html.EscapeString(c.Y))
	for i, l := range c.Lines[:min(len(c.Lines), maxLines)] {
		b.WriteString(l.path(i, px, py, c.LogY))
	}
	b.WriteString(`</svg>`)
	return b.String()
}

func (l *Line) path(i int, px, py func(float64) float64, log bool) string {
	var d, dots strings.Builder
	pen := "M"
	for j := range l.X {
		if bad(l.X[j]) || bad(l.Y[j]) || (log && l.Y[j] <= 0) {
			pen = "M"
			continue
		}
		x, y := px(l.X[j]), py(l.Y[j])
		fmt.Fprintf(&d, "%s%.1f %.1f", pen, x, y)
		pen = "L"
		if len(l.X) <= 200 {
			fmt.Fprintf(&dots, `<circle cx="%.1f" cy="%.1f" r="6" class="hit"><title>%s: %s at %s</title></circle>`, x, y, html.EscapeString(l.Name), short(l.Y[j]), short(l.X[j]))
		}
	}
	return fmt.Sprintf(`<path class="line s%d" d="%s"/>%s`, i, d.String(), dots.String())
}

func (c *Chart) bounds() (xlo, xhi, ylo, yhi float64) {
	xlo, ylo, xhi, yhi = math.Inf(1), math.Inf(1), math.Inf(-1), math.Inf(-1)
	for _, l := range c.Lines {
		for i := range l.X {
			if bad(l.X[i]) || bad(l.Y[i]) || (c.LogY && l.Y[i] <= 0) {
				continue
			}
			xlo, xhi = min(xlo, l.X[i]), max(xhi, l.X[i])
			ylo, yhi = min(ylo, l.Y[i]), max(yhi, l.Y[i])
		}
	}
	if xlo > xhi {
		return
	}
	if xhi == xlo {
		xhi = xlo + 1
	}
	if c.LogY {
		ylo, yhi = math.Pow(10, math.Floor(math.Log10(ylo))), math.Pow(10, math.Ceil(math.Log10(yhi)))
		if yhi <= ylo {
			yhi = ylo * 10
		}
		return
	}
	ylo = min(ylo, 0)
	if yhi <= ylo {
		yhi = ylo + 1
	}
	t := nice(ylo, yhi, 5)
	if step := t[1] - t[0]; t[len(t)-1] < yhi {
		yhi = t[len(t)-1] + step
	}
	return
}

func (c *Chart) yTicks(lo, hi float64) []float64 {
	if !c.LogY {
		return nice(lo, hi, 5)
	}
	var out []float64
	for v := lo; v <= hi*1.0001; v *= 10 {
		out = append(out, v)
	}
	return out
}

// nice gives round numbers, at least two, that cover about n steps from lo to hi.
func nice(lo, hi float64, n int) []float64 {
	raw := (hi - lo) / float64(n)
	mag := math.Pow(10, math.Floor(math.Log10(raw)))
	step := mag
	for _, m := range []float64{1, 2, 5, 10} {
		if step = m * mag; step >= raw {
			break
		}
	}
	var out []float64
	for v := math.Ceil(lo/step) * step; v <= hi+step*1e-9; v += step {
		out = append(out, v)
	}
	for len(out) < 2 {
		out = append(out, lo+step*float64(len(out)))
	}
	return out
}

func bad(v float64) bool { return math.IsNaN(v) || math.IsInf(v, 0) }

// short writes a number the way people read it.
func short(v float64) string {
	a := math.Abs(v)
	switch {
	case a >= 1e6:
		return trim(v/1e6, 2) + "M"
	case a >= 1e4:
		return trim(v/1e3, 1) + "k"
	case a >= 100 || v == math.Trunc(v):
		return trim(v, 0)
	case a >= 1:
		return trim(v, 2)
	default:
		return trim(v, 3)
	}
}

func trim(v float64, digits int) string {
	s := fmt.Sprintf("%.*f", digits, v)
	if strings.Contains(s, ".") {
		s = strings.TrimRight(strings.TrimRight(s, "0"), ".")
	}
	return s
}

// svg draws the heat map; darker is colder, an empty cell had no request.
func (h *Heat) svg() string {
	w := heatHead + heatCell*float64(len(h.Cols)) + 10
	height := heatCell*float64(len(h.Rows)) + 30 + 70
	var b strings.Builder
	fmt.Fprintf(&b, `<svg class="heat" style="width:%gpx" viewBox="0 0 %g %g" role="img" aria-label="%s">`, w, w, height, html.EscapeString(h.Title))
	for r, name := range h.Rows {
		y := heatCell * float64(r)
		fmt.Fprintf(&b, `<text class="tick" x="%g" y="%.1f" text-anchor="end">%s</text>`, heatHead-6, y+17, html.EscapeString(clip(name, 18)))
		for c := range h.Cols {
			n := h.Count[r][c]
			if n == 0 {
				fmt.Fprintf(&b, `<rect class="none" x="%.1f" y="%.1f" width="%g" height="%g"/>`, heatHead+heatCell*float64(c), y, heatCell-2, heatCell-2)
				continue
			}
			fmt.Fprintf(&b, `<rect class="cell" fill-opacity="%.2f" x="%.1f" y="%.1f" width="%g" height="%g"><title>%s on %s: %d requests, %.0f %% cold</title></rect>`,
				0.15+0.85*h.Share[r][c], heatHead+heatCell*float64(c), y, heatCell-2, heatCell-2,
				html.EscapeString(name), html.EscapeString(h.Cols[c]), n, 100*h.Share[r][c])
		}
	}
	y := heatCell*float64(len(h.Rows)) + 8
	for c, name := range h.Cols {
		x := heatHead + heatCell*float64(c) + heatCell/2
		fmt.Fprintf(&b, `<text class="tick" transform="translate(%.1f %.1f) rotate(60)">%s</text>`, x-4, y, html.EscapeString(clip(name, 16)))
	}
	b.WriteString(`</svg>`)
	return b.String()
}

func clip(s string, n int) string {
	if r := []rune(s); len(r) > n {
		return string(r[:n-1]) + "…"
	}
	return s
}
