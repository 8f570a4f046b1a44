package e2e

import (
	"context"
	"errors"
	"testing"

	"github.com/anthropics/anthropic-sdk-go/v2"
	"github.com/anthropics/anthropic-sdk-go/v2/option"
)

func anthropicClient() anthropic.Client {
	return anthropic.NewClient(option.WithBaseURL(fleet.url), option.WithAPIKey("client-key"), option.WithMaxRetries(0))
}

func message(system, user string) anthropic.MessageNewParams {
	return anthropic.MessageNewParams{
		Model: "m1", MaxTokens: 8,
		System:   []anthropic.TextBlockParam{{Text: system}},
		Messages: []anthropic.MessageParam{anthropic.NewUserMessage(anthropic.NewTextBlock(user))},
	}
}

func TestMessagesAreWarmTheSecondTime(t *testing.T) {
	c := anthropicClient()
	var read [2]int64
	for i, q := range []string{"first question", "another question"} {
		m, err := c.Messages.New(context.Background(), message(fat("messages"), q))
		if err != nil {
			t.Fatal(err)
		}
		if len(m.Content) == 0 || m.Content[0].Text == "" || m.StopReason == "" {
			t.Errorf("answer %+v", m)
		}
		read[i] = m.Usage.CacheReadInputTokens
	}
	if read[0] != 0 || read[1] < 3000 {
		t.Errorf("cache reads %v, want 0 and more than 3000", read)
	}
}

func TestMessagesStream(t *testing.T) {
	c := anthropicClient()
	s := c.Messages.NewStreaming(context.Background(), message(fat("message stream"), "tell me"))
	defer s.Close()
	var m anthropic.Message
	for s.Next() {
		if err := m.Accumulate(s.Current()); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Err(); err != nil {
		t.Fatal(err)
	}
	if len(m.Content) == 0 || m.Content[0].Text == "" || m.StopReason == "" {
		t.Errorf("message %+v", m)
	}
}

func TestMessagesErrorHasTheirShape(t *testing.T) {
	c := anthropicClient()
	p := message("short", "hi")
	p.Model = "nope"
	_, err := c.Messages.New(context.Background(), p)
	var api *anthropic.Error
	if !errors.As(err, &api) || api.StatusCode != 404 {
		t.Errorf("unknown model: %v", err)
	}
}
