package fakeengine

// TB is the part of testing.TB that StartT needs; a named interface keeps package
// testing out of the product.
type TB interface {
	Helper()
	Fatalf(format string, args ...any)
	Cleanup(func())
}

// StartT starts an engine on a free port of 127.0.0.1 for the length of a test.
// Without a preset and a cost it takes no time at all ("instant").
func StartT(t TB, opts Options) (e *Engine, url string) {
	t.Helper()
	if opts.Preset == "" && opts.Cost == nil {
		opts.Preset = "instant"
	}
	e, err := New(opts)
	if err != nil {
		t.Fatalf("cannot make a simulated engine: %v", err)
	}
	t.Cleanup(func() { _ = e.Close() })
	if url, err = e.Start(""); err != nil {
		t.Fatalf("cannot start a simulated engine: %v", err)
	}
	return e, url
}
