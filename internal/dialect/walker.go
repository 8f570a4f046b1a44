package dialect

// walker reads one JSON value as its bytes arrive, in any split, and notes the
// few facts listed in shape.go. Its memory is fixed: it buffers at most one short
// key or word, whatever the size of the value, so a 240 KB line that repeats the
// instructions costs time and no memory. It checks the structure only as far as it
// needs to: malformed JSON ends in state bad or in a value that never closes, and
// then proves nothing.
type walker struct {
	st    state
	cur   node // container that is being read
	val   node // place of the value that is being read
	top   int8
	esc   bool // the slice before ended in an odd run of backslashes
	some  bool // the string that is being read has a byte
	bad   bool // the number that is being read is not a plain count
	watch bool // the skipped array holds generated text if it is not empty
	over  bool // the word that is being read is longer than buf
	n     uint8
	root  node
	nest  int32 // open brackets inside a value of no interest
	num   int64
	stack [8]node
	buf   [maxWord]byte
	ev    event

	fresh bool // this call of feed began at the beginning of a value
	envN  uint8
	env   [maxEnvelope]byte
}

// maxEnvelope bounds the envelope: the bytes of a chunk from its beginning to the
// bracket that opens `choices`. Every chunk of a stream repeats it (id, object,
// created, model), so feed compares it with the one before and, when it is the
// same, goes on behind it: that halves the cost of a one-token event. It holds no
// generated text.
const maxEnvelope = 192

// maxWord bounds the words that are compared: keys, types, reasons and codes.
// Longer ones are equal to none.
const maxWord = 48

// maxCount is the largest believable token count; above it a number is noise.
const maxCount = 1 << 50

type state uint8

const (
	stStart   state = iota // before the value
	stKey                  // in an object, before a key or its end
	stInKey                // in a key
	stColon                // after a key
	stValue                // before a value
	stString               // in a string value
	stNumber               // in a number
	stLiteral              // in true, false or null
	stAfter                // after a value, inside a container
	stSkip                 // in a container of no interest
	stSkipStr              // in a string inside it
	stWord                 // in [DONE]
	stDone                 // after the value
	stBad                  // not JSON
)

// reset prepares for the next value, which begins at the root place.
func (w *walker) reset(root node) {
	w.st, w.cur, w.val, w.top, w.root, w.nest = stStart, root, root, 0, root, 0
	w.esc, w.some, w.bad, w.watch, w.over, w.n = false, false, false, false, false, 0
	e := &w.ev
	e.kind, e.status, e.finish, e.worst, e.choices = 0, 0, 0, 0, 0
	e.err, e.flat, e.delta, e.token, e.usage, e.ext, e.many, e.done = false, false, false, false, false, false, false, false
	e.code, e.byType, e.flatly, e.index = 0, 0, 0, 0
}

// whole reports whether one complete value was read and nothing but white space
// after it.
func (w *walker) whole() bool { return w.st == stDone }

// feed reads the next bytes of the value.
func (w *walker) feed(b []byte) {
	i := 0
	if w.fresh = w.st == stStart; w.fresh && w.envN > 0 && len(b) >= int(w.envN) &&
		string(b[:w.envN]) == string(w.env[:w.envN]) {
		i = int(w.envN)
		w.push() // the root object; then its member choices
		w.st, w.val = stValue, nChoices
		w.openArray()
	}
	for i < len(b) {
		switch w.st {
		case stStart, stValue:
			i = w.value(b, i)
		case stKey:
			i = w.key(b, i)
		case stInKey:
			i = w.inKey(b, i)
		case stColon:
			i = w.colon(b, i)
		case stString:
			i = w.inString(b, i)
		case stNumber:
			i = w.number(b, i)
		case stLiteral:
			i = w.literal(b, i)
		case stAfter:
			i = w.after(b, i)
		case stSkip:
			i = w.skip(b, i)
		case stSkipStr:
			i = w.skipString(b, i)
		case stWord:
			i = w.word(b, i)
		case stDone:
			i = w.trailing(b, i)
		default:
			return
		}
	}
}

func space(c byte) bool { return c <= ' ' && (c == ' ' || c == '\n' || c == '\r' || c == '\t') }

// value reads the first byte of a value.
func (w *walker) value(b []byte, i int) int {
	c := b[i]
	if space(c) {
		return i + 1
	}
	if w.cur == nChoices && c != ']' {
		w.ev.choices = 2
	}
	switch {
	case c == '"':
		w.st, w.esc, w.some, w.n, w.over = stString, false, false, 0, false
		return w.inString(b, i+1)
	case c == '{':
		w.open()
	case c == '[':
		if w.val == nChoices && w.fresh && i < maxEnvelope && w.ev.blank() {
			w.envN = uint8(copy(w.env[:], b[:i+1]))
		}
		w.openArray()
	case c >= '0' && c <= '9' || c == '-':
		w.st, w.num, w.bad = stNumber, 0, c == '-'
		if c != '-' {
			w.num = int64(c - '0')
		}
		return w.number(b, i+1)
	case c == 't' || c == 'f' || c == 'n':
		w.st = stLiteral
		if c == 't' {
			w.scalar()
		}
		return w.literal(b, i+1)
	case c == ']' && w.cur == nChoices && w.st == stValue:
		w.pop()
	default:
		w.st = stBad
	}
	return i + 1
}

// open enters an object.
func (w *walker) open() {
	w.present()
	switch {
	case w.val == nSkip || w.val > lastContainer || w.val == nChoices:
		w.st, w.nest, w.watch = stSkip, 1, false
		return
	case w.val == nUsage:
		if !w.ev.usage {
			w.ev.usage, w.ev.counts = true, noCounts
		}
	case w.val == nChoice:
		w.ev.index, w.ev.finish = 0, reasonNone
	}
	w.push()
	w.st = stKey
}

// openArray enters an array.
func (w *walker) openArray() {
	if w.st == stStart {
		w.st = stWord
		return
	}
	if w.val != nChoices {
		if w.val == nError {
			w.present()
		}
		w.st, w.nest, w.watch = stSkip, 1, w.val == lToken
		return
	}
	w.ev.choices = 1
	w.ev.seen, w.ev.ended, w.ev.worst, w.ev.many = choiceSet{}, choiceSet{}, reasonNone, false
	w.push()
	w.st, w.val = stValue, nChoice
}

// present notes a value that is neither null, false nor an empty string or array.
func (w *walker) present() {
	switch w.val {
	case nError:
		w.ev.err = true
	case lToken:
		w.text()
	case lExt:
		w.ev.ext = true
	}
}

// scalar is present for true and for numbers, which are no generated text.
func (w *walker) scalar() {
	if w.val != lToken {
		w.present()
	}
}

// text notes generated text. In a Responses event `delta` counts only if the
// type says so, and the type may come later.
func (w *walker) text() {
	if w.cur == nRespEv {
		w.ev.delta = true
		return
	}
	w.ev.token = true
}

func (w *walker) push() {
	w.stack[w.top] = w.cur
	w.top++
	w.cur = w.val
}

// pop leaves a container of interest. The stack cannot overflow: shapes has no
// path longer than five.
func (w *walker) pop() {
	if w.cur == nChoice {
		w.choice()
	}
	w.top--
	w.cur = w.stack[w.top]
	w.closed()
}

// closed ends a value: either the root or a member of the current container.
func (w *walker) closed() {
	if w.top == 0 {
		w.st = stDone
		return
	}
	w.st = stAfter
}

func (w *walker) choice() {
	e := &w.ev
	if !e.seen.add(e.index) {
		e.many = true
	}
	if e.finish != reasonNone {
		e.ended.add(e.index)
		e.worst = worse(e.worst, e.finish)
		e.finish = reasonNone
	}
}

// key reads up to the quote that begins a key, or the end of the object.
func (w *walker) key(b []byte, i int) int {
	c := b[i]
	switch {
	case c == '"':
		w.st, w.esc, w.n, w.over = stInKey, false, 0, false
		return w.inKey(b, i+1)
	case c == '}':
		w.pop()
	case !space(c):
		w.st = stBad
	}
	return i + 1
}

func (w *walker) inKey(b []byte, i int) int {
	j, esc := closing(b, i, w.esc)
	if j < 0 {
		w.keep(b[i:])
		w.esc = esc
		return len(b)
	}
	word := b[i:j]
	if w.n > 0 || w.over {
		word = w.joined(word)
	}
	w.val = shapes[w.cur].find(word)
	j++
	if j < len(b) && b[j] == ':' {
		w.st = stValue
		if j++; j < len(b) {
			return w.value(b, j) // spares a turn of the loop in feed
		}
		return j
	}
	w.st = stColon
	return j
}

func (w *walker) colon(b []byte, i int) int {
	if b[i] == ':' {
		w.st = stValue
	} else if !space(b[i]) {
		w.st = stBad
	}
	return i + 1
}

func (w *walker) number(b []byte, i int) int {
	for ; i < len(b); i++ {
		c := b[i]
		switch {
		case c >= '0' && c <= '9':
			if w.num = w.num*10 + int64(c-'0'); w.num > maxCount {
				w.num, w.bad = 0, true
			}
		case c == '.' || c == 'e' || c == 'E' || c == '+' || c == '-':
			w.bad = true
		default:
			if w.val != nSkip {
				w.count()
			}
			w.closed()
			return i
		}
	}
	return i
}

// count handles a number of interest. What is not a plain count stays unknown.
func (w *walker) count() {
	if w.val < lIndex {
		if w.val == lCode && !w.bad {
			w.status(statusRange(w.num))
		} else {
			w.scalar()
		}
		return
	}
	if w.bad {
		return
	}
	e := &w.ev
	switch w.val {
	case lIndex:
		e.index = w.num
	case lIn:
		e.counts.in = w.num
	case lOut:
		e.counts.out = w.num
	case lCached:
		e.counts.cached = w.num
	case lWrite:
		e.counts.write = w.num
	case lRead:
		e.counts.read = w.num
	case lCreate:
		e.counts.create = w.num
	case lCreate1h:
		e.counts.create1h = w.num
	case lReason:
		e.counts.reason = w.num
	}
}

func (w *walker) literal(b []byte, i int) int {
	for ; i < len(b); i++ {
		if c := b[i]; c < 'a' || c > 'z' {
			w.closed()
			return i
		}
	}
	return i
}

func (w *walker) after(b []byte, i int) int {
	switch c := b[i]; {
	case c == ',':
		if w.cur == nChoices {
			w.st, w.val = stValue, nChoice
			break
		}
		w.st = stKey
		if i+1 < len(b) {
			return w.key(b, i+1)
		}
	case c == '}' && w.cur != nChoices, c == ']' && w.cur == nChoices:
		w.pop()
	case !space(c):
		w.st = stBad
	}
	return i + 1
}

// skip passes over a container of no interest by counting its brackets.
func (w *walker) skip(b []byte, i int) int {
	for ; i < len(b); i++ {
		c := b[i]
		if w.watch && !space(c) {
			w.watch = false
			if c != ']' {
				w.text()
			}
		}
		switch c {
		case '"':
			w.st, w.esc = stSkipStr, false
			return i + 1
		case '{', '[':
			w.nest++
		case '}', ']':
			if w.nest--; w.nest == 0 {
				w.closed()
				return i + 1
			}
		}
	}
	return i
}

func (w *walker) skipString(b []byte, i int) int {
	j, esc := closing(b, i, w.esc)
	if j < 0 {
		w.esc = esc
		return len(b)
	}
	w.st = stSkip
	return j + 1
}

const doneWord = "DONE]"

// word tells the literal [DONE], which is no JSON, from an array.
func (w *walker) word(b []byte, i int) int {
	if w.n == 0 && b[i] != doneWord[0] {
		w.st, w.nest, w.watch = stSkip, 1, false
		return i
	}
	if b[i] != doneWord[w.n] {
		w.st = stBad
		return i
	}
	if w.n++; int(w.n) == len(doneWord) {
		w.ev.done = true
		w.st = stDone
	}
	return i + 1
}

func (w *walker) trailing(b []byte, i int) int {
	for ; i < len(b); i++ {
		if !space(b[i]) {
			w.st, w.ev.done = stBad, false
			return i
		}
	}
	return i
}
