package ledger

import (
	"encoding/binary"
	"fmt"
	"maps"
	"slices"
	"time"

	"go.etcd.io/bbolt"

	"github.com/prefixring/prefixring/internal/cost"
)

// Append adds rows to all levels, in one transaction. After an error the rows are not
// in the file: give them again.
func (s *Store) Append(rows []cost.Row) error {
	if len(rows) == 0 {
		return nil
	}
	return guard(func() error {
		var batch uint64
		err := s.db.Update(func(tx *bbolt.Tx) error {
			meta := tx.Bucket(metaBucket)
			batch = number(meta, keyBatch) + 1
			if err := meta.Put(keyBatch, binary.BigEndian.AppendUint64(nil, batch)); err != nil {
				return err
			}
			for _, l := range levels {
				if err := s.add(tx, l, rows); err != nil {
					return err
				}
			}
			return nil
		})
		// A commit may fail after its last write, in the final sync: what the file says
		// of the batch decides, so that no row is counted twice.
		if err != nil && batch != 0 && s.batch() == batch {
			return nil
		}
		if err != nil {
			return fmt.Errorf("cannot write to the ledger: %w", err)
		}
		return nil
	})
}

func (s *Store) batch() (n uint64) {
	s.db.View(func(tx *bbolt.Tx) error { n = number(tx.Bucket(metaBucket), keyBatch); return nil })
	return n
}

func number(b *bbolt.Bucket, k []byte) uint64 {
	if v := b.Get(k); len(v) == 8 {
		return binary.BigEndian.Uint64(v)
	}
	return 0
}

// add merges rows into the blocks of one level.
func (s *Store) add(tx *bbolt.Tx, l level, rows []cost.Row) error {
	byUnit := map[int64][]*cost.Row{}
	for i := range rows {
		unit := floor(rows[i].Minute, l.minutes)
		byUnit[unit] = append(byUnit[unit], &rows[i])
	}
	b := tx.Bucket([]byte(l.name))
	for _, unit := range slices.Sorted(maps.Keys(byUnit)) {
		m := merger{unit: unit, max: s.maxRows, at: map[cost.Key]int{}}
		if old := b.Get(key(unit)); old != nil {
			if err := m.take(old); err != nil {
				// What can still be read stays readable: the block is put aside, and a
				// new one begun.
				if err := tx.Bucket(damagedBucket).Put(append([]byte(l.name), key(unit)...), old); err != nil {
					return err
				}
				m = merger{unit: unit, max: s.maxRows, at: map[cost.Key]int{}}
			}
		}
		for _, r := range byUnit[unit] {
			m.add(r, r.Minute, r.Minute)
		}
		if err := b.Put(key(unit), m.encode()); err != nil {
			return err
		}
	}
	return nil
}

// merger adds rows up to one block.
type merger struct {
	block
	unit int64
	max  int
	at   map[cost.Key]int // index into rows
}

func (m *merger) take(old []byte) error {
	return decode(old, m.unit, func(r *cost.Row, first, last int64) { m.add(r, first, last) })
}

func (m *merger) add(r *cost.Row, first, last int64) {
	if len(m.rows) == 0 {
		m.first, m.last = first, last
	}
	m.first, m.last = min(m.first, first), max(m.last, last)
	k := r.Key
	k.Minute = m.unit
	i, ok := m.at[k]
	if !ok && len(m.rows) >= m.max {
		k = cost.OtherKey(m.unit, r.Class)
		i, ok = m.at[k]
	}
	if !ok {
		i = len(m.rows)
		m.at[k] = i
		m.rows = append(m.rows, cost.Row{Key: k})
	}
	m.rows[i].Sums.Add(&r.Sums)
}

// pruneBlocks bounds what one Prune deletes, so that no flush waits long for it.
const pruneBlocks = 2000

// Prune deletes blocks of minutes that ended before one time and blocks of hours and
// days that ended before another. It returns how many there were; call it again while
// that is not zero.
func (s *Store) Prune(minutes, rest time.Time) (n int, err error) {
	err = guard(func() error {
		return s.db.Update(func(tx *bbolt.Tx) error {
			for i, l := range levels {
				before := rest
				if i == 0 {
					before = later(minutes, rest)
				}
				// Only whole days go, so that the levels still add up to the same.
				limit := floor(cost.Minute(before), 1440)
				k, err := drop(tx.Bucket([]byte(l.name)), limit-l.minutes, pruneBlocks-n)
				n += k
				if err != nil {
					return err
				}
				if i == 0 && k > 0 {
					from := max(limit, int64(number(tx.Bucket(metaBucket), keyMinutes)))
					if err := tx.Bucket(metaBucket).Put(keyMinutes, binary.BigEndian.AppendUint64(nil, uint64(from))); err != nil {
						return err
					}
				}
			}
			return nil
		})
	})
	if err != nil {
		return 0, fmt.Errorf("cannot delete what the ledger need not keep: %w", err)
	}
	return n, nil
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// drop deletes up to max blocks whose unit begins at or before a minute.
func drop(b *bbolt.Bucket, last int64, max int) (int, error) {
	var keys [][]byte // deleting while a cursor moves would skip some
	c := b.Cursor()
	for k, _ := c.First(); k != nil && len(keys) < max && minuteOfKey(k) <= last; k, _ = c.Next() {
		keys = append(keys, k)
	}
	for _, k := range keys {
		if err := b.Delete(k); err != nil {
			return 0, err
		}
	}
	return len(keys), nil
}
