package proxy

import (
	"encoding/json"
	"strings"
	"testing"
)

// twoPools adds a second pool with model n, alias prod and an adapter.
func twoPools(t *testing.T) func(*Pool) []*Pool {
	return func(first *Pool) []*Pool {
		e := newEngine(t, answer)
		second, ups := newPool(t, "second", setup{}, e.url())
		t.Cleanup(func() { ups[0].Close() })
		second.Models = []string{"n", "org/lora-x"}
		second.Aliases = map[string]string{"prod": "org/lora-x"}
		return []*Pool{first, second}
	}
}

// B32: the list is the union of the pools, a model never goes to another pool's
// engines, and an unknown one touches none.
func TestB32Models(t *testing.T) {
	e := newEngine(t, answer)
	r := newRouter(t, setup{pools: twoPools(t)}, e.url())
	got := r.do(t, "GET /v1/models HTTP/1.1\r\nHost: a\r\n\r\n")
	var list struct {
		Object string
		Data   []struct{ ID, Object, Root string }
	}
	if err := json.Unmarshal(got.body, &list); err != nil || got.status != 200 {
		t.Fatalf("%d %q %v", got.status, got.body, err)
	}
	var ids []string
	for _, m := range list.Data {
		ids = append(ids, m.ID+"="+m.Root)
	}
	if s := strings.Join(ids, " "); s != "m=m n=n org/lora-x=org/lora-x prod=org/lora-x" {
		t.Fatalf("models %s", s)
	}
	for path, status := range map[string]int{"/v1/models/m": 200, "/v1/models/org%2Florra": 404, "/v1/models/org%2Flora-x": 200, "/v1/models/org/lora-x": 200, "/v1/models/zzz": 404} {
		if got := r.do(t, "GET "+path+" HTTP/1.1\r\nHost: a\r\n\r\n"); got.status != status {
			t.Errorf("%s: %d %s", path, got.status, got.body)
		}
	}
	for range 20 {
		if got := r.chat(t, strings.Replace(chatBody, `"m"`, `"n"`, 1)); got.status != 200 {
			t.Fatal(got.status)
		}
	}
	if e.calls.Load() != 0 {
		t.Fatalf("%d requests for another pool's model", e.calls.Load())
	}
	if got := r.do(t, "HEAD /v1/models HTTP/1.1\r\nHost: a\r\n\r\n"); got.status != 200 || len(got.body) != 0 {
		t.Fatalf("HEAD: %d %q", got.status, got.body)
	}
}

// An alias changes the octets of the model's name and no others.
func TestAliasIsSpliced(t *testing.T) {
	e := newEngine(t, answer)
	r := newRouter(t, setup{pool: func(p *Pool) { p.Aliases = map[string]string{"chat-prod": `org/Model:v1 "x"`} }}, e.url())
	body := "{ \"messages\":[{\"role\":\"user\",\"content\":\"chat-prod\"}] , \"model\" :\t\"chat\\u002dprod\" , \"z\":[1.0,\"chat-prod\"]}"
	if got := r.chat(t, body); got.status != 200 {
		t.Fatalf("%d %s", got.status, got.body)
	}
	want := strings.Replace(body, `"chat\u002dprod"`, `"org/Model:v1 \"x\""`, 1)
	if string(e.lastBody()) != want {
		t.Fatalf("engine got %s", e.lastBody())
	}
}

func TestTableRefusesTwoMeanings(t *testing.T) {
	a, _ := newPool(t, "a", setup{})
	b, _ := newPool(t, "b", setup{})
	if _, err := NewTable([]*Pool{a, b}); err == nil || !strings.Contains(err.Error(), `"m"`) {
		t.Fatalf("two pools with one model: %v", err)
	}
}

// Transcription uploads pass as they are, to the pool of the model in the form.
func TestMultipartUpload(t *testing.T) {
	e := newEngine(t, answer)
	r := newRouter(t, setup{pools: twoPools(t)}, e.url())
	form := "--XX\r\nContent-Disposition: form-data; name=\"file\"; filename=\"a.wav\"\r\nContent-Type: audio/wav\r\n\r\n" + strings.Repeat("\x00\xff\r\n--X", 20000) +
		"\r\n--XX\r\nContent-Disposition: form-data; name=\"model\"\r\n\r\nm\r\n--XX--\r\n"
	raw := "POST /v1/audio/transcriptions HTTP/1.1\r\nHost: a\r\nContent-Type: multipart/form-data; boundary=XX\r\nContent-Length: " + itoa(len(form)) + "\r\n\r\n" + form
	if got := r.do(t, raw); got.status != 200 {
		t.Fatalf("%d %s", got.status, got.body)
	}
	if string(e.lastBody()) != form || !strings.Contains(e.lastHead(), "boundary=XX") {
		t.Fatal("the engine got another form")
	}
}
