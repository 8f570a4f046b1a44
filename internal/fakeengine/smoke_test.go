package fakeengine

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
)

func post(t *testing.T, url, path, body string) (*http.Response, string) {
	t.Helper()
	resp, err := http.Post(url+path, "application/json", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp, string(b)
}

func TestSmoke(t *testing.T) {
	_, url := StartT(t, Options{ReportCached: true, Model: "tiny"})
	sys := strings.Repeat("Policy: answer with facts. ", 100)
	for range 2 {
		for _, c := range []struct{ path, body string }{
			{"/v1/chat/completions", `{"model":"tiny","messages":[{"role":"system","content":"` + sys + `"},{"role":"user","content":"hi"}],"max_tokens":3}`},
			{"/v1/chat/completions", `{"model":"tiny","messages":[{"role":"system","content":"` + sys + `"},{"role":"user","content":"hi"}],"max_tokens":3,"stream":true,"stream_options":{"include_usage":true}}`},
			{"/v1/completions", `{"model":"tiny","prompt":"` + sys + `","max_tokens":3,"stream":true,"stream_options":{"include_usage":true}}`},
			{"/v1/messages", `{"model":"tiny","system":"` + sys + `","messages":[{"role":"user","content":"hi"}],"max_tokens":3,"stream":true}`},
			{"/v1/responses", `{"model":"tiny","instructions":"hello","input":"hi","max_output_tokens":3,"stream":true}`},
		} {
			resp, b := post(t, url, c.path, c.body)
			fmt.Println(resp.Status, resp.Header, b)
		}
	}
	resp, err := http.Get(url + "/oracle")
	if err != nil {
		t.Fatal(err)
	}
	b, _ := io.ReadAll(resp.Body)
	resp.Body.Close()
	fmt.Println(string(b))
}
