package proxy

import (
	"os"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	if engine := os.Getenv(childEnv); engine != "" {
		childRouter(engine)
		return
	}
	goleak.VerifyTestMain(m,
		// One goroutine per process that keeps the Date header, started on first use.
		goleak.IgnoreAnyFunction("github.com/valyala/fasthttp.updateServerDate.func1"),
		// The server's worker pool notices its stop up to 10 s late, in a sleep.
		goleak.IgnoreAnyFunction("github.com/valyala/fasthttp.(*workerPool).Start.func2"),
	)
}
