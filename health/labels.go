package health

import "bytes"

// label names a label that some family needs.
type label uint8

const (
	lEngine label = iota // engine (vLLM) or dp_rank (SGLang)
	lTP
	lPP
	lPriority
	lReason
	lSource
	lSleep
	lBlockSize
	lBlocks
	lKVTokens
	lCaching
	lLoRARunning
	lLoRAWaiting
	lLoRAMax
	numLabels
	lNone
)

func labelOf(name []byte) label {
	switch string(name) {
	case "engine", "dp_rank":
		return lEngine
	case "tp_rank":
		return lTP
	case "pp_rank":
		return lPP
	case "priority":
		return lPriority
	case "reason":
		return lReason
	case "cache_source":
		return lSource
	case "sleep_state":
		return lSleep
	case "block_size", "page_size":
		return lBlockSize
	case "num_gpu_blocks", "num_pages":
		return lBlocks
	case "kv_cache_size_tokens":
		return lKVTokens
	case "enable_prefix_caching":
		return lCaching
	case "running_lora_adapters":
		return lLoRARunning
	case "waiting_lora_adapters":
		return lLoRAWaiting
	case "max_lora":
		return lLoRAMax
	}
	return lNone
}

// labels holds the wanted label values of one line, as they are written: no wanted
// value contains an escape, and one that did would only fail to match.
type labels struct {
	v [numLabels][]byte
}

func (l *labels) get(i label) []byte { return l.v[i] }

// place orders the workers of one rank by pipeline stage, then tensor rank.
func (l *labels) place() int32 {
	return int32(min(number(l.v[lPP]), 1<<14))<<16 + int32(min(number(l.v[lTP]), 1<<15))
}

// parse reads an optional label block in any order and returns what follows it. It
// reports false for a line that is not well formed.
func (l *labels) parse(b []byte) ([]byte, bool) {
	clear(l.v[:])
	b = bytes.TrimLeft(b, " \t")
	if len(b) == 0 || b[0] != '{' {
		return b, true
	}
	b = b[1:]
	for {
		b = bytes.TrimLeft(b, " \t,")
		if len(b) == 0 {
			return nil, false
		}
		if b[0] == '}' {
			return b[1:], true
		}
		eq := bytes.IndexByte(b, '=')
		if eq < 0 {
			return nil, false
		}
		name := bytes.TrimRight(b[:eq], " \t")
		b = bytes.TrimLeft(b[eq+1:], " \t")
		if len(b) == 0 || b[0] != '"' {
			return nil, false
		}
		end := quoteEnd(b[1:])
		if end < 0 {
			return nil, false
		}
		if i := labelOf(name); i != lNone {
			l.v[i] = b[1 : 1+end]
		}
		b = b[end+2:]
	}
}

// quoteEnd is the index of the first quotation mark that is not escaped, or -1.
func quoteEnd(b []byte) int {
	for i := 0; i < len(b); i++ {
		j := bytes.IndexByte(b[i:], '"')
		if j < 0 {
			return -1
		}
		i += j
		n := 0
		for k := i - 1; k >= 0 && b[k] == '\\'; k-- {
			n++
		}
		if n%2 == 0 {
			return i
		}
	}
	return -1
}
