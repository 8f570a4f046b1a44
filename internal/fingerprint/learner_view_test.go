package fingerprint

import (
	"fmt"
	"testing"
)

// Peek answers what Place would, and changes nothing: an explanation must not teach.
func TestPeekForeseesPlaceAndLearnsNothing(t *testing.T) {
	shapes := map[string]func(i int) string{
		"stable":               func(int) string { return fatText },
		"clock at the end":     func(i int) string { return fatText + minute(i) },
		"id at the head":       func(i int) string { return uuid(i) + fatText },
		"id in the middle":     func(i int) string { return fatText[:60_000] + uuid(i) + fatText },
		"three that alternate": func(i int) string { return fmt.Sprint("shop ", i%3) + fatText },
	}
	for name, text := range shapes {
		c := newClock()
		l := NewLearner(LearnerOptions{Now: c.Now})
		s := newScanner(t, Options{})
		for i := range 100 {
			r := chatWith(t, s, text(i))
			prefixes, blocks := l.Size()
			foreseen := l.Peek("m", r)
			if p, b := l.Size(); p != prefixes || b != blocks {
				t.Fatalf("%s, request %d: Peek learned", name, i)
			}
			if again := l.Peek("m", r); again != foreseen {
				t.Fatalf("%s, request %d: %+v, then %+v", name, i, foreseen, again)
			}
			got := l.Place("m", r, nil)
			// The prefix that makes the row of variants full tips the judgement: Peek cannot know.
			if tips := got.Volatile != foreseen.Volatile; tips && i != DefaultLearnerVariants {
				t.Fatalf("%s, request %d: foreseen %+v, placed %+v", name, i, foreseen, got)
			} else if !tips && (got.Key != foreseen.Key || got.Family != foreseen.Family || got.Depth != foreseen.Depth) {
				t.Fatalf("%s, request %d: foreseen %+v, placed %+v", name, i, foreseen, got)
			}
		}
	}
}

func TestFamiliesListWhatWasLearned(t *testing.T) {
	c := newClock()
	l := NewLearner(LearnerOptions{Now: c.Now})
	s := newScanner(t, Options{})
	for i := range 30 {
		l.Place("m", chatWith(t, s, fatText+minute(i*20)), nil)
	}
	l.Place("m", chatWith(t, s, fatText[:9000]), nil)
	all := l.Families(10)
	if len(all) != 2 {
		t.Fatalf("%+v", all)
	}
	clocked, plain := all[0], all[1]
	if clocked.Depth != DepthHead || clocked.Prefixes != 30 || clocked.Requests != 30 || clocked.Next == 0 || clocked.Bytes < 150_000 {
		t.Errorf("%+v", clocked)
	}
	if plain.Depth != DepthWhole || plain.Prefixes != 1 || plain.Bytes < 9000 || plain.Next != 0 {
		t.Errorf("%+v", plain)
	}
	if got := l.Families(1); len(got) != 1 || got[0].Key != clocked.Key {
		t.Errorf("the most used one alone: %+v", got)
	}
}
