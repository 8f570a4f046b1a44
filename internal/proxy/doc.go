// Package proxy is the data plane: it takes a client's request, chooses the engine
// that holds its prompt prefix, and passes the answer on as it comes.
//
// handler.go reads as the list of what happens to one request: admit (admit.go), read
// the prefix (read.go), recall (recall.go), pick (pick.go, gate.go, queue.go), attempt
// (forward.go, attempt.go, exchange.go, hedge.go), stream (commit.go, stream.go,
// heartbeat.go), settle (settle.go).
//
// # Guarantees
//
//   - Octets are sacred. An engine gets the client's body as it was sent, except for
//     spliced fields (splice.go, plan.go); a client gets the engine's body as it was
//     sent, except for a usage chunk that the router itself asked for (strip.go).
//   - Nothing ever looks whole that is not: what was cut stays cut for the client, with
//     an event that says why where the protocol has one.
//   - The response head waits for the first event, so everything that goes wrong before
//     it can be retried or gets its right status. After it nothing is retried.
//   - A request goes twice to an engine only if its first connection turned out to be
//     closed before one octet of an answer, or if so configured (Retry.OnTimeout, Hedge).
//   - A client that leaves is seen by the kernel's own report (watcher_linux.go), in
//     every phase, and the engine's connection is closed at once.
//   - A slot is held from the pick to the close of the body, and every request is settled
//     exactly once: normal end, cut, cancel, refusal, unreadable request, panic.
//   - No prompt text, key or tenant name is logged, stored or put into an error.
//
// # What it does not do
//
// HTTP/2, protocol upgrades, following redirects, decompressing on behalf of a client.
// A client that closes only its sending side counts as gone (Options.KeepHalfClosed).
//
// # Concurrency
//
// One goroutine serves a client connection and owns the call on it; a hedge adds two for
// its length. The janitor (one goroutine, proxy.go) enforces every limit by looking at
// running calls each 50 ms, so that the path of a request sets no timers; the watcher
// (one goroutine, Linux) cancels calls whose client left. Both end in Drain or Close.
// Routing is an immutable Table behind an atomic pointer; calls keep the one they began
// with. In steady state a request costs no lock that another one can hold for long and
// no allocation of this package.
package proxy
