package ring

import (
	"encoding/binary"
	"fmt"
	"math"
	"sort"
	"strconv"

	"github.com/buraksezer/consistent"
)

const (
	// maxWeight keeps the number of points on the circle sane.
	maxWeight = 16
	// libraryNodes is the pool size up to which the library builds the table. It sorts
	// all points again for every member: 39 ms at 64 members, 0.66 s at 256 and 11 s at
	// 1,000 (measured, 100 replicas). Beyond, bulk makes the same table in one sort;
	// TestBulkEqualsLibrary holds the two together.
	libraryNodes = 64
)

// share is one member of the library. A node of weight w has ceil(w) shares and
// accepts a fraction w/ceil(w) of the partitions they own (see rendezvous.fill): the
// library knows no weights. So a change of one node's weight moves only partitions
// that come to that node or leave it.
type share struct {
	name string
	node uint16
}

func (s share) String() string { return s.name }

func sharesOf(members []Member) []share {
	var out []share
	for i, m := range members {
		for j := range int(math.Ceil(m.Weight)) {
			name := m.Name
			if j > 0 {
				name += "\x00" + strconv.Itoa(j)
			}
			out = append(out, share{name, uint16(i)})
		}
	}
	return out
}

// assign names for each partition the owner and the heir, as node indexes.
func assign(members []Member, o Options) (owners, heirs []uint16, err error) {
	shares := sharesOf(members)
	c := newCircle(shares, o.Replicas)
	var owned []uint32 // share index by partition
	if len(shares) <= libraryNodes {
		owned, err = askLibrary(shares, o)
	} else {
		owned, err = c.bulk(len(shares), o)
	}
	if err != nil {
		return nil, nil, err
	}
	owners = make([]uint16, o.Partitions)
	heirs = make([]uint16, o.Partitions)
	for p := range owners {
		owners[p] = shares[owned[p]].node
		heirs[p] = c.heir(p, owned[p], shares)
	}
	return owners, heirs, nil
}

// askLibrary builds the library's table. The library panics when partitions don't
// fit (field reports exist); a panic becomes an error and the old snapshot stays.
func askLibrary(shares []share, o Options) (owned []uint32, err error) {
	defer func() {
		if v := recover(); v != nil {
			owned, err = nil, fmt.Errorf("cannot distribute %d partitions over %d members: %v", o.Partitions, len(shares), v)
		}
	}()
	list := make([]consistent.Member, len(shares))
	index := make(map[string]uint32, len(shares))
	for i, s := range shares {
		list[i], index[s.name] = s, uint32(i)
	}
	c := consistent.New(list, consistent.Config{
		Hasher: hasher{}, PartitionCount: o.Partitions, ReplicationFactor: o.Replicas, Load: o.PartitionLoad,
	})
	owned = make([]uint32, o.Partitions)
	for p := range owned {
		owned[p] = index[c.GetPartitionOwner(p).String()]
	}
	return owned, nil
}

// point is one replica on the circle.
type point struct {
	hash  uint64
	share uint32
}

// circle is the library's hash circle, rebuilt here because the library doesn't
// show it: the heirs and the bulk table are read from it.
type circle []point

func newCircle(shares []share, replicas int) circle {
	c := make(circle, 0, len(shares)*replicas)
	var buf []byte
	for i, s := range shares {
		for r := range replicas {
			buf = strconv.AppendInt(buf[:0], int64(r), 10)
			buf = append(append(buf, ':'), s.name...)
			c = append(c, point{hasher{}.Sum64(buf), uint32(i)})
		}
	}
	return c.sorted()
}

// sorted orders the points by hash, in time linear in their number: the hashes are
// uniform, so a counting sort by their first 16 bits leaves next to nothing for the
// insertion sort. The library lets the last of two equal hashes win; with 64 bits and at
// most a million points that has a chance of 1e-8 and the order here only has to be fixed.
func (c circle) sorted() circle {
	var start [1<<16 + 1]uint32
	for _, p := range c {
		start[p.hash>>48+1]++
	}
	for i := 1; i < len(start); i++ {
		start[i] += start[i-1]
	}
	out := make(circle, len(c))
	for _, p := range c {
		out[start[p.hash>>48]] = p
		start[p.hash>>48]++
	}
	for i := 1; i < len(out); i++ {
		for j := i; j > 0 && out[j].hash < out[j-1].hash; j-- {
			out[j], out[j-1] = out[j-1], out[j]
		}
	}
	return out
}

// find returns the first point at or after the partition's own point.
func (c circle) find(p int) int {
	var b [8]byte
	binary.LittleEndian.PutUint64(b[:], uint64(p))
	h := hasher{}.Sum64(b[:])
	i := sort.Search(len(c), func(i int) bool { return c[i].hash >= h })
	if i == len(c) {
		return 0
	}
	return i
}

// bulk distributes the partitions as the library does: each goes to the first member
// clockwise that has room.
func (c circle) bulk(shares int, o Options) ([]uint32, error) {
	room := int(math.Ceil(float64(o.Partitions) / float64(shares) * o.PartitionLoad))
	loads := make([]int, shares)
	owned := make([]uint32, o.Partitions)
	for p := range owned {
		i, steps := c.find(p), 0
		for loads[c[i].share] >= room {
			if steps++; steps >= len(c) {
				return nil, fmt.Errorf("cannot distribute %d partitions over %d members: no room", o.Partitions, shares)
			}
			if i++; i == len(c) {
				i = 0
			}
		}
		owned[p] = c[i].share
		loads[c[i].share]++
	}
	return owned, nil
}

// heir is the node that follows the owner on the circle: the one that gets the
// partition if the owner leaves, as long as it has room. A lone node is its own heir.
func (c circle) heir(p int, owned uint32, shares []share) uint16 {
	owner := shares[owned].node
	i, seen := c.find(p), false
	for range c {
		switch n := shares[c[i].share].node; {
		case c[i].share == owned:
			seen = true // members before this point had no room
		case seen && n != owner:
			return n
		}
		if i++; i == len(c) {
			i = 0
		}
	}
	return owner
}
