package ledger

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/prefixring/prefixring/internal/cost"
	"github.com/prefixring/prefixring/internal/dialect"
	"github.com/prefixring/prefixring/internal/telemetry"
)

const (
	benchTenants  = 100
	benchPrefixes = 50
)

func cpu() time.Duration {
	var u syscall.Rusage
	syscall.Getrusage(syscall.RUSAGE_SELF, &u)
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// BenchmarkSettleRecord is what the request path pays.
func BenchmarkSettleRecord(b *testing.B) {
	r := NewRecorder(Options{})
	rec := record(t0, "engine-1", usage(60_200, 59_904, 500))
	b.ReportAllocs()
	for b.Loop() {
		r.Settle(rec)
	}
}

// BenchmarkLedgerSettle10k is ten seconds of 10,000 requests a second, of 100 tenants
// and 50 prefixes on 8 engines, counted and flushed to the file with its syncs. cores is
// CPU time per second of traffic: the budget is 0.1.
func BenchmarkLedgerSettle10k(b *testing.B) {
	now := t0
	r := NewRecorder(Options{Path: filepath.Join(b.TempDir(), "l"), Now: func() time.Time { return now }})
	defer r.close()
	var nodes, prefixes []string
	for i := range 8 {
		nodes = append(nodes, "engine-"+strconv.Itoa(i))
	}
	for i := range benchPrefixes {
		prefixes = append(prefixes, "prefix-"+strconv.Itoa(i))
	}
	rec := telemetry.Record{Model: "llama-3.3-70b", Usage: usage(60_200, 59_904, 500), Verdict: dialect.Success}
	seconds, began := 0, cpu()
	for b.Loop() {
		for i := range 100_000 {
			rec.Start, rec.Tenant = now.Add(time.Duration(i)*100*time.Microsecond), uint64(i*7919%benchTenants)
			rec.Named, rec.Node = prefixes[i/benchTenants%benchPrefixes], nodes[i*31%8]
			r.Settle(&rec)
		}
		now = now.Add(10 * time.Second)
		if err := r.Flush(); err != nil {
			b.Fatal(err)
		}
		seconds += 10
	}
	b.ReportMetric((cpu()-began).Seconds()/float64(seconds), "cores")
	b.ReportMetric(float64(r.store.Size())/(1<<20), "MiB")
}

// BenchmarkStoreMonth asks for a month of minutes of 100 tenants x 50 prefixes, by tenant
// and by day, with borders that fall on no hour. Every minute of the first and the last
// day is in the file; of the days between, one minute an hour is, which makes the blocks
// that are read the same and the benchmark short. PREFIXRING_LEDGER_MONTH=1 fills in all
// 216 million rows (several minutes and GiB).
func BenchmarkStoreMonth(b *testing.B) {
	s, err := OpenStore(filepath.Join(b.TempDir(), "l"), StoreOptions{noSync: true})
	if err != nil {
		b.Fatal(err)
	}
	defer s.Close()
	full := os.Getenv("PREFIXRING_LEDGER_MONTH") != ""
	begin := time.Date(2026, 11, 1, 0, 0, 0, 0, time.UTC)
	fillMonth(b, s, begin, full)
	from, to := begin.Add(17*time.Minute), begin.AddDate(0, 0, 30).Add(-23*time.Minute)
	for _, by := range [][]cost.Dim{{cost.ByTenant}, {cost.ByDay}, {cost.ByTenant, cost.ByPrefix}} {
		b.Run(fmt.Sprint("by", by), func(b *testing.B) {
			for b.Loop() {
				rep, err := s.Report(book(b), cost.ReportOptions{By: by, From: from, To: to})
				if err != nil || rep.Total.Requests == 0 || len(rep.Notes) > 0 {
					b.Fatal(err, rep.Notes)
				}
			}
			b.ReportMetric(float64(s.Size())/(1<<20), "MiB")
		})
	}
}

func fillMonth(b *testing.B, s *Store, begin time.Time, full bool) {
	b.Helper()
	for d := range 30 {
		var rows []cost.Row
		for m := range 1440 {
			if edge := d == 0 || d == 29; !full && !edge && m%60 != 0 {
				continue
			}
			at := begin.AddDate(0, 0, d).Add(time.Duration(m) * time.Minute)
			for i := range benchTenants * benchPrefixes {
				rows = append(rows, row(at, uint64(i%benchTenants), "prefix-"+strconv.Itoa(i/benchTenants), "engine-"+strconv.Itoa(i%8)))
			}
			if len(rows) >= 60*benchTenants*benchPrefixes {
				if err := s.Append(rows); err != nil {
					b.Fatal(err)
				}
				rows = rows[:0]
			}
		}
		if err := s.Append(rows); err != nil {
			b.Fatal(err)
		}
	}
}
