package eventlog

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"triune.dev/shared/storage/kv"
	"triune.dev/shared/testing/polltest"
)

// natsServer is a real NATS server with JetStream.
type natsServer struct {
	opts server.Options
	*server.Server
}

func startNATS(t testing.TB) *natsServer {
	t.Helper()
	s := &natsServer{opts: server.Options{
		Host: "127.0.0.1", Port: server.RANDOM_PORT, JetStream: true, StoreDir: filepath.Join(t.TempDir(), "nats"),
		MaxPayload: 4 << 20, NoSigs: true, NoLog: true,
	}}
	s.run(t)
	t.Cleanup(func() {
		s.Shutdown()
		s.WaitForShutdown()
	})
	return s
}

func (s *natsServer) run(t testing.TB) {
	t.Helper()
	opts := s.opts
	var err error
	if s.Server, err = server.NewServer(&opts); err != nil {
		t.Fatalf("start NATS: %v", err)
	}
	s.Start()
	if !s.ReadyForConnections(hang) {
		t.Fatal("NATS is not ready")
	}
	s.opts.Port = s.Addr().(*net.TCPAddr).Port
}

// restart stops the server, calls meanwhile to change its files, and starts it on the same
// port.
func (s *natsServer) restart(t testing.TB, meanwhile func(dir string)) {
	t.Helper()
	s.Shutdown()
	s.WaitForShutdown()
	if meanwhile != nil {
		meanwhile(filepath.Join(s.opts.StoreDir, "jetstream"))
	}
	s.run(t)
}

func (s *natsServer) connect(t testing.TB) *nats.Conn {
	t.Helper()
	c, err := nats.Connect(s.ClientURL(), nats.MaxReconnects(-1), nats.ReconnectWait(20*time.Millisecond), nats.ReconnectBufSize(-1))
	if err != nil {
		t.Fatalf("connect to NATS: %v", err)
	}
	t.Cleanup(c.Close)
	return c
}

// hang bounds the waits of the tests. Only a failing test waits that long, so it is many times
// what a busy machine under the race detector needs.
const hang = 3 * time.Minute

// background runs a function until the test ends or stop is called.
func background(t testing.TB, run func(context.Context) error) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		select {
		case err := <-done:
			if err != nil {
				t.Errorf("ended with %v", err)
			}
		case <-time.After(hang):
			t.Error("does not end")
		}
	})
	t.Cleanup(stop)
	return stop
}

// recorder is a sink that records all calls and checks their order.
type recorder struct {
	mu       sync.Mutex
	changed  chan struct{} // closed and replaced at every call; guarded by mu
	events   []kv.Event    // guarded by mu
	revision int64         // guarded by mu
	resets   []int64       // guarded by mu
	faults   []string      // guarded by mu
	progress int           // guarded by mu
}

func newRecorder() *recorder { return &recorder{changed: make(chan struct{})} }

func (r *recorder) Apply(b kv.Batch) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.resets) == 0 {
		r.faults = append(r.faults, "a batch before the first reset")
	}
	for _, e := range b.Events {
		if e.Revision <= r.revision {
			r.faults = append(r.faults, fmt.Sprintf("%s at %d after revision %d was complete", e.Key, e.Revision, r.revision))
		}
		if e.Revision > b.Revision {
			r.faults = append(r.faults, fmt.Sprintf("%s at %d in a batch until %d", e.Key, e.Revision, b.Revision))
		}
	}
	if b.Revision < r.revision {
		r.faults = append(r.faults, fmt.Sprintf("revision %d after %d", b.Revision, r.revision))
	}
	if b.Progress {
		r.progress++
	}
	r.events = append(r.events, b.Events...)
	r.revision = b.Revision
	close(r.changed)
	r.changed = make(chan struct{})
}

func (r *recorder) Reset(revision int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.resets, r.revision = append(r.resets, revision), revision
	close(r.changed)
	r.changed = make(chan struct{})
}

// wait blocks until ok, which is called with mu held, returns true.
func (r *recorder) wait(t testing.TB, what string, ok func() bool) {
	t.Helper()
	deadline := time.After(hang)
	for {
		r.mu.Lock()
		done, changed := ok(), r.changed
		at := r.revision
		r.mu.Unlock()
		if done {
			return
		}
		select {
		case <-changed:
		case <-deadline:
			t.Fatalf("%s: not in 30 s, sink is at revision %d", what, at)
		}
	}
}

// reaches reports whether the sink reaches a revision within a time.
func (r *recorder) reaches(revision int64, within time.Duration) bool {
	deadline := time.After(within)
	for {
		r.mu.Lock()
		at, changed := r.revision, r.changed
		r.mu.Unlock()
		if at >= revision {
			return true
		}
		select {
		case <-changed:
		case <-deadline:
			return false
		}
	}
}

// until waits until the sink is at a revision.
func (r *recorder) until(t testing.TB, revision int64) {
	t.Helper()
	r.wait(t, fmt.Sprintf("revision %d", revision), func() bool { return r.revision >= revision })
}

// witness watches etcd independently of the log.
type witness struct {
	*recorder
	from int64
}

func newWitness(t testing.TB, etcd *clientv3.Client, routes *Routes) *witness {
	t.Helper()
	now, err := currentPosition(t.Context(), etcd, "x")
	if err != nil {
		t.Fatal(err)
	}
	w := &witness{recorder: newRecorder(), from: now.revision}
	w.Reset(now.revision)
	client := kv.New(etcd)
	background(t, func(ctx context.Context) error {
		reached := now.revision
		watch := func() *kv.Stream {
			return client.Watch(ctx, kv.WatchOptions{Key: routes.Prefix(), Prefix: true, After: reached})
		}
		for s := watch(); ; {
			resp, ok := <-s.C()
			if ctx.Err() != nil {
				return nil
			}
			if !ok {
				s = watch()
				continue
			}
			b, err := s.Accept(resp)
			switch {
			case errors.Is(err, rpctypes.ErrCompacted):
				return err
			case err != nil:
				s = watch()
			case len(b.Events) > 0:
				w.Apply(b)
				reached = b.Revision
			}
		}
	})
	return w
}

// verify compares the events of a sink with those of the witness, up to a revision at which a
// write happened.
func (w *witness) verify(t testing.TB, r *recorder, routes *Routes, tier Tier, revision int64) {
	t.Helper()
	if diff := w.diff(t, r, routes, tier, revision); diff != "" {
		t.Errorf("what the sink saw differs from etcd's history:\n%s", diff)
	}
}

func (w *witness) diff(t testing.TB, r *recorder, routes *Routes, tier Tier, revision int64) string {
	t.Helper()
	w.until(t, revision)
	w.mu.Lock()
	defer w.mu.Unlock()
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.faults) > 0 {
		return fmt.Sprint(r.faults)
	}
	if len(r.resets) != 1 {
		return fmt.Sprintf("resets at %v", r.resets)
	}
	pick := func(events []kv.Event) (out []string) {
		for _, e := range events {
			if e.Revision > max(w.from, r.resets[0]) && e.Revision <= revision && (tier == "" || routes.Route(e.Key).Tier == tier) {
				out = append(out, fmt.Sprintf("%d %d %s %.40q %.40q", e.Revision, e.Kind, e.Key, e.Value, e.Previous))
			}
		}
		return out
	}
	return cmp.Diff(pick(w.events), pick(r.events))
}

// eventually polls until ok returns true.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	polltest.Until(t, hang, what, ok)
}

func removeAll(t testing.TB, dir string) {
	t.Helper()
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
}

func nopLogger() *zap.Logger { return zap.NewNop() }
