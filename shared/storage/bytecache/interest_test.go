package bytecache

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"testing"
	"testing/synctest"

	"triune.dev/shared/storage/kv"
)

// firstByte returns the selectable field of the objects below; "!" stands for an unreadable
// object.
func firstByte(e *Entry) (Attributes, error) {
	if e.Data()[0] == '!' {
		return nil, errors.New("unreadable")
	}
	return Attributes{"f": string(e.Data()[:1])}, nil
}

// named returns the n-th event after revision 100, of an object in a collection of two
// namespaces.
func named(kind kv.Kind, n int64, name, value string) kv.Event {
	return kv.Event{Kind: kind, Key: "/r/" + name, Revision: 100 + n, Value: []byte(value)}
}

// TestCursorWakesForMatchingChanges checks that only changes that match the Interest wake a
// cursor, and that the others are skipped.
func TestCursorWakesForMatchingChanges(t *testing.T) {
	created := []kv.Event{named(kv.Created, 1, "a/x", "1"), named(kv.Created, 2, "a/y", "2"), named(kv.Created, 3, "b/x", "1")}
	for _, tc := range []struct {
		name     string
		interest Interest
		event    kv.Event
		wakes    bool
	}{
		{"everything", Interest{}, named(kv.Modified, 5, "b/x", "1"), true},
		{"what is no interest", Interest{Key: "/r/"}, named(kv.Modified, 5, "b/x", "1"), true},
		{"a field that the cache does not know", Interest{Field: "g", Value: "1"}, named(kv.Modified, 5, "b/x", "1"), false},
		{"an object without a field", Interest{Field: "g"}, named(kv.Modified, 5, "b/x", "1"), true},
		{"the object", Interest{Key: "/r/a/x"}, named(kv.Modified, 5, "a/x", "1"), true},
		{"another object", Interest{Key: "/r/a/x"}, named(kv.Modified, 5, "a/y", "1"), false},
		{"the same name elsewhere", Interest{Key: "/r/a/x"}, named(kv.Modified, 5, "b/x", "1"), false},
		{"a name that begins like it", Interest{Key: "/r/a/x"}, named(kv.Created, 5, "a/xx", "1"), false},
		{"the object goes", Interest{Key: "/r/a/x"}, named(kv.Deleted, 5, "a/x", ""), true},
		{"one that does not exist yet", Interest{Key: "/r/c/z"}, named(kv.Created, 5, "c/z", "1"), true},
		{"the namespace", Interest{Key: "/r/a/"}, named(kv.Modified, 5, "a/y", "1"), true},
		{"another namespace", Interest{Key: "/r/a/"}, named(kv.Modified, 5, "b/x", "1"), false},
		{"a namespace that begins like it", Interest{Key: "/r/a/"}, named(kv.Created, 5, "aa/x", "1"), false},
		{"the value", Interest{Field: "f", Value: "1"}, named(kv.Modified, 5, "a/x", "1"), true},
		{"another value", Interest{Field: "f", Value: "1"}, named(kv.Modified, 5, "a/y", "2"), false},
		{"it gets the value", Interest{Field: "f", Value: "1"}, named(kv.Modified, 5, "a/y", "1"), true},
		{"it loses the value", Interest{Field: "f", Value: "1"}, named(kv.Modified, 5, "a/x", "2"), true},
		{"one with the value goes", Interest{Field: "f", Value: "1"}, named(kv.Deleted, 5, "a/x", ""), true},
		{"one without it goes", Interest{Field: "f", Value: "1"}, named(kv.Deleted, 5, "a/y", ""), false},
		{"who knows", Interest{Field: "f", Value: "1"}, named(kv.Modified, 5, "a/y", "!"), true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := loadedCache(t, pages(func(kv.Range) (kv.Page, error) { return kv.Page{Revision: 100}, nil }), Config{}, Options{Fields: firstByte})
				apply(c, created...)
				cursor, err := c.CursorFor(t.Context(), 103, tc.interest)
				if err != nil {
					t.Fatal(err)
				}
				poke, got := make(chan struct{}), make(chan Changes, 1)
				go func() {
					changes, err := cursor.Next(t.Context(), poke)
					if err != nil {
						t.Error(err)
					}
					got <- changes
				}()
				synctest.Wait()
				apply(c, named(kv.Created, 4, "d/other", "3"))
				synctest.Wait()
				apply(c, tc.event)
				synctest.Wait()
				if wakes := len(got) == 1; wakes != tc.wakes {
					t.Fatalf("awake: %t", wakes)
				}
				if !tc.wakes {
					close(poke)
				}
				// A cursor without an Interest was woken by the change before.
				changes, everything := <-got, cursor.interest == Interest{} || cursor.interest == Interest{Field: "g"}
				switch {
				case everything && (len(changes.List) != 1 || changes.Revision != 104):
					t.Errorf("%d changes up to %d", len(changes.List), changes.Revision)
				case everything:
				case changes.Revision != 105:
					t.Errorf("it has read revision %d", changes.Revision)
				case tc.wakes && (len(changes.List) != 1 || changes.List[0].Revision != 105):
					t.Errorf("%d changes", len(changes.List))
				case !tc.wakes && len(changes.List) != 0:
					t.Errorf("%d changes that did not match", len(changes.List))
				}
				if n := len(c.wakeups.byInterest) + len(c.wakeups.fieldCount); n != 0 {
					t.Errorf("%d wakeups are left", n)
				}
			})
		})
	}
}

// TestCursorSleepsThroughCompaction checks that a cursor loses nothing by sleeping while
// the log drops, and etcd compacts, changes that do not match; and that it then survives a
// reset without a gap.
func TestCursorSleepsThroughCompaction(t *testing.T) {
	for _, reset := range []bool{false, true} {
		t.Run(fmt.Sprintf("reset=%t", reset), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				now, objects := int64(100), filled(3, 1000)
				c := loadedCache(t, pages(func(r kv.Range) (kv.Page, error) {
					page, err := objects(r)
					page.Revision = now
					return page, err
				}), Config{LogBytes: 20_000}, Options{})
				cursor, err := c.CursorFor(t.Context(), 100, Interest{Key: filledKey(1)})
				if err != nil {
					t.Fatal(err)
				}
				got := make(chan string, 1)
				go func() {
					changes, err := cursor.Next(t.Context(), nil)
					got <- fmt.Sprint(len(changes.List), changes.Revision, err)
				}()
				synctest.Wait()
				for revision := int64(101); revision <= 600; revision++ {
					apply(c, modify(0, revision, string(make([]byte, 1000))))
				}
				now = 600
				if c.Stats().LogFloor < 500 {
					t.Fatal("the log remembers everything")
				}
				if reset {
					c.space.Reset(600)
					synctest.Wait()
				}
				apply(c, modify(1, 601, "x"))
				synctest.Wait()
				if got := <-got; got != "1 601 <nil>" {
					t.Error(got)
				}
			})
		})
	}
}

// watchSome watches one key or one last digit. It sleeps until a matching change or a poke,
// and must see every matching change.
func (o *lockedEtcd) watchSome(ctx context.Context, t *testing.T, cache *Cache, r *rand.Rand, last int64, pokes <-chan struct{}) {
	for !t.Failed() {
		s, err := cache.Snapshot(ctx)
		if err != nil {
			t.Error(err)
			return
		}
		at, i, digit := s.Revision, r.Int64N(o.keys), r.Int64N(10)
		interest := Interest{Key: o.key(i)}
		concerns := func(revision int64) bool { return revision%o.keys == i }
		if r.IntN(2) == 0 {
			interest = Interest{Field: "last", Value: strconv.FormatInt(digit, 10)}
			concerns = func(revision int64) bool { return revision%10 == digit || (revision-o.keys)%10 == digit }
		}
		cursor, err := cache.CursorFor(ctx, at, interest)
		if err != nil {
			t.Error(err)
			return
		}
		for calls := r.IntN(3000); calls > 0 || at >= last-3000; calls-- {
			changes, err := cursor.Next(ctx, pokes)
			var gone *ExpiredError
			if errors.As(err, &gone) {
				break
			}
			if err != nil {
				t.Error(err)
				return
			}
			seen := map[int64]bool{}
			for _, c := range changes.List {
				seen[c.Revision] = true
			}
			for ; at < changes.Revision; at++ {
				if concerns(at+1) && !seen[at+1] {
					t.Errorf("with interest %+v it missed revision %d", interest, at+1)
					return
				}
			}
			if at >= last {
				return
			}
		}
	}
}
