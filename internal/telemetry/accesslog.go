package telemetry

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/prefixring/prefixring/internal/dialect"
)

// AccessLog writes one line per settled request: what was decided, how long it took,
// what the engine counted. It implements Sink.
type AccessLog struct{ Log *slog.Logger }

// Settle writes the line. Token counts that the engine did not report are left out,
// and so are times of things that did not happen.
func (a AccessLog) Settle(r *Record) {
	attrs := make([]slog.Attr, 0, 24)
	add := func(key, v string) {
		if v != "" {
			attrs = append(attrs, slog.String(key, v))
		}
	}
	ms := func(key string, d time.Duration) {
		if d > 0 {
			attrs = append(attrs, slog.Float64(key, float64(d.Microseconds())/1000))
		}
	}
	tokens := func(key string, n int64) {
		if n != dialect.Unknown {
			attrs = append(attrs, slog.Int64(key, n))
		}
	}
	add("id", r.ID)
	add("protocol", r.Protocol)
	attrs = append(attrs, slog.Int("status", r.Status), slog.String("verdict", r.Verdict.String()), slog.Bool("stream", r.Stream))
	add("pool", r.Pool)
	add("node", r.Node)
	add("reason", r.Reason)
	attrs = append(attrs, slog.Int("rank", r.Rank), slog.Int("tries", r.Tries))
	add("key", r.Kind)
	add("prefix", r.Named)
	add("depth", r.Depth)
	if r.Fingerprint != 0 {
		add("fingerprint", fmt.Sprintf("%016x", r.Fingerprint))
	}
	add("error", r.ErrorCode)
	ms("queue_ms", r.Queue)
	ms("first_byte_ms", r.FirstByte)
	ms("first_token_ms", r.FirstToken)
	ms("total_ms", r.Total)
	tokens("prompt_tokens", r.Usage.Prompt)
	tokens("cached_tokens", r.Usage.Cached)
	tokens("output_tokens", r.Usage.Output)
	attrs = append(attrs, slog.Int64("bytes_in", r.BytesIn), slog.Int64("bytes_out", r.BytesOut))
	a.Log.LogAttrs(context.Background(), slog.LevelInfo, "request", attrs...)
}
