package ledger

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime/debug"
	"time"

	"go.etcd.io/bbolt"
	bolterr "go.etcd.io/bbolt/errors"
)

// formatVersion is that of the file as a whole.
const formatVersion = 1

// ErrBusy says that another process writes the file, or reads it while we would write.
var ErrBusy = errors.New("the ledger is in use by another process")

// level is one of the resolutions that rows are kept in.
type level struct {
	name    string
	minutes int64
}

// levels from fine to coarse.
var levels = [...]level{{"minute", 1}, {"hour", 60}, {"day", 1440}}

var (
	metaBucket    = []byte("meta")
	damagedBucket = []byte("damaged")

	keyVersion = []byte("version")
	keyBatch   = []byte("batch")
	keyMinutes = []byte("minutes_from")
)

// StoreOptions configures a Store. The zero value is a working default.
type StoreOptions struct {
	ReadOnly bool          // several may read at once, none while one writes
	Wait     time.Duration // for another process to let go of the file; 0 means 200 ms
	// MaxRows bounds the keys of one block; 0 means 262144. Beyond it rows are added
	// to cost.Other, so that no token is lost, only its attribution.
	MaxRows int

	noSync bool // benchmarks that build large stores
}

// Store is a ledger file.
type Store struct {
	db      *bbolt.DB
	path    string
	maxRows int
}

// OpenStore opens a ledger file, and makes it if it does not exist (unless ReadOnly).
// A file that is no ledger, or one that was cut off, is refused and left as it is.
func OpenStore(path string, o StoreOptions) (s *Store, err error) {
	if o.Wait <= 0 {
		o.Wait = 200 * time.Millisecond
	}
	if o.MaxRows <= 0 {
		o.MaxRows = 1 << 18
	}
	before, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist) && o.ReadOnly:
		return nil, fmt.Errorf("cannot open the ledger: %s does not exist", path)
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return nil, fmt.Errorf("cannot open the ledger: %w", err)
	case err == nil && !before.Mode().IsRegular():
		return nil, fmt.Errorf("cannot open the ledger: %s is not a regular file", path)
	}
	s = &Store{path: path, maxRows: o.MaxRows}
	err = guard(func() error { return s.open(o) })
	if err == nil {
		return s, nil
	}
	if s.db != nil {
		guard(s.db.Close)
	}
	if before == nil {
		os.Remove(path) // ours, and empty: a full disk must not leave a stump behind
	}
	switch {
	case errors.Is(err, bolterr.ErrTimeout):
		err = ErrBusy
	case errors.Is(err, bolterr.ErrInvalid), errors.Is(err, bolterr.ErrVersionMismatch), errors.Is(err, bolterr.ErrChecksum):
		err = errors.New("it is not a ledger, or it is damaged; move it away and a new one is begun")
	}
	return nil, fmt.Errorf("cannot open the ledger %s: %w", filepath.Base(path), err)
}

func (s *Store) open(o StoreOptions) error {
	var err error
	s.db, err = bbolt.Open(s.path, 0o600, &bbolt.Options{
		Timeout: o.Wait, ReadOnly: o.ReadOnly, NoSync: o.noSync, NoGrowSync: o.noSync,
		FreelistType: bbolt.FreelistMapType, PreLoadFreelist: !o.ReadOnly,
	})
	if err != nil {
		return err
	}
	if err := s.whole(); err != nil {
		return err
	}
	if o.ReadOnly {
		return s.db.View(func(tx *bbolt.Tx) error { return checkVersion(tx.Bucket(metaBucket)) })
	}
	return s.db.Update(func(tx *bbolt.Tx) error {
		fresh := tx.Bucket(metaBucket) == nil
		if k, _ := tx.Cursor().First(); fresh && k != nil {
			return bolterr.ErrInvalid // another program's database
		}
		meta, err := tx.CreateBucketIfNotExists(metaBucket)
		if err != nil {
			return err
		}
		if fresh {
			if err := meta.Put(keyVersion, []byte{formatVersion}); err != nil {
				return err
			}
		} else if err := checkVersion(meta); err != nil {
			return err
		}
		for _, l := range levels {
			if _, err := tx.CreateBucketIfNotExists([]byte(l.name)); err != nil {
				return err
			}
		}
		_, err = tx.CreateBucketIfNotExists(damagedBucket)
		return err
	})
}

// whole refuses a file that ends before its last page: reading there would fault.
func (s *Store) whole() error {
	return s.db.View(func(tx *bbolt.Tx) error {
		st, err := os.Stat(s.path)
		if err == nil && st.Size() < tx.Size() {
			return bolterr.ErrInvalid
		}
		return err
	})
}

func checkVersion(meta *bbolt.Bucket) error {
	if meta == nil {
		return bolterr.ErrInvalid
	}
	v := meta.Get(keyVersion)
	switch {
	case len(v) != 1:
		return bolterr.ErrInvalid
	case v[0] > formatVersion:
		return fmt.Errorf("it is of version %d, this program knows %d; use a newer prefixring", v[0], formatVersion)
	}
	return nil
}

// guard turns a fault of the mapped file (a disk that cannot be read, a file that was
// cut off behind our back) and any panic of the database into an error: a ledger must
// not end the router.
func guard(f func() error) (err error) {
	old := debug.SetPanicOnFault(true)
	defer debug.SetPanicOnFault(old)
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("the ledger file cannot be used: %v", p)
		}
	}()
	return f()
}

// Close lets go of the file.
func (s *Store) Close() error { return guard(s.db.Close) }

// Size returns the octets that the file takes.
func (s *Store) Size() int64 {
	st, err := os.Stat(s.path)
	if err != nil {
		return 0
	}
	return st.Size()
}

// key orders minutes as octets, also before 1970.
func key(minute int64) []byte {
	return binary.BigEndian.AppendUint64(nil, uint64(minute)^1<<63)
}

func minuteOfKey(k []byte) int64 {
	if len(k) != 8 {
		return 0
	}
	return int64(binary.BigEndian.Uint64(k) ^ 1<<63)
}

// floor returns the beginning of the unit of so many minutes that m is in.
func floor(m, unit int64) int64 {
	r := m % unit
	if r < 0 {
		r += unit
	}
	return m - r
}
