package fakeengine

import (
	"bytes"
	"encoding/binary"
)

// tokenBytes is the length of a toy token: a token is four bytes of the rendered
// prompt, so equal bytes are equal tokens and a text can be cut at a token without
// a vocabulary. The last token may be shorter.
const tokenBytes = 4

func tokensOf(bytes int) int { return (bytes + tokenBytes - 1) / tokenBytes }

// pad fills dst to a whole token. Every part of the template ends on one, so that
// an answer that comes back as history is the same tokens as when it was generated.
func pad(dst []byte) []byte {
	for len(dst)%tokenBytes != 0 {
		dst = append(dst, '\n')
	}
	return dst
}

// tokenIDs lists the tokens of a rendered prompt as numbers.
func tokenIDs(b []byte) []uint32 {
	ids := make([]uint32, 0, tokensOf(len(b)))
	for ; len(b) >= tokenBytes; b = b[tokenBytes:] {
		ids = append(ids, binary.LittleEndian.Uint32(b))
	}
	if len(b) > 0 {
		var rest [tokenBytes]byte
		copy(rest[:], b)
		ids = append(ids, binary.LittleEndian.Uint32(rest[:]))
	}
	return ids
}

func appendToken(dst []byte, id uint32) []byte { return binary.LittleEndian.AppendUint32(dst, id) }

// detokenize is the inverse of tokenIDs.
func detokenize(ids []uint32) []byte {
	var b []byte
	for _, id := range ids {
		b = appendToken(b, id)
	}
	return bytes.TrimRight(b, "\x00")
}

// words make up answers: a space and three letters are one token.
var words = [...]string{
	" the", " and", " for", " you", " not", " are", " all", " new", " one", " our", " day", " get", " has", " now", " see", " two",
	" who", " did", " its", " let", " put", " say", " she", " too", " use", " may", " way", " own", " big", " cup", " ten", " yes",
}

// answer draws n tokens of text from a key.
func answer(dst []byte, key uint64, n int) []byte {
	for range n {
		key += 0x9e3779b97f4a7c15
		z := key
		z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
		z = (z ^ z>>27) * 0x94d049bb133111eb
		dst = append(dst, words[(z^z>>31)%uint64(len(words))]...)
	}
	return dst
}
