package dialect

import (
	"bytes"
	"testing"
)

// BenchmarkTapEvents is the cost of one one-token event of a real vLLM stream. The
// proxy as a whole must relay 200,000 of them per second and core.
func BenchmarkTapEvents(b *testing.B) {
	event := []byte(`data: {"id":"chatcmpl-b5ea28409f0d5e07","object":"chat.completion.chunk","created":1795995927,"model":"tiny","choices":[{"index":0,"delta":{"content":"numel"},"logprobs":null,"finish_reason":null,"token_ids":null}]}` + "\n\n")
	for name, per := range map[string]int{"one": 1, "batch64": 64} {
		b.Run(name, func(b *testing.B) {
			data := bytes.Repeat(event, per)
			var tap Tap
			tap.Reset(Chat, 200, "text/event-stream")
			b.SetBytes(int64(len(event)))
			b.ReportAllocs()
			for i := 0; i < b.N; i += per {
				tap.Write(data)
			}
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "events/s")
		})
	}
}

// BenchmarkTapFatEvent is a Responses event that repeats 240 KB of instructions.
func BenchmarkTapFatEvent(b *testing.B) {
	text := bytes.Repeat([]byte(`Policy 7: answer with \"facts\" about the order.\n`), 4800)
	event := []byte(`event: response.created` + "\n" + `data: {"response":{"id":"r","instructions":"` + string(text) + `","status":"in_progress"},"sequence_number":0,"type":"response.created"}` + "\n\n")
	var tap Tap
	tap.Reset(Responses, 200, "text/event-stream")
	b.SetBytes(int64(len(event)))
	b.ReportAllocs()
	for b.Loop() {
		tap.Write(event)
	}
}
