package core

// heap is a binary min-heap of sequences with a removable middle.
type heap struct {
	s    []*seq
	less func(a, b *seq) bool
}

func (h *heap) len() int  { return len(h.s) }
func (h *heap) min() *seq { return h.s[0] }
func (h *heap) push(v *seq) {
	v.slot = len(h.s)
	h.s = append(h.s, v)
	h.up(v.slot)
}

func (h *heap) remove(v *seq) {
	i, last := v.slot, len(h.s)-1
	if h.s[i] != v {
		panic("BUG: sequence is not in this heap")
	}
	h.s[i] = h.s[last]
	h.s[i].slot = i
	h.s[last] = nil
	h.s = h.s[:last]
	if i < last {
		h.down(i)
		h.up(i)
	}
}

func (h *heap) up(i int) {
	for i > 0 {
		p := (i - 1) / 2
		if !h.less(h.s[i], h.s[p]) {
			return
		}
		h.swap(i, p)
		i = p
	}
}

func (h *heap) down(i int) {
	for {
		l := 2*i + 1
		if l >= len(h.s) {
			return
		}
		if r := l + 1; r < len(h.s) && h.less(h.s[r], h.s[l]) {
			l = r
		}
		if !h.less(h.s[l], h.s[i]) {
			return
		}
		h.swap(i, l)
		i = l
	}
}

func (h *heap) swap(i, j int) {
	h.s[i], h.s[j] = h.s[j], h.s[i]
	h.s[i].slot, h.s[j].slot = i, j
}
