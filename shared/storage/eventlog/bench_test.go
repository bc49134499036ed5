package eventlog

import (
	"fmt"
	"syscall"
	"testing"
	"time"

	"go.etcd.io/etcd/client/v3/concurrency"

	"triune.dev/shared/storage/kv"
)

// Benchmarks of the event log. CPU time per event is the measure:
//
//	go test -run '^$' -bench . -benchtime 20000x ./shared/storage/eventlog
//
// cpu-µs/event is the CPU time of the whole process per event. BenchmarkLog includes etcd and
// the writes. BenchmarkLogWithoutEtcd measures the way from a batch in the relay to JetStream
// (a NATS server in the same process, over TCP) and to one reader.

func cpuTime() time.Duration {
	var u syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u)
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

func BenchmarkCodec(b *testing.B) {
	m := messages["modification"]
	m.Event.Key, m.Event.Value, m.Event.Previous = "/registry/pods/namespace/name-of-a-pod", make([]byte, 1000), make([]byte, 1000)
	b.Run("encode", func(b *testing.B) {
		b.ReportAllocs()
		var buffer []byte
		for b.Loop() {
			buffer = appendMessage(buffer[:0], &m)
		}
	})
	b.Run("decode", func(b *testing.B) {
		b.ReportAllocs()
		encoded := appendMessage(nil, &m)
		for b.Loop() {
			if _, err := decodeMessage(encoded); err != nil {
				b.Fatal(err)
			}
		}
	})
}

// counter is a sink that only counts events.
type counter struct {
	*recorder
	events int // guarded by recorder.mu
}

func (c *counter) Apply(b kv.Batch) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.events += len(b.Events)
	c.revision = b.Revision
	close(c.changed)
	c.changed = make(chan struct{})
}

func BenchmarkLogWithoutEtcd(b *testing.B) {
	for _, storage := range []string{"file", "memory"} {
		for _, size := range []int{1 << 10, 4 << 10} {
			b.Run(fmt.Sprintf("%s/%dB", storage, size), func(b *testing.B) {
				benchmarkTerm(b, newBench(b), storage == "memory", size)
			})
		}
	}
	// All three servers run in this process, so they are part of its CPU time.
	for _, size := range []int{1 << 10, 4 << 10} {
		b.Run(fmt.Sprintf("three servers/%dB", size), func(b *testing.B) {
			benchmarkTerm(b, newClusterBench(b), false, size)
		})
	}
}

// benchmarkTerm publishes through a term, without etcd's watch.
func benchmarkTerm(b *testing.B, bench *bench, memory bool, size int) {
	bench.stream.Memory = memory
	bench.stream.MaxBytes = -1
	relay := bench.relay(b, "a", nil)
	term, stop := newBenchTerm(b, relay)
	defer stop()
	sink := newSinkOfStream(b, bench)
	value := make([]byte, size) // the previous state is as large
	b.ReportAllocs()
	b.ResetTimer()
	start := cpuTime()
	revision := term.head
	for range b.N {
		revision++
		batch := kv.Batch{Revision: revision, Events: []kv.Event{{
			Kind: kv.Modified, Key: fmt.Sprintf("/registry/pods/ns/pod-%d", revision%100), Revision: revision, Value: value, Previous: value,
		}}}
		if err := term.publish(b.Context(), batch); err != nil {
			b.Fatal(err)
		}
		for f := term.feeds[0]; f.bytes > 64<<10; { // etcd delivers no less at once
			<-term.wake
			term.flushAll(b.Context())
		}
	}
	term.settle(b)
	<-sink(revision)
	b.StopTimer()
	b.ReportMetric(float64((cpuTime()-start).Microseconds())/float64(b.N), "cpu-µs/event")
}

// newBenchTerm returns a term with core's stream open.
func newBenchTerm(b *testing.B, r *Relay) (*term, func()) {
	session, err := concurrency.NewSession(r.cfg.Etcd)
	if err != nil {
		b.Fatal(err)
	}
	e := &election{etcd: r.cfg.Etcd, key: r.cfg.StatePrefix + "relay", session: session}
	if err := e.campaign(b.Context()); err != nil {
		b.Fatal(err)
	}
	r.cfg.Tiers = []Tier{Core}
	t := newTerm(r, e)
	t.open(b.Context(), t.feeds[0])
	if err := t.onOpened(b.Context(), <-t.openResults); err != nil {
		b.Fatal(err)
	}
	t.stopWatch()
	t.settle(b)
	return t, func() { t.feeds[0].publisher.close() }
}

// settle sends until everything is acknowledged.
func (t *term) settle(b *testing.B) {
	for f := t.feeds[0]; ; {
		if t.flushAll(b.Context()); !f.open() {
			b.Fatal(f.outage.err)
		}
		if units, _, _ := f.publisher.inFlight(); units == 0 && f.empty() && f.unackedFence == 0 {
			return
		}
		if f.publisher.requestWake() {
			<-t.wake
		}
	}
}

// newSinkOfStream consumes and verifies core's stream as a reader does. It returns a function
// that waits until it has reached a revision.
func newSinkOfStream(b *testing.B, bench *bench) func(revision int64) <-chan struct{} {
	conn := bench.nats.connect(b)
	r, err := NewReader(ReaderConfig{Etcd: bench.etcd, Conn: conn, Routes: bench.routes, Tier: Core})
	if err != nil {
		b.Fatal(err)
	}
	sink := &counter{recorder: newRecorder()}
	r.hooks.blind = true
	ctx := b.Context()
	f := &readLoop{Reader: r, ctx: ctx, sink: sink, subscription: newSubscription(r.js, r.stream, pullMaxMessages), retry: time.NewTimer(time.Hour)}
	f.coverage.restart(0)
	go f.subscription.run(ctx)
	go func() {
		for {
			select {
			case m := <-f.subscription.deliveries:
				if m.restarted { // no etcd could tell what came before
					f.checker = f.hooks.newChecker()
					continue
				}
				f.onStream(m)
			case <-ctx.Done():
				return
			}
		}
	}()
	return func(revision int64) <-chan struct{} {
		done := make(chan struct{})
		go func() {
			defer close(done)
			if !sink.reaches(revision, time.Minute) {
				panic(fmt.Sprintf("not at revision %d", revision))
			}
		}()
		return done
	}
}

func BenchmarkLog(b *testing.B) {
	bench := newBench(b)
	bench.runRelay(b, "a", nil)
	r, sink := bench.read(b, nil)
	waitSource(b, r, sink, SourceStream)
	value := string(make([]byte, 1000))
	b.ReportAllocs()
	b.ResetTimer()
	start := cpuTime()
	var last int64
	for i := range b.N {
		last = bench.put(b, fmt.Sprintf("pods/ns/p%d", i%100), value)
	}
	sink.until(b, last)
	b.ReportMetric(float64((cpuTime()-start).Microseconds())/float64(b.N), "cpu-µs/event")
}
