package bytecache

import (
	"bytes"
	"context"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
)

// Reproduce with: go test -run '^$' -bench . ./shared/storage/bytecache
// The unit is one operation named by the benchmark, or ns/object if it has many objects.

func appLabel(n int) func(*Entry) (Attributes, error) {
	return func(e *Entry) (Attributes, error) {
		i, err := strconv.Atoi(string(bytes.TrimRight(e.Data(), "\x00")))
		return Attributes{"app": strconv.Itoa(i % n)}, err
	}
}

// BenchmarkApply measures the time from one event until the last of so many sleeping
// cursors has read it.
func BenchmarkApply(b *testing.B) {
	for _, cursors := range []int{0, 1, 1000, 10000} {
		b.Run(fmt.Sprintf("%d cursors", cursors), func(b *testing.B) {
			ctx, cancel := context.WithCancel(b.Context())
			c := loadedCache(b, filled(4000, 3500), Config{}, Options{})
			var group sync.WaitGroup
			var seen atomic.Int64
			all := make(chan struct{}, 1)
			for range cursors {
				cursor, err := c.Cursor(ctx, 100)
				if err != nil {
					b.Fatal(err)
				}
				group.Go(func() {
					for {
						if _, err := cursor.Next(ctx, nil); err != nil {
							return
						}
						if seen.Add(1)%int64(cursors) == 0 {
							all <- struct{}{}
						}
					}
				})
			}
			value := string(make([]byte, 3500))
			revision := int64(100)
			b.ReportAllocs()
			for b.Loop() {
				revision++
				apply(c, modify(int(revision%4000), revision, value))
				if cursors > 0 {
					<-all
				}
			}
			b.StopTimer()
			cancel()
			group.Wait()
		})
	}
}

// BenchmarkApplyIsNotHeldUp measures Apply itself, while it wakes 10,000 cursors and
// readers of all kinds are active.
func BenchmarkApplyIsNotHeldUp(b *testing.B) {
	for _, load := range []string{"10,000 cursors", "lists", "selections", "gets"} {
		b.Run(load, func(b *testing.B) {
			ctx, cancel := context.WithCancel(b.Context())
			c := loadedCache(b, filled(4000, 350), Config{}, Options{Labels: appLabel(50)})
			var group sync.WaitGroup
			work := map[string]func(*Cursor) error{
				"10,000 cursors": func(cursor *Cursor) error { _, err := cursor.Next(ctx, nil); return err },
				"lists": func(*Cursor) error {
					s, err := c.Snapshot(ctx)
					if err == nil {
						s.Ascend("", func(*Entry) bool { return true })
					}
					return err
				},
				"selections": func(*Cursor) error {
					_, err := c.Select(ctx, Term{Key: "app", Values: []string{"7"}})
					return err
				},
				"gets": func(*Cursor) error { _, _, err := c.Get(ctx, filledKey(7)); return err },
			}[load]
			readers := 4
			if load == "10,000 cursors" {
				readers = 10000
			}
			for range readers {
				cursor, err := c.Cursor(ctx, 100)
				if err != nil {
					b.Fatal(err)
				}
				group.Go(func() {
					for ctx.Err() == nil && work(cursor) == nil {
					}
				})
			}
			value := "1" + string(make([]byte, 350))
			revision := int64(100)
			b.ReportAllocs()
			for b.Loop() {
				revision++
				apply(c, modify(int(revision%4000), revision, value))
			}
			b.StopTimer()
			cancel()
			group.Wait()
		})
	}
}

// BenchmarkApplyConcernsOne measures an event that matches one of 10,000 cursors, each with
// an Interest in another object: this is the load of nodes that watch their pods and
// secrets.
func BenchmarkApplyConcernsOne(b *testing.B) {
	const cursors = 10_000
	for _, by := range []string{"key", "field", "nothing"} {
		b.Run("by "+by, func(b *testing.B) {
			ctx, cancel := context.WithCancel(b.Context())
			object := func(e *Entry) (Attributes, error) { return Attributes{"name": e.Key}, nil }
			c := loadedCache(b, filled(cursors, 350), Config{}, Options{Fields: object})
			var group sync.WaitGroup
			concerned := make(chan int, cursors)
			for i := range cursors {
				key := filledKey(i)
				interest := map[string]Interest{"key": {Key: key}, "field": {Field: "name", Value: key}}[by]
				cursor, err := c.CursorFor(ctx, 100, interest)
				if err != nil {
					b.Fatal(err)
				}
				group.Go(func() {
					for {
						changes, err := cursor.Next(ctx, nil)
						if err != nil {
							return
						}
						for _, change := range changes.List {
							if change.Key == key {
								concerned <- i
							}
						}
					}
				})
			}
			value := string(make([]byte, 350))
			revision := int64(100)
			b.ReportAllocs()
			for b.Loop() {
				revision++
				apply(c, modify(int(revision%cursors), revision, value))
				<-concerned
			}
			b.StopTimer()
			cancel()
			group.Wait()
		})
	}
}

func BenchmarkGet(b *testing.B) {
	c := loadedCache(b, filled(4000, 3500), Config{}, Options{})
	key, ctx := filledKey(1234), b.Context()
	b.Run("one", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if e, _, err := c.Get(ctx, key); e == nil || err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("side by side", func(b *testing.B) {
		b.ReportAllocs()
		b.RunParallel(func(pb *testing.PB) {
			for pb.Next() {
				_, _, _ = c.Get(ctx, key)
			}
		})
	})
}

func BenchmarkList4000(b *testing.B) {
	c := loadedCache(b, filled(4000, 3500), Config{}, Options{})
	kind := NewFormID()
	for _, tc := range []struct {
		name  string
		visit func(*Entry) int
	}{
		{"bytes", func(e *Entry) int { return len(e.Data()) }},
		{"forms", func(e *Entry) int {
			data, _ := e.Form(c.space.Budget(), kind, func(e *Entry) ([]byte, error) { return e.Data()[:10], nil })
			return len(data)
		}},
	} {
		b.Run(tc.name, func(b *testing.B) {
			b.ReportAllocs()
			total := 0
			for b.Loop() {
				s, err := c.Snapshot(b.Context())
				if err != nil {
					b.Fatal(err)
				}
				s.Ascend("/r/", func(e *Entry) bool { total += tc.visit(e); return true })
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/4000, "ns/object")
		})
	}
}

func BenchmarkSelect(b *testing.B) {
	for _, tc := range []struct {
		name       string
		n, values  int
		value      string
		want       int
		withWrites bool
	}{
		{"none of 300,000", 300_000, 1000, "none", 0, false},
		{"80 of 4,000", 4000, 50, "7", 80, false},
		{"80 of 4,000, a write between", 4000, 50, "7", 80, true},
		{"40 of 4,000, a write between", 4000, 100, "7", 40, true},
		{"60,000 of 300,000", 300_000, 5, "2", 60_000, false},
	} {
		b.Run(tc.name, func(b *testing.B) {
			c := loadedCache(b, filled(tc.n, 100), Config{}, Options{Labels: appLabel(tc.values)})
			ask := func() {
				s, err := c.Select(b.Context(), Term{Key: "app", Values: []string{tc.value}})
				if err != nil || len(s.Entries) != tc.want {
					b.Fatalf("%d entries, %v", len(s.Entries), err)
				}
			}
			ask()
			revision := int64(100)
			b.ReportAllocs()
			for b.Loop() {
				if tc.withWrites {
					revision++
					i := int(revision % 4000)
					apply(c, modify(i, revision, strconv.Itoa(i)))
				}
				ask()
			}
		})
	}
}

func BenchmarkLoad(b *testing.B) {
	c := loadedCache(b, filled(100_000, 100), Config{}, Options{})
	b.ReportAllocs()
	for b.Loop() {
		c.space.Reset(100)
		if err := c.Load(b.Context()); err != nil {
			b.Fatal(err)
		}
	}
}
