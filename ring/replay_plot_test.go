//go:build !race

package ring

import (
	"fmt"
	"math"
	"strings"
)

// curve is one line of the plot.
type curve struct {
	name string
	x, y []float64
}

// plotSVG draws hit rate kept (linear, 60..100 %) over requests in flight (logarithmic).
func plotSVG(curves []curve) string {
	const w, h, left, top, right, bottom = 860, 420, 60, 20, 250, 50
	colours := []string{"#c0392b", "#e67e22", "#f1c40f", "#7f8c8d", "#16a085", "#2980b9", "#8e44ad", "#d35400", "#2c3e50", "#27ae60", "#34495e"}
	px := func(x float64) float64 { return left + (math.Log2(x)+0.5)/5*(w-left-right) }
	py := func(y float64) float64 { return top + (100-y)/40*(h-top-bottom) }
	var b strings.Builder
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" font-family="sans-serif" font-size="12">`+"\n", w, h)
	fmt.Fprintf(&b, `<rect width="%d" height="%d" fill="#fff"/>`+"\n", w, h)
	for y := 60.0; y <= 100; y += 5 {
		fmt.Fprintf(&b, `<path d="M%d %.1fH%d" stroke="#ddd"/><text x="%d" y="%.1f" text-anchor="end">%.0f</text>`+"\n", left, py(y), w-right, left-6, py(y)+4, y)
	}
	for _, x := range []float64{1, 2, 4, 8, 16} {
		fmt.Fprintf(&b, `<path d="M%.1f %dV%d" stroke="#ddd"/><text x="%.1f" y="%d" text-anchor="middle">%.0f</text>`+"\n", px(x), top, h-bottom, px(x), h-bottom+16, x)
	}
	fmt.Fprintf(&b, `<path d="M%d %.1fH%d" stroke="#000" stroke-dasharray="4 3"/>`+"\n", left, py(95), w-right)
	fmt.Fprintf(&b, `<text x="%d" y="%d" text-anchor="middle">requests in flight per node, as arriving requests find it</text>`+"\n", (left+w-right)/2, h-14)
	fmt.Fprintf(&b, `<text transform="translate(16 %d) rotate(-90)" text-anchor="middle">share of the unbounded hit rate kept, %%</text>`+"\n", (top+h-bottom)/2)
	for i, c := range curves {
		colour, width := colours[i%len(colours)], 1.5
		if strings.Contains(c.name, "default") {
			width = 4
		}
		var path strings.Builder
		for j := range c.x {
			fmt.Fprintf(&path, "%s%.1f %.1f", map[bool]string{true: "M", false: "L"}[j == 0], px(c.x[j]), py(max(c.y[j], 60)))
		}
		fmt.Fprintf(&b, `<path d="%s" fill="none" stroke="%s" stroke-width="%.1f"/>`+"\n", path.String(), colour, width)
		y := top + 14 + 18*i
		fmt.Fprintf(&b, `<path d="M%d %dh18" stroke="%s" stroke-width="%.1f"/><text x="%d" y="%d">%s</text>`+"\n", w-right+14, y, colour, width, w-right+38, y+4, c.name)
	}
	b.WriteString("</svg>\n")
	return b.String()
}
