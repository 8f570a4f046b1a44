package ledger

import (
	"fmt"
	"time"

	"go.etcd.io/bbolt"

	"github.com/prefixring/prefixring/internal/cost"
)

// Span is what a query asks for: minutes in [From, To), and where rows of two sides
// must not be taken as one.
type Span struct {
	From, To int64
	Cuts     []int64 // in order, within (From, To)
	Minutes  bool    // each minute on its own
}

// Bounds returns the first minute of the ledger and the end of the last; 0, 0 when it
// is empty.
func (s *Store) Bounds() (from, to int64, err error) {
	err = guard(func() error {
		return s.db.View(func(tx *bbolt.Tx) error {
			c := tx.Bucket([]byte("hour")).Cursor()
			first, b := c.First()
			if first == nil {
				return nil
			}
			from = minuteOfKey(first)
			last, _ := c.Last()
			to = minuteOfKey(last) + 60
			// The first block knows its first minute, where it can be read.
			decode(b, from, func(_ *cost.Row, first, _ int64) { from = max(from, first) })
			return nil
		})
	})
	return from, to, err
}

// Query calls f for each row of a span; it is valid during the call only. first and
// last are the minutes that the row's block was made from. The notes say where the
// answer had to be coarser than the question, or lacks what cannot be read.
func (s *Store) Query(q Span, f func(r *cost.Row, first, last int64)) (notes []string, err error) {
	err = guard(func() error {
		return s.db.View(func(tx *bbolt.Tx) error {
			notes = nil
			kept := int64(number(tx.Bucket(metaBucket), keyMinutes))
			if q.coarsen(kept) {
				notes = append(notes, fmt.Sprintf("minutes before %s are kept as hours only: borders before that were moved to whole hours", stamp(kept)))
			}
			damaged := 0
			for _, p := range q.pieces(kept) {
				damaged += p.read(tx, f)
			}
			if damaged > 0 {
				notes = append(notes, fmt.Sprintf("%d blocks of the ledger cannot be read and are left out", damaged))
			}
			return nil
		})
	})
	if err != nil {
		return nil, fmt.Errorf("cannot read the ledger: %w", err)
	}
	return notes, nil
}

func stamp(minute int64) string { return time.Unix(minute*60, 0).UTC().Format("2006-01-02T15:04Z") }

// coarsen moves borders to whole hours where no minutes are kept, and reports whether
// there were any.
func (q *Span) coarsen(kept int64) (moved bool) {
	if q.From < kept && q.From%60 != 0 {
		q.From, moved = floor(q.From, 60), true
	}
	if q.To < kept && q.To%60 != 0 {
		q.To, moved = floor(q.To, 60)+60, true
	}
	cuts := make([]int64, 0, len(q.Cuts))
	for _, c := range q.Cuts {
		if c < kept && c%60 != 0 {
			c, moved = floor(c, 60), true
		}
		if c > q.From && c < q.To && (len(cuts) == 0 || c > cuts[len(cuts)-1]) {
			cuts = append(cuts, c)
		}
	}
	q.Cuts = cuts
	return moved || q.Minutes && q.From < kept
}

// piece is a run of blocks of one level.
type piece struct {
	level    level
	from, to int64
}

// pieces covers the span with as few blocks as its borders allow.
func (q *Span) pieces(kept int64) []piece {
	var out []piece
	at := q.From
	for i := 0; i <= len(q.Cuts); i++ {
		end := q.To
		if i < len(q.Cuts) {
			end = q.Cuts[i]
		}
		for at < end {
			p := q.next(at, end, kept)
			if n := len(out); n > 0 && out[n-1].level == p.level && out[n-1].to == p.from {
				out[n-1].to = p.to
			} else {
				out = append(out, p)
			}
			at = p.to
		}
	}
	return out
}

// next takes the longest run of the coarsest level that begins at a minute.
func (q *Span) next(at, end, kept int64) piece {
	day, hour := levels[2], levels[1]
	switch {
	case q.Minutes && at >= kept:
		return piece{levels[0], at, end}
	case !q.Minutes && floor(at, 1440) == at && at+1440 <= end:
		return piece{day, at, floor(end, 1440)}
	case floor(at, 60) == at && at+60 <= end:
		return piece{hour, at, min(floor(end, 60), floor(at, 1440)+1440)}
	}
	return piece{levels[0], at, min(end, floor(at, 60)+60)}
}

// read calls f for each row of the piece and returns how many blocks it could not read.
func (p *piece) read(tx *bbolt.Tx, f func(r *cost.Row, first, last int64)) (damaged int) {
	c := tx.Bucket([]byte(p.level.name)).Cursor()
	for k, v := c.Seek(key(p.from)); k != nil && minuteOfKey(k) < p.to; k, v = c.Next() {
		if decode(v, minuteOfKey(k), f) != nil {
			damaged++
		}
	}
	return damaged
}

// Report answers a report's question from the file. From and To of the options may be
// open.
func (s *Store) Report(book *cost.Book, o cost.ReportOptions) (*cost.Report, error) {
	r := cost.NewReporter(book, o)
	notes, err := s.report(r, book, &o)
	if err != nil {
		return nil, err
	}
	out := r.Report()
	out.Notes = append(out.Notes, notes...)
	return out, nil
}

// report adds the rows of the question to a reporter.
func (s *Store) report(r *cost.Reporter, book *cost.Book, o *cost.ReportOptions) ([]string, error) {
	from, to, err := s.Bounds()
	if err != nil {
		return nil, fmt.Errorf("cannot read the ledger: %w", err)
	}
	if !o.From.IsZero() {
		from = max(from, cost.Minute(o.From))
	}
	if !o.To.IsZero() {
		to = min(to, cost.Minute(o.To))
	}
	if from >= to {
		return nil, nil
	}
	q := Span{From: from, To: to, Cuts: cost.Cuts(book, o, from, to)}
	for _, d := range o.By {
		q.Minutes = q.Minutes || d == cost.ByMinute
	}
	return s.Query(q, r.AddSpan)
}
