package main

import (
	"os"
	"runtime"
	"strconv"
	"testing"
	"time"
)

// TestChaos puts serve before 16 simulated engines under open-loop load and breaks them
// at random: kill, restart, stall, freeze, engines that leave and engines that join. It
// wants what an operator would want: no request fails that another engine could have
// served, the hit rate is back soon after each event, no node is above its bound, and
// nothing is left over at the end.
//
// PREFIXRING_CHAOS is the length of the load (default: a run of a few events, so that
// the test stays in every build; `make chaos` takes 3m), PREFIXRING_CHAOS_SEED the seed.
func TestChaos(t *testing.T) {
	length, seed := 17*time.Second, uint64(1)
	if testing.Short() {
		t.Skip("takes 25 s")
	}
	if v := os.Getenv("PREFIXRING_CHAOS"); v != "" {
		d, err := time.ParseDuration(v)
		if err != nil || d < 15*time.Second {
			t.Fatalf("PREFIXRING_CHAOS=%q: want a duration of at least 15s", v)
		}
		length = d
	}
	if v := os.Getenv("PREFIXRING_CHAOS_SEED"); v != "" {
		n, err := strconv.ParseUint(v, 10, 64)
		if err != nil {
			t.Fatalf("PREFIXRING_CHAOS_SEED=%q: %v", v, err)
		}
		seed = n
	}
	baseline := runtime.NumGoroutine()
	c := newChaos(t, seed, length)
	c.run()
	c.judge()
	c.stop()
	c.leftovers(baseline)
	c.report()
}

// full says that this is the long run, whose figures count: the short one proves that
// nothing is lost or left over, on machines of any speed.
func (c *chaos) full() bool { return c.length >= time.Minute }
