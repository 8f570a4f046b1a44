package bench

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/prefixring/prefixring/internal/dialect"
)

// fixedHeaders builds the header lines that all requests of a run share.
func fixedHeaders(o *Options, host string) ([]byte, error) {
	b := fmt.Appendf(nil, "Host: %s\r\nUser-Agent: prefixring-bench\r\nContent-Type: application/json\r\n", host)
	if o.NoStream {
		b = append(b, "Accept: application/json\r\n"...)
	} else {
		b = append(b, "Accept: text/event-stream\r\n"...)
	}
	if o.APIKey != "" {
		if o.protocol() == dialect.Messages {
			b = fmt.Appendf(b, "x-api-key: %s\r\nanthropic-version: 2023-06-01\r\n", o.APIKey)
		} else {
			b = fmt.Appendf(b, "Authorization: Bearer %s\r\n", o.APIKey)
		}
	}
	if o.Explain {
		b = append(b, "X-Prefixring-Explain: 1\r\n"...)
	}
	for _, k := range slices.Sorted(maps.Keys(o.Headers)) {
		b = fmt.Appendf(b, "%s: %s\r\n", k, o.Headers[k])
		if strings.ContainsAny(k+o.Headers[k], "\r\n") {
			return nil, fmt.Errorf("%w: header %q holds a line break", ErrUsage, k)
		}
	}
	if strings.ContainsAny(o.APIKey, "\r\n") {
		return nil, fmt.Errorf("%w: the API key holds a line break", ErrUsage)
	}
	return b, nil
}
