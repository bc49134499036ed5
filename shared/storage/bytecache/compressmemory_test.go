package bytecache

import (
	"runtime"
	"testing"
)

// TestMemoryOfCustomResources checks that custom resources of 10 kB need less than 1.15
// times their stored bytes plain, and less than 0.4 times compressed.
func TestMemoryOfCustomResources(t *testing.T) {
	const n = 2000
	for _, test := range []struct {
		name  string
		plain int64
		most  float64
	}{{"as they are", -1, 1.15}, {"compressed", 1 << 20, 0.4}} {
		t.Run(test.name, func(t *testing.T) {
			before := heap()
			c := loadedCache(t, applications{n, 9}, Config{PlainBytes: test.plain}, Options{})
			c.releaseDictionary()
			used := heap() - before
			var stored int64
			s, err := c.Snapshot(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			s.Ascend("", func(e *Entry) bool { stored += int64(e.Size()); return true })
			if each := stored / n; each < 9_000 || each > 11_000 {
				t.Fatalf("an object has %d bytes", each)
			}
			ratio := float64(used) / float64(stored)
			t.Logf("%.3f of the stored bytes", ratio)
			if ratio > test.most {
				t.Errorf("%d bytes for %d stored ones, %.3f, want at most %.2f", used, stored, ratio, test.most)
			}
			runtime.KeepAlive(c)
		})
	}
}

// BenchmarkData reads one object of 10 kB. Reproduce as in bench_test.go.
func BenchmarkData(b *testing.B) {
	value := application(1, 9)
	c := &Cache{space: New(Config{PlainBytes: 1})}
	p, err := newDictionary(c, []*Entry{NewEntry("", 0, application(2, 9))})
	if err != nil {
		b.Fatal(err)
	}
	compressed := NewEntry("", 0, value)
	small, err := p.compress(value)
	if err != nil {
		b.Fatal(err)
	}
	compressed.compressed.Store(small)
	compressed.plain.Store(nil)
	plain := NewEntry("", 0, value)
	b.Run("plain", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if len(plain.Data()) == 0 {
				b.Fatal("no bytes")
			}
		}
	})
	b.Run("compressed", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			compressed.Data()
		}
	})
	b.Run("compressed, into a buffer", func(b *testing.B) {
		b.ReportAllocs()
		var scratch []byte
		for b.Loop() {
			_, scratch = compressed.DataInto(scratch)
		}
	})
	b.Run("compress", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if _, err := p.compress(value); err != nil {
				b.Fatal(err)
			}
		}
		b.ReportMetric(float64(len(small.data))/float64(len(value)), "ratio")
	})
}
