package fingerprint

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/cespare/xxhash/v2"

	"github.com/prefixring/prefixring/internal/dialect"
)

const fat = 240 << 10

// lines returns n bytes of prose with a line break every width bytes; lead stands at the
// head of each line.
func lines(n, width int, lead string) string {
	const prose = "Refunds are paid to the card that was charged, within five working days of the return being scanned at the depot; "
	var b strings.Builder
	for i := 0; b.Len() < n; i++ {
		l := fmt.Sprintf("%s%d. %s", lead, i, strings.Repeat(prose, 1+width/len(prose)))
		b.WriteString(l[:width-1])
		b.WriteByte('\n')
	}
	return b.String()[:n]
}

func encode(v any) []byte {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		panic(err)
	}
	return bytes.TrimSpace(b.Bytes())
}

type chat struct {
	Model    string           `json:"model"`
	Messages []map[string]any `json:"messages"`
	Tools    []any            `json:"tools,omitempty"`
	Stream   bool             `json:"stream"`
}

func say(role, content string) map[string]any {
	return map[string]any{"role": role, "content": content}
}

func tool(i int) any {
	return map[string]any{"type": "function", "function": map[string]any{
		"name": fmt.Sprintf("lookup_order_%d", i), "description": "Looks up one order by its number and returns its lines, its payment and where the parcel is.",
		"parameters": map[string]any{"type": "object", "required": []string{"order_id"}, "properties": map[string]any{
			"order_id": map[string]any{"type": "string", "description": "The order number, as printed on the invoice."},
			"verbose":  map[string]any{"type": "boolean", "description": "Also return the history of the parcel."},
		}},
	}}
}

// benchBodies are 240 KB requests of the shapes that the budget names.
func benchBodies() map[string][]byte {
	turns := func(n, size int) (out []map[string]any) {
		for i := range n {
			out = append(out, say([]string{"user", "assistant"}[i%2], lines(size, 200, fmt.Sprint("turn ", i, " "))))
		}
		return out
	}
	var tools []any
	for i := range 100 {
		tools = append(tools, tool(i))
	}
	system := func(text string) chat {
		return chat{Model: "m", Messages: []map[string]any{say("system", text), say("user", "Where is my parcel?")}, Stream: true}
	}
	plain := system(strings.ReplaceAll(lines(fat, 100, ""), "\n", " "))
	many := chat{Model: "m", Messages: append([]map[string]any{say("system", lines(fat/2, 100, ""))}, turns(200, fat/400)...)}
	withTools := system(lines(fat-50<<10, 100, ""))
	withTools.Tools = tools
	all := many
	all.Messages = append([]map[string]any{say("system", lines(fat/2-50<<10, 100, `"quoted" `))}, turns(200, fat/400)...)
	all.Tools = tools
	spaced := encode(withTools)
	var indented bytes.Buffer
	if err := json.Indent(&indented, spaced, "", " "); err != nil {
		panic(err)
	}
	return map[string][]byte{
		"Plain":       encode(plain),
		"Escapes":     encode(system(lines(fat, 100, ""))),
		"Quotes":      encode(system(lines(fat, 100, `"quoted" `))),
		"Messages200": encode(many),
		"Tools100":    encode(withTools),
		"Spaced":      indented.Bytes(),
		"Everything":  encode(all),
		"Chinese":     encode(system(strings.Repeat("跨境电商大促期间，所有订单的退款将在五个工作日内原路退回。\n", fat/88))),
	}
}

var benchOrder = []string{"Plain", "Escapes", "Quotes", "Messages200", "Tools100", "Spaced", "Everything", "Chinese"}

// registered32 makes 32 prefixes of the given text that never match, so that every
// length costs its full price.
func registered32(text string) []Named {
	var out []Named
	for i := range 32 {
		n, err := NewNamedText(fmt.Sprint("p", i), "", text[:1000+i*len(text)/40])
		if err != nil {
			panic(err)
		}
		n.Context ^= 1
		out = append(out, n)
	}
	return out
}

func BenchmarkScan240KB(b *testing.B) {
	bodies := benchBodies()
	s, err := NewScanner(Options{Named: registered32(lines(fat/2, 100, ""))})
	if err != nil {
		b.Fatal(err)
	}
	for _, name := range benchOrder {
		b.Run(name, func(b *testing.B) { benchScan(b, s, bodies[name]) })
	}
}

func benchScan(b *testing.B, s *Scanner, body []byte) {
	var r Result
	if err := s.Scan(dialect.Chat, body, &r); err != nil {
		b.Fatal(err)
	}
	b.SetBytes(int64(len(body)))
	b.ReportAllocs()
	for b.Loop() {
		if err := s.Scan(dialect.Chat, body, &r); err != nil {
			b.Fatal(err)
		}
	}
}

var sinkInt int
var sinkHash uint64

// floor is the yardstick of the budget: find every quote with IndexByte, and hash the
// body once.
func floor(body []byte) (int, uint64) {
	n := 0
	for rest := body; ; {
		i := bytes.IndexByte(rest, '"')
		if i < 0 {
			break
		}
		n++
		rest = rest[i+1:]
	}
	return n, xxhash.Sum64(body)
}

func BenchmarkScanFloor240KB(b *testing.B) {
	bodies := benchBodies()
	for _, name := range benchOrder {
		body := bodies[name]
		b.Run(name, func(b *testing.B) {
			b.SetBytes(int64(len(body)))
			for b.Loop() {
				sinkInt, sinkHash = floor(body)
			}
		})
	}
}

func thinBody() []byte {
	return encode(map[string]any{"model": "m", "temperature": 0.2, "stream": true, "max_tokens": 200, "user": "u-17",
		"messages": []any{say("system", lines(500, 100, "")), say("user", "Where is my parcel? I ordered it a week ago."),
			say("assistant", "It is in Lyon."), say("user", strings.Repeat("And when will it be here? ", 9))}})
}

func BenchmarkScan1KB(b *testing.B) {
	body := thinBody()
	s, err := NewScanner(Options{})
	if err != nil {
		b.Fatal(err)
	}
	b.Logf("%d bytes", len(body))
	benchScan(b, s, body)
}

// BenchmarkScanRatio puts scan and floor side by side, alternating call by call, and
// compares their fastest calls: a neighbour on the machine cannot tilt that.
func BenchmarkScanRatio(b *testing.B) {
	bodies := benchBodies()
	s, err := NewScanner(Options{Named: registered32(lines(fat/2, 100, ""))})
	if err != nil {
		b.Fatal(err)
	}
	bodies["1KB"] = thinBody()
	for _, name := range append(benchOrder, "1KB") {
		b.Run(name, func(b *testing.B) {
			body := bodies[name]
			var r Result
			scan, base := time.Hour, time.Hour
			batch := 1 + 20_000/len(body) // the clock itself costs some 50 ns
			for range max(b.N, 3000) {
				t0 := time.Now()
				for range batch {
					if err := s.Scan(dialect.Chat, body, &r); err != nil {
						b.Fatal(err)
					}
				}
				t1 := time.Now()
				for range batch {
					sinkInt, sinkHash = floor(body)
				}
				t2 := time.Now()
				scan, base = min(scan, t1.Sub(t0)/time.Duration(batch)), min(base, t2.Sub(t1)/time.Duration(batch))
			}
			b.ReportMetric(0, "ns/op")
			b.ReportMetric(float64(scan.Nanoseconds())/1e3, "us-scan")
			b.ReportMetric(float64(base.Nanoseconds())/1e3, "us-floor")
			b.ReportMetric(float64(scan)/float64(base), "x-floor")
		})
	}
}
