package telemetry

import (
	"maps"
	"sync"
	"sync/atomic"
)

// handles keeps what a key stands for, for keys that are few and come back for ever.
// Reading takes no lock and allocates nothing; the map that readers hold is never
// written, a new key makes a new map.
type handles[K comparable, V any] struct {
	now atomic.Pointer[map[K]V]
	mu  sync.Mutex // writers one at a time
}

func (h *handles[K, V]) get(k K) (v V, ok bool) {
	m := h.now.Load()
	if m == nil {
		return v, false
	}
	v, ok = (*m)[k]
	return v, ok
}

// put sets k to v unless it has a value, and returns the value it has then.
func (h *handles[K, V]) put(k K, v V) V {
	h.mu.Lock()
	defer h.mu.Unlock()
	if have, ok := h.get(k); ok {
		return have
	}
	next := map[K]V{k: v}
	if m := h.now.Load(); m != nil {
		maps.Copy(next, *m)
	}
	h.now.Store(&next)
	return v
}

// drop forgets all keys that gone names.
func (h *handles[K, V]) drop(gone func(K) bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	m := h.now.Load()
	if m == nil {
		return
	}
	next := maps.Clone(*m)
	maps.DeleteFunc(next, func(k K, _ V) bool { return gone(k) })
	h.now.Store(&next)
}
