package eventlog

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"triune.dev/shared/storage/kv"
)

// A model of the log: one etcd, one stream, relays and readers as step functions without I/O or
// clock, around the real sequencer, outbox, fence, judge and verifier. A seed determines who
// takes the next step and what fails.

// bug is a bug that the model must find: the log without one of its rules.
type bug int

const (
	none bug = iota
	// fenceByID fences by Nats-Expected-Last-Msg-Id, which breaks replicated streams.
	fenceByID
	// forgetID is the same without a stale relay: a server catches up from a snapshot,
	// remembers no ID, and leads.
	forgetID
	// unguarded deletes and resets without a guard, and takes a higher epoch for a replaced
	// history.
	unguarded
	// anchorless compares only the last event with etcd.
	anchorless
	// sequenceOnly fences a pipeline by the sequence only.
	sequenceOnly
)

func (b bug) String() string {
	return [...]string{"none", "fenced by ID", "last ID forgotten", "unguarded", "no anchor", "pipeline fenced by sequence only"}[b]
}

// The model runs many histories. A seed always produces the same one.
func TestModel(t *testing.T) {
	t.Parallel()
	histories := 100_000
	if testing.Short() {
		histories = 1000
	}
	var restores, replaced, gaps atomic.Int64
	explore(histories, func(seed uint64) bool {
		w := newWorld(seed, none)
		if wrong := w.run(); wrong != "" {
			t.Errorf("seed %d: %s\n%s", seed, wrong, strings.Join(w.trace, "\n"))
			return false
		}
		restores.Add(int64(w.restores))
		replaced.Add(int64(w.replaced))
		gaps.Add(int64(w.gaps))
		return true
	})
	t.Logf("%d histories: etcd restored %d times, streams recreated %d times, readers left the stream %d times",
		histories, restores.Load(), replaced.Load(), gaps.Load())
	if restores.Load() == 0 || replaced.Load() == 0 || gaps.Load() == 0 {
		t.Error("the histories have too little in them")
	}
}

// Every rule is necessary: the model finds a bug without it.
func TestModelFindsBugs(t *testing.T) {
	t.Parallel()
	for _, planted := range []bug{fenceByID, forgetID, unguarded, anchorless, sequenceOnly} {
		t.Run(planted.String(), func(t *testing.T) {
			var found atomic.Int64
			explore(5000, func(seed uint64) bool {
				if wrong := newWorld(seed, planted).run(); wrong != "" {
					if found.Add(1) == 1 {
						t.Logf("seed %d: %s", seed, wrong)
					}
					return false
				}
				return true
			})
			if found.Load() == 0 {
				t.Error("not found in 5000 histories")
			}
		})
	}
}

// explore calls run with each seed below n until it returns false.
func explore(n int, run func(seed uint64) bool) {
	var next atomic.Int64
	var workers sync.WaitGroup
	var stop atomic.Bool
	for range runtime.GOMAXPROCS(0) {
		workers.Go(func() {
			for seed := next.Add(1) - 1; seed < int64(n) && !stop.Load(); seed = next.Add(1) - 1 {
				if !run(uint64(seed)) {
					stop.Store(true)
				}
			}
		})
	}
	workers.Wait()
}

// world is the state of a model.
type world struct {
	rnd    *rand.Rand
	bug    bug
	trace  []string
	wrong  string
	writes int // number of writes; each has its own value
	// resting stops all faults.
	resting bool

	etcd   etcdModel
	backup *etcdModel
	// lives counts the restores of etcd. A connection does not survive one.
	lives  int
	stream streamModel
	relays []*relayModel
	reader *readerModel

	restores, replaced, gaps int
}

func newWorld(seed uint64, planted bug) *world {
	w := &world{rnd: rand.New(rand.NewPCG(seed, 7)), bug: planted}
	w.etcd.revision = 1
	w.stream.replicated = w.rnd.IntN(2) == 0
	switch planted {
	case fenceByID, forgetID:
		w.stream.replicated = true
	case sequenceOnly:
		w.stream.replicated = false
	}
	for i := range 2 {
		w.relays = append(w.relays, &relayModel{world: w, id: i + 1})
	}
	w.reader = &readerModel{world: w}
	return w
}

func (w *world) note(format string, args ...any) {
	w.trace = append(w.trace, fmt.Sprintf(format, args...))
}

// run injects faults for a while and then lets everything settle.
func (w *world) run() string {
	w.reader.begin()
	for range 300 + w.rnd.IntN(400) {
		w.step()
		if w.wrong != "" {
			return w.wrong
		}
	}
	w.note("rest")
	w.resting = true
	w.stream.away = false
	for _, r := range w.relays {
		r.paused = false
	}
	for i := range 50 {
		if i < 40 {
			w.write(w.rnd.IntN(3) == 0)
		}
		if h := w.etcd.holder; h != 0 && (w.relays[h-1].state == "" || w.relays[h-1].lease != w.etcd.lease) {
			w.etcd.holder = 0 // nothing keeps the lease alive
			w.etcd.revision++
		}
		for range 12 {
			for _, r := range w.relays {
				r.step()
			}
			w.reader.step()
			w.reader.step()
		}
		if w.reader.onStream {
			w.reader.probe()
		}
	}
	return w.verdict()
}

// verdict checks what the reader has applied.
func (w *world) verdict() string {
	r := w.reader
	var want []string
	for _, e := range w.etcd.log {
		if e.event != nil && e.revision > r.resets[len(r.resets)-1] {
			want = append(want, string(e.event.Value))
		}
	}
	switch {
	case w.wrong != "":
		return w.wrong
	// A reader may notice a restore before the relay, and restart again when the relay has
	// recreated the stream.
	case len(r.resets)-1 > 2*w.restores:
		return fmt.Sprintf("%d resets and %d restores", len(r.resets)-1, w.restores)
	case !r.onStream:
		return fmt.Sprintf("the reader does not come back to the stream: reader at %d, etcd at %d, relay %d elected, stream exists %t, dead %t, sequence %d",
			r.revision, w.etcd.revision, w.etcd.holder, w.stream.exists, w.stream.dead, w.stream.sequence)
	case len(r.applied) > len(want) || !slices.Equal(r.applied, want[:len(r.applied)]):
		return fmt.Sprintf("applied %v, want %v", r.applied, want)
	case len(want)-len(r.applied) > 3:
		return fmt.Sprintf("applied only %d of %d", len(r.applied), len(want))
	}
	return ""
}

// step runs one random step.
func (w *world) step() {
	switch n := w.rnd.IntN(400); {
	case n < 40:
		w.write(true)
	case n < 60:
		w.write(false)
	case n < 220:
		if r := w.relays[w.rnd.IntN(2)]; !r.paused {
			r.step()
		}
	case n < 370:
		w.reader.step()
	case n < 376:
		w.reader.probe()
	case n < 382:
		r := w.relays[w.rnd.IntN(2)]
		r.paused = !r.paused
	case n < 385:
		if w.etcd.holder != 0 {
			w.note("the lease of relay %d ends", w.etcd.holder)
			w.etcd.holder = 0
			w.etcd.revision++
		}
	case n < 387:
		w.relays[w.rnd.IntN(2)].crash()
	case n < 389:
		w.stream.away = !w.stream.away
	case n < 393:
		w.stream.lose(w.rnd)
	case n < 394:
		if w.stream.replicated {
			w.stream.forgotten = w.bug == forgetID
			w.note("a server that caught up leads")
		}
	case n < 397:
		copied := w.etcd.copy()
		w.backup = &copied
	default:
		if w.backup != nil && w.restores == 0 {
			w.note("etcd goes from revision %d back to %d", w.etcd.revision, w.backup.revision)
			w.etcd, w.backup = w.backup.copy(), nil
			w.lives++
			w.restores++
			// It may reach its old revision before anyone looks.
			for range w.rnd.IntN(60) {
				w.write(w.rnd.IntN(3) > 0)
			}
		}
	}
}

// write changes an object of the tier or another key.
func (w *world) write(ofTier bool) {
	w.writes++
	w.etcd.revision++
	e := entry{revision: w.etcd.revision}
	if ofTier {
		e.event = &kv.Event{Kind: kv.Created, Key: "k", Revision: e.revision, Value: []byte(fmt.Sprint("v", w.writes))}
	}
	w.etcd.log = append(w.etcd.log, e)
}

// etcdModel is the source of truth.
type etcdModel struct {
	revision int64
	log      []entry
	// holder is the elected relay, elected at revision elected; lease distinguishes elections.
	holder, lease int
	elected       int64
	record        record
}

// entry is a write.
type entry struct {
	revision int64
	event    *kv.Event // nil for a key of another tier
	anchor   uint64
}

func (e *etcdModel) copy() etcdModel {
	c := *e
	c.log = slices.Clone(e.log)
	return c
}

func (e *etcdModel) at(revision int64) *entry {
	i, ok := slices.BinarySearchFunc(e.log, revision, func(e entry, r int64) int { return int(e.revision - r) })
	if !ok {
		return nil
	}
	return &e.log[i]
}

// after returns the events after a revision.
func (e *etcdModel) after(revision int64) (events []kv.Event) {
	from, _ := slices.BinarySearchFunc(e.log, revision+1, func(e entry, r int64) int { return int(e.revision - r) })
	for _, entry := range e.log[from:] {
		if entry.event != nil {
			events = append(events, *entry.event)
		}
	}
	return events
}

// lacks models contradicts.
func (e *etcdModel) lacks(event *kv.Event) bool {
	if event == nil || event.Kind == 0 {
		return false
	}
	found := e.at(event.Revision)
	return found == nil || found.event == nil || string(found.event.Value) != string(event.Value)
}

// check models anchor.check.
func (e *etcdModel) check(a anchor) finding {
	if a.Revision == 0 {
		return unknown
	}
	if found := e.at(a.Revision); found != nil && found.anchor == a.Nonce {
		return confirmed
	}
	return refuted
}
