//go:build !race

package sim

// replaySeeds is how many seeds each replay is played with.
const replaySeeds = 4
