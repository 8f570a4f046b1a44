package prewarm

import (
	"encoding/xml"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
)

// WriteSVG draws the figures: the KV memory of each node, fullest first, and the
// utilisation over the number of nodes. The picture stands alone, without scripts or
// fonts from elsewhere.
func (c *Capacity) WriteSVG(w io.Writer) error {
	var b strings.Builder
	b.WriteString(`<svg xmlns="http://www.w3.org/2000/svg" width="960" height="400" viewBox="0 0 960 400" font-family="sans-serif" font-size="12" role="img">` + "\n")
	title := fmt.Sprintf("%d prefixes on %d nodes of %s", len(c.Use), len(c.Nodes), c.Input.Model.Name)
	fmt.Fprintf(&b, "<title>%s</title>\n<rect width=\"960\" height=\"400\" fill=\"#ffffff\"/>\n", escape(title))
	c.plotMemory(&b)
	c.plotNodes(&b)
	b.WriteString("</svg>\n")
	_, err := io.WriteString(w, b.String())
	return err
}

func escape(s string) string {
	var b strings.Builder
	if err := xml.EscapeText(&b, []byte(s)); err != nil {
		panic("BUG: a builder does not fail: " + err.Error())
	}
	return b.String()
}

// frame is the inside of one plot.
type frame struct{ x, y, w, h float64 }

func (f frame) axes(b *strings.Builder, title, below string, top float64, unit string) {
	fmt.Fprintf(b, `<text x="%.0f" y="%.0f" font-size="14" font-weight="bold" fill="#222222">%s</text>`+"\n", f.x, f.y-14, escape(title))
	for i := range 5 {
		v := top * float64(i) / 4
		y := f.y + f.h - f.h*float64(i)/4
		fmt.Fprintf(b, `<line x1="%.1f" y1="%.1f" x2="%.1f" y2="%.1f" stroke="#dddddd"/><text x="%.1f" y="%.1f" text-anchor="end" fill="#444444">%s</text>`+"\n", f.x, y, f.x+f.w, y, f.x-6, y+4, escape(short(v)+unit))
	}
	fmt.Fprintf(b, `<text x="%.1f" y="%.1f" text-anchor="middle" fill="#444444">%s</text>`+"\n", f.x+f.w/2, f.y+f.h+34, escape(below))
}

func short(v float64) string {
	switch {
	case v >= 1e6:
		return fmt.Sprintf("%.3gM", v/1e6)
	case v >= 1e3:
		return fmt.Sprintf("%.3gk", v/1e3)
	}
	return fmt.Sprintf("%.3g", v)
}

// plotMemory stacks prefixes and running requests of each node under the capacity line.
func (c *Capacity) plotMemory(b *strings.Builder) {
	f := frame{70, 50, 380, 280}
	nodes := slices.Clone(c.Nodes)
	slices.SortStableFunc(nodes, func(x, y CapacityNode) int { return int(min(max(x.Free-y.Free, -1), 1)) })
	top := float64(c.Input.KVTokens) * 1.1
	for _, n := range nodes {
		top = math.Max(top, float64(n.Tokens+n.Working)*1.05)
	}
	f.axes(b, "KV memory by node, fullest first", fmt.Sprintf("%d nodes", len(nodes)), top, "")
	bars := min(len(nodes), 128)
	width := f.w / float64(bars)
	for i := range bars {
		n := nodes[i*len(nodes)/bars]
		x := f.x + width*float64(i)
		prefix, working := f.h*float64(n.Tokens)/top, f.h*float64(n.Working)/top
		colour := "#2b6cb0"
		if n.Free < 0 {
			colour = "#c53030"
		}
		fmt.Fprintf(b, `<rect x="%.2f" y="%.2f" width="%.2f" height="%.2f" fill="%s"><title>%s: %d prefix tokens, %d of running requests, %d free</title></rect>`, x, f.y+f.h-prefix, width*0.9, prefix, colour, escape(n.Node), n.Tokens, n.Working, n.Free)
		fmt.Fprintf(b, `<rect x="%.2f" y="%.2f" width="%.2f" height="%.2f" fill="#a0aec0"/>`+"\n", x, f.y+f.h-prefix-working, width*0.9, working)
	}
	y := f.y + f.h - f.h*float64(c.Input.KVTokens)/top
	fmt.Fprintf(b, `<line x1="%.1f" y1="%.1f" x2="%.1f" y2="%.1f" stroke="#222222" stroke-dasharray="4 3"/><text x="%.1f" y="%.1f" text-anchor="end" fill="#222222">capacity</text>`+"\n", f.x, y, f.x+f.w, y, f.x+f.w, y-4)
	fmt.Fprintf(b, `<text x="%.0f" y="%.0f" fill="#2b6cb0">prefixes</text><text x="%.0f" y="%.0f" fill="#718096">running requests</text>`+"\n", f.x, f.y+f.h+18, f.x+70, f.y+f.h+18)
}

// plotNodes draws utilisation against the number of nodes, with the target and this fleet.
func (c *Capacity) plotNodes(b *strings.Builder) {
	f := frame{540, 50, 380, 280}
	work := c.Input.Rate * c.Peak.EngineSeconds
	most := math.Max(2*float64(len(c.Nodes)), 2*work/c.Input.Utilisation)
	f.axes(b, "Utilisation at the peak by number of nodes", "nodes, up to "+short(most), 100, " %")
	at := func(nodes, share float64) (x, y float64) {
		return f.x + f.w*nodes/most, f.y + f.h - f.h*math.Min(share, 1)
	}
	var path strings.Builder
	for i := range 101 {
		n := math.Max(most*float64(i)/100, 1)
		x, y := at(n, work/n)
		fmt.Fprintf(&path, "%.1f,%.1f ", x, y)
	}
	fmt.Fprintf(b, `<polyline points="%s" fill="none" stroke="#2b6cb0" stroke-width="2"/>`+"\n", strings.TrimSpace(path.String()))
	_, y := at(0, c.Input.Utilisation)
	fmt.Fprintf(b, `<line x1="%.1f" y1="%.1f" x2="%.1f" y2="%.1f" stroke="#2f855a" stroke-dasharray="4 3"/><text x="%.1f" y="%.1f" text-anchor="end" fill="#2f855a">target %.0f %%</text>`+"\n", f.x, y, f.x+f.w, y, f.x+f.w, y-4, 100*c.Input.Utilisation)
	x, y := at(float64(len(c.Nodes)), c.Peak.Utilisation)
	fmt.Fprintf(b, `<circle cx="%.1f" cy="%.1f" r="5" fill="#c05621"/><text x="%.1f" y="%.1f" fill="#c05621">%d nodes: %.0f %%</text>`+"\n", x, y, math.Min(x+8, f.x+f.w-110), y-8, len(c.Nodes), 100*c.Peak.Utilisation)
}
