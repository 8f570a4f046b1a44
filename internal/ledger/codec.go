package ledger

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"math/bits"

	"github.com/prefixring/prefixring/internal/cost"
)

// A block is the rows of one unit of time:
//
//	version byte
//	first, last      varint    minutes within the unit that rows came from
//	tenants          uvarint n, then n x 8 bytes
//	strings          uvarint n, then n x (uvarint length, bytes)
//	rows             uvarint n, then per row: indices of tenant, model, prefix, node,
//	                 channel and tier, the class, a mask of the counters that are not
//	                 zero, and those, all uvarints
//	crc32c of everything before, 4 bytes
const blockVersion = 1

var (
	castagnoli = crc32.MakeTable(crc32.Castagnoli)

	errDamaged = errors.New("the block is damaged")
)

// block is the decoded form. Minute in the rows' keys is the beginning of the unit.
type block struct {
	first, last int64
	rows        []cost.Row
}

// encode writes a block.
func (b *block) encode() []byte {
	var e encoder
	for i := range b.rows {
		e.row(&b.rows[i])
	}
	out := make([]byte, 0, len(e.rows)+len(e.text)+8*len(e.tenants)+64)
	out = append(out, blockVersion)
	out = binary.AppendVarint(out, b.first)
	out = binary.AppendVarint(out, b.last)
	out = binary.AppendUvarint(out, uint64(len(e.tenants)/8))
	out = append(out, e.tenants...)
	out = binary.AppendUvarint(out, uint64(len(e.strings)))
	out = append(out, e.text...)
	out = binary.AppendUvarint(out, uint64(len(b.rows)))
	out = append(out, e.rows...)
	return binary.BigEndian.AppendUint32(out, crc32.Checksum(out, castagnoli))
}

// encoder gives each tenant and string a number at its first use.
type encoder struct {
	tenants, text, rows []byte
	strings             map[string]uint64
	digests             map[uint64]uint64
}

func (e *encoder) row(r *cost.Row) {
	e.rows = binary.AppendUvarint(e.rows, e.tenant(r.Tenant))
	for _, s := range [...]string{r.Model, r.Prefix, r.Node, r.Channel, r.Tier} {
		e.rows = binary.AppendUvarint(e.rows, e.string(s))
	}
	e.rows = append(e.rows, byte(r.Class))
	numbers := r.Numbers()
	mask := uint64(0)
	for i, n := range numbers {
		if *n != 0 {
			mask |= 1 << i
		}
	}
	e.rows = binary.AppendUvarint(e.rows, mask)
	for _, n := range numbers {
		if *n != 0 {
			e.rows = binary.AppendUvarint(e.rows, uint64(*n))
		}
	}
}

func (e *encoder) tenant(digest uint64) uint64 {
	i, ok := e.digests[digest]
	if !ok {
		if e.digests == nil {
			e.digests = map[uint64]uint64{}
		}
		i = uint64(len(e.digests))
		e.digests[digest] = i
		e.tenants = binary.BigEndian.AppendUint64(e.tenants, digest)
	}
	return i
}

func (e *encoder) string(s string) uint64 {
	i, ok := e.strings[s]
	if !ok {
		if e.strings == nil {
			e.strings = map[string]uint64{}
		}
		i = uint64(len(e.strings))
		e.strings[s] = i
		e.text = binary.AppendUvarint(e.text, uint64(len(s)))
		e.text = append(e.text, s...)
	}
	return i
}

// decode reads a block and calls f for each row; the row is only valid during the
// call. Whatever the octets are, the answer is rows or errDamaged.
func decode(data []byte, unit int64, f func(r *cost.Row, first, last int64)) error {
	if len(data) < 5 || crc32.Checksum(data[:len(data)-4], castagnoli) != binary.BigEndian.Uint32(data[len(data)-4:]) {
		return errDamaged
	}
	if data[0] != blockVersion {
		return fmt.Errorf("the block is of version %d, this program knows %d", data[0], blockVersion)
	}
	d := decoder{b: data[1 : len(data)-4]}
	first, last := d.varint(), d.varint()
	tenants := make([]uint64, d.count(8))
	for i := range tenants {
		tenants[i] = d.fixed64()
	}
	strings := make([]string, d.count(1))
	for i := range strings {
		strings[i] = string(d.bytes(d.count(1)))
	}
	var r cost.Row
	numbers := r.Numbers()
	for range d.count(8) {
		r = cost.Row{}
		r.Minute = unit
		if i := d.uvarint(); i < uint64(len(tenants)) {
			r.Tenant = tenants[i]
		} else {
			d.bad = true
		}
		for _, s := range [...]*string{&r.Model, &r.Prefix, &r.Node, &r.Channel, &r.Tier} {
			if i := d.uvarint(); i < uint64(len(strings)) {
				*s = strings[i]
			} else {
				d.bad = true
			}
		}
		r.Class = cost.Class(d.byte())
		mask := d.uvarint()
		if mask>>cost.Counters != 0 {
			d.bad = true
		}
		for ; mask != 0 && !d.bad; mask &= mask - 1 {
			*numbers[bits.TrailingZeros64(mask)] = int64(d.uvarint())
		}
		if d.bad {
			return errDamaged
		}
		f(&r, first, last)
	}
	if d.bad || len(d.b) > 0 {
		return errDamaged
	}
	return nil
}

// decoder reads from the front of b; after a fault all it reads is zero.
type decoder struct {
	b   []byte
	bad bool
}

func (d *decoder) uvarint() uint64 {
	n, k := binary.Uvarint(d.b)
	return n * d.take(k)
}

func (d *decoder) varint() int64 {
	n, k := binary.Varint(d.b)
	return n * int64(d.take(k))
}

// take moves on by k octets and returns 1, or 0 at a fault.
func (d *decoder) take(k int) uint64 {
	if k <= 0 || d.bad {
		d.bad, d.b = true, nil
		return 0
	}
	d.b = d.b[k:]
	return 1
}

// count reads a number of things of at least size octets each, so that no damaged
// number makes room for more than the block can hold.
func (d *decoder) count(size uint64) int {
	n := d.uvarint()
	if n > uint64(len(d.b))/size {
		d.bad, d.b = true, nil
		return 0
	}
	return int(n)
}

func (d *decoder) bytes(n int) []byte {
	if n > len(d.b) {
		d.bad, d.b = true, nil
		return nil
	}
	out := d.b[:n]
	d.b = d.b[n:]
	return out
}

func (d *decoder) byte() byte {
	if b := d.bytes(1); b != nil {
		return b[0]
	}
	return 0
}

func (d *decoder) fixed64() uint64 {
	if b := d.bytes(8); b != nil {
		return binary.BigEndian.Uint64(b)
	}
	return 0
}
