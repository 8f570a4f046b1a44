//go:build race

package sim

// replaySeeds: one will do where every run takes ten times as long.
const replaySeeds = 1
