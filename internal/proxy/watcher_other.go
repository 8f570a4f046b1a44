//go:build !linux

package proxy

// watcher does nothing here: a client that left is noticed when a write to it
// fails.
type watcher struct{ halfClose bool }

func (w *watcher) start() error       { return nil }
func (w *watcher) stop()              {}
func (w *watcher) add(*clientConn)    {}
func (w *watcher) remove(*clientConn) {}
