package eventlog

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"triune.dev/shared/storage/kv"
)

func event(revision int64, key string) kv.Event {
	return kv.Event{Kind: kv.Created, Key: key, Revision: revision, Value: []byte("v")}
}

func newSequencer(epoch uint64) *sequencer {
	return &sequencer{incarnation: 1, epoch: epoch, subjects: map[string]ID{}}
}

// takeover returns the sequencer of a relay that finds a stream ending with last.
func takeover(epoch uint64, last message) *sequencer {
	end := tail{last: &last}
	s := newSequencer(epoch)
	s.last, s.event, s.complete = last.ID, end.chainEnd(), end.complete()
	return s
}

// accepted returns the events that a verifier accepts.
func accepted(v *verifier, messages ...message) (got []string, err error) {
	for _, m := range messages {
		s, err := v.accept(&m)
		if err != nil {
			return got, err
		}
		for _, e := range s.events {
			got = append(got, fmt.Sprintf("%d %s", e.Revision, e.Key))
		}
	}
	return got, nil
}

func TestSequencerNamesThePredecessors(t *testing.T) {
	s := newSequencer(5)
	reset := s.reset(100)
	s.learn("a", ID{})
	s.learn("b", ID{})
	first := s.change(event(101, "a1"), "a", false)
	second := s.change(event(101, "b1"), "b", true)
	progress := s.progress(101, anchor{})
	again := s.progress(101, anchor{})
	third := s.change(event(103, "a2"), "a", true)
	for _, tc := range []struct {
		name string
		got  message
		id   ID
		in   ID
		on   ID
	}{
		{"reset", reset, ID{5, 100, 0}, ID{}, ID{}},
		{"first of a revision", first, ID{5, 101, 0}, reset.ID, ID{0, 100, 0}},
		{"second of a revision", second, ID{5, 101, 1}, first.ID, ID{0, 100, 0}},
		{"progress names the event before", progress, ID{5, 101, 2}, second.ID, ID{}},
		{"progress again has another ID", again, ID{5, 101, 3}, second.ID, ID{}},
		{"progress is no link of the chain", third, ID{5, 103, 0}, second.ID, first.ID},
	} {
		if diff := cmp.Diff([]ID{tc.id, tc.in, tc.on}, []ID{tc.got.ID, tc.got.InStream, tc.got.OnSubject}); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tc.name, diff)
		}
	}
	if s.complete != 103 {
		t.Errorf("complete until %d", s.complete)
	}
}

func TestVerifier(t *testing.T) {
	s := newSequencer(5)
	reset := s.reset(100)
	a := s.change(event(101, "a"), "x", true)
	b1, b2, b3 := s.change(event(102, "b1"), "x", false), s.change(event(102, "b2"), "x", false), s.change(event(102, "b3"), "x", true)
	progress := s.progress(105, anchor{})
	c := s.change(event(106, "c"), "x", true)
	// A successor continues after b2.
	next := takeover(9, b2)
	n1, n2, n3 := next.change(event(102, "b1"), "x", false), next.change(event(102, "b2"), "x", false), next.change(event(102, "b3"), "x", true)
	nc := next.change(event(106, "c"), "x", true)
	other := b1
	other.Incarnation = 2
	gapped := takeover(9, c)
	late := gapped.reset(200)
	d := gapped.change(event(201, "d"), "x", true)
	back := takeover(9, a)
	backwards := back.progress(100, anchor{})

	whole := []string{"101 a", "102 b1", "102 b2", "102 b3", "106 c"}
	for _, tc := range []struct {
		name     string
		messages []message
		want     []string
		broken   bool
	}{
		{"everything", []message{reset, a, b1, b2, b3, progress, c}, whole, false},
		{"a successor tells a revision again from its start", []message{reset, a, b1, b2, n1, n2, n3, nc}, whole, false},
		{"begun within a revision, it knows nothing until its end", []message{b2, b3, progress, c}, []string{"106 c"}, false},
		{"begun at progress", []message{progress, c}, []string{"106 c"}, false},
		{"an incomplete revision is not accepted", []message{reset, a, b1, b2}, []string{"101 a"}, false},
		{"without progress, which is short-lived", []message{reset, a, b1, b2, b3, c}, whole, false},
		{"after a reset", []message{a, b1, b2, b3, c, late, d}, append(slices.Clone(whole[1:]), "201 d"), false},
		{"older progress takes nothing back", []message{reset, a, backwards}, []string{"101 a"}, false},
		{"a missing event", []message{reset, a, b1, b3}, []string{"101 a"}, true},
		{"a missing revision", []message{reset, a, progress}, []string{"101 a"}, true},
		{"a missing reset", []message{progress, c, d}, []string{"106 c"}, true},
		{"an event twice", []message{reset, a, a}, []string{"101 a"}, true},
		{"events in the wrong order", []message{reset, a, b2, b1}, []string{"101 a"}, true},
		{"the first relay after its successor", []message{reset, a, b1, b2, n1, b3}, []string{"101 a"}, true},
		{"another incarnation", []message{reset, a, other}, []string{"101 a"}, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, err := accepted(&verifier{}, tc.messages...)
			if errors.Is(err, errBroken) != tc.broken || err != nil && !tc.broken {
				t.Errorf("error %v, want broken %t", err, tc.broken)
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("accepted (-want +got):\n%s", diff)
			}
		})
	}
}

// Relays come and go, and leave the stream wherever they were. A verifier that starts anywhere
// returns each event once and in order, or stops.
func TestRandomHistoriesAreToldExactlyOnce(t *testing.T) {
	for seed := range uint64(2000) {
		rnd := rand.New(rand.NewPCG(seed, 1))
		var etcd []kv.Event
		for revision := int64(2); len(etcd) < 30; revision += 1 + rnd.Int64N(3) {
			for i := range 1 + rnd.IntN(4) {
				etcd = append(etcd, event(revision, fmt.Sprint("k", i)))
			}
		}
		var stream []message
		s := newSequencer(1)
		stream = append(stream, s.reset(1))
		for epoch := uint64(2); s.complete < etcd[len(etcd)-1].Revision; epoch++ {
			s = takeover(epoch, stream[len(stream)-1])
			stream = append(stream, publishSome(s, etcd, rnd)...)
		}
		for _, lose := range []bool{false, true} {
			messages := slices.Clone(stream)
			from := rnd.IntN(len(messages) / 2)
			messages = messages[from:]
			if i := rnd.IntN(len(messages)); lose {
				messages = slices.Delete(messages, i, i+1)
			}
			checkAccepted(t, seed, etcd, messages, lose)
		}
	}
}

// publishSome publishes as a relay that stops at a random point.
func publishSome(s *sequencer, etcd []kv.Event, rnd *rand.Rand) (out []message) {
	after := s.complete
	for i, e := range etcd {
		if e.Revision <= after {
			continue
		}
		if rnd.IntN(8) == 0 {
			return out
		}
		if s.complete < e.Revision && (i == 0 || etcd[i-1].Revision < e.Revision) && rnd.IntN(4) == 0 {
			out = append(out, s.progress(e.Revision-1, anchor{}))
		}
		last := i == len(etcd)-1 || etcd[i+1].Revision != e.Revision
		out = append(out, s.change(e, "x", last))
	}
	return out
}

func checkAccepted(t *testing.T, seed uint64, etcd []kv.Event, messages []message, lossy bool) {
	t.Helper()
	var v verifier
	var got []kv.Event
	anchor := int64(-1)
	for _, m := range messages {
		s, err := v.accept(&m)
		if err != nil {
			if !lossy {
				t.Fatalf("seed %d: %v", seed, err)
			}
			break
		}
		if s.synced {
			anchor = v.complete
		}
		got = append(got, s.events...)
	}
	if anchor < 0 {
		return
	}
	var want []kv.Event
	for _, e := range etcd {
		if e.Revision > anchor && e.Revision <= v.complete {
			want = append(want, e)
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Fatalf("seed %d, lossy %t: from %d to %d (-want +got):\n%s", seed, lossy, anchor, v.complete, diff)
	}
}

func TestJudge(t *testing.T) {
	m := messages["deletion"] // incarnation 1, epoch 3, revision 11
	e := evidence{epoch: 9, record: record{Incarnation: 1, History: 5}, revision: 11}
	with := func(change func(*evidence)) evidence {
		changed := e
		change(&changed)
		return changed
	}
	for _, tc := range []struct {
		name     string
		tail     tail
		evidence evidence
		want     verdict
	}{
		{"it goes on", tail{last: &m}, e, continueStream},
		{"empty", tail{sequence: 7}, e, startSection},
		{"another incarnation", tail{last: &m}, with(func(e *evidence) { e.record.Incarnation = 2 }), replaceHistory},
		{"an incarnation from before the record", tail{last: &m}, with(func(e *evidence) { e.record.Incarnation, e.record.Revision = 2, 4 }), recreateStream},
		{"an incarnation that came after the record", tail{last: &m}, with(func(e *evidence) { e.record.Incarnation, e.record.Revision = 2, 2 }), replaceHistory},
		{"ahead of etcd", tail{last: &m}, with(func(e *evidence) { e.revision = 10 }), replaceHistory},
		{"etcd tells otherwise", tail{last: &m}, with(func(e *evidence) { e.revision, e.contradicted = 20, true }), replaceHistory},
		{"a successor's", tail{last: &m}, with(func(e *evidence) { e.epoch = 2 }), stepDown},
		{"a successor's, whatever else is odd", tail{last: &m}, with(func(e *evidence) { e.epoch, e.contradicted, e.record.Incarnation = 2, true, 2 }), stepDown},
		{"an epoch that this etcd has not given", tail{last: &m}, with(func(e *evidence) { e.epoch, e.revision = 1, 2 }), replaceHistory},
		{"its own epoch", tail{last: &m}, with(func(e *evidence) { e.epoch = 3 }), replaceHistory},
	} {
		if got := tc.tail.judge(tc.evidence); got != tc.want {
			t.Errorf("%s: %d, want %d", tc.name, got, tc.want)
		}
	}
}

func TestSearch(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	for range 2000 {
		// Sequences 10 to 39, some without a message. Revisions never decrease.
		revisions := map[uint64]int64{}
		revision := int64(0)
		for seq := uint64(10); seq < 40; seq++ {
			if revision += rnd.Int64N(3); rnd.IntN(3) > 0 {
				revisions[seq] = revision
			}
		}
		after := rnd.Int64N(60)
		want := uint64(40)
		for seq := uint64(39); seq >= 10; seq-- {
			if r, ok := revisions[seq]; ok && r > after {
				want = seq
			}
		}
		asked := 0
		got, err := search(10, 40, func(seq uint64) (bool, uint64, error) {
			asked++
			for ; seq < 40; seq++ {
				if r, ok := revisions[seq]; ok {
					return r > after, seq, nil
				}
			}
			return true, seq, nil
		})
		// A sequence without a message before the right one is equally good.
		for ; got < want && err == nil; got++ {
			if _, ok := revisions[got]; ok {
				break
			}
		}
		if err != nil || got != want || asked > 6 {
			t.Fatalf("found %d, want %d, with %d questions: %v", got, want, asked, err)
		}
	}
}
