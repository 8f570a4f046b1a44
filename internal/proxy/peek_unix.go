//go:build unix

package proxy

import "syscall"

// peek looks at the socket without waiting. Below TLS unread octets are normal (a
// session ticket after the handshake); on plain HTTP they are an unasked response,
// most often the 408 of a server that is about to close.
func (c *engineConn) peek(fd uintptr) bool {
	n, _, err := syscall.Recvfrom(int(fd), c.probe1[:], syscall.MSG_PEEK|syscall.MSG_DONTWAIT)
	switch {
	case err == syscall.EAGAIN || err == syscall.EINTR:
		c.alive = true
	case err == nil && n > 0:
		c.alive = c.tls
	default:
		c.alive = false
	}
	return true
}
