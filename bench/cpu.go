package bench

import (
	"runtime"
	"syscall"
	"time"
)

// ownCPU is the CPU time, user and system, that this process has used. In a process
// that also runs the engines (the demo) it is theirs as well.
func ownCPU() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

func usableCores() float64 { return float64(runtime.GOMAXPROCS(0)) }
