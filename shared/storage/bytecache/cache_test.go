package bytecache

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"

	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"

	"triune.dev/shared/storage/kv"
)

// pages is an Origin that answers every read with a function.
type pages func(r kv.Range) (kv.Page, error)

func (p pages) List(_ context.Context, r kv.Range) (kv.Page, error) { return p(r) }

// noHistory is a Feed without history.
type noHistory struct{}

func (noHistory) RequestProgress(context.Context) error { return nil }

func (noHistory) Since(_ context.Context, _ string, after, _ int64, _ func(kv.Event) error) error {
	return &kv.CompactedError{Wanted: after}
}

// filled returns an Origin with n objects of the given size, written at revision 100. The
// value of object i begins with i.
func filled(n, size int) pages {
	return func(r kv.Range) (kv.Page, error) {
		page := kv.Page{Revision: 100}
		first := 0
		if at, ok := strings.CutPrefix(r.Start, "/r/"); ok && at != "" {
			last, _ := strconv.Atoi(strings.TrimSuffix(at, "\x00"))
			first = last - 1e6 + 1
		}
		page.Count = int64(n - first)
		for i := first; i < min(n, first+int(r.Limit)); i++ {
			value := make([]byte, size)
			copy(value, strconv.Itoa(i))
			page.KVs = append(page.KVs, &mvccpb.KeyValue{Key: []byte(filledKey(i)), Value: value, ModRevision: 100})
		}
		return page, nil
	}
}

func filledKey(i int) string { return "/r/" + strconv.Itoa(1e6+i) }

// modify returns the event of a write to an object of filled.
func modify(i int, revision int64, value string) kv.Event {
	return kv.Event{Kind: kv.Modified, Key: filledKey(i), Revision: revision, Value: []byte(value)}
}

// loadedCache returns a loaded cache of origin.
func loadedCache(t testing.TB, origin Origin, config Config, o Options) *Cache {
	t.Helper()
	config.Origin, config.Feed = origin, noHistory{}
	space := New(config)
	c, err := space.Cache("/r/", o)
	if err != nil {
		t.Fatal(err)
	}
	space.Reset(100)
	if err := c.Load(t.Context()); err != nil {
		t.Fatal(err)
	}
	return c
}

func apply(c *Cache, events ...kv.Event) {
	c.space.Apply(kv.Batch{Events: events, Revision: events[len(events)-1].Revision})
}

// TestNextSleepsUntilChangePokeOrReset checks that a cursor sleeps while there is nothing
// to read, and that each of these events wakes it.
func TestNextSleepsUntilChangePokeOrReset(t *testing.T) {
	for _, tc := range []struct {
		name  string
		after int64
		wake  func(c *Cache, poke chan struct{}, cancel func())
		want  string
	}{
		{"a change", 100, func(c *Cache, _ chan struct{}, _ func()) { apply(c, modify(0, 101, "x")) }, "1 up to 101"},
		{"changes at once", 100, func(c *Cache, _ chan struct{}, _ func()) {
			apply(c, modify(0, 101, "x"), modify(1, 102, "x"), modify(2, 102, "x"))
		}, "3 up to 102"},
		{"a wanted change after others", 102, func(c *Cache, _ chan struct{}, _ func()) {
			apply(c, modify(0, 101, "x"))
			apply(c, modify(0, 102, "x"))
			synctest.Wait()
			apply(c, modify(0, 103, "x"))
		}, "1 up to 103"},
		{"progress alone does not, a poke does", 100, func(c *Cache, poke chan struct{}, _ func()) {
			c.space.Apply(kv.Batch{Revision: 107, Progress: true})
			synctest.Wait()
			poke <- struct{}{}
		}, "0 up to 107"},
		{"a reset", 100, func(c *Cache, _ chan struct{}, _ func()) { c.space.Reset(105) }, "expired"},
		{"an event that does not fit", 100, func(c *Cache, _ chan struct{}, _ func()) { apply(c, modify(9, 105, "x")) }, "expired"},
		{"a restored backup", 300, func(c *Cache, _ chan struct{}, _ func()) { c.space.Replace(105) }, "expired"},
		{"its context", 100, func(_ *Cache, _ chan struct{}, cancel func()) { cancel() }, "context canceled"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := loadedCache(t, filled(3, 10), Config{}, Options{})
				cursor, err := c.Cursor(t.Context(), tc.after)
				if err != nil {
					t.Fatal(err)
				}
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				poke, got := make(chan struct{}), make(chan string, 1)
				go func() {
					changes, err := cursor.Next(ctx, poke)
					var gone *ExpiredError
					switch {
					case errors.As(err, &gone):
						got <- "expired"
					case err != nil:
						got <- err.Error()
					default:
						got <- strconv.Itoa(len(changes.List)) + " up to " + strconv.FormatInt(changes.Revision, 10)
					}
				}()
				synctest.Wait()
				if len(got) != 0 {
					t.Fatalf("it did not sleep: %s", <-got)
				}
				tc.wake(c, poke, cancel)
				synctest.Wait()
				select {
				case got := <-got:
					if got != tc.want {
						t.Errorf("got %s, want %s", got, tc.want)
					}
				default:
					t.Error("it sleeps on")
				}
			})
		})
	}
}

// TestLoadFailures checks that a failed load leaves nothing behind, and that the next one
// succeeds.
func TestLoadFailures(t *testing.T) {
	good := filled(1200, 10)
	for _, tc := range []struct {
		name string
		bad  pages
		want error
	}{
		{"etcd does not answer", func(kv.Range) (kv.Page, error) { return kv.Page{}, errInjected }, errInjected},
		{"it fails at the second page", func(r kv.Range) (kv.Page, error) {
			if r.Revision != 0 {
				return kv.Page{}, rpctypes.ErrFutureRev
			}
			return good(r)
		}, rpctypes.ErrFutureRev},
		// The log's next word will be a reset.
		{"etcd is behind the log", func(kv.Range) (kv.Page, error) { return kv.Page{Revision: 99}, nil }, nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			failing := true
			space := New(Config{Feed: noHistory{}, Origin: pages(func(r kv.Range) (kv.Page, error) {
				if failing {
					return tc.bad(r)
				}
				return good(r)
			})})
			c, err := space.Cache("/r/", Options{})
			if err != nil {
				t.Fatal(err)
			}
			space.Reset(100)
			if _, err := c.Snapshot(t.Context()); err == nil || tc.want != nil && !errors.Is(err, tc.want) {
				t.Errorf("error %v, want %v", err, tc.want)
			}
			if _, ok := c.Peek(filledKey(0)); ok {
				t.Error("something is known after a load that failed")
			}
			failing = false
			s, err := c.Snapshot(t.Context())
			if err != nil || s.Len() != 1200 || s.Revision != 100 {
				t.Fatalf("%+v, %v, want 1,200 objects at 100", s, err)
			}
			e, ok := c.Peek(filledKey(7))
			if !ok || e == nil || s.Get(filledKey(7)) != e || s.CountFrom("/r/", filledKey(1000)) != 200 {
				t.Errorf("object 7 is %v, 200 from 1,000 on are %d", e, s.CountFrom("/r/", filledKey(1000)))
			}
		})
	}
}

// TestLoadRestartsAfterCompaction compacts etcd between the pages of a load; the caller
// sees no error.
func TestLoadRestartsAfterCompaction(t *testing.T) {
	good, compactions := filled(1200, 10), 3
	c := loadedCache(t, pages(func(r kv.Range) (kv.Page, error) {
		if r.Revision != 0 && compactions > 0 {
			compactions--
			return kv.Page{}, rpctypes.ErrCompacted
		}
		return good(r)
	}), Config{}, Options{})
	if s, err := c.Snapshot(t.Context()); err != nil || s.Len() != 1200 || compactions != 0 {
		t.Errorf("%+v, %v", s, err)
	}
}

// TestInconsistentEventReloads checks that a change that contradicts the cache makes it
// read its keys again, because an event was lost.
func TestInconsistentEventReloads(t *testing.T) {
	for _, tc := range []struct {
		name  string
		event kv.Event
	}{
		{"created again", kv.Event{Kind: kv.Created, Key: filledKey(0), Revision: 100}},
		{"modified before it was created", kv.Event{Kind: kv.Modified, Key: filledKey(5), Revision: 100}},
		{"deleted twice", kv.Event{Kind: kv.Deleted, Key: filledKey(5), Revision: 100}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			calls := 0
			c := loadedCache(t, filled(3, 10), Config{}, Options{OnInconsistent: func(string, int64) { calls++ }})
			// The origin stays at 100, so the log continues from before it.
			c.space.Reset(90)
			if err := c.Load(t.Context()); err != nil {
				t.Fatal(err)
			}
			tc.event.Revision = 101
			c.receive([]kv.Event{tc.event}, 101)
			if calls != 1 || c.Stats().Live {
				t.Fatalf("told %d times, live %t", calls, c.Stats().Live)
			}
			if s, err := c.Snapshot(t.Context()); err != nil || s.Len() != 3 {
				t.Errorf("after reading again: %+v, %v", s, err)
			}
		})
	}
}

func TestPrefixesDoNotOverlap(t *testing.T) {
	space := New(Config{})
	first, err := space.Cache("/registry/pods/", Options{})
	if err != nil {
		t.Fatal(err)
	}
	for prefix, ok := range map[string]bool{
		"/registry/pods/": true, "/registry/pod/": true, "/registry/podsx/": true, "/registry/nodes/": true,
		"/registry/pods": false, "/registry/": false, "/registry/pods/a/": false, "/": false, "": false,
	} {
		c, err := space.Cache(prefix, Options{})
		if (err == nil) != ok {
			t.Errorf("%q: %v, want it accepted: %t", prefix, err, ok)
		}
		if prefix == first.Prefix() && c != first {
			t.Error("the same prefix gives another cache")
		}
	}
}
