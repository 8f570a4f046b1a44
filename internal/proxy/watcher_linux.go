package proxy

import (
	"os"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// watcher tells connections that their client closed. Nobody reads from a socket
// while its request is served, so the end of the client's side would go unseen
// (fasthttp issue 874). The kernel reports it without a read: EPOLLRDHUP for a
// closed write side, also behind unread pipelined octets and below TLS.
//
// A connection is registered once in its life; a request costs nothing.
type watcher struct {
	halfClose bool // a client that closed only its write side has not left
	file      *os.File
	fd        int
	done      chan struct{}

	mu    sync.Mutex // guards conns, next
	conns map[uint64]*clientConn
	next  uint64
}

// start opens the watch. Its goroutine ends in stop.
func (w *watcher) start() error {
	fd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return os.NewSyscallError("epoll_create1", err)
	}
	// Non-blocking, so that os.NewFile lets the runtime wait for it: an epoll
	// descriptor is itself readable when it has events.
	if err := unix.SetNonblock(fd, true); err != nil {
		unix.Close(fd)
		return os.NewSyscallError("fcntl", err)
	}
	w.fd, w.file = fd, os.NewFile(uintptr(fd), "client-watch")
	w.conns = map[uint64]*clientConn{}
	w.done = make(chan struct{})
	go w.run()
	return nil
}

// stop ends the goroutine and waits for it.
func (w *watcher) stop() {
	if w.file == nil {
		return
	}
	w.file.Close()
	<-w.done
}

// add registers c. A connection that cannot be registered is only noticed when a
// write to it fails, as on systems without this watch.
func (w *watcher) add(c *clientConn) {
	if w.file == nil || c.raw == nil {
		return
	}
	w.mu.Lock()
	w.next++
	id := w.next
	c.watchID = id
	w.conns[id] = c
	w.mu.Unlock()
	ev := unix.EpollEvent{Events: unix.EPOLLRDHUP | unix.EPOLLET, Fd: int32(id), Pad: int32(id >> 32)}
	if w.halfClose {
		ev.Events = unix.EPOLLET // hang-up and error are always reported
	}
	c.raw.Control(func(fd uintptr) {
		unix.EpollCtl(w.fd, unix.EPOLL_CTL_ADD, int(fd), &ev)
	})
}

// remove forgets c. The kernel drops the registration when the socket is closed,
// which is why an event may still come for an id that is gone: ids are not reused.
func (w *watcher) remove(c *clientConn) {
	if w.file == nil || c.raw == nil {
		return
	}
	w.mu.Lock()
	delete(w.conns, c.watchID)
	w.mu.Unlock()
}

func (w *watcher) run() {
	defer close(w.done)
	raw, err := w.file.SyscallConn()
	if err != nil {
		return
	}
	events := make([]unix.EpollEvent, 128)
	for {
		n := 0
		err := raw.Read(func(fd uintptr) bool {
			n, err = unix.EpollWait(int(fd), events, 0)
			return n > 0 || (err != nil && err != syscall.EINTR)
		})
		if err != nil {
			return
		}
		for _, ev := range events[:max(n, 0)] {
			w.mu.Lock()
			c := w.conns[uint64(uint32(ev.Fd))|uint64(uint32(ev.Pad))<<32]
			w.mu.Unlock()
			if c != nil {
				c.left()
			}
		}
	}
}
