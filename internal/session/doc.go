// Package session keeps bindings: short-lived memories of which node (or channel and
// key) holds the history of a conversation.
//
// # Guarantees
//
//   - A binding lives at most TTL from its creation. Neither reads nor a repeated
//     success on the same target extend it; it is followed at most Uses times.
//   - A failure removes a binding only if it is the very one that the attempt
//     followed (EvictIf compares the generation). A slow success of an old attempt
//     doesn't replace a binding that is newer than the attempt (Bind compares stamps).
//   - At most Max bindings exist; the least recently used leave first. The bound is
//     kept per shard, and so is the order.
//   - The store holds 128-bit digests and small numbers, nothing else. The digests are
//     keyed with random seeds of this store, so that a copy of its memory can't be
//     matched against guessed keys in another process.
//
// # Concurrency
//
// All methods may be called from any goroutine. A call holds the mutex of one of 16
// shards for some tens of nanoseconds and allocates nothing. No goroutine is started;
// time comes from the injected monotonic clock. All methods of a nil *Store do nothing
// and find nothing: nil is how bindings are switched off.
package session
