package witness

import (
	"strconv"
	"strings"
	"testing"

	"triune.dev/tests/faults/wire"
)

// frames returns what a correct server sends to a watcher of shard 1, for the ledger of
// story.
func frames() []frame {
	f := func(kind, name string, serial int, revision int64) frame {
		return frame{Type: kind, Object: wire.Object{
			Metadata: wire.Metadata{Namespace: "ns", Name: name, ResourceVersion: strconv.FormatInt(revision, 10)},
			Data:     map[string]string{Serial: strconv.Itoa(serial)},
		}}
	}
	return []frame{
		f("ADDED", "a", 1, 11), f("MODIFIED", "a", 2, 13), {Type: "BOOKMARK", Object: wire.Object{Metadata: wire.Metadata{ResourceVersion: "14"}}},
		f("DELETED", "a", 2, 15), f("ADDED", "b", 2, 16), f("DELETED", "b", 2, 19), f("ADDED", "a", 4, 20),
	}
}

// story returns a ledger: a leaves shard 1 at 15 and enters it again at 20; b enters it at
// 16 and is deleted.
func story() *Ledger {
	l := NewLedger()
	a, b := Key{"ns", "a"}, Key{"ns", "b"}
	l.add(a, Change{11, 1, 1})
	l.add(b, Change{12, 1, 0})
	l.add(a, Change{13, 2, 1})
	l.add(a, Change{15, 3, 2})
	l.add(b, Change{16, 2, 1})
	l.add(b, Change{0, 2, -1})
	l.add(a, Change{20, 4, 1})
	return l
}

// feed feeds frames to a new watcher and verifies it.
func feed(l *Ledger, frames []frame) (*Watcher, error) {
	w := &Watcher{View: View{Namespace: "ns", In: []int{1}}, Since: 10}
	w.at = w.Since
	for _, f := range frames {
		if err := w.take(f); err != nil {
			return w, err
		}
	}
	return w, w.Verify(l)
}

func TestARightWatchIsAccepted(t *testing.T) {
	w, err := feed(story(), frames())
	if err != nil {
		t.Fatal(err)
	}
	if got := w.Rebuild(); len(got) != 1 || got[Key{"ns", "a"}].Revision != 20 {
		t.Errorf("rebuilt %v, want a at 20", got)
	}
	if got := story().present(w.View); len(got) != 1 || got[Key{"ns", "a"}].Revision != 20 {
		t.Errorf("present is %v, want a at 20", got)
	}
}

func TestAWrongWatchIsFound(t *testing.T) {
	for name, test := range map[string]struct {
		spoil func([]frame) []frame
		want  string
	}{
		"an event is missing":            {func(f []frame) []frame { return append(f[:1], f[2:]...) }, "differs at event 1"},
		"the last event is missing":      {func(f []frame) []frame { return f[:6] }, "differs at event 3"},
		"a deletion is missing":          {func(f []frame) []frame { return append(f[:5], f[6:]...) }, "differs at event 1"},
		"an event comes twice":           {func(f []frame) []frame { return append(f[:2], f[1:]...) }, "after 13"},
		"two events change places":       {func(f []frame) []frame { f[4], f[5] = f[5], f[4]; return f }, "after 19"},
		"a type is wrong":                {func(f []frame) []frame { f[4].Type = "MODIFIED"; return f }, "differs at event 0"},
		"a state is newer":               {func(f []frame) []frame { f[1].Object.Data[Serial] = "4"; return f }, "differs at event 1"},
		"a selector lets too much in":    {func(f []frame) []frame { f[3].Type = "MODIFIED"; return f }, "differs at event 2"},
		"an event before a bookmark":     {func(f []frame) []frame { f[2].Object.Metadata.ResourceVersion = "17"; return f }, "after 17"},
		"a deletion at another revision": {func(f []frame) []frame { f[5].Object.Metadata.ResourceVersion = "18"; return f }, "differs at event 1"},
		"an event of nothing":            {func(f []frame) []frame { f[0].Object.Metadata.Name = "c"; return f }, "differs at event 0"},
		"a watch expires":                {func(f []frame) []frame { return []frame{{Type: "ERROR", Object: wire.Object{Code: 410}}} }, "410"},
	} {
		t.Run(name, func(t *testing.T) {
			l := story()
			if _, err := feed(l, frames()); err != nil { // the first watcher of the deletion
				t.Fatal(err)
			}
			_, err := feed(l, test.spoil(frames()))
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Fatalf("got %v, want an error with %q", err, test.want)
			}
		})
	}
}
