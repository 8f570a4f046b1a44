package main

import (
	"crypto/sha256"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// until polls for what another goroutine brings about.
func until(t *testing.T, what string, yes func() bool) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); !yes(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not in 20 s: %s", what)
		}
	}
}

// askAs sends one small chat and returns status and the router's error code.
func askAs(t *testing.T, data, key string) (int, string) {
	t.Helper()
	req, err := http.NewRequest("POST", data+"/v1/chat/completions",
		strings.NewReader(`{"model":"m1","max_tokens":1,"messages":[{"role":"user","content":"hi"}]}`))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	if key != "" {
		req.Header.Set("X-Api-Key", key)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	return resp.StatusCode, resp.Header.Get("X-Prefixring-Error")
}

func put(t *testing.T, dir, name, text string) {
	t.Helper()
	// As editors and Kubernetes do: a new file takes the place of the old one.
	if err := os.WriteFile(filepath.Join(dir, name+".new"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(filepath.Join(dir, name+".new"), filepath.Join(dir, name)); err != nil {
		t.Fatal(err)
	}
}

// Keys, limits and models come from the configuration. Keys rotate, tenants come and
// go while the router runs, and a bad file changes nothing.
func TestTenantsFromConfiguration(t *testing.T) {
	_, url := instant(t)
	dir := t.TempDir()
	const old, fresh, other = "key-of-the-shop-0", "key-of-the-shop-1", "key-of-the-lab-00"
	pools := "pools:\n  - engines: [{name: e1, url: '" + url + "'}]\nlimits: {drain_delay: 1ms}\n"
	both := pools + "tenants:\n  - {name: shop, key_file: shop.keys}\n  - {name: lab, key_file: lab.keys, requests_per_minute: 1, models: [m1]}\n"
	put(t, dir, "shop.keys", old+"\n")
	put(t, dir, "lab.keys", fmt.Sprintf("sha256:%x\n", sha256.Sum256([]byte(other))))
	put(t, dir, "router.yaml", both)
	file := filepath.Join(dir, "router.yaml")
	if code, out, errs := invoke(t, "check", "--config", file); code != 0 || !strings.Contains(out, "2 tenants") {
		t.Fatalf("check: %d %s %s", code, out, errs)
	}
	s := serveT(t, "--config", file, "--reload-interval", "5ms")
	until(t, "the engine serves", func() bool { got, _ := askAs(t, s.data, old); return got == 200 })
	is := func(key string, status int, code string) {
		t.Helper()
		if got, why := askAs(t, s.data, key); got != status || why != code {
			t.Errorf("%q: %d %s, want %d %s", key, got, why, status, code)
		}
	}
	is("", 401, "unauthorized")
	is(fresh, 401, "unauthorized")
	is(other, 200, "")
	is(other, 429, "rate_limited")

	put(t, dir, "shop.keys", fresh+"\n"+old+"\n") // a rotation begins
	until(t, "the new key holds", func() bool { got, _ := askAs(t, s.data, fresh); return got == 200 })
	is(old, 200, "")
	is(other, 429, "rate_limited")       // what was used stays used
	put(t, dir, "shop.keys", fresh+"\n") // and ends
	until(t, "the old key is out", func() bool { got, _ := askAs(t, s.data, old); return got == 401 })

	put(t, dir, "router.yaml", both+"  - {name: shop}\n") // wrong: everything stays
	put(t, dir, "lab.keys", "short\n")                    // wrong, too
	is(fresh, 200, "")
	is("", 401, "unauthorized")
	put(t, dir, "router.yaml", pools) // without tenants everyone may
	until(t, "no key is needed", func() bool { got, _ := askAs(t, s.data, ""); return got == 200 })
}

// Key files and salts that cannot be used end check and serve with 2, and what is said
// never shows what is in them.
func TestBadKeyFiles(t *testing.T) {
	dir := t.TempDir()
	pools := "pools:\n  - engines: [{url: 'http://127.0.0.1:1'}]\n"
	put(t, dir, "short", "hunter2\n")
	put(t, dir, "good", "a-key-that-is-long-enough\n")
	for name, tc := range map[string]struct{ config, says string }{
		"no such file": {"tenants: [{name: a, key_file: none.keys}]\n", "tenant \"a\""},
		"short key":    {"tenants: [{name: a, key_file: short}]\n", "line 1"},
		"twin keys":    {"tenants: [{name: a, key_file: good}, {name: b, key_file: good}]\n", "same key"},
		"short salt":   {"tenants: [{name: a, key_file: good}]\naccess: {salt_file: short}\n", "16 bytes"},
		"no salt file": {"tenants: [{name: a, key_file: good}]\naccess: {salt_file: none}\n", "access.salt_file"},
		"idle salt":    {"access: {salt_file: good}\n", "name tenants"},
		"two nameless": {"tenants: [{name: a}, {name: b}]\n", "without a key"},
		"hedge, beat":  {"limits: {heartbeat: 5s}\nretry: {hedge: 1s}\n", "exclude each other"},
		"no name":      {"tenants: [{key_file: good}]\n", "tenants[0].name"},
		"big priority": {"tenants: [{name: a, priority: 101}]\n", "tenants[0].priority"},
	} {
		put(t, dir, "router.yaml", pools+tc.config)
		code, out, errs := invoke(t, "check", "--config", filepath.Join(dir, "router.yaml"))
		if code != 2 || !strings.Contains(errs, tc.says) || strings.Contains(out+errs, "hunter2") {
			t.Errorf("%s: %d %q", name, code, errs)
		}
	}
}
