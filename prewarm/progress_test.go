package prewarm

import (
	"bytes"
	"encoding/xml"
	"errors"
	"io"
	"strings"
	"testing"
)

func TestProgressOnATerminal(t *testing.T) {
	c := newFakeClock()
	a, b := newToy(t, "node-a", c), newToy(t, "node-b", c)
	p := planFor(t, manifest(t, threeFiles()), c.Now(), a, b)
	var out bytes.Buffer
	o := quick(c)
	o.Events = NewProgress(&out, true, 0).Handle
	if _, err := Run(t.Context(), p, o); err != nil {
		t.Fatal(err)
	}
	last := out.String()[strings.LastIndex(out.String(), "\x1b[3A"):]
	for _, want := range []string{"total", "node-a", "node-b", "(6/6)", "(3/3)", "100%"} {
		if !strings.Contains(last, want) {
			t.Errorf("the last picture lacks %q:\n%s", want, last)
		}
	}
	if strings.Count(last, "\n") != 3 {
		t.Errorf("%q", last)
	}
}

func TestProgressWithoutATerminal(t *testing.T) {
	c := newFakeClock()
	a := newToy(t, "a", c)
	a.set(func() { a.asleep = true })
	p := planFor(t, manifest(t, oneShop("")), c.Now(), a)
	var out bytes.Buffer
	o := quick(c)
	o.Events = NewProgress(&out, false, 0).Handle
	if _, err := Run(t.Context(), p, o); err != nil {
		t.Fatal(err)
	}
	want := "0/1 paused    alpha on a: the engine is asleep\n1/1 NOT WARM  alpha on a: no room for 30m0s: the engine is asleep\n"
	if out.String() != want {
		t.Errorf("%s", out.String())
	}
}

func TestProgressBoundsItsRows(t *testing.T) {
	var out bytes.Buffer
	p := NewProgress(&out, true, 2)
	for i := range 40 {
		p.Handle(Event{Kind: EventWarm, Node: strings.Repeat("n", i+1), Done: i, Total: 40, NodeDone: 1, NodeTotal: 1, Proof: &Proof{}})
	}
	for range 2 {
		p.Handle(Event{Kind: EventDone, Done: 40, Total: 40})
	}
	last := out.String()[strings.LastIndex(out.String(), "\x1b[3A"):]
	if strings.Count(last, "\n") != 3 || !strings.Contains(last, "(40/40)") {
		t.Errorf("%q", last)
	}
}

func TestCapacityTableAndPlot(t *testing.T) {
	for _, nodes := range []int{2, 20, 40} {
		in := seed(nodes, 10)
		in.Leave = 1
		c, err := NewCapacity(in)
		if err != nil {
			t.Fatal(err)
		}
		var table, plot bytes.Buffer
		if err := c.WriteTable(&table); err != nil {
			t.Fatal(err)
		}
		for _, want := range []string{"prefix-24", "engine seconds", "70b-tp4", "if 1 nodes fail", "the model leaves out"} {
			if !strings.Contains(table.String(), want) {
				t.Errorf("%d nodes: the table lacks %q", nodes, want)
			}
		}
		if strings.Contains(table.String(), "DOES NOT FIT") == c.Fits {
			t.Errorf("%d nodes: fits %v and\n%s", nodes, c.Fits, table.String())
		}
		if err := c.WriteSVG(&plot); err != nil {
			t.Fatal(err)
		}
		rects := wellFormed(t, plot.Bytes())
		if rects != 1+2*nodes {
			t.Errorf("%d bars for %d nodes", rects, nodes)
		}
		if strings.Contains(plot.String(), "NaN") || strings.Contains(plot.String(), "Inf") {
			t.Error("the plot has numbers that are none")
		}
	}
}

// wellFormed parses the picture and counts its rectangles.
func wellFormed(t *testing.T, svg []byte) (rects int) {
	t.Helper()
	d := xml.NewDecoder(bytes.NewReader(svg))
	for {
		tok, err := d.Token()
		if errors.Is(err, io.EOF) {
			return rects
		}
		if err != nil {
			t.Fatal(err)
		}
		if e, ok := tok.(xml.StartElement); ok && e.Name.Local == "rect" {
			rects++
		}
	}
}
