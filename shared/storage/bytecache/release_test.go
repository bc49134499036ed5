package bytecache

import (
	"errors"
	"testing"

	"triune.dev/shared/storage/kv"
)

// The cache of a deleted CRD must not keep its objects, nor receive changes.
func TestRelease(t *testing.T) {
	empty := pages(func(kv.Range) (kv.Page, error) { return kv.Page{Revision: 5}, nil })
	s := New(Config{Origin: empty, Feed: noHistory{}})
	s.Reset(5)
	first, err := s.Cache("/registry/a/", Options{})
	if err != nil {
		t.Fatal(err)
	}
	second, err := s.Cache("/registry/a/", Options{})
	if err != nil || second != first {
		t.Fatalf("%p %p %v", first, second, err)
	}
	cursor, err := first.Cursor(t.Context(), 5)
	if err != nil {
		t.Fatal(err)
	}
	created := func(revision int64) kv.Batch {
		return kv.Batch{Revision: revision, Events: []kv.Event{{Kind: kv.Created, Key: "/registry/a/x", Value: []byte("1"), Revision: revision}}}
	}
	first.Release()
	s.Apply(created(6))
	if changes, err := cursor.Available(t.Context()); err != nil || len(changes.List) != 1 {
		t.Fatalf("with a user left: %v, %v", changes, err)
	}
	second.Release()
	s.Apply(created(7))
	if stats := first.Stats(); stats.Live || stats.Objects != 0 {
		t.Errorf("after the last release: %+v", stats)
	}
	var gone *ExpiredError
	if _, err := cursor.Available(t.Context()); !errors.As(err, &gone) {
		t.Errorf("the cursor goes on: %v", err)
	}
	if again, err := s.Cache("/registry/a/", Options{}); err != nil || again == first {
		t.Errorf("the same cache again: %v", err)
	}
}
