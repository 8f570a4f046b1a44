// Package ledger keeps what internal/cost counts: in a file, off the request path.
//
// # What is kept
//
// A [Store] is one bbolt file with three levels: minutes, hours and days (UTC). Each
// level has one block per unit of time, and each block holds the sums per key of that
// time. A flush adds its rows to the blocks of all three levels in one transaction, so
// that the levels never disagree and a reader may take whichever is cheapest. bbolt was
// chosen over SQLite by measurement; docs/cost.md has the figures.
//
// # Guarantees
//
// One writer per file: a second one is refused by a file lock. A transaction is there
// as a whole or not at all, so a process that is killed loses what it counted since the
// last flush and nothing else. A disk that is full, or fails in any other way, stops
// recording with an alarm, never traffic: rows stay in memory, bounded, and are written
// when the disk takes them. Time that jumps moves no token: rows go to the minute that
// the clock said, and retention follows the clock no faster than time passes.
//
// # Concurrency
//
// [Recorder.Settle] is called from the request path and does no I/O. One goroutine,
// [Recorder.Run], writes. A [Store] belongs to its Recorder, or to one goroutine.
package ledger
