package ledger

import (
	"time"

	"github.com/prefixring/prefixring/internal/cost"
)

// answer is a report that status lines share, so that each look does not read the file.
type answer struct {
	at, from time.Time
	report   *cost.Report
}

// fresh is how old a shared answer may get.
const fresh = 10 * time.Second

// Today is the report of the present local day, by node, at most a few seconds old.
func (r *Recorder) Today(book *cost.Book, loc *time.Location) (*cost.Report, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.o.Now().In(loc)
	y, m, d := now.Date()
	from := time.Date(y, m, d, 0, 0, 0, 0, loc)
	age := now.Sub(r.today.at)
	if r.today.report != nil && age >= 0 && age < fresh && r.today.from.Equal(from) {
		return r.today.report, nil
	}
	rep, err := r.report(book, cost.ReportOptions{By: []cost.Dim{cost.ByNode}, Location: loc, From: from})
	if err == nil {
		r.today = answer{now, from, rep}
	}
	return rep, err
}
