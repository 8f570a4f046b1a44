package dialect

import (
	"strings"
	"testing"
)

func TestForwardedPaths(t *testing.T) {
	for path, want := range map[string]Protocol{
		"/v1/chat/completions": Chat, "/v1/completions": Completions, "/v1/responses": Responses, "/v1/messages": Messages,
		"/v1/embeddings": Opaque, "/v1/rerank": Opaque, "/v1/score": Opaque, "/v1/classify": Opaque,
		"/v1/audio/transcriptions": Opaque, "/v1/models": Opaque, "/v1/messages/count_tokens": Opaque,
		"/inference/v1/generate": Opaque, "/tokenize": Opaque, "/v1/detokenize": Opaque,
		"/v1/models/org/model-7B": Opaque, "/v1/models/org%2Fmodel%3Atag": Opaque,
		"/v1/responses/resp_80de2a6894cb62bd": Opaque, "/v1/responses/resp_1/cancel": Opaque,
	} {
		if p, ok := ProtocolOf(path); !ok || p != want {
			t.Errorf("%s: %v %v", path, p, ok)
		}
	}
}

// Engines serve administration on the data port, on vLLM mostly without a key.
func TestAdminPathsAreNeverForwarded(t *testing.T) {
	refused := strings.Fields(`/ /v1 /v1/ /health /health_generate /metrics /ping /load /version /server_info /get_server_info /model_info
		/sleep /wake_up /is_sleeping /reset_prefix_cache /reset_mm_cache /reset_encoder_cache /collective_rpc /pause /resume /is_paused
		/abort_requests /abort_request /v1/load_lora_adapter /v1/unload_lora_adapter /load_lora_adapter /unload_lora_adapter /flush_cache
		/start_profile /stop_profile /scale_elastic_ep /fault_tolerance/apply /invocations /v1/loads /get_load /generate /encode
		/hicache/storage-backend /clear_hicache_storage_backend /pause_generation /continue_generation /open_session
		/release_memory_occupation /slow_down /freeze_gc /set_internal_state /update_weights_from_disk /vertex_generate /api/chat
		/tokenizer_info /docs /openapi.json /v1/realtime
		/v1/chat/completions/ //v1/chat/completions /v1//chat/completions /v1/chat/../../sleep /v1/../sleep /v1/./models
		/V1/chat/completions /v1/chat/completions%00 /v1/chat%2fcompletions /v1/%63hat/completions /v1/chat/completions;x /v1/chat/completions?x=1
		/v1/chat/completions#x /v1\\chat\\completions v1/chat/completions http://h/v1/models
		/v1/models/ /v1/models/.. /v1/models/../sleep /v1/models/a/../../sleep /v1/models/%2e%2e/sleep /v1/models/a%2F..%2Fb /v1/models//a
		/v1/models/a%2F /v1/models/%252F /v1/responses/ /v1/responses/.. /v1/responses/a/b /v1/responses/a%2Fb /v1/responses//cancel
		/v1/responses/../cancel /v1/responses/a/cancel/ /v1/responses/a/cancel/cancel`)
	refused = append(refused, "", "/v1/models/a b", "/v1/models/é", "/v1/responses/"+strings.Repeat("a", 257), "/v1/models/"+strings.Repeat("a/", 300)+"a")
	for _, path := range refused {
		if r, ok := RouteOf(path); ok {
			t.Errorf("%q is forwarded as %+v", path, r)
		}
	}
}

func TestMethodsOfRoutes(t *testing.T) {
	cases := []struct{ path, yes, no, allow string }{
		{"/v1/chat/completions", "POST", "GET HEAD PUT DELETE OPTIONS CONNECT TRACE post", "POST"},
		{"/v1/models", "GET HEAD", "POST DELETE", "GET, HEAD"},
		{"/v1/rerank", "POST PUT", "GET DELETE", "POST, PUT"},
		{"/v1/responses/r1", "GET HEAD", "POST DELETE", "GET, HEAD"},
		{"/v1/responses/r1/cancel", "POST", "GET", "POST"},
	}
	for _, c := range cases {
		r, ok := RouteOf(c.path)
		if !ok || r.Allow() != c.allow {
			t.Errorf("%s: %v, Allow %q", c.path, ok, r.Allow())
		}
		for _, m := range strings.Fields(c.yes) {
			if !r.Allows(m) {
				t.Errorf("%s refuses %s", c.path, m)
			}
		}
		for _, m := range strings.Fields(c.no) {
			if r.Allows(m) {
				t.Errorf("%s allows %s", c.path, m)
			}
		}
	}
	for _, p := range Paths() {
		if r, ok := RouteOf(p); !ok || r.Allow() == "" || r.Stored {
			t.Errorf("%s: %+v", p, r)
		}
	}
	if n := testing.AllocsPerRun(100, func() { RouteOf("/v1/chat/completions") }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func FuzzRouteOf(f *testing.F) {
	for _, p := range Paths() {
		f.Add(p)
	}
	f.Add("/v1/models/a%2Fb")
	f.Add("/v1/responses/x/cancel")
	f.Fuzz(func(t *testing.T, path string) {
		if _, ok := RouteOf(path); !ok {
			return
		}
		// Whatever decodes and cleans this path must find the same path.
		decoded := strings.NewReplacer("%2F", "/", "%2f", "/", "%3A", ":", "%3a", ":").Replace(path)
		for segment := range strings.SplitSeq(decoded[1:], "/") {
			if segment == "" || segment == "." || segment == ".." || strings.ContainsAny(segment, "%\\?#; \x00") {
				t.Fatalf("%q is forwarded", path)
			}
		}
	})
}
