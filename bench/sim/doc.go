// Package sim runs a fleet of simulated engines behind a routing policy in simulated
// time: a day of a thousand engines in minutes, on the same seed for every policy.
//
// What is real in it: the ring, the owner sizing, residency and the bindings are the
// production packages, and the engines are the step model that internal/fakeengine
// serves over HTTP. What is modelled: the network (takes no time), the warm gate's
// queue and the retry after a node's death, which follow internal/proxy, and the other
// routers' policies, which follow their public descriptions. docs/simulation.md has
// the calibration with its errors.
//
// # How time passes
//
// A request that an engine gets at time t cannot be scheduled there before t plus the
// front end's time (tokenising). So all engines may run ahead by the shortest such time
// without knowing what will arrive: the simulation goes window by window, runs the
// engines of a window side by side on all cores, then replays what happened in them and
// the arrivals in exact order of time. Results do not depend on the number of cores.
//
// Deterministic: equal options give equal results, bit for bit. Memory is bounded by
// the requests in flight and the engines' caches, never by the length of the run.
package sim
