package proxy

import "github.com/prefixring/prefixring/internal/dialect"

// usageFilter takes the usage chunk out of a stream when the router asked for it
// and the client did not (field case B06b). Off, it passes octets without a copy.
type usageFilter struct {
	on  bool
	s   dialect.UsageStripper
	out []byte
}

func (f *usageFilter) reset() {
	if f.on {
		f.on = false
		f.s.Reset()
	}
}

// feed takes the next octets of the stream and returns those that may go on. The
// result is valid until the next call.
func (f *usageFilter) feed(p []byte) []byte {
	if !f.on {
		return p
	}
	f.out = f.s.Filter(f.out[:0], p)
	return f.out
}

// rest returns what is still held when the stream ends.
func (f *usageFilter) rest() []byte {
	if !f.on {
		return nil
	}
	f.out = f.s.Flush(f.out[:0])
	return f.out
}
