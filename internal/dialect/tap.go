package dialect

import (
	"bytes"
	"strings"
)

// Tap observes the bytes of one engine response as they pass and keeps no text of
// them. Its memory is fixed, below one kilobyte, and nothing is allocated after
// the Tap itself. Any split of the bytes gives the same outcome, also one
// byte at a time. There is no size limit on an event or a body: what is not of
// interest is passed over as it streams by, so a 240 KB event or a 50 MB body is
// read to its end and its end is what counts.
//
// The bytes must be the decoded body: without chunk framing and without content
// encoding. A Tap is used by one goroutine at a time; the zero value is ready
// after Reset.
type Tap struct {
	protocol Protocol
	mode     tapMode
	code     int // HTTP status of the response
	expect   int // choices that the request asked for, 0 unknown
	w        walker

	// Event stream framing.
	line    lineState
	pending bool // the current event has a data line
	skipLF  bool // the last byte was a CR that ended a line
	bom     uint8
	field   [6]byte
	fieldN  uint8
	name    [maxWord]byte // value of the event field
	nameN   uint8
	nameBig bool
	named   kind

	// What the events so far said.
	began   bool // body modes: a byte that is not white space was seen
	events  int64
	output  bool // of them, one that is no announcement
	token   bool
	done    bool // [DONE]
	failed  bool
	errCode int
	many    bool
	ended   bool // Responses: terminal event; Messages: message_stop
	final   Verdict
	finish  reason
	seen    choiceSet
	closed  choiceSet
	counts  counts
}

type tapMode uint8

const (
	modeBlind  tapMode = iota // neither an event stream nor JSON
	modeStream                // text/event-stream
	modeBody                  // JSON
)

type lineState uint8

const (
	lineStart lineState = iota // in the field name
	lineData
	lineName
	lineSkip
)

// TapState is what the bytes so far have shown.
type TapState struct {
	FirstEvent bool // an event with data has ended, or a body has begun; comments do not count
	Output     bool // FirstEvent, and not only announcements (response.created, response.in_progress, message_start, ping)
	FirstToken bool // generated text or a tool call was in an event; never set for a body that is no stream
	ErrorEvent bool // an error object was seen, whatever the status said
	ErrorCode  int  // the HTTP status inside that error, 400..599, 0 none
	Terminal   bool // the engine has said how the answer ended; what follows can only be framing
	Aborted    bool // a choice ended with the reason abort: the engine is shutting down
	Events     int64
}

// Outcome is what a whole response proved.
type Outcome struct {
	Verdict Verdict
	Usage   Usage
	Finish  string // the wire's finish or stop reason from a closed list, "other", or "" when none was seen
	Events  int64  // events with data, [DONE] left out; 1 for a JSON body
}

// Reset prepares the Tap for one response. contentType is the header's value and
// decides between event stream, JSON and neither; an absent one is read as JSON.
func (t *Tap) Reset(p Protocol, status int, contentType string) {
	*t = Tap{protocol: p, code: status, counts: noCounts}
	switch {
	case mediaType(contentType, "text/event-stream"):
		t.mode = modeStream
		t.w.reset(streamRoot(p))
	case contentType == "", isJSON(contentType):
		t.mode = modeBody
		t.w.reset(bodyRoot(p))
	}
}

// Expect tells the Tap how many choices the request asked for (n). Success then
// needs that many ended choices; without it, every choice that was seen.
func (t *Tap) Expect(n int) { t.expect = n }

func mediaType(header, want string) bool {
	media, _, _ := strings.Cut(header, ";")
	return strings.EqualFold(strings.TrimSpace(media), want)
}

func isJSON(header string) bool {
	media, _, _ := strings.Cut(header, ";")
	media = strings.TrimSpace(media)
	const plus = "+json"
	return strings.EqualFold(media, "application/json") ||
		len(media) > len(plus) && strings.EqualFold(media[len(media)-len(plus):], plus)
}

func streamRoot(p Protocol) node {
	switch p {
	case Responses:
		return nRespEv
	case Messages:
		return nMsg
	default:
		return nChat
	}
}

func bodyRoot(p Protocol) node {
	switch p {
	case Responses:
		return nResp
	case Messages:
		return nMsg
	default:
		return nChat
	}
}

// Write observes the next bytes of the body. It never fails and never keeps b.
func (t *Tap) Write(b []byte) {
	switch t.mode {
	case modeStream:
		t.stream(b)
	case modeBody:
		t.body(b)
	}
}

func (t *Tap) body(b []byte) {
	if !t.began {
		b = bytes.TrimLeft(b, " \r\n\t")
		if len(b) == 0 {
			return
		}
		t.began = true
	}
	t.w.feed(b)
	if t.w.whole() && t.events == 0 {
		t.events = 1
		t.take()
	}
}

var byteOrderMark = [3]byte{0xEF, 0xBB, 0xBF}

// stream cuts the bytes into lines: LF, CR LF and CR end one (the event stream
// format of the HTML standard).
func (t *Tap) stream(b []byte) {
	for t.bom < 3 && len(b) > 0 {
		if b[0] != byteOrderMark[t.bom] {
			t.bom = 3
			break
		}
		t.bom++
		b = b[1:]
	}
	for len(b) > 0 {
		if t.skipLF {
			t.skipLF = false
			if b[0] == '\n' {
				b = b[1:]
				continue
			}
		}
		end := bytes.IndexByte(b, '\n')
		seg := b
		if end >= 0 {
			seg = b[:end]
		}
		if cr := bytes.IndexByte(seg, '\r'); cr >= 0 {
			end, seg = cr, b[:cr]
			t.skipLF = true
		}
		t.part(seg)
		if end < 0 {
			return
		}
		t.endLine()
		b = b[end+1:]
	}
}

// part takes bytes of the current line.
func (t *Tap) part(b []byte) {
	if t.line == lineStart {
		b = t.fieldName(b)
	}
	switch t.line {
	case lineData:
		t.w.feed(b)
	case lineName:
		if len(b) > maxWord-int(t.nameN) {
			t.nameBig = true
			return
		}
		t.nameN += uint8(copy(t.name[t.nameN:], b))
	}
}

// fieldName reads the name of the line's field and returns the bytes behind it.
func (t *Tap) fieldName(b []byte) []byte {
	if t.fieldN == 0 && len(b) > 5 && string(b[:5]) == "data:" {
		t.beginData()
		return b[5:]
	}
	for i, c := range b {
		if c == ':' {
			t.beginValue()
			return b[i+1:]
		}
		if int(t.fieldN) == len(t.field) {
			t.line = lineSkip
			return nil
		}
		t.field[t.fieldN] = c
		t.fieldN++
	}
	return nil
}

func (t *Tap) beginValue() {
	switch string(t.field[:t.fieldN]) {
	case "data":
		t.beginData()
	case "event":
		t.line, t.nameN, t.nameBig = lineName, 0, false
	default:
		t.line = lineSkip // a comment, id, retry
	}
}

func (t *Tap) beginData() {
	if t.pending {
		t.w.feed(lineBreak) // data lines of one event are joined by a line break
	}
	t.line, t.pending = lineData, true
}

var lineBreak = []byte("\n")

func (t *Tap) endLine() {
	switch {
	case t.line == lineName:
		t.named = kindOther
		if !t.nameBig {
			t.named = kindOf(trimSpace(t.name[:t.nameN]))
		}
	case t.line == lineStart && t.fieldN == 0:
		t.dispatch()
	}
	t.line, t.fieldN = lineStart, 0
}

// trimSpace removes the one space that may follow the colon of a field.
func trimSpace(b []byte) []byte {
	if len(b) > 0 && b[0] == ' ' {
		return b[1:]
	}
	return b
}

// dispatch ends an event.
func (t *Tap) dispatch() {
	if t.pending {
		if t.w.whole() && t.w.ev.done {
			t.done = true
		} else if t.w.st != stStart {
			t.events++
			if t.w.whole() {
				t.take()
			} else {
				t.output = true
				t.failed = t.failed || t.named == kindError // plain text under "event: error"
			}
		}
		t.w.reset(t.w.root)
		t.pending = false
	}
	t.named = kindNone
}

// State returns what the bytes so far have shown.
func (t *Tap) State() TapState {
	s := TapState{
		FirstEvent: t.events > 0 || t.done || t.began,
		Output:     t.output || t.done || t.began,
		FirstToken: t.token,
		ErrorEvent: t.failed,
		ErrorCode:  t.errCode,
		Aborted:    reasons[t.finish].name == "abort",
		Events:     t.events,
	}
	s.Terminal = t.done || t.ended || t.mode == modeBody && t.events > 0
	return s
}

// End returns what the response proved. eof says that the body ended cleanly: the
// last chunk or the announced length was read. Without it, only an answer whose
// terminal evidence was already there is believed. End may be called once.
func (t *Tap) End(eof bool) Outcome {
	if t.mode == modeStream {
		// A last event without its empty line is whole if its JSON is: the client
		// has all bytes of it.
		t.endLine()
		if t.pending {
			t.w.feed(lineBreak)
		}
		if t.w.whole() {
			t.dispatch()
		}
	}
	return Outcome{
		Verdict: t.verdict(eof),
		Usage:   t.counts.usage(t.protocol),
		Finish:  reasons[t.finish].name,
		Events:  t.events,
	}
}
