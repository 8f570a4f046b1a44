package proxy

import "sync/atomic"

// budget bounds what retries may add to the load of the whole fleet (field case
// B44): every request earns a fraction of a retry, up to a burst, and a retry that
// makes an engine work spends one. Counted in thousandths.
type budget struct {
	millis atomic.Int64
	earn   int64
	most   int64
	spent  atomic.Int64 // retries made
	denied atomic.Int64 // retries not made for want of budget
}

func (b *budget) init(ratio, burst float64) {
	b.earn, b.most = int64(ratio*1000), int64(burst*1000)
	b.millis.Store(b.most)
}

// deposit credits one request. At the cap, the usual state, it only reads.
func (b *budget) deposit() {
	for {
		have := b.millis.Load()
		if have >= b.most {
			return
		}
		if b.millis.CompareAndSwap(have, min(have+b.earn, b.most)) {
			return
		}
	}
}

// spend takes one retry, if there is one.
func (b *budget) spend() bool {
	for {
		have := b.millis.Load()
		if have < 1000 {
			b.denied.Add(1)
			return false
		}
		if b.millis.CompareAndSwap(have, have-1000) {
			b.spent.Add(1)
			return true
		}
	}
}
