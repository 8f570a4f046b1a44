package bench

// Example is one whole request body with the given prefix, as a run with these options
// sends it: what an operator would record to prewarm that prefix. prefix is an index
// below Workload.Prefixes, and Nonce must be set, or it is the prefix of no run.
func (o *Options) Example(prefix int) []byte {
	c := newComposer(o)
	p := c.body(&Shot{Prefix: int32(prefix), Prompt: -1, User: 16, Output: 1, Turns: 1}, 0, 0, nil, nil)
	return append(append([]byte{}, p.head...), p.rest...)
}

// Shares is the expected share of the requests that each prefix gets.
func (w *Workload) Shares() []float64 {
	z := newZipf(w.Prefixes, w.Zipf)
	out := make([]float64, len(z.cum))
	last := 0.0
	for i, c := range z.cum {
		out[i], last = (c-last)/z.cum[len(z.cum)-1], c
	}
	return out
}
