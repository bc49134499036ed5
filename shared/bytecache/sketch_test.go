package bytecache

import (
	"fmt"
	"math/rand/v2"
	"testing"
)

// TestSketch: what an object has is never said to be absent, and most of what it does not
// have is.
func TestSketch(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	reads := 0
	c := &Cache{}
	const objects = 2000
	absent := 0
	for i := range objects {
		labels := Attributes{}
		var s Sketch
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
				judge := c.Judge(Term{Key: key, Values: values})
				if meets, err := judge.Meets(e); !meets || err != nil {
					t.Fatalf("%v does not meet %s in %v: %v", labels, key, values, err)
				}
			}
			ix := newIndex(false, key)
			if at, ok, _ := ix.place(c, e); !ok || at.value != value {
				t.Fatalf("%v has no place in an index of %s", labels, key)
			}
		}
		reads = 0
		judge := c.Judge(Term{Key: "none", Values: []string{"some", "other"}})
		if meets, err := judge.Meets(e); meets || err != nil {
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

// TestSketchOfFields: the sketch has nothing to say about fields, nor about an entry that has
// none.
func TestSketchOfFields(t *testing.T) {
	c := &Cache{options: Options{
		Label: func(*Entry, string) (string, bool, bool) { return "x", true, true },
		Field: func(*Entry, string) (string, bool, bool) { return "x", true, true },
	}}
	for _, test := range []struct {
		term  Term
		entry *Entry
	}{
		{Term{Field: true, Key: "a", Values: []string{"x"}}, &Entry{absent: ^Sketch(0)}},
		{Term{Key: "a", Values: []string{"x"}}, &Entry{}},
	} {
		judge := c.Judge(test.term)
		if meets, err := judge.Meets(test.entry); !meets || err != nil {
			t.Errorf("%+v is not met: %v", test.term, err)
		}
	}
}
