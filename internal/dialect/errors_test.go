package dialect

import (
	"encoding/json"
	"strings"
	"testing"
	"unicode/utf8"
)

var protocols = []Protocol{Opaque, Chat, Completions, Responses, Messages}

func TestErrorShapes(t *testing.T) {
	e := Error{Status: 503, Code: "overloaded", Message: "every engine is at its bound", RetryAfterSeconds: 2, RequestID: "req_1", Sequence: 4}
	const openai = `{"error":{"message":"every engine is at its bound","type":"server_error","param":null,"code":"overloaded"}}`
	const claude = `{"type":"error","error":{"type":"overloaded_error","message":"every engine is at its bound"},"request_id":"req_1"}`
	const responses = `{"type":"error","code":"overloaded","message":"every engine is at its bound","param":null,` +
		`"error":{"message":"every engine is at its bound","type":"server_error","param":null,"code":"overloaded"},"sequence_number":4}`
	for _, p := range protocols {
		body, stream := openai, "data: "+openai+"\n\n"
		switch p {
		case Messages:
			body, stream = claude, "event: error\ndata: "+claude+"\n\n"
		case Responses:
			stream = "event: error\ndata: " + responses + "\n\n"
		}
		if got := string(e.Body(p)); got != body {
			t.Errorf("%v body\n got %s\nwant %s", p, got, body)
		}
		if got := string(e.Stream(p)); got != stream {
			t.Errorf("%v stream\n got %s\nwant %s", p, got, stream)
		}
	}
	e = Error{Code: "bad_json", Message: "x", Param: "messages"}
	if got := string(e.Body(Chat)); got != `{"error":{"message":"x","type":"invalid_request_error","param":"messages","code":"bad_json"}}` || e.StatusCode() != 400 {
		t.Errorf("%s %d", got, e.StatusCode())
	}
}

// The router's own errors must read as failures to its own tap, in every protocol
// and at every place of a stream: two routers in a row must not call them success.
func TestOwnErrorsAreFailuresToTheTap(t *testing.T) {
	for _, c := range Codes {
		e := Error{Status: c.Status, Code: c.Code, Message: c.Meaning}
		for _, p := range protocols {
			o, s := run(t, p, data(textChunk, stopChunk)+string(e.Stream(p)), true)
			if o.Verdict != Failed || !s.ErrorEvent {
				t.Errorf("%s in %v: %+v %+v", c.Code, p, o, s)
			}
			if o, _ := observe(p, capture{200, "application/json", e.Body(p)}, 0, true); o.Verdict != Failed {
				t.Errorf("%s body in %v: %+v", c.Code, p, o)
			}
		}
	}
}

func TestCodesTable(t *testing.T) {
	seen := map[string]bool{}
	for _, c := range Codes {
		if seen[c.Code] || c.Code == "" || c.Status < 400 || c.Status > 599 || c.OpenAI == "" || c.Claude == "" || !strings.HasSuffix(c.Meaning, ".") {
			t.Errorf("%+v", c)
		}
		seen[c.Code] = true
		if got, ok := CodeOf(c.Code); !ok || got != c {
			t.Errorf("CodeOf(%s) = %+v", c.Code, got)
		}
		if strings.Trim(c.Code, "abcdefghijklmnopqrstuvwxyz_0123456789") != "" {
			t.Errorf("code %q is no label value", c.Code)
		}
	}
}

// FuzzErrorBody: any text gives valid JSON that says the text, on one line.
func FuzzErrorBody(f *testing.F) {
	f.Add("plain", "p")
	f.Add("\"\\\n\r\x00\x7f\u2028<&>渐\xff", "a\"b")
	f.Fuzz(func(t *testing.T, message, param string) {
		e := Error{Status: 400, Code: "bad_json", Message: message, Param: param, RequestID: param}
		for _, p := range protocols {
			stream := string(e.Stream(p))
			lines := strings.Split(strings.TrimSuffix(stream, "\n\n"), "\n")
			last, ok := strings.CutPrefix(lines[len(lines)-1], "data: ")
			if !ok || strings.Contains(stream, "\r") || len(lines) > 2 {
				t.Fatalf("%v: framing broken: %q", p, stream)
			}
			for _, text := range []string{string(e.Body(p)), last} {
				var v struct {
					Error struct{ Message string }
				}
				if err := json.Unmarshal([]byte(text), &v); err != nil {
					t.Fatalf("%v: %v in %q", p, err, text)
				}
				want := message
				if !utf8.ValidString(want) {
					want = strings.ToValidUTF8(want, "\uFFFD")
					v.Error.Message = strings.ReplaceAll(v.Error.Message, "\uFFFD\uFFFD", "\uFFFD")
					for strings.Contains(v.Error.Message, "\uFFFD\uFFFD") {
						v.Error.Message = strings.ReplaceAll(v.Error.Message, "\uFFFD\uFFFD", "\uFFFD")
					}
					for strings.Contains(want, "\uFFFD\uFFFD") {
						want = strings.ReplaceAll(want, "\uFFFD\uFFFD", "\uFFFD")
					}
				}
				if v.Error.Message != want {
					t.Fatalf("%v: message %q, want %q", p, v.Error.Message, want)
				}
			}
		}
	})
}
