package fakeengine

import (
	"bytes"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// recording is one recorded response.
type recording struct {
	status  int
	headers []string // lower-case names, without date
	body    string
}

func recorded(t *testing.T, name string) recording {
	t.Helper()
	b, err := os.ReadFile("testdata/vllm_" + name + ".http")
	if err != nil {
		t.Fatal(err)
	}
	head, body, _ := bytes.Cut(bytes.ReplaceAll(b, []byte("\r\n"), []byte("\n")), []byte("\n\n"))
	lines := strings.Split(string(head), "\n")
	status, err := strconv.Atoi(strings.Fields(lines[0])[1])
	if err != nil {
		t.Fatal(err)
	}
	r := recording{status: status, body: string(body)}
	for _, l := range lines[1:] {
		name, _, _ := strings.Cut(l, ":")
		r.headers = append(r.headers, strings.ToLower(name))
	}
	return r
}

// shape spells the keys and the kinds of values of a JSON text, in order.
func shape(v value) string {
	switch {
	case v.is('"'):
		return "s"
	case v.is('{'):
		var parts []string
		v.each(func(k, val value) { parts = append(parts, k.text()+":"+shape(val)) })
		return "{" + strings.Join(parts, ",") + "}"
	case v.is('['):
		if all := v.list(); len(all) > 0 {
			return "[" + shape(all[0]) + "]"
		}
		return "[]"
	case v.is('n'):
		return "null"
	case v.is('t'), v.is('f'):
		return "b"
	}
	return "n"
}

// shapes lists the shapes of a body: of the JSON, or of each event with repeats
// left out. Chunk sizes of the recordings fall out because they begin no field.
func shapes(body string) (all []string) {
	if !strings.Contains(body, "data: ") {
		return []string{shape(value(strings.TrimSpace(body)))}
	}
	event := ""
	for _, line := range strings.Split(body, "\n") {
		if name, ok := strings.CutPrefix(line, "event: "); ok {
			event = name + " "
		}
		data, ok := strings.CutPrefix(line, "data: ")
		if !ok {
			continue
		}
		s := event + data
		if data != "[DONE]" {
			s = event + shape(value(data))
		}
		if len(all) == 0 || all[len(all)-1] != s {
			all = append(all, s)
		}
		event = ""
	}
	return all
}

var goldenSystem = policy(3600)

func TestShapesAreThoseOfTheRecordings(t *testing.T) {
	chat := func(more string) string { return chatBody(goldenSystem, "hello", more) }
	details := Options{ReportCached: true, MaxModelLen: 32768, BlockSize: 128}
	plain := Options{MaxModelLen: 32768, BlockSize: 128}
	for _, row := range []struct {
		name, path, body string
		opts             Options
		warm             bool
	}{
		{"chat_cold", "/v1/chat/completions", chat(`,"max_tokens":8`), details, false},
		{"chat_warm", "/v1/chat/completions", chat(`,"max_tokens":8`), details, true},
		{"chat_no_details", "/v1/chat/completions", chat(`,"max_tokens":8`), plain, true},
		{"chat_stream", "/v1/chat/completions", chat(`,"max_tokens":8,"stream":true,"stream_options":{"include_usage":true}`), details, true},
		{"cont_usage", "/v1/chat/completions", chat(`,"max_tokens":2,"stream":true,"stream_options":{"include_usage":true,"continuous_usage_stats":true}`), details, false},
		{"reqid", "/v1/chat/completions", chat(`,"max_tokens":1`), details, false},
		{"batch", "/v1/chat/completions", chat(`,"max_tokens":1,"n":2`), plain, false},
		{"completions_stream", "/v1/completions", `{"model":"tiny","prompt":"` + goldenSystem + `","max_tokens":4,"stream":true,"stream_options":{"include_usage":true}}`, details, false},
		{"messages", "/v1/messages", `{"model":"tiny","max_tokens":4,"system":"` + goldenSystem + `","messages":[{"role":"user","content":"hi"}]}`, details, true},
		{"messages_no_details", "/v1/messages", `{"model":"tiny","max_tokens":2,"system":"` + goldenSystem + `","messages":[{"role":"user","content":"hi"}]}`, plain, true},
		{"messages_stream", "/v1/messages", `{"model":"tiny","max_tokens":4,"stream":true,"system":"` + goldenSystem + `","messages":[{"role":"user","content":"hi"}]}`, details, true},
		{"responses", "/v1/responses", `{"model":"tiny","max_output_tokens":4,"instructions":"` + goldenSystem + `","input":"hi"}`, details, true},
		{"responses_stream", "/v1/responses", `{"model":"tiny","max_output_tokens":4,"stream":true,"instructions":"` + goldenSystem + `","input":"hi"}`, details, true},
		{"models", "/v1/models", "", plain, false},
		{"tokenize", "/tokenize", `{"model":"tiny","messages":[{"role":"user","content":"hi"}]}`, plain, false},
		{"version", "/version", "", plain, false},
		{"load", "/load", "", plain, false},
	} {
		t.Run(row.name, func(t *testing.T) {
			want := recorded(t, row.name)
			_, c := start(t, row.opts)
			if row.warm {
				c.ok(row.path, row.body)
			}
			resp, body := c.do(row.path, row.body)
			if resp.StatusCode != want.status {
				t.Fatalf("status %d, recorded %d: %s", resp.StatusCode, want.status, body)
			}
			if got, want := shapes(body), shapes(want.body); !slices.Equal(got, want) {
				t.Errorf("shape differs\n got %s\nwant %s", strings.Join(got, "\n     "), strings.Join(want, "\n     "))
			}
			checkHeaders(t, resp, want)
		})
	}
}

func checkHeaders(t *testing.T, resp *http.Response, want recording) {
	t.Helper()
	got := []string{}
	for name := range resp.Header {
		got = append(got, strings.ToLower(name))
	}
	if resp.ContentLength >= 0 && !slices.Contains(got, "content-length") {
		got = append(got, "content-length")
	}
	slices.Sort(got)
	names := slices.DeleteFunc(slices.Clone(want.headers), func(h string) bool { return h == "connection" || h == "transfer-encoding" })
	slices.Sort(names)
	if !slices.Equal(got, names) {
		t.Errorf("headers %v, recorded %v", got, names)
	}
}

func TestErrorsAreThoseOfTheRecordings(t *testing.T) {
	long := chatBody(policy(40_000), "x", "")
	for _, row := range []struct {
		name, path, body string
		key              string
		header           []string
	}{
		{"err_badjson", "/v1/chat/completions", `{"model":"tiny","messages":[`, "", nil},
		{"err_nomsg", "/v1/chat/completions", `{"model":"tiny"}`, "", nil},
		{"err_model", "/v1/chat/completions", `{"model":"nope","messages":[{"role":"user","content":"x"}]}`, "", nil},
		{"err_toolong", "/v1/chat/completions", long, "", nil},
		{"err_path", "/v1/nothing", "", "", nil},
		{"maxtok0", "/v1/chat/completions", chatBody("a", "b", `,"max_tokens":0`), "", nil},
		{"render", "/v1/chat/completions/render", chatBody("a", "b", ""), "", nil},
		{"reset", "/reset_prefix_cache", "{}", "", nil},
		{"health", "/health", "", "", nil},
		{"401", "/v1/chat/completions", chatBody("a", "b", ""), "k1", nil},
		{"messages_xapikey", "/v1/messages", `{"model":"tiny","max_tokens":1,"messages":[]}`, "k1", []string{"x-api-key", "k1"}},
	} {
		t.Run(row.name, func(t *testing.T) {
			want := recorded(t, row.name)
			_, c := start(t, Options{MaxModelLen: 32768, APIKey: row.key})
			resp, body := c.do(row.path, row.body, row.header...)
			if resp.StatusCode != want.status || body != strings.TrimRight(want.body, "\n") {
				t.Errorf("got %d %s\nrecorded %d %s", resp.StatusCode, body, want.status, want.body)
			}
			checkHeaders(t, resp, want)
		})
	}
}

// seriesOf lists name{label names} of every vllm line of a page.
func seriesOf(page string) (all []string) {
	for _, line := range strings.Split(page, "\n") {
		if !strings.HasPrefix(line, "vllm:") {
			continue
		}
		name, rest, _ := strings.Cut(line, "{")
		var names []string
		for _, pair := range strings.Split(rest[:strings.LastIndex(rest, "}")], "\",") {
			n, v, _ := strings.Cut(pair, "=")
			if n == "le" || n == "reason" || n == "source" || n == "finished_reason" || n == "sleep_state" {
				n += "=" + strings.Trim(v, `"`)
			}
			names = append(names, n)
		}
		all = append(all, fmt.Sprintf("%s{%s}", name, strings.Join(names, ",")))
	}
	return all
}

func TestMetricNamesLabelsAndOrderAreThoseOfTheRecording(t *testing.T) {
	b, err := os.ReadFile("testdata/vllm_metrics.txt")
	if err != nil {
		t.Fatal(err)
	}
	_, c := start(t, Options{})
	c.ok("/v1/chat/completions", chatBody("a", "b", `,"max_tokens":3`))
	page := c.ok("/metrics", "")
	got, want := seriesOf(page), seriesOf(string(b))
	for i := range min(len(got), len(want)) {
		if got[i] != want[i] {
			t.Fatalf("series %d is %s, recorded %s", i, got[i], want[i])
		}
	}
	if len(got) != len(want) {
		t.Errorf("%d series, recorded %d", len(got), len(want))
	}
	for _, kind := range []string{"counter", "gauge", "histogram"} {
		count := func(p string) (n int) {
			for _, l := range strings.Split(p, "\n") {
				if strings.HasPrefix(l, "# TYPE vllm:") && strings.HasSuffix(l, " "+kind) {
					n++
				}
			}
			return n
		}
		if got, want := count(page), count(string(b)); got != want {
			t.Errorf("%d families of kind %s, recorded %d", got, kind, want)
		}
	}
}
