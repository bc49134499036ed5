package bytecache

import (
	"fmt"
	"math/rand/v2"
	"testing"
)

// TestLabelFilterHasNoFalseNegatives checks that a filter never excludes a label of the
// object, and excludes most other labels.
func TestLabelFilterHasNoFalseNegatives(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	reads := 0
	c := &Cache{}
	const objects = 2000
	absent := 0
	for i := range objects {
		labels := Attributes{}
		var s LabelFilter
		for range random.IntN(6) {
			key, value := fmt.Sprintf("key-%d", random.IntN(20)), fmt.Sprintf("value-%d", random.IntN(100))
			labels[key] = value
			s.Add([]byte(key), []byte(value))
		}
		e := &Entry{Key: fmt.Sprint(i), absent: ^s}
		c.options.Label = func(_ *Entry, name string) (string, bool, bool) {
			reads++
			value, has := labels[name]
			return value, has, true
		}
		for key, value := range labels {
			for _, values := range [][]string{nil, {value}, {"another", value}} {
				matcher := c.Matcher(Term{Key: key, Values: values})
				if meets, err := matcher.Match(e); !meets || err != nil {
					t.Fatalf("%v does not meet %s in %v: %v", labels, key, values, err)
				}
			}
			ix := newIndex(false, key)
			if at, ok, _ := ix.entryFor(c, e); !ok || at.value != value {
				t.Fatalf("%v has no place in an index of %s", labels, key)
			}
		}
		reads = 0
		matcher := c.Matcher(Term{Key: "none", Values: []string{"some", "other"}})
		if meets, err := matcher.Match(e); meets || err != nil {
			t.Fatalf("%v meets what it does not have: %v", labels, err)
		}
		if reads == 0 {
			absent++
		}
	}
	if absent < objects*9/10 {
		t.Errorf("%d of %d objects had to be read for a label that none has", objects-absent, objects)
	}
}

// TestLabelFilterIgnoresFields checks that neither a field nor an entry without a filter is
// excluded.
func TestLabelFilterIgnoresFields(t *testing.T) {
	c := &Cache{options: Options{
		Label: func(*Entry, string) (string, bool, bool) { return "x", true, true },
		Field: func(*Entry, string) (string, bool, bool) { return "x", true, true },
	}}
	for _, test := range []struct {
		term  Term
		entry *Entry
	}{
		{Term{Field: true, Key: "a", Values: []string{"x"}}, &Entry{absent: ^LabelFilter(0)}},
		{Term{Key: "a", Values: []string{"x"}}, &Entry{}},
	} {
		matcher := c.Matcher(test.term)
		if meets, err := matcher.Match(test.entry); !meets || err != nil {
			t.Errorf("%+v is not met: %v", test.term, err)
		}
	}
}
