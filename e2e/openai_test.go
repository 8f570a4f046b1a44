package e2e

import (
	"context"
	"errors"
	"testing"

	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"
	"github.com/openai/openai-go/v3/responses"
	"github.com/openai/openai-go/v3/shared"
)

func openaiClient() openai.Client {
	return openai.NewClient(option.WithBaseURL(fleet.url+"/v1"), option.WithAPIKey("client-key"), option.WithMaxRetries(0))
}

func chat(system, user string) openai.ChatCompletionNewParams {
	return openai.ChatCompletionNewParams{
		Model:     "m1",
		Messages:  []openai.ChatCompletionMessageParamUnion{openai.SystemMessage(system), openai.UserMessage(user)},
		MaxTokens: openai.Int(8),
	}
}

// The same fat prefix with another question is served from the cache it warmed.
func TestChatIsWarmTheSecondTime(t *testing.T) {
	c := openaiClient()
	var cached [2]int64
	for i, q := range []string{"first question", "another question"} {
		r, err := c.Chat.Completions.New(context.Background(), chat(fat("chat"), q))
		if err != nil {
			t.Fatal(err)
		}
		if r.Choices[0].Message.Content == "" || r.Choices[0].FinishReason == "" {
			t.Errorf("answer %+v", r.Choices[0])
		}
		cached[i] = r.Usage.PromptTokensDetails.CachedTokens
	}
	if cached[0] != 0 || cached[1] < 3000 {
		t.Errorf("cached tokens %v, want 0 and more than 3000", cached)
	}
}

func TestChatStreams(t *testing.T) {
	c := openaiClient()
	p := chat(fat("stream"), "tell me")
	p.StreamOptions = openai.ChatCompletionStreamOptionsParam{IncludeUsage: openai.Bool(true)}
	s := c.Chat.Completions.NewStreaming(context.Background(), p)
	defer s.Close()
	acc := openai.ChatCompletionAccumulator{}
	events := 0
	for s.Next() {
		acc.AddChunk(s.Current())
		events++
	}
	if err := s.Err(); err != nil {
		t.Fatal(err)
	}
	if events < 3 || acc.Choices[0].Message.Content == "" || acc.Usage.CompletionTokens != 8 {
		t.Errorf("%d events, %q, usage %+v", events, acc.Choices[0].Message.Content, acc.Usage)
	}
}

// A client that did not ask for usage gets none, although the router counts it (B06).
func TestB06NobodyGetsAUsageChunkUnasked(t *testing.T) {
	c := openaiClient()
	s := c.Chat.Completions.NewStreaming(context.Background(), chat(fat("no usage"), "tell me"))
	defer s.Close()
	for s.Next() {
		if ch := s.Current(); len(ch.Choices) == 0 || ch.JSON.Usage.Valid() {
			t.Errorf("chunk with usage or without choices: %s", ch.RawJSON())
		}
	}
	if err := s.Err(); err != nil {
		t.Fatal(err)
	}
}

func TestChatCallsTools(t *testing.T) {
	c := openaiClient()
	p := chat(fat("tools"), "use tool please")
	p.MaxTokens = openai.Int(64)
	p.Tools = []openai.ChatCompletionToolUnionParam{openai.ChatCompletionFunctionTool(shared.FunctionDefinitionParam{
		Name: "get_order", Description: openai.String("looks an order up"),
		Parameters: shared.FunctionParameters{"type": "object", "properties": map[string]any{"id": map[string]string{"type": "string"}}},
	})}
	r, err := c.Chat.Completions.New(context.Background(), p)
	if err != nil {
		t.Fatal(err)
	}
	if calls := r.Choices[0].Message.ToolCalls; len(calls) != 1 || calls[0].Function.Name != "get_order" {
		t.Errorf("tool calls %+v, finish %s", calls, r.Choices[0].FinishReason)
	}
}

func TestResponses(t *testing.T) {
	c := openaiClient()
	p := responses.ResponseNewParams{
		Model: "m1", Instructions: openai.String(fat("responses")), MaxOutputTokens: openai.Int(8),
		Input: responses.ResponseNewParamsInputUnion{OfString: openai.String("hello")},
	}
	r, err := c.Responses.New(context.Background(), p)
	if err != nil {
		t.Fatal(err)
	}
	if r.OutputText() == "" {
		t.Errorf("no text in %s", r.RawJSON()[:200])
	}
	s := c.Responses.NewStreaming(context.Background(), p)
	defer s.Close()
	text, last := "", ""
	for s.Next() {
		ev := s.Current()
		last = ev.Type
		if ev.Type == "response.output_text.delta" {
			text += ev.Delta
		}
	}
	if err := s.Err(); err != nil {
		t.Fatal(err)
	}
	if text == "" || last != "response.completed" {
		t.Errorf("text %q, last event %q", text, last)
	}
}

func TestModelsAreListed(t *testing.T) {
	c := openaiClient()
	page, err := c.Models.List(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	if len(page.Data) != 1 || page.Data[0].ID != "m1" {
		t.Errorf("models %+v", page.Data)
	}
}

func TestErrorsReachTheClientAsItsOwn(t *testing.T) {
	c := openaiClient()
	p := chat("short", "hi")
	p.Model = "nope"
	_, err := c.Chat.Completions.New(context.Background(), p)
	var api *openai.Error
	if !errors.As(err, &api) || api.StatusCode != 404 || api.Message == "" {
		t.Errorf("unknown model: %v", err)
	}
	p = chat("short", "hi")
	p.MaxTokens = openai.Int(0)
	_, err = c.Chat.Completions.New(context.Background(), p)
	if !errors.As(err, &api) || api.StatusCode != 400 || api.Message == "" {
		t.Errorf("max_tokens 0: %v", err)
	}
}
