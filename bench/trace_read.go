package bench

import (
	"bufio"
	"bytes"
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"time"
)

// maxTraceLine bounds one line; the longest of the public Mooncake traces has 3 KB.
const maxTraceLine = 32 << 20

// eachLine calls f with every line that is not empty, and names the line that f refuses.
func eachLine(r io.Reader, f func(n int, line []byte) error) error {
	s := bufio.NewScanner(r)
	s.Buffer(make([]byte, 64<<10), maxTraceLine)
	n := 0
	for s.Scan() {
		n++
		line := bytes.TrimSpace(s.Bytes())
		if len(line) == 0 {
			continue
		}
		if err := f(n, line); err != nil {
			return &TraceError{n, err}
		}
	}
	if err := s.Err(); err != nil {
		return &TraceError{n + 1, err}
	}
	return nil
}

// ReadMooncake reads the JSONL of the Mooncake traces: hash_ids of 512 tokens, equal
// in the whole trace. The trace has no roles, so the first system blocks become the
// system message; two is the depth at which a stateless hash finds what an exact index
// finds (at one block, all of the conversation trace is one key).
func ReadMooncake(r io.Reader, system int) (*Trace, error) {
	const block = 512
	t := &Trace{Name: "mooncake", BlockTokens: block}
	err := eachLine(r, func(_ int, line []byte) error {
		var q struct {
			Timestamp *float64 `json:"timestamp"` // ms
			Input     *int     `json:"input_length"`
			Output    *int     `json:"output_length"`
			Hashes    []uint64 `json:"hash_ids"`
		}
		if err := json.Unmarshal(line, &q); err != nil {
			return err
		}
		switch {
		case q.Timestamp == nil || q.Input == nil || q.Output == nil:
			return errors.New("timestamp, input_length or output_length is missing")
		case *q.Timestamp < 0 || *q.Input <= 0 || *q.Output < 0:
			return errors.New("negative time or length")
		case len(q.Hashes) == 0 || len(q.Hashes) != (*q.Input+block-1)/block:
			return fmt.Errorf("%d hash ids for %d tokens, want one per %d", len(q.Hashes), *q.Input, block)
		}
		for i := range q.Hashes {
			q.Hashes[i] = seedOf(0x6d6f6f6e, q.Hashes[i])
		}
		t.Requests = append(t.Requests, TraceRequest{
			At: time.Duration(*q.Timestamp * float64(time.Millisecond)), Session: -1, Blocks: q.Hashes,
			System: min(system, len(q.Hashes)), Input: *q.Input, Output: max(1, *q.Output),
		})
		return nil
	})
	return t, err
}

// ReadAzure reads the CSV of the Azure LLM inference traces: times and lengths, no
// prefixes. Each request gets a text of its own, which makes it the no-reuse control.
func ReadAzure(r io.Reader) (*Trace, error) {
	const block = 128
	t := &Trace{Name: "azure", BlockTokens: block}
	c := csv.NewReader(r)
	c.FieldsPerRecord = 3
	c.ReuseRecord = true
	var first time.Time
	for n := 1; ; n++ {
		rec, err := c.Read()
		if err == io.EOF {
			return t, nil
		}
		if err != nil {
			return t, &TraceError{n, err}
		}
		if n == 1 && rec[0] == "TIMESTAMP" {
			continue
		}
		at, err := time.Parse("2006-01-02 15:04:05.999999999", rec[0])
		if err != nil {
			return t, &TraceError{n, err}
		}
		in, err1 := strconv.Atoi(rec[1])
		out, err2 := strconv.Atoi(rec[2])
		if err := errors.Join(err1, err2); err != nil {
			return t, &TraceError{n, err}
		}
		if in <= 0 || out < 0 {
			return t, &TraceError{n, errors.New("lengths must be above 0")}
		}
		if first.IsZero() {
			first = at
		}
		q := TraceRequest{At: at.Sub(first), Session: -1, Input: in, Output: max(1, out), Blocks: make([]uint64, (in+block-1)/block)}
		for i := range q.Blocks {
			q.Blocks[i] = seedOf(0x617a7572, uint64(n), uint64(i))
		}
		t.Requests = append(t.Requests, q)
	}
}

// ReadLines reads the user's own requests, one JSON object per line: either a request
// body itself, or {"at": seconds, "path": "/v1/...", "body": {...}}.
func ReadLines(r io.Reader) ([]Line, error) {
	var out []Line
	err := eachLine(r, func(n int, line []byte) error {
		var q struct {
			At   *float64        `json:"at"`
			Path string          `json:"path"`
			Body json.RawMessage `json:"body"`
		}
		if err := json.Unmarshal(line, &q); err != nil {
			return err
		}
		l := Line{At: -1, Path: q.Path, Body: q.Body}
		if q.Body == nil {
			l.Body = bytes.Clone(line)
		} else if q.Body[0] != '{' {
			return errors.New("body must be a JSON object")
		}
		if q.At != nil {
			if *q.At < 0 {
				return errors.New("at must not be negative")
			}
			l.At = time.Duration(*q.At * float64(time.Second))
		}
		if len(out) > 0 && (out[0].At < 0) != (l.At < 0) {
			return errors.New("either all lines have a time (at) or none has")
		}
		if len(out) > 0 && l.At < out[len(out)-1].At {
			return errors.New("times must ascend")
		}
		out = append(out, l)
		return nil
	})
	if err == nil && len(out) == 0 {
		err = fmt.Errorf("%w: no request in the file", ErrUsage)
	}
	return out, err
}

// Window is one stretch of a ServeGen client: its rate and how bursty it is.
type Window struct {
	Start time.Duration
	Rate  float64 // requests per second
	CV    float64 // coefficient of variation of the gaps
}

// ReadServeGen reads the windows of one ServeGen client (chunk-N-trace.csv: start in
// seconds, rate, CV, pattern and its two parameters).
func ReadServeGen(r io.Reader) ([]Window, error) {
	c := csv.NewReader(r)
	c.FieldsPerRecord = 6
	c.ReuseRecord = true
	var out []Window
	for n := 1; ; n++ {
		rec, err := c.Read()
		if err == io.EOF {
			return out, nil
		}
		if err != nil {
			return out, &TraceError{n, err}
		}
		start, err1 := strconv.ParseFloat(rec[0], 64)
		rate, err2 := strconv.ParseFloat(rec[1], 64)
		cv, err3 := strconv.ParseFloat(rec[2], 64)
		if err := errors.Join(err1, err2, err3); err != nil {
			return out, &TraceError{n, err}
		}
		if start < 0 || rate < 0 || !(cv >= 0) {
			return out, &TraceError{n, errors.New("negative start, rate or CV")}
		}
		out = append(out, Window{time.Duration(start * float64(time.Second)), rate, cv})
	}
}

// ScheduleWindows draws send times from windows: gamma gaps with each window's rate
// times scale and its CV. Times start at the first window's start, divided by speed.
func ScheduleWindows(w []Window, length time.Duration, speed, scale float64, seed uint64) []time.Duration {
	r := newRand(seedOf(seed, 0x73657276)) // "serv"
	var out []time.Duration
	for i, win := range w {
		end := win.Start + 600*time.Second
		if i+1 < len(w) {
			end = w[i+1].Start
		}
		rate := win.Rate * scale
		if rate <= 0 {
			continue
		}
		shape := 1.0
		if win.CV > 0 {
			shape = 1 / (win.CV * win.CV)
		}
		for at := win.Start.Seconds(); ; {
			at += gamma(r, shape) / shape / rate
			if at >= end.Seconds() {
				break
			}
			t := time.Duration((at - w[0].Start.Seconds()) / speed * float64(time.Second))
			if t >= length {
				return out
			}
			out = append(out, t)
		}
	}
	return out
}
