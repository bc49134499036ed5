package bytecache

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
)

var (
	historySeed  = flag.Uint64("history-seed", 0, "run this one history of TestHistories, and print its steps")
	historyCount = flag.Int("histories", 0, "how many histories TestHistories runs, instead of 5,000 with -short and 50,000 without")
)

// valuesAt returns the state that a watcher must have rebuilt.
func (l *timeline) valuesAt(prefix string, revision int64) map[string]string {
	out := map[string]string{}
	for key, at := range l.states[revision].below(prefix) {
		out[key] = at.value
	}
	return out
}

// step is one step of a history. It depends on its own seed only, so that a history stays
// the same when other steps are left out.
type step struct {
	operation
	seed uint64
}

// history returns the steps of a seed.
func history(seed uint64) []step {
	r := rand.New(rand.NewPCG(seed, 1))
	all := slices.Concat(writing, reading)
	total := 0
	for _, o := range all {
		total += o.weight
	}
	steps := make([]step, 20+r.IntN(100))
	for i := range steps {
		pick := r.IntN(total)
		for _, o := range all {
			if pick -= o.weight; pick < 0 {
				steps[i] = step{operation: o, seed: r.Uint64()}
				break
			}
		}
	}
	return steps
}

// play runs a history in a new world, whose sizes depend on its seed.
func play(seed uint64, steps []step, trace func(string, ...any)) error {
	r := rand.New(rand.NewPCG(seed, 2))
	pick := func(from ...int64) int64 { return from[r.IntN(len(from))] }
	w := &world{etcd: newTimeline(), trace: trace}
	w.space = New(Config{
		Origin: w, Feed: w,
		LogBytes: pick(1, 2000, 8000, 1<<20), SnapshotBytes: pick(2000, 8000, 1<<20, 1<<20),
		PlainBytes: pick(-1, -1, -1, modelPlain),
	})
	w.space.loadPage = pick(1, 2, 500)
	w.space.historyEvents, w.space.historyBytes = int(pick(1, 3, 4096)), pick(1000, 1<<20)
	for _, prefix := range prefixes {
		o := Options{Labels: w.find(labelsOf), Fields: w.find(fieldsOf), OnInconsistent: func(key string, revision int64) {
			_ = w.fault("%s at %d does not fit", key, revision)
		}}
		if r.IntN(2) == 0 {
			o.Label, o.Field = single(o.Labels), single(o.Fields)
		}
		if r.IntN(2) == 0 {
			o.Indexes = []Term{{Key: "l"}, {Field: true, Key: "n"}}
		}
		if o.SlowDecrypt = r.IntN(2) == 0; o.SlowDecrypt {
			o.Decrypt = w.open
		}
		c, err := w.space.Cache(prefix, o)
		if err != nil {
			return err
		}
		c.queue.running = true // nobody works on it but the steps
		w.caches = append(w.caches, c)
	}
	for range r.IntN(10) {
		w.write(r, 1+r.IntN(3))
	}
	w.delivered = w.etcd.now()
	w.space.Reset(w.delivered)
	for _, s := range steps {
		trace("%s (etcd %d, delivered %d)", s.name, w.etcd.now(), w.delivered)
		w.nested = rand.New(rand.NewPCG(s.seed, 3))
		s.do(w, rand.New(rand.NewPCG(s.seed, 4)))
		if w.trouble == nil {
			w.bounds()
		}
		if w.trouble != nil {
			return fmt.Errorf("%s: %w", s.name, w.trouble)
		}
	}
	return nil
}

// bounds checks the sizes of the caches.
func (w *world) bounds() {
	var counted int64
	defer func() {
		if counted != w.space.Plain() {
			_ = w.fault("%d bytes could be compressed, counted %d", counted, w.space.Plain())
		}
	}()
	for _, c := range w.caches {
		s := c.Stats()
		if used := c.log.budget.bytes.Load(); used > c.log.budget.limit && len(c.log.blocks) > 1 {
			_ = w.fault("%s: the log holds %d bytes of %d", c.prefix, s.LogBytes, used)
		}
		if s.PinnedBytes > c.pinned.limit || s.Pinned > maxPinned {
			_ = w.fault("%s: %d snapshots are pinned, with %d bytes", c.prefix, s.Pinned, s.PinnedBytes)
		}
		var bytes, logged int64
		had := map[*Entry]bool{}
		c.tree.Scan(func(e *Entry) bool { bytes += e.size(); had[e] = true; return true })
		changes := 0
		var remembered, happened []string
		for _, b := range c.log.blocks {
			for _, change := range b.changes {
				logged += change.size()
				changes++
				had[change.Before] = true
				remembered = append(remembered, fmt.Sprintf("%d:%s", change.Revision, change.Key))
			}
		}
		if c.phase == live {
			for _, e := range w.etcd.between(c.log.floor, c.changed) {
				if strings.HasPrefix(e.Key, c.prefix) {
					happened = append(happened, fmt.Sprintf("%d:%s", e.Revision, e.Key))
				}
			}
			if !slices.Equal(remembered, happened) {
				_ = w.fault("%s: after %d the log has %v, want %v", c.prefix, c.log.floor, remembered, happened)
			}
		}
		delete(had, nil)
		var plain int64
		for e := range had {
			if e.epoch != c.epoch+1 {
				_ = w.fault("%s: %s is of epoch %d, the cache of %d", c.prefix, e.Key, e.epoch-1, c.epoch)
			}
			if e.compressibleLocked() {
				plain += int64(e.length)
			}
		}
		if plain != c.plain {
			_ = w.fault("%s: %d bytes could be compressed, counted %d", c.prefix, plain, c.plain)
		}
		counted += c.plain
		if bytes != s.Bytes || logged != s.LogBytes || changes != s.LogChanges {
			_ = w.fault("%s: %d bytes in the tree, %d in %d changes, counted %+v", c.prefix, bytes, logged, changes, s)
		}
	}
}

// shrink leaves out steps as long as the history still fails.
func shrink(seed uint64, steps []step) []step {
	quiet := func(string, ...any) {}
	for size := len(steps) / 2; size > 0; size /= 2 {
		for at := 0; at+size <= len(steps); {
			without := slices.Concat(steps[:at], steps[at+size:])
			if play(seed, without, quiet) != nil {
				steps = without
			} else {
				at += size
			}
		}
	}
	return steps
}

// TestHistories runs random histories, reproducible by their seed, of etcd, the event log
// and readers. Every read returns the state of etcd at the reported revision, and every
// change comes once, in order, by whole revisions.
func TestHistories(t *testing.T) {
	count := 50000
	if testing.Short() {
		count = 5000
	}
	if *historyCount > 0 {
		count = *historyCount
	}
	if *historySeed != 0 {
		synctest.Test(t, func(t *testing.T) {
			if err := play(*historySeed, history(*historySeed), t.Logf); err != nil {
				t.Error(err)
			}
		})
		return
	}
	synctest.Test(t, func(t *testing.T) {
		for seed := range uint64(count) {
			seed++
			steps := history(seed)
			err := play(seed, steps, func(string, ...any) {})
			if err == nil {
				continue
			}
			steps = shrink(seed, steps)
			t.Logf("seed %d: %v", seed, err)
			t.Fatalf("seed %d, shrunk to %d steps: %v", seed, len(steps), play(seed, steps, t.Logf))
		}
	})
}
