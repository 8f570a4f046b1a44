package report

import (
	"encoding/csv"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
)

// Save writes path (the HTML page), and beside it the same name with .json and .csv.
// Each file is written whole or not at all, so that a full disk never leaves half a
// report under a good name. It returns what was written.
func (d *Document) Save(path string) ([]string, error) {
	base := strings.TrimSuffix(path, filepath.Ext(path))
	files := []struct {
		path  string
		write func(io.Writer) error
	}{{path, d.HTML}, {base + ".json", d.json}, {base + ".csv", d.CSV}}
	var done []string
	for _, f := range files {
		if err := whole(f.path, f.write); err != nil {
			return done, err
		}
		done = append(done, f.path)
	}
	return done, nil
}

func (d *Document) json(w io.Writer) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(d.Data)
}

// CSV writes tables and lines, one block per table or chart, each with its title.
func (d *Document) CSV(w io.Writer) error {
	c := csv.NewWriter(w)
	for _, t := range d.Tables {
		c.Write([]string{"# " + t.Title})
		c.Write(t.Head)
		c.WriteAll(t.Rows)
	}
	for _, ch := range d.Charts {
		c.Write([]string{"# " + ch.Title})
		c.Write([]string{"line", ch.X, ch.Y})
		for _, l := range ch.Lines {
			for i := range l.X {
				y := ""
				if !bad(l.Y[i]) {
					y = fmt.Sprint(l.Y[i])
				}
				c.Write([]string{l.Name, fmt.Sprint(l.X[i]), y})
			}
		}
	}
	c.Flush()
	return c.Error()
}

func whole(path string, write func(io.Writer) error) error {
	f, err := os.CreateTemp(filepath.Dir(path), ".report-*")
	if err != nil {
		return fmt.Errorf("cannot write %s: %w", path, err)
	}
	err = write(f)
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err == nil {
		err = os.Chmod(f.Name(), 0o644)
	}
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		os.Remove(f.Name())
		return fmt.Errorf("cannot write %s: %w", path, err)
	}
	return nil
}
