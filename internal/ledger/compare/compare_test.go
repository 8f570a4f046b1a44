// Package compare measures the two embedded stores that the ledger could have used, on
// the same work: bbolt with one block per unit of time (internal/ledger), and SQLite with
// one row per key and unit (modernc.org/sqlite). docs/cost.md quotes a run.
package compare

import (
	"database/sql"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"

	_ "modernc.org/sqlite"

	"github.com/prefixring/prefixring/internal/cost"
	"github.com/prefixring/prefixring/internal/ledger"
)

const keys = 5000 // 100 tenants x 50 prefixes

var begin = time.Date(2026, 11, 1, 0, 0, 0, 0, time.UTC)

// rows are what a flush holds: 100,000 requests in ten seconds of 10,000 a second.
func rows(at time.Time) []cost.Row {
	out := make([]cost.Row, keys)
	for i := range out {
		out[i] = cost.Row{
			Key:  cost.Key{Minute: cost.Minute(at), Tenant: uint64(i % 100), Model: "m", Prefix: "prefix-" + strconv.Itoa(i/100), Node: "engine-" + strconv.Itoa(i%8)},
			Sums: cost.Sums{Requests: 20, Verdicts: [5]int64{0, 20}, Known: 20, Tokens: cost.Tokens{Input: 5920, CacheRead: 1_198_080, Output: 10_000}},
		}
	}
	return out
}

func cpu() time.Duration {
	var u syscall.Rusage
	syscall.Getrusage(syscall.RUSAGE_SELF, &u)
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// store is what both do: add rows to minutes, hours and days, and sum a month by tenant.
type store interface {
	add(b *testing.B, rows []cost.Row)
	month(b *testing.B, from, to time.Time) int64
}

type blocks struct{ s *ledger.Store }

func (s blocks) add(b *testing.B, rows []cost.Row) {
	if err := s.s.Append(rows); err != nil {
		b.Fatal(err)
	}
}

func (s blocks) month(b *testing.B, from, to time.Time) int64 {
	rep, err := s.s.Report(nil, cost.ReportOptions{By: []cost.Dim{cost.ByTenant}, From: from, To: to})
	if err != nil {
		b.Fatal(err)
	}
	return rep.Total.Tokens.CacheRead
}

type table struct{ db *sql.DB }

var levels = []struct {
	name    string
	minutes int64
}{{"minutes", 1}, {"hours", 60}, {"days", 1440}}

func openTable(b *testing.B) table {
	db, err := sql.Open("sqlite", filepath.Join(b.TempDir(), "l.db")+"?_pragma=journal_mode(WAL)&_pragma=synchronous(FULL)")
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { db.Close() })
	db.SetMaxOpenConns(1)
	for _, l := range levels {
		if _, err := db.Exec(`CREATE TABLE ` + l.name + ` (unit INT, tenant INT, model TEXT, prefix TEXT, node TEXT, channel TEXT, tier TEXT, class INT,
			requests INT, success INT, known INT, input INT, cached INT, output INT,
			PRIMARY KEY (unit, tenant, model, prefix, node, channel, tier, class)) WITHOUT ROWID`); err != nil {
			b.Fatal(err)
		}
	}
	return table{db}
}

func (t table) add(b *testing.B, rows []cost.Row) {
	tx, err := t.db.Begin()
	if err != nil {
		b.Fatal(err)
	}
	for _, l := range levels {
		st, err := tx.Prepare(`INSERT INTO ` + l.name + ` VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?,?) ON CONFLICT DO UPDATE SET
			requests=requests+excluded.requests, success=success+excluded.success, known=known+excluded.known,
			input=input+excluded.input, cached=cached+excluded.cached, output=output+excluded.output`)
		if err != nil {
			b.Fatal(err)
		}
		for i := range rows {
			r := &rows[i]
			if _, err := st.Exec(r.Minute/l.minutes*l.minutes, int64(r.Tenant), r.Model, r.Prefix, r.Node, r.Channel, r.Tier, int(r.Class),
				r.Requests, r.Verdicts[1], r.Known, r.Tokens.Input, r.Tokens.CacheRead, r.Tokens.Output); err != nil {
				b.Fatal(err)
			}
		}
	}
	if err := tx.Commit(); err != nil {
		b.Fatal(err)
	}
}

// month reads the same units as the blocks do: minutes and hours at the borders, days.
func (t table) month(b *testing.B, from, to time.Time) int64 {
	f, e := cost.Minute(from), cost.Minute(to)
	up := func(m, unit int64) int64 { return (m + unit - 1) / unit * unit }
	down := func(m, unit int64) int64 { return m / unit * unit }
	rs, err := t.db.Query(`SELECT tenant, sum(requests), sum(success), sum(known), sum(input), sum(cached), sum(output) FROM (
		SELECT * FROM minutes WHERE unit >= ? AND unit < ? UNION ALL SELECT * FROM hours WHERE unit >= ? AND unit < ? UNION ALL
		SELECT * FROM days WHERE unit >= ? AND unit < ? UNION ALL SELECT * FROM hours WHERE unit >= ? AND unit < ? UNION ALL
		SELECT * FROM minutes WHERE unit >= ? AND unit < ?) GROUP BY tenant`,
		f, up(f, 60), up(f, 60), up(f, 1440), up(f, 1440), down(e, 1440), down(e, 1440), down(e, 60), down(e, 60), e)
	if err != nil {
		b.Fatal(err)
	}
	defer rs.Close()
	total := int64(0)
	for rs.Next() {
		var tenant, n [7]int64
		if err := rs.Scan(&tenant[0], &n[0], &n[1], &n[2], &n[3], &n[4], &n[5]); err != nil {
			b.Fatal(err)
		}
		total += n[4]
	}
	return total
}

func stores(b *testing.B) map[string]store {
	s, err := ledger.OpenStore(filepath.Join(b.TempDir(), "l"), ledger.StoreOptions{})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { s.Close() })
	return map[string]store{"bbolt": blocks{s}, "sqlite": openTable(b)}
}

// BenchmarkFlush writes ten seconds of traffic; cores is CPU time per second of traffic.
func BenchmarkFlush(b *testing.B) {
	for name, s := range stores(b) {
		b.Run(name, func(b *testing.B) {
			at, n, began := begin, 0, cpu()
			for b.Loop() {
				s.add(b, rows(at))
				at = at.Add(10 * time.Second)
				n++
			}
			b.ReportMetric((cpu()-began).Seconds()/float64(10*n), "cores")
		})
	}
}

// BenchmarkMonth sums 30 days by tenant, from 00:17 to 23:37.
func BenchmarkMonth(b *testing.B) {
	from, to := begin.Add(17*time.Minute), begin.AddDate(0, 0, 30).Add(-23*time.Minute)
	totals := map[string]int64{}
	for name, s := range stores(b) {
		for d := range 30 {
			for h := range 24 {
				if d > 0 && d < 29 && h > 0 {
					continue // one row per key is enough to have the day's
				}
				for m := range 60 {
					if m > 0 && !(d == 0 && h == 0) && !(d == 29 && h == 23) {
						continue
					}
					s.add(b, rows(begin.AddDate(0, 0, d).Add(time.Duration(h*60+m)*time.Minute)))
				}
			}
		}
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				totals[name] = s.month(b, from, to)
			}
		})
	}
	if totals["bbolt"] != totals["sqlite"] {
		b.Errorf("the stores disagree: %v", totals)
	}
}
