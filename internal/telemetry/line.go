package telemetry

import (
	"io"
	"strconv"
)

// WriteLine writes one sample in the Prometheus text format, for numbers that are read
// from their owner at each scrape. Label pairs are key, value.
func WriteLine(w io.Writer, metric string, value float64, labels ...string) {
	b := append([]byte(name(metric, labels...)), ' ')
	b = strconv.AppendFloat(b, value, 'f', -1, 64)
	_, _ = w.Write(append(b, '\n')) // a scraper that has left is nobody's error
}
