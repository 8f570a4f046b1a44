package health

import (
	"encoding/json"
	"fmt"
)

// parseModels reads a /v1/models answer. Both engines list LoRA adapters beside the
// base models; an adapter names its parent.
func parseModels(body []byte, models, adapters *[]string) error {
	var list struct {
		Data []struct {
			ID     string `json:"id"`
			Parent string `json:"parent"`
		} `json:"data"`
	}
	if err := json.Unmarshal(body, &list); err != nil {
		return fmt.Errorf("cannot read the list of models: %w", err)
	}
	if list.Data == nil {
		return errNoList
	}
	for _, m := range list.Data {
		switch {
		case m.ID == "":
		case m.Parent != "":
			*adapters = append(*adapters, m.ID)
		default:
			*models = append(*models, m.ID)
		}
	}
	return nil
}

// parseSleep reads an /is_sleeping answer.
func parseSleep(body []byte) (Sleep, bool) {
	var a struct {
		Sleeping *bool `json:"is_sleeping"`
	}
	if json.Unmarshal(body, &a) != nil || a.Sleeping == nil {
		return SleepUnknown, false
	}
	if *a.Sleeping {
		return Sleeping, true
	}
	return Awake, true
}

// parseVersion reads vLLM's /version and SGLang's /server_info, "" if it has none.
func parseVersion(body []byte) string {
	var a struct {
		Version string `json:"version"`
	}
	if json.Unmarshal(body, &a) != nil {
		return ""
	}
	return a.Version
}

// trialPrompt is an ordinary short sentence: a prompt of a single token takes a path
// through the engine that traffic never takes, and ended a vLLM 0.32 CPU engine
// (docs/real-engines.md).
const trialPrompt = "Answer with one word: is the order on its way to the customer?"

// trialBody is a completion of one token.
func trialBody(model string) []byte {
	b, err := json.Marshal(map[string]any{"model": model, "prompt": trialPrompt, "max_tokens": 1, "temperature": 0})
	if err != nil {
		panic("BUG: cannot encode a trial request: " + err.Error())
	}
	return b
}
