package dialect

import "testing"

// An announcement is an event, and no output: everything else is.
func TestAnnouncementsAreNoOutput(t *testing.T) {
	const created = "event: response.created\ndata: {\"response\":{\"id\":\"resp_1\",\"status\":\"in_progress\",\"error\":null},\"sequence_number\":0,\"type\":\"response.created\"}\n\n"
	for name, c := range map[string]struct {
		protocol Protocol
		body     string
		output   bool
	}{
		"responses, created":        {Responses, created, false},
		"responses, named by type":  {Responses, `data: {"type":"response.created"}` + "\n\n", false},
		"responses, named by frame": {Responses, "event: response.created\ndata: {}\n\n", false},
		"responses, in progress":    {Responses, created + data(`{"type":"response.in_progress"}`), false},
		"responses, queued":         {Responses, data(`{"type":"response.queued"}`), false},
		"responses, item":           {Responses, created + data(`{"type":"response.output_item.added"}`), true},
		"responses, completed":      {Responses, created + data(`{"type":"response.completed","response":{"status":"completed"}}`), true},
		"responses, failed":         {Responses, created + data(`{"type":"response.failed","response":{"status":"failed"}}`), true},
		"responses, no JSON":        {Responses, created + data(`x`), true},
		"messages, start":           {Messages, "event: message_start\n" + data(`{"type":"message_start","message":{"usage":{"input_tokens":3}}}`), false},
		"messages, ping":            {Messages, data(`{"type":"message_start"}`, `{"type":"ping"}`), false},
		"messages, block":           {Messages, data(`{"type":"message_start"}`, `{"type":"content_block_start","content_block":{"type":"text","text":""}}`), true},
		"messages, comment":         {Messages, data(`{"type":"message_start"}`) + ": ping\n\n", false},
		"messages, half a block":    {Messages, data(`{"type":"message_start"}`) + `data: {"type":"content_block_start"}` + "\n", false},
		"chat, role":                {Chat, data(roleChunk), true},
		"chat, done":                {Chat, data("[DONE]"), true},
		"nothing":                   {Chat, "", false},
	} {
		var tap Tap
		tap.Reset(c.protocol, 200, "text/event-stream")
		var one Tap
		one.Reset(c.protocol, 200, "text/event-stream")
		tap.Write([]byte(c.body))
		for i := range len(c.body) {
			one.Write([]byte{c.body[i]})
		}
		if got := tap.State(); got.Output != c.output || got != one.State() {
			t.Errorf("%s: %+v, octet by octet %+v", name, got, one.State())
		}
	}
	var body Tap
	body.Reset(Responses, 200, "application/json")
	body.Write([]byte(`{"id":`))
	if !body.State().Output {
		t.Error("a JSON body that has begun is output")
	}
}
