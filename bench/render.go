package bench

import (
	"fmt"
	"io"
	"math"
	"time"

	"github.com/schollz/progressbar/v3"
)

// Renderer shows a run while it goes on: a bar on a terminal, else a plain line every
// two seconds. It is used from one goroutine (OnProgress).
type Renderer struct {
	w     io.Writer
	label string
	bar   *progressbar.ProgressBar
	last  time.Duration
}

// NewRenderer makes a renderer; tty says whether w is a terminal.
func NewRenderer(w io.Writer, tty bool, label string) *Renderer {
	r := &Renderer{w: w, label: label}
	if tty {
		r.bar = progressbar.NewOptions64(1000,
			progressbar.OptionSetWriter(w), progressbar.OptionSetWidth(24), progressbar.OptionSetDescription(label),
			progressbar.OptionSetPredictTime(false), progressbar.OptionSetElapsedTime(false),
			progressbar.OptionThrottle(100*time.Millisecond), progressbar.OptionUseANSICodes(true))
	}
	return r
}

// Update shows the progress.
func (r *Renderer) Update(p Progress) {
	text := fmt.Sprintf("%s  %5.0f req/s  %d open  %d done  %d errors  TTFT p50 %s p99 %s  hits %s", r.label,
		p.Rate, p.InFlight, p.Done, p.Errors, millis(p.TTFT50), millis(p.TTFT99), percent(p.HitRate))
	if r.bar == nil {
		if p.Final || p.Elapsed-r.last >= 2*time.Second {
			r.last = p.Elapsed
			fmt.Fprintf(r.w, "%5.1fs %s\n", p.Elapsed.Seconds(), text)
		}
		return
	}
	// A terminal that went away must not end the run: drawing errors are ignored.
	r.bar.Describe(text)
	_ = r.bar.Set64(int64(math.Round(1000 * p.share())))
	if p.Final {
		_ = r.bar.Exit()
		fmt.Fprintln(r.w)
	}
}

// share is how far the run is, by requests settled where their number is known.
func (p Progress) share() float64 {
	switch {
	case p.Final:
		return 1
	case p.Planned > 0:
		return min(1, float64(p.Done+p.Errors)/float64(p.Planned))
	case p.Total > 0:
		return min(1, float64(p.Elapsed)/float64(p.Total))
	}
	return 0
}

func millis(ms float64) string {
	switch {
	case math.IsNaN(ms):
		return "-"
	case ms >= 10000:
		return fmt.Sprintf("%.1f s", ms/1000)
	case ms >= 1000:
		return fmt.Sprintf("%.2f s", ms/1000)
	default:
		return fmt.Sprintf("%.0f ms", ms)
	}
}

func percent(v float64) string {
	if math.IsNaN(v) {
		return "-"
	}
	return fmt.Sprintf("%.1f %%", 100*v)
}
