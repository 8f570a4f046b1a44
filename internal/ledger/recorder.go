package ledger

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/prefixring/prefixring/internal/cost"
	"github.com/prefixring/prefixring/internal/telemetry"
)

// Options configures a Recorder. The zero value counts in memory only.
type Options struct {
	Path  string        // of the file; "" keeps the last two days in memory, by hour
	Flush time.Duration // between two writes, and so the most that a kill loses; 0 means 10 s
	// KeepMinutes is how long single minutes are kept (0 means 35 days), Keep how long
	// hours and days are (0 means 400 days). Only whole days are deleted.
	KeepMinutes, Keep time.Duration

	MaxRows int              // held in memory; 0 means 131072
	Log     *slog.Logger     // alarms; nil = discard
	Now     func() time.Time // nil = time.Now
	// Watch is called for each request as it is counted, for budgets. It must not block.
	Watch func(cost.Event)
}

const (
	memoryKept = 48 * time.Hour // without a file
	// settleIn is how long after its start a recorder deletes nothing: the clock of a
	// machine that has just begun may be wrong by years.
	settleIn = time.Hour
)

// Recorder counts settled requests and writes them to the ledger's file, if it has one.
// It implements telemetry.Sink.
type Recorder struct {
	o      Options
	ledger *cost.Ledger

	mu     sync.Mutex // guards the following; not taken on the request path
	store  *Store     // nil: none, or it could not be opened yet
	memory *cost.Ledger
	state  State
	age    retention
	today  answer
}

// State is what a recorder tells of itself.
type State struct {
	File      bool      `json:"file"`      // a file is configured
	Recording bool      `json:"recording"` // the last write succeeded, or nothing needs writing
	Error     string    `json:"error,omitempty"`
	Written   time.Time `json:"written"` // end of the last write that succeeded
	Failures  int64     `json:"write_failures"`
	Rows      int       `json:"rows_in_memory"`
	Folded    int64     `json:"requests_without_attribution"`
	Size      int64     `json:"file_bytes"`
}

// NewRecorder returns a recorder. It opens the file at once where that is possible; a
// file that cannot be opened is an alarm and tried again at each flush.
func NewRecorder(o Options) *Recorder {
	if o.Flush <= 0 {
		o.Flush = 10 * time.Second
	}
	if o.KeepMinutes <= 0 {
		o.KeepMinutes = 35 * 24 * time.Hour
	}
	if o.Keep <= 0 {
		o.Keep = 400 * 24 * time.Hour
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	r := &Recorder{o: o, ledger: cost.NewLedger(cost.LedgerOptions{MaxRows: o.MaxRows})}
	r.age.begin(o.Now(), o.Flush)
	r.state.File, r.state.Recording = o.Path != "", true
	if o.Path == "" {
		r.memory = cost.NewLedger(cost.LedgerOptions{MaxRows: o.MaxRows})
	} else if err := r.open(); err != nil {
		r.alarm(err)
	}
	return r
}

// Settle counts one request. Requests that reached no engine used nothing.
func (r *Recorder) Settle(t *telemetry.Record) {
	if t.Node == "" {
		return
	}
	e := cost.Event{
		At: t.Start.Add(t.Total), Tenant: t.Tenant, Model: t.Model, Prefix: t.Named, Node: t.Node,
		Usage: t.Usage, Verdict: t.Verdict,
	}
	r.Count(&e)
}

// Count counts one request that is not a client's, or one that is known as an event.
func (r *Recorder) Count(e *cost.Event) {
	r.ledger.Settle(e)
	if r.o.Watch != nil {
		r.o.Watch(*e) // a copy: a pointer would make each request allocate
	}
}

// Run writes until ctx ends, writes a last time and closes the file.
func (r *Recorder) Run(ctx context.Context) {
	t := time.NewTicker(r.o.Flush)
	defer t.Stop()
	for {
		select {
		case <-t.C:
			r.Flush()
		case <-ctx.Done():
			r.Flush()
			r.close()
			return
		}
	}
}

// Flush writes what has been counted. An error has been told as an alarm; the rows are
// kept for the next time.
func (r *Recorder) Flush() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.o.Now()
	rows := r.ledger.Drain(farFuture)
	if r.memory != nil {
		r.remember(rows, now)
		return nil
	}
	if err := r.write(rows); err != nil {
		r.ledger.Restore(rows)
		r.alarm(err)
		return err
	}
	r.state.Written = now
	if err := r.prune(now); err != nil {
		r.alarm(err)
		return err
	}
	if !r.state.Recording {
		r.o.Log.Info("the ledger records again; nothing was lost that memory could hold")
	}
	r.state.Recording, r.state.Error = true, ""
	return nil
}

var farFuture = time.Unix(1<<40, 0)

func (r *Recorder) write(rows []cost.Row) error {
	if r.store == nil {
		if err := r.open(); err != nil {
			return err
		}
	}
	return r.store.Append(rows)
}

// open opens the file. It runs with mu held, or before anyone else knows of r.
func (r *Recorder) open() error {
	s, err := OpenStore(r.o.Path, StoreOptions{})
	if err == nil {
		r.store = s
	}
	return err
}

// alarm tells once that recording has stopped, and counts each failure.
func (r *Recorder) alarm(err error) {
	r.state.Failures++
	if r.state.Recording {
		r.o.Log.Error("the ledger does not record: requests are served and counted in memory until it does", "error", err)
	}
	r.state.Recording, r.state.Error = false, err.Error()
}

// remember adds rows to the hours that are kept in memory.
func (r *Recorder) remember(rows []cost.Row, now time.Time) {
	for i := range rows {
		rows[i].Minute = floor(rows[i].Minute, 60)
	}
	r.memory.Restore(rows)
	if limit, ok := r.age.limit(now, memoryKept); ok {
		r.memory.Drain(limit)
	}
}

// prune deletes what need not be kept.
func (r *Recorder) prune(now time.Time) error {
	limit, ok := r.age.limit(now, 0)
	if !ok {
		return nil
	}
	_, err := r.store.Prune(limit.Add(-r.o.KeepMinutes), limit.Add(-r.o.Keep))
	return err
}

func (r *Recorder) close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.store != nil {
		if err := r.store.Close(); err != nil {
			r.o.Log.Error("cannot close the ledger", "error", err)
		}
		r.store = nil
	}
}

// State tells how recording goes.
func (r *Recorder) State() State {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := r.state
	s.Rows, s.Folded = r.ledger.Len(), r.ledger.Folded()
	if r.memory != nil {
		s.Rows += r.memory.Len()
		s.Folded += r.memory.Folded()
	}
	if r.store != nil {
		s.Size = r.store.Size()
	}
	return s
}

// Report answers a question from the file and from what is not yet written.
func (r *Recorder) Report(book *cost.Book, o cost.ReportOptions) (*cost.Report, error) {
	r.mu.Lock() // no flush comes between file and memory
	defer r.mu.Unlock()
	return r.report(book, o)
}

func (r *Recorder) report(book *cost.Book, o cost.ReportOptions) (*cost.Report, error) {
	rep := cost.NewReporter(book, o)
	var notes []string
	switch {
	case r.store != nil:
		var err error
		if notes, err = r.store.report(rep, book, &o); err != nil {
			return nil, err
		}
	case r.memory != nil:
		notes = []string{"no ledger file is configured (cost.ledger): these are at most the last 48 hours, since the router's start, by hour"}
		for _, row := range r.memory.Snapshot() {
			if r.wanted(&row, &o) {
				rep.AddSpan(&row, row.Minute, row.Minute+59)
			}
		}
	default:
		notes = []string{"the ledger file cannot be used at present (" + r.state.Error + "): this is only what is in memory"}
	}
	for _, row := range r.ledger.Snapshot() {
		rep.Add(&row)
	}
	out := rep.Report()
	out.Notes = append(out.Notes, notes...)
	return out, nil
}

// wanted says if an hour held in memory overlaps what is asked for.
func (r *Recorder) wanted(row *cost.Row, o *cost.ReportOptions) bool {
	return (o.From.IsZero() || row.Minute+60 > cost.Minute(o.From)) && (o.To.IsZero() || row.Minute < cost.Minute(o.To))
}
