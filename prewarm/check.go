package prewarm

import (
	"encoding/json"
	"fmt"
	"math"
	"path/filepath"
	"sort"
	"strconv"
	"strings"
	"time"

	"github.com/prefixring/prefixring/internal/dialect"
)

var wires = map[string]dialect.Protocol{
	"": dialect.Chat, "chat": dialect.Chat, "completions": dialect.Completions,
	"responses": dialect.Responses, "messages": dialect.Messages,
}

// check fills the derived fields and notes every fault.
func (c *checker) check() {
	zone := c.zone(-1, "zone", c.m.Zone, time.UTC)
	if len(c.m.Prefixes) == 0 {
		c.fault(-1, "prefixes", "there is none", "list at least one prefix")
	}
	names := map[string]int{}
	heads := map[string]int{}
	for i, e := range c.m.Prefixes {
		if e == nil {
			c.fault(i, "", "it is empty", "give it a name, a model and a text")
			continue
		}
		e.line = c.line("$.prefixes[" + strconv.Itoa(i) + "]")
		c.identity(i, e, names)
		c.placement(i, e)
		c.window(i, e, zone)
		before := len(c.faults)
		c.text(i, e)
		if len(c.faults) == before {
			c.head(i, e, heads)
		}
	}
}

func (c *checker) identity(i int, e *Entry, names map[string]int) {
	switch first, dup := names[e.Name]; {
	case e.Name == "":
		c.fault(i, "name", "it is missing", "names appear in progress, metrics and alarms")
	case len(e.Name) > 128 || strings.ContainsFunc(e.Name, func(r rune) bool { return r < ' ' || r == 0x7f }):
		c.fault(i, "name", "it is longer than 128 bytes or has control characters", "choose a short plain name")
	case dup:
		c.fault(i, "name", fmt.Sprintf("%q is the name of prefixes[%d] too", e.Name, first), "choose another name")
	default:
		names[e.Name] = i
	}
	p, ok := wires[e.Protocol]
	if !ok {
		c.fault(i, "protocol", fmt.Sprintf("%q is unknown", e.Protocol), "use chat, completions, responses or messages")
	}
	e.protocol = p
	if e.Model == "" && e.Request == "" {
		c.fault(i, "model", "it is missing", "name the model or route that clients send")
	}
}

func (c *checker) placement(i int, e *Entry) {
	switch e.Where {
	case "", "auto":
		e.owners = ownersAuto
	case "broadcast":
		e.owners = ownersBroadcast
	default:
		n, err := strconv.Atoi(e.Where)
		if err != nil || n < 1 || n > 1<<16 {
			c.fault(i, "where", fmt.Sprintf("%q is no place", e.Where), "use auto, broadcast, or a number of owners from 1")
		}
		e.owners = n
	}
	if !(e.Share >= 0 && e.Share <= 1) {
		c.fault(i, "share", "it is outside 0..1", "a share of 30 % is 0.3")
	}
	if !(e.Rate >= 0) || math.IsInf(e.Rate, 0) {
		c.fault(i, "rate", "it is negative or no number", "requests per second at the peak")
	}
	if !(e.LateCost >= 0) || math.IsInf(e.LateCost, 0) {
		c.fault(i, "late_cost", "it is negative or no number", "the price of one minute late")
	}
	if e.Tokens < 0 {
		c.fault(i, "tokens", "it is negative", "leave it out to have it measured")
	}
	if e.StaticBytes < 0 {
		c.fault(i, "static_bytes", "it is negative", "0 means the whole text")
	}
}

func (c *checker) zone(i int, field, name string, def *time.Location) *time.Location {
	if name == "" {
		return def
	}
	// "Local" would make the plan depend on the machine that reads it.
	zone, err := time.LoadLocation(name)
	if err != nil || name == "Local" {
		c.fault(i, field, fmt.Sprintf("%q is no time zone", name), "use an IANA name such as Asia/Shanghai")
		return def
	}
	return zone
}

func (c *checker) window(i int, e *Entry, def *time.Location) {
	e.zone = c.zone(i, "zone", e.Zone, def)
	if e.EngineDate != "" {
		e.engineTZ = c.zone(i, "engine_date", e.EngineDate, e.zone)
	}
	if e.Ahead < 0 || e.Ahead > 24*time.Hour {
		c.fault(i, "ahead", "it is outside 0..24h", "15m is the default")
	}
	if e.Ahead == 0 {
		e.Ahead = defaultAhead
	}
	var err error
	if e.NotBefore != "" {
		if e.notBefore, err = parseMoment(e.NotBefore, e.zone); err != nil {
			c.fault(i, "not_before", err.Error(), timeRemedy)
		}
	}
	if e.deadline, err = parseDeadline(e.Deadline, e.zone); err != nil {
		c.fault(i, "deadline", err.Error(), timeRemedy+`, or "20:00" for each day`)
	}
	c.keep(i, e)
	switch at := e.deadline.at; {
	case at.IsZero():
	case !e.notBefore.IsZero() && !e.notBefore.Before(at):
		c.fault(i, "not_before", "it is not before the deadline", "leave time for the prefill between the two")
	case !e.keepUntil.IsZero() && e.keepUntil.Before(at):
		c.fault(i, "keep_until", "it is before the deadline", "keep the prefix warm until the sale is over")
	}
}

func (c *checker) keep(i int, e *Entry) {
	if e.KeepUntil == "" {
		return
	}
	if d, err := time.ParseDuration(e.KeepUntil); err == nil {
		switch {
		case d <= 0:
			c.fault(i, "keep_until", "the duration is not above zero", "6h means six hours after the deadline")
		case !e.deadline.set():
			c.fault(i, "keep_until", "a duration counts from the deadline, and there is none", "give a deadline or a time")
		}
		e.keepFor = d
		return
	}
	var err error
	if e.keepUntil, err = parseMoment(e.KeepUntil, e.zone); err != nil {
		c.fault(i, "keep_until", err.Error(), timeRemedy+`, or a duration such as 6h`)
	}
}

// text reads the entry's source, tools and salts.
func (c *checker) text(i int, e *Entry) {
	given := map[string]string{"text": e.Text, "file": e.File, "request": e.Request, "template": e.Template}
	var have []string
	for field, v := range given {
		if v != "" {
			have = append(have, field)
		}
	}
	sort.Strings(have)
	if len(have) > 1 {
		c.fault(i, have[1], "there is "+have[0]+" as well", "give exactly one of text, file, request and template")
		return
	}
	if len(have) == 0 && e.Tools == "" {
		c.fault(i, "", "it has no text", "give one of text, file, request and template, or tools")
		return
	}
	if len(e.Fields) > 0 && e.Template == "" {
		c.fault(i, "fields", "there is no template to fill", "give the file as template")
	}
	kind := sourceText
	if len(have) == 1 {
		kind = sourceKind(have[0])
	}
	src, err := newSource(kind, given[string(kind)], c.m.dir)
	if err != nil {
		c.fault(i, string(kind), err.Error(), "paths start at the manifest's directory")
	}
	e.source = src
	c.tools(i, e)
	c.salts(i, e)
}

func (c *checker) tools(i int, e *Entry) {
	if e.Tools == "" {
		return
	}
	if e.Request != "" {
		c.fault(i, "tools", "the recorded request has its own", "leave it out")
	}
	if e.protocol == dialect.Completions {
		c.fault(i, "tools", "raw completions have no tools", "leave it out")
	}
	raw := []byte(e.Tools)
	if !strings.HasPrefix(strings.TrimSpace(e.Tools), "[") {
		var err error
		if raw, err = readFile(resolvePath(c.m.dir, e.Tools), maxSource); err != nil {
			c.fault(i, "tools", err.Error(), "paths start at the manifest's directory")
			return
		}
	}
	var list []json.RawMessage
	if err := json.Unmarshal(raw, &list); err != nil {
		c.fault(i, "tools", "it is no JSON array", "write it as in the request body")
	}
	e.tools = raw
}

func (c *checker) salts(i int, e *Entry) {
	e.salts = append([]string(nil), e.Salts...)
	if e.SaltsFile != "" {
		data, err := readFile(resolvePath(c.m.dir, e.SaltsFile), 1<<20)
		if err != nil {
			c.fault(i, "salts_file", err.Error(), "paths start at the manifest's directory")
		}
		for line := range strings.Lines(string(data)) {
			if line = strings.TrimSpace(line); line != "" {
				e.salts = append(e.salts, line)
			}
		}
	}
	seen := map[string]bool{}
	for _, s := range e.salts {
		if seen[s] {
			c.fault(i, "salts", "one of them stands there twice", "list each once")
		}
		seen[s] = true
	}
}

// head builds the entry's request once, so that what cannot be rendered is named now,
// and finds entries that are the same prefix under two names.
func (c *checker) head(i int, e *Entry, heads map[string]int) {
	// Any moment does: the text of a template changes with it, its validity must not.
	for _, at := range []time.Time{time.Unix(1_700_000_000, 0), time.Unix(1_720_000_000, 0)} {
		h, err := e.head(at)
		if err != nil {
			f := string(e.source.kind)
			c.fault(i, f, err.Error(), remedyOf(err))
			return
		}
		if at.Unix() == 1_700_000_000 {
			if first, dup := heads[h.digest()+"\x00"+e.Adapter]; dup && len(e.salts)+len(e.Tenants) == 0 {
				c.fault(i, "name", fmt.Sprintf("it is the same prefix as prefixes[%d]", first), "remove one of the two")
			} else if len(e.salts)+len(e.Tenants) == 0 {
				heads[h.digest()+"\x00"+e.Adapter] = i
			}
		}
	}
}

func resolvePath(dir, path string) string {
	if filepath.IsAbs(path) || dir == "" {
		return path
	}
	return filepath.Join(dir, path)
}
