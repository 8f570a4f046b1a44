package ledger

import (
	"encoding/binary"
	"errors"
	"hash/crc32"
	"reflect"
	"testing"

	"pgregory.net/rapid"

	"github.com/prefixring/prefixring/internal/cost"
)

func TestBlocksRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		b := block{first: rapid.Int64().Draw(t, "first"), last: rapid.Int64().Draw(t, "last"), rows: drawRows(t)}
		for i := range b.rows {
			b.rows[i].Minute = 77
		}
		var got []cost.Row
		err := decode(b.encode(), 77, func(r *cost.Row, first, last int64) {
			if first != b.first || last != b.last {
				t.Fatalf("minutes %d..%d, want %d..%d", first, last, b.first, b.last)
			}
			got = append(got, *r)
		})
		if err != nil || !reflect.DeepEqual(got, b.rows) {
			t.Fatalf("%v: %v, want %v", err, got, b.rows)
		}
	})
}

func TestEachDamagedOctetIsNoticed(t *testing.T) {
	b := block{rows: []cost.Row{row(t0, 5, "shop", "n")}}
	data := b.encode()
	for i := range data {
		for _, flip := range []byte{1, 0x80, 0xff} {
			bad := append([]byte(nil), data...)
			bad[i] ^= flip
			if err := decode(bad, 0, func(*cost.Row, int64, int64) {}); !errors.Is(err, errDamaged) {
				t.Errorf("octet %d: %v", i, err)
			}
		}
		if err := decode(data[:i], 0, func(*cost.Row, int64, int64) {}); err == nil {
			t.Errorf("%d octets of %d were accepted", i, len(data))
		}
	}
}

// Octets with a right checksum and a wrong content neither crash nor make much room.
func FuzzDecode(f *testing.F) {
	b := block{rows: []cost.Row{row(t0, 5, "shop", "n"), row(t0, 6, "news", "m")}}
	data := b.encode()
	f.Add(data[:len(data)-4])
	f.Fuzz(func(t *testing.T, data []byte) {
		sum := binary.BigEndian.AppendUint32(append([]byte(nil), data...), crc32.Checksum(data, castagnoli))
		n := 0
		if err := decode(sum, 0, func(*cost.Row, int64, int64) { n++ }); err == nil && n > len(data) {
			t.Errorf("%d rows from %d octets", n, len(data))
		}
	})
}
