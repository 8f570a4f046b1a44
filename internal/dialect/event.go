package dialect

// event is what one JSON value said.
type event struct {
	kind    kind
	status  status
	finish  reason // the finish reason, of the current choice or of the whole
	worst   reason // of the choices that finished
	choices uint8  // 0 no array, 1 an empty one, 2 with elements
	err     bool
	flat    bool // object == "error"
	delta   bool // generated text, as far as the type agrees (Responses)
	token   bool // generated text
	usage   bool // a usage object was there
	ext     bool
	many    bool // a choice index beyond the bit sets
	done    bool // the value is the word [DONE]
	code    int  // HTTP status that the error's code says
	byType  int  // that the error's type says
	flatly  int  // that a code beside the error says
	index   int64
	seen    choiceSet
	ended   choiceSet
	counts  counts
}

// choiceSet is a set of choice indices. n is at most 128 on both engines;
// completions with several prompts multiply it.
type choiceSet [4]uint64

func (s *choiceSet) add(i int64) bool {
	if i < 0 || i >= int64(len(s))*64 {
		return false
	}
	s[i>>6] |= 1 << (i & 63)
	return true
}

// counts are the token counts as they stand on the wire, Unknown where absent.
type counts struct {
	in, out, cached, write, read, create, create1h, reason int64
}

var noCounts = counts{Unknown, Unknown, Unknown, Unknown, Unknown, Unknown, Unknown, Unknown}

// blank reports that nothing of interest was read yet, so that an envelope leaves
// no trace but its position.
func (e *event) blank() bool {
	return e.choices == 0 && e.kind == 0 && e.status == 0 && e.finish == 0 && e.code == 0 && e.byType == 0 && e.flatly == 0 &&
		!e.err && !e.flat && !e.delta && !e.token && !e.usage && !e.ext
}
