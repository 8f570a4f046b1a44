package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/urfave/cli/v2"

	"github.com/prefixring/prefixring/bench"
	"github.com/prefixring/prefixring/bench/report"
)

func benchReportCommand() *cli.Command {
	return &cli.Command{
		Name:      "report",
		Usage:     "make one HTML page of a result, or of two side by side",
		ArgsUsage: "RESULT.json [RESULT.json]",
		UsageText: "prefixring bench run --url http://127.0.0.1:8080 --model llama --json > a.json\n" +
			"prefixring bench report --out a.html a.json\n" +
			"prefixring bench report --diff --out diff.html a.json b.json",
		Description: "The page needs no network. The figures are written beside it as .json and .csv.",
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "out", Value: "report.html", Usage: "`FILE` of the page"},
			&cli.StringFlag{Name: "title", Usage: "of the page (default: the file's name)"},
			&cli.BoolFlag{Name: "diff", Usage: "set two results side by side"},
		},
		Action: func(c *cli.Context) error {
			files := c.Args().Slice()
			want := 1
			if c.Bool("diff") {
				want = 2
			}
			if len(files) != want {
				return usageError(fmt.Errorf("bench report needs %d results, not %d; --diff takes two", want, len(files)))
			}
			results := make([]*bench.Result, want)
			for i, name := range files {
				var err error
				if results[i], err = readResult(name); err != nil {
					return usageError(err)
				}
			}
			if want == 2 {
				return saveReport(c, report.Diff(filepath.Base(files[0]), filepath.Base(files[1]), results[0], results[1]), c.String("out"))
			}
			title := c.String("title")
			if title == "" {
				title = filepath.Base(files[0])
			}
			return saveReport(c, report.FromRun(title, results[0]), c.String("out"))
		},
	}
}

// readResult reads what bench run --json printed. Another JSON file is told from it by
// the fields that each result has.
func readResult(path string) (*bench.Result, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var r bench.Result
	if err := json.Unmarshal(b, &r); err != nil {
		return nil, fmt.Errorf("cannot read %s: %w", path, err)
	}
	if r.Mode == "" {
		return nil, fmt.Errorf("cannot read %s: %w", path, errors.New("it is no result of bench run --json"))
	}
	return &r, nil
}
