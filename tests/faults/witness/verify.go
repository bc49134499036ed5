package witness

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/google/go-cmp/cmp"

	"triune.dev/tests/faults/wire"
)

// Await waits until the watcher has received the last expected event, and reports whether
// it has before ctx is done. It does not check the events.
func (w *Watcher) Await(ctx context.Context, l *Ledger) bool {
	var last int64
	for _, events := range l.expected(w.View) {
		last = max(last, events[len(events)-1].Revision)
	}
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for w.last() < last {
		select {
		case <-ctx.Done():
			return false
		case <-tick.C:
		}
	}
	return true
}

// Verify compares the events of the watcher with the changes.
func (w *Watcher) Verify(l *Ledger) error {
	told := w.told()
	byKey := map[Key][]Event{}
	before := w.Since
	for _, e := range told {
		if e.Revision <= before {
			return fmt.Errorf("watch %v: %v came after revision %d", w.View, e, before)
		}
		before = e.Revision
		byKey[e.Key] = append(byKey[e.Key], e)
	}
	expected := l.expected(w.View)
	for key, want := range expected {
		got := byKey[key]
		delete(byKey, key)
		for i := range max(len(got), len(want)) {
			if i < len(want) && i < len(got) && want[i].Revision == 0 {
				want[i].Revision = l.agree(key, got[i].Revision)
			}
			if i >= len(want) || i >= len(got) || want[i] != got[i] {
				return fmt.Errorf("watch %v (%+v): %s/%s differs at event %d\nhappened: %s\ntold:     %s\nchanges:  %+v",
					w.View, w.Counts(), key.Namespace, key.Name, i, lines(want), lines(got), l.of(key))
			}
		}
	}
	for _, events := range byKey {
		return fmt.Errorf("watch %v: told what never happened: %s", w.View, lines(events))
	}
	return nil
}

func lines(events []Event) string {
	var all []string
	for _, e := range events {
		all = append(all, fmt.Sprintf("%s #%d @%d", e.Type, e.Serial, e.Revision))
	}
	return strings.Join(all, ", ")
}

// Rebuild returns the objects according to the events of the watcher.
func (w *Watcher) Rebuild() map[Key]Event {
	objects := map[Key]Event{}
	for _, e := range w.told() {
		if delete(objects, e.Key); e.Type != "DELETED" {
			e.Type = ""
			objects[e.Key] = e
		}
	}
	return objects
}

// List lists the objects of a view, in the form of Rebuild.
func (v View) List(ctx context.Context, client *http.Client, server, prefix string) (map[Key]Event, int64, error) {
	req, err := wire.NewRequest(ctx, http.MethodGet, server+v.path(url.Values{}), "", nil)
	if err != nil {
		return nil, 0, err
	}
	code, list, err := wire.Do(client, req)
	if err != nil {
		return nil, 0, fmt.Errorf("list %v: %w", v, err)
	}
	if code != http.StatusOK {
		return nil, 0, fmt.Errorf("list %v at %s: %d %s", v, server, code, list.Message)
	}
	at, err := list.Metadata.Revision()
	if err != nil {
		return nil, 0, fmt.Errorf("list %v: %w", v, err)
	}
	objects := map[Key]Event{}
	for _, o := range list.Items {
		serial, err := strconv.Atoi(o.Data[Serial])
		if err != nil || !strings.HasPrefix(o.Metadata.Namespace, prefix) {
			continue
		}
		revision, err := o.Metadata.Revision()
		if err != nil {
			return nil, 0, fmt.Errorf("list %v: %w", v, err)
		}
		key := Key{o.Metadata.Namespace, o.Metadata.Name}
		objects[key] = Event{Key: key, Revision: revision, Serial: serial}
	}
	return objects, at, nil
}

// Compare compares the state that the watcher has rebuilt with a LIST.
func (w *Watcher) Compare(list map[Key]Event) error {
	if d := cmp.Diff(list, w.Rebuild()); d != "" {
		return fmt.Errorf("watch %v has rebuilt something else than LIST says (-list +watch):\n%s", w.View, d)
	}
	return nil
}

// Compare compares the state that the writers have left with a LIST.
func (l *Ledger) Compare(v View, list map[Key]Event) error {
	left := map[Key]Event{}
	for key, c := range l.present(v) {
		left[key] = Event{Key: key, Revision: c.Revision, Serial: c.Serial}
	}
	if d := cmp.Diff(left, list); d != "" {
		return fmt.Errorf("LIST of %v is not what the writers have left (-writers +list):\n%s", v, d)
	}
	return nil
}
