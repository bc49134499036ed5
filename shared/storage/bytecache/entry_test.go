package bytecache

import "testing"

// TestMarkHasRoomForOneForm checks that a second form cannot set a mark.
func TestMarkHasRoomForOneForm(t *testing.T) {
	first, second := NewFormID(), NewFormID()
	e := NewEntry("/k", 0, []byte("v"))
	if _, ok := e.Mark(first); ok {
		t.Error("a new entry has a mark")
	}
	marked := e.SetMark(first, 7)
	if again := e.SetMark(first, 7); !marked || !again {
		t.Error("the first mark was refused")
	}
	if e.SetMark(second, 7) || e.SetMark(first, 8) {
		t.Error("a mark was replaced")
	}
	if n, ok := e.Mark(first); n != 7 || !ok {
		t.Errorf("got %d, %v", n, ok)
	}
	if _, ok := e.Mark(second); ok {
		t.Error("the mark is another form's")
	}
}
