package dialect

// node is a place in the JSON shapes that engines send. The walker follows the
// places below and passes over everything else.
type node uint8

const (
	nSkip node = iota

	// Containers.
	nChat     // root of chat and completions, chunk or body
	nRespEv   // root of a Responses stream event
	nResp     // a Responses object: root of a body, `response` of an event
	nMsg      // root of a Messages event or body
	nChoices  // array
	nChoice   // element of nChoices
	nDelta    // choices[].delta
	nMsgStart // Messages message_start.message
	nMsgDelta // Messages delta
	nBlock    // Messages content_block
	nUsage
	nInDetails
	nOutDetails
	nCreation // Anthropic cache_creation
	nIncomplete
	nError        // `error`: an object, a string or null
	lastContainer = nError
)

const (
	// Leaves with a string of interest.
	lType node = lastContainer + 1 + iota
	lStatus
	lFinish
	lObject
	lErrType
	lCode // number or string
	lBlockType

	// Leaves that hold generated text: anything but null and empty counts.
	lToken

	// Leaves whose presence matters.
	lExt

	// Leaves with a count.
	lIndex
	lIn
	lOut
	lCached
	lWrite
	lRead
	lCreate
	lCreate1h
	lReason
	nodes
)

// edge leads from a container to a value by key.
type edge struct {
	key string
	to  node
}

// container lists the keys of interest; lens has bit n set when a key of length
// n is among them, so that most keys cost one test.
type container struct {
	lens  uint32
	edges []edge
}

// shapes: sources are engine_contracts 8, and the captures. Chat and completions
// share one root, because Opaque bodies (embeddings, batch) share it too.
var shapes = [lastContainer + 1]container{
	nChat: keys(edge{"choices", nChoices}, edge{"usage", nUsage}, edge{"error", nError},
		edge{"object", lObject}, edge{"code", lCode}, edge{"sglext", lExt}),
	nRespEv: keys(edge{"type", lType}, edge{"response", nResp}, edge{"delta", lToken},
		edge{"error", nError}, edge{"object", lObject}, edge{"code", lCode}),
	nResp: keys(edge{"status", lStatus}, edge{"usage", nUsage}, edge{"error", nError},
		edge{"incomplete_details", nIncomplete}, edge{"object", lObject}, edge{"code", lCode}),
	nMsg: keys(edge{"type", lType}, edge{"message", nMsgStart}, edge{"delta", nMsgDelta},
		edge{"usage", nUsage}, edge{"stop_reason", lFinish}, edge{"error", nError},
		edge{"content_block", nBlock}, edge{"object", lObject}, edge{"code", lCode}),
	nChoices: {},
	nChoice: keys(edge{"index", lIndex}, edge{"delta", nDelta}, edge{"text", lToken},
		edge{"finish_reason", lFinish}),
	nDelta: keys(edge{"content", lToken}, edge{"tool_calls", lToken}, edge{"reasoning", lToken},
		edge{"reasoning_content", lToken}, edge{"refusal", lToken}, edge{"function_call", lToken},
		edge{"audio", lToken}),
	nMsgStart: keys(edge{"usage", nUsage}),
	nMsgDelta: keys(edge{"text", lToken}, edge{"partial_json", lToken}, edge{"thinking", lToken},
		edge{"stop_reason", lFinish}),
	nBlock: keys(edge{"type", lBlockType}, edge{"text", lToken}),
	nUsage: keys(edge{"prompt_tokens", lIn}, edge{"input_tokens", lIn},
		edge{"completion_tokens", lOut}, edge{"output_tokens", lOut},
		edge{"prompt_tokens_details", nInDetails}, edge{"input_tokens_details", nInDetails},
		edge{"completion_tokens_details", nOutDetails}, edge{"output_tokens_details", nOutDetails},
		edge{"cache_read_input_tokens", lRead}, edge{"cache_creation_input_tokens", lCreate},
		edge{"cache_creation", nCreation}, edge{"reasoning_tokens", lReason}),
	nInDetails: keys(edge{"cached_tokens", lCached}, edge{"created_cache_tokens", lWrite},
		edge{"cache_write_tokens", lWrite}),
	nOutDetails: keys(edge{"reasoning_tokens", lReason}),
	nCreation:   keys(edge{"ephemeral_1h_input_tokens", lCreate1h}),
	nIncomplete: keys(edge{"reason", lFinish}),
	nError:      keys(edge{"code", lCode}, edge{"type", lErrType}),
}

func keys(edges ...edge) container {
	c := container{edges: edges}
	for _, e := range edges {
		if len(e.key) >= 32 {
			panic("BUG: a key of interest is too long for the length mask: " + e.key)
		}
		c.lens |= 1 << len(e.key)
	}
	return c
}

// find returns the place that a key leads to.
func (c *container) find(key []byte) node {
	if len(key) >= 32 || c.lens&(1<<len(key)) == 0 {
		return nSkip
	}
	for i := range c.edges {
		if c.edges[i].key == string(key) {
			return c.edges[i].to
		}
	}
	return nSkip
}
