// Package report turns results into one self-contained HTML file: no script, no font
// and no picture comes from anywhere else, so the file can be mailed, archived and
// opened from a phone on a train. The figures go beside it as JSON and CSV.
//
// It knows nothing of how figures are made: FromRun and FromSim fill a
// Document, and a Document is tables, charts and a heat map. All functions are pure
// but Save, which writes files, and safe for concurrent use.
package report

// Document is what a report shows, from top to bottom. Empty parts are left out.
type Document struct {
	Title    string
	Subtitle string
	Warnings []string // why the figures may not count; shown first
	Tiles    []Tile
	Charts   []Chart
	Heat     *Heat
	Tables   []Table
	Data     any // written as JSON beside the page
}

// Tile is one headline figure.
type Tile struct{ Name, Value, Note string }

// Table is a plain table. Cells beginning with a digit are set right.
type Table struct {
	Title string
	Head  []string
	Rows  [][]string
	Note  string
}

// Chart is a line chart.
type Chart struct {
	Title  string
	X, Y   string // axis titles with their units
	XTicks []Tick // empty: round numbers
	LogY   bool
	Lines  []Line
	Note   string
}

// Tick is a labelled place on the x axis.
type Tick struct {
	At    float64
	Label string
}

// Line is one series. A NaN breaks the line.
type Line struct {
	Name string
	X, Y []float64
}

// Heat is a matrix of values from 0 to 1 with a count in each cell.
type Heat struct {
	Title string
	Rows  []string
	Cols  []string
	Share [][]float64 // cold share, 0..1; NaN: no request
	Count [][]int64
	Note  string
}
