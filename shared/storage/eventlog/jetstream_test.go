package eventlog

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// These tests check what the log relies on in the NATS server that go.mod pins: a refused
// message changes nothing and harms nothing, on one server and on three.

// fact is a stream and its publisher.
type fact struct {
	*feed
	js   jetstream.JetStream
	wake chan struct{}
}

func newFact(t *testing.T, b *bench) *fact {
	t.Helper()
	f := &fact{js: b.jetStream(t), wake: make(chan struct{}, 1)}
	f.feed = &feed{name: "fact", sequencer: &sequencer{incarnation: 1, epoch: 1, subjects: map[string]ID{}}}
	var err error
	if f.stream, err = f.js.CreateStream(t.Context(), b.stream.config(f.name)); err != nil {
		t.Fatal(err)
	}
	// The servers of a cluster learn the subjects of a stream after its creation.
	eventually(t, "the stream takes messages", func() bool { return f.post(t, 0, 1, 100, nil) == nil })
	return f
}

// post publishes n messages as one unit behind a sequence. change may alter their headers.
func (f *fact) post(t *testing.T, after uint64, n, size int, change func(i int, h nats.Header)) error {
	t.Helper()
	p, err := newPublisher(f.js.Conn(), 5*time.Second, f.wake, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer p.close()
	f.sequence = after
	f.epoch++ // every batch has its own ID
	var messages []outgoing
	for i := range n {
		e := event(int64(after)+1, fmt.Sprint("k", i))
		e.Value = make([]byte, size)
		messages = append(messages, outgoing{message: f.change(e, "x", i == n-1), subject: f.name + eventSubject + "x", size: size})
	}
	f.subjects = map[string]ID{}
	err = p.send(messages, func(i int) nats.Header {
		h := f.fence()
		if n > 1 {
			h = f.batchHeader(after, i, n)
		}
		if change != nil {
			change(i, h)
		}
		return h
	})
	if err != nil {
		return err
	}
	for deadline := time.Now().Add(hang); time.Now().Before(deadline); {
		units, _, err := p.inFlight()
		if err != nil || units == 0 {
			return err
		}
		select {
		case <-f.wake:
		case <-time.After(5 * time.Millisecond):
		}
	}
	return errAckTimeout
}

func (f *fact) end(t *testing.T) uint64 {
	t.Helper()
	info, err := f.stream.Info(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return info.State.LastSeq
}

func TestRefusalsOfJetStream(t *testing.T) {
	onServers(t, func(t *testing.T, b *bench) {
		f := newFact(t, b)
		end := uint64(1)
		good := func(n int) {
			t.Helper()
			if err := f.post(t, end, n, 100, nil); err != nil {
				t.Fatalf("%d messages after %d: %v", n, end, err)
			}
			if end += uint64(n); f.end(t) != end {
				t.Fatalf("the stream ends at %d, want %d", f.end(t), end)
			}
		}
		good(1)
		good(1000)
		set := func(name, value string) func(int, nats.Header) {
			return func(_ int, h nats.Header) { h[name] = []string{value} }
		}
		at := func(where int, change func(int, nats.Header)) func(int, nats.Header) {
			return func(i int, h nats.Header) {
				if i == where {
					change(i, h)
				}
			}
		}
		for _, tc := range []struct {
			name   string
			after  uint64 // in addition to the end
			n      int
			change func(int, nats.Header)
			want   int
		}{
			{"one message behind the wrong sequence", 1, 1, nil, 10071},
			{"a batch behind the wrong sequence", 1, 3, nil, 10071},
			{"a batch behind an earlier sequence", ^uint64(0), 3, nil, 10071},
			{"one message for another stream", 0, 1, set(jetstream.ExpectedStreamHeader, "other"), 10060},
			{"a batch for another stream", 0, 3, set(jetstream.ExpectedStreamHeader, "other"), 10060},
			{"a batch of which one message is for another stream", 0, 3, at(1, set(jetstream.ExpectedStreamHeader, "other")), 10060},
			{"a batch that is too large", 0, 1001, nil, 10199},
			{"a batch with a gap", 0, 3, at(1, set(batchSequenceHeader, "7")), 10176},
			{"a batch without its beginning", 0, 3, at(0, set(batchIDHeader, "other")), 10176},
			{"a batch that commits oddly", 0, 3, at(2, set(batchCommitHeader, "perhaps")), 10200},
			{"a batch that names an ID", 0, 3, at(0, set(jetstream.ExpectedLastMsgIDHeader, "x")), 10177},
		} {
			err := f.post(t, end+tc.after, tc.n, 100, tc.change)
			if errorCode(err) != tc.want {
				t.Errorf("%s: %v, want code %d", tc.name, err, tc.want)
			}
			if got := f.end(t); got != end {
				t.Fatalf("%s: the stream ends at %d, want %d", tc.name, got, end)
			}
			good(1)
			good(3)
		}
		// A batch is fenced when it is complete, wherever it began.
		begun := end
		err := f.post(t, begun, 3, 100, at(2, func(int, nats.Header) {
			rival := *f
			rival.feed = &feed{name: f.name, sequencer: &sequencer{incarnation: 1, epoch: 1000, subjects: map[string]ID{}}}
			rival.stream = f.stream
			if err := rival.post(t, begun, 1, 100, nil); err != nil {
				t.Fatal(err)
			}
		}))
		if errorCode(err) != 10071 {
			t.Errorf("a batch that was overtaken: %v", err)
		}
		end++
		good(1)
		good(3)
		// As many batches are open as the server allows, and nobody completes them. Only single
		// messages get through.
		for i := range 50 {
			m := nats.NewMsg(f.name + eventSubject + "x")
			m.Header = f.batchHeader(end, 0, 2)
			m.Header[batchIDHeader] = []string{fmt.Sprint("begun-", i)}
			if err := f.js.Conn().PublishMsg(m); err != nil {
				t.Fatal(err)
			}
		}
		if err := f.post(t, end, 3, 100, nil); !batchRefused(err) {
			t.Errorf("a batch beside too many: %v", err)
		}
		good(1)
		if b.cluster != nil {
			f.levels(t)
		}
	})
}

// levels waits until every server has the whole stream.
func (f *fact) levels(t *testing.T) {
	t.Helper()
	eventually(t, "all servers have the stream", func() bool {
		info, err := f.stream.Info(t.Context())
		if err != nil || len(info.Cluster.Replicas) != 2 {
			return false
		}
		for _, peer := range info.Cluster.Replicas {
			if !peer.Current || peer.Lag != 0 {
				return false
			}
		}
		return true
	})
}

// A stream with one replica refuses all messages of a pipeline that follow its successor's
// fence, even one that fits the sequence by chance.
func TestAPipelineIsFencedOff(t *testing.T) {
	b := newBench(t)
	f := newFact(t, b)
	f.limits = pipelined
	publish := func(subject string, h nats.Header) error {
		m := nats.NewMsg(f.name + subject)
		m.Header = h
		_, err := f.js.PublishMsg(t.Context(), m)
		return err
	}
	fence := func(after, token uint64) nats.Header {
		f.sequence, f.token = after, token
		return f.fence()
	}
	for i, h := range []nats.Header{fence(1, 0), fence(2, 2), fence(3, 2)} {
		if err := publish([]string{fenceSubject, ".event.x", ".event.x"}[i], h); err != nil {
			t.Fatal(err)
		}
	}
	if err := publish(fenceSubject, fence(4, 2)); err != nil { // the successor
		t.Fatal(err)
	}
	for after := uint64(4); after < 9; after++ {
		if err := publish(".event.x", fence(after, 2)); err == nil {
			t.Errorf("a message behind sequence %d gets in", after)
		}
	}
	if err := publish(".event.x", fence(5, 5)); err != nil {
		t.Error(err)
	}
	if got := f.end(t); got != 6 {
		t.Errorf("the stream ends at %d, want 6", got)
	}
}

// readBatches counts the stored messages and describes any disorder: batches must be whole, one
// after another. err says why not all could be read.
func (f *fact) readBatches(t *testing.T) (count uint64, disorder string, err error) {
	t.Helper()
	p := storedStream{js: f.js, name: f.name}
	last := &message{Last: true}
	err = p.each(t.Context(), 1, "", func(m *message) (bool, error) {
		count++
		begins := m.ID.Index == 0 && last.Last && m.ID.Revision > last.ID.Revision
		goesOn := m.ID.Index == last.ID.Index+1 && !last.Last && m.ID.Revision == last.ID.Revision
		if !begins && !goesOn {
			disorder = fmt.Sprintf("%s after %s", m.ID, last.ID)
		}
		last = m
		return disorder == "", nil
	})
	if err == nil && disorder == "" && !last.Last {
		disorder = "the last batch is not whole"
	}
	return count, disorder, err
}

// Batches survive leader changes, and a server that lost its files and then leads. Acknowledged
// batches are stored once and in order; others are stored whole or not at all.
func TestBatchesSurviveTheirServers(t *testing.T) {
	b := newClusterBench(t)
	f := newFact(t, b)
	rounds := 1
	if !testing.Short() {
		rounds = 10
	}
	sizes, refused := []int{1}, 0
	end := uint64(1)
	post := func(batches, size int) {
		t.Helper()
		for range batches {
			n := 1 + len(sizes)%5
			err := f.post(t, end, n, size, nil)
			if err == nil {
				end += uint64(n)
				sizes = append(sizes, n)
				continue
			}
			refused++
			eventually(t, "the stream has a leader", func() bool {
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				defer cancel()
				info, err := f.stream.Info(ctx)
				if err != nil {
					return false
				}
				switch info.State.LastSeq {
				case end: // it is not stored
				case end + uint64(n):
					end += uint64(n)
					sizes = append(sizes, n)
				default:
					t.Fatalf("a batch of %d behind %d left the stream at %d", n, end, info.State.LastSeq)
				}
				return true
			})
		}
	}
	leader := func() *natsServer {
		var found *natsServer
		eventually(t, "the stream has a leader", func() bool {
			for _, s := range b.cluster {
				if s.Running() && s.JetStreamIsStreamLeader(server.DEFAULT_GLOBAL_ACCOUNT, f.name) {
					found = s
					return true
				}
			}
			return false
		})
		return found
	}
	for round := range rounds {
		size := 200
		if round%2 == 0 {
			size = 400 << 10
		}
		post(20, size)
		_, _ = f.js.Conn().Request("$JS.API.STREAM.LEADER.STEPDOWN."+f.name, nil, time.Second)
		post(20, size)
		// A server that is not the leader loses its files, and then the others stop.
		lost := b.cluster[0]
		for _, s := range b.cluster {
			if s != leader() {
				lost = s
			}
		}
		lost.restart(t, func(dir string) {
			post(20, size)
			removeAll(t, dir)
		})
		b.clusterReady(t)
		f.levels(t)
		for leader() != lost {
			_, _ = f.js.Conn().Request("$JS.API.STREAM.LEADER.STEPDOWN."+f.name, nil, time.Second)
			post(3, size)
		}
		post(20, size)
		f.levels(t)
	}
	// If the leader has just changed, reads break off and the last batches may not be applied
	// yet.
	count, disorder, err := f.readBatches(t)
	for deadline := time.Now().Add(hang); (err != nil || count < end) && time.Now().Before(deadline); {
		count, disorder, err = f.readBatches(t)
	}
	if count != end || err != nil || disorder != "" {
		t.Errorf("%d messages are there, want %d: %v, %s", count, end, err, disorder)
	}
	t.Logf("%d batches, %d not acknowledged", len(sizes), refused)
}

// A server before 2.12 ignores the headers of a batch.
func TestAServerThatDoesNotKnowBatchesIsRefused(t *testing.T) {
	p := openAttempt{term: &term{Relay: &Relay{}}}
	info := &jetstream.StreamInfo{Config: jetstream.StreamConfig{Replicas: 3}}
	if _, err := p.result(cachedStream{info: info}, &sequencer{}, 0); !errors.Is(err, errOldServer) || !strings.Contains(err.Error(), "2.12") {
		t.Errorf("three replicas: %v", err)
	}
	info.Config.Replicas = 1
	if _, err := p.result(cachedStream{info: info}, &sequencer{}, 0); err != nil {
		t.Errorf("one replica: %v", err)
	}
}

type cachedStream struct {
	jetstream.Stream
	info *jetstream.StreamInfo
}

func (s cachedStream) CachedInfo() *jetstream.StreamInfo { return s.info }
