// Package health knows, for every node of a fleet, whether it can take work now.
//
// It believes the engines' own numbers where they can be believed, and says
// "unknown" where they cannot. It guarantees:
//
//   - A node is ready only after its engine has answered /health and has listed a
//     model that the node is meant to serve. A listening port proves nothing.
//   - A missing, broken, out-of-range or outdated number is unknown. It is never
//     read as zero, and its influence fades with its age (Status.Voice).
//   - A slow /health is suspicion, not death, as long as the engine makes progress.
//     A quick /health is not life: an engine that reports running requests and makes
//     no progress for Options.HangAfter is taken out.
//   - An answer that blames the client (4xx) never counts against an engine.
//   - Every transition has a reason, is logged once and is delivered once, in order,
//     to Options.OnChange.
//   - What an operator has set (Drain, Cordon, SetWeight) outlives Apply.
//
// # Concurrency
//
// All methods of Manager are safe for concurrent use. Run owns every goroutine and
// returns after the last one has ended. Report is meant for the request path: for a
// success it takes no lock and allocates nothing. Callbacks never run under the
// manager's lock, so that they may call the manager; OnChange runs one at a time.
//
// The rules themselves are plain functions of (state, observation, time) and do no
// I/O; the manager only carries observations to them.
package health
