package bytecache

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"

	"triune.dev/shared/storage/kv"
)

// operation is a kind of step.
type operation struct {
	name   string
	weight int
	do     func(*world, *rand.Rand)
}

// writing are the steps that are not reads.
var writing = []operation{
	{"write", 14, func(w *world, r *rand.Rand) {
		for range 1 + r.IntN(4) {
			w.write(r, 1)
		}
	}},
	{"write several keys at one revision", 3, func(w *world, r *rand.Rand) { w.write(r, 2+r.IntN(6)) }},
	{"lease expires", 2, func(w *world, r *rand.Rand) {
		gone := map[string]string{}
		for key := range w.etcd.states[w.etcd.now()] {
			gone[key] = ""
		}
		keys := slices.Sorted(maps.Keys(gone))
		for _, key := range keys {
			if r.IntN(2) == 0 {
				delete(gone, key)
			}
		}
		w.etcd.commit(gone)
	}},
	{"deliver", 14, func(w *world, r *rand.Rand) {
		for range 1 + r.IntN(3) {
			w.deliver(min(w.etcd.now(), w.delivered+1+r.Int64N(4)), false)
		}
	}},
	{"deliver all, with progress", 4, func(w *world, _ *rand.Rand) { w.deliver(w.etcd.now(), true) }},
	{"decrypt", 10, func(w *world, r *rand.Rand) {
		c := w.caches[r.IntN(len(w.caches))]
		w.decrypt(c, max(0, len(c.queue.batches)-1-r.IntN(4)))
	}},
	{"deliver again", 2, func(w *world, r *rand.Rand) {
		// Batches overlap after the log has changed its source.
		from := r.Int64N(w.delivered + 1)
		upTo := from + r.Int64N(w.etcd.now()-from+1)
		w.apply(kv.Batch{Events: w.etcd.between(from, upTo), Revision: upTo})
		w.delivered = max(w.delivered, upTo)
	}},
	{"reset", 1, func(w *world, r *rand.Rand) {
		revision := w.delivered + r.Int64N(w.etcd.now()-w.delivered+1)
		if r.IntN(2) == 0 {
			w.etcd.floor = max(w.etcd.floor, revision)
		}
		w.trace("    reset to %d", revision)
		w.reset(revision, false)
	}},
	{"restore a backup", 1, func(w *world, r *rand.Rand) {
		w.etcd = w.etcd.backup(max(1, w.etcd.now()-r.Int64N(12)))
		from := w.etcd.now()
		for range r.IntN(12) {
			w.write(r, 1)
		}
		revision := from + r.Int64N(w.etcd.now()-from+1)
		w.trace("    restored at %d, goes on after %d", from, revision)
		w.reset(revision, true)
	}},
	{"compact", 1, func(w *world, r *rand.Rand) {
		w.etcd.compacted = max(w.etcd.compacted, w.etcd.now()-r.Int64N(8))
		if r.IntN(2) == 0 {
			w.etcd.floor = max(w.etcd.floor, w.etcd.compacted-r.Int64N(10))
		}
	}},
	{"compress", 2, func(w *world, r *rand.Rand) {
		if !w.space.compresses() {
			return
		}
		p := pass{space: w.space, target: r.Int64N(2 * modelPlain), rounds: 1 + r.IntN(2)}
		if err := p.run(context.Background()); err != nil {
			_ = w.fault("compress: %v", err)
		}
	}},
	{"keep what was read", 2, func(w *world, r *rand.Rand) {
		if len(w.checked) > 0 {
			h := w.checked[r.IntN(len(w.checked))]
			h.cache.Pin(h.snapshot)
			w.mustKeep(h, h.cache.log.budget.limit > 1<<18)
		}
	}},
	{"read at a revision", 4, func(w *world, r *rand.Rand) {
		c := w.caches[r.IntN(len(w.caches))]
		w.readAt(c, r.Int64N(w.etcd.now()+2))
	}},
}

func (w *world) write(r *rand.Rand, keys int) {
	writes := map[string]string{}
	for range keys {
		key := modelKey(r)
		if r.IntN(4) == 0 {
			writes[key] = ""
			continue
		}
		w.value++
		padding := r.IntN(200)
		if r.IntN(4) == 0 {
			padding += minCompressBytes
		}
		writes[key] = fmt.Sprintf("%s|%d|%s", modelLabels[r.IntN(len(modelLabels))], w.value, strings.Repeat("p", padding))
	}
	w.etcd.commit(writes)
}
