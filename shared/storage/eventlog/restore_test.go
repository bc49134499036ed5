package eventlog

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/etcdutl/v3/snapshot"

	"triune.dev/shared/storage/kv"
)

// mirror is a sink that holds the objects of etcd, as a cache does: those at the last reset,
// and the changes since.
type mirror struct {
	*recorder // since the last reset
	etcd      *clientv3.Client
	prefix    string

	all     int               // resets, guarded by recorder.mu
	objects map[string]string // guarded by recorder.mu
	read    int64             // revision of etcd at which objects was read
}

// Reset implements Sink. It reads etcd again.
func (m *mirror) Reset(revision int64) {
	var list *clientv3.GetResponse
	for err := errors.New("not read yet"); err != nil; {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		list, err = m.etcd.Get(ctx, m.prefix, clientv3.WithPrefix())
		cancel()
	}
	m.mu.Lock()
	m.all++
	m.resets, m.events = nil, nil
	m.objects, m.read = map[string]string{}, list.Header.Revision
	for _, o := range list.Kvs {
		m.objects[string(o.Key)] = string(o.Value)
	}
	m.mu.Unlock()
	m.recorder.Reset(revision)
}

// Apply implements Sink.
func (m *mirror) Apply(b kv.Batch) {
	m.mu.Lock()
	for _, e := range b.Events {
		switch {
		case e.Revision <= m.read:
		case e.Kind == kv.Deleted:
			delete(m.objects, e.Key)
		default:
			m.objects[e.Key] = string(e.Value)
		}
	}
	m.mu.Unlock()
	m.recorder.Apply(b)
}

// verify compares the mirror with etcd, after the last write.
func (m *mirror) verify(t *testing.T) {
	t.Helper()
	list, err := m.etcd.Get(t.Context(), m.prefix, clientv3.WithPrefix())
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]string{}
	for _, o := range list.Kvs {
		want[string(o.Key)] = string(o.Value)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if diff := cmp.Diff(want, m.objects); diff != "" {
		t.Errorf("the mirror differs from etcd:\n%s", diff)
	}
}

// save writes a snapshot that has everything up to a revision.
func (f *fleet) save(t *testing.T, revision int64) (path string) {
	t.Helper()
	eventually(t, "a member has what is to be saved", func() bool {
		status, err := f.etcd.Status(t.Context(), f.endpoints[0])
		return err == nil && status.Header.Revision >= revision
	})
	path = filepath.Join(t.TempDir(), "snapshot.db")
	if _, err := snapshot.NewV3(nopLogger()).Save(t.Context(), clientv3.Config{Endpoints: f.endpoints[:1], Logger: nopLogger()}, path); err != nil {
		t.Fatal(err)
	}
	return path
}

// restore kills all members and starts them with a snapshot, as `etcdutl snapshot restore
// [--bump-revision=… --mark-compacted]` prepares it.
func (f *fleet) restore(t *testing.T, path string, bump uint64) {
	t.Helper()
	for _, m := range f.members.all {
		m.kill()
	}
	for _, m := range f.members.all {
		removeAll(t, m.part.Dir)
		err := snapshot.NewV3(nopLogger()).Restore(snapshot.RestoreConfig{
			SnapshotPath: path, Name: m.part.Name, OutputDataDir: m.part.Dir, PeerURLs: []string{m.part.URL},
			InitialCluster: m.part.Members, InitialClusterToken: "etcd-cluster", RevisionBump: bump, MarkCompacted: bump > 0,
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, m := range f.members.all {
		m.start(t)
	}
	f.membersLevel(t)
}

// etcd is restored from a snapshot while relays and readers run. Watches end, caches equal
// etcd, and no watcher sees two histories as one.
func TestEtcdIsRestoredFromASnapshot(t *testing.T) {
	for name, bump := range map[string]uint64{"as it was": 0, "with a revision bump": 1_000_000_000} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			restoredFromSnapshot(t, bump, false)
		})
		t.Run(name+", while no relay runs", func(t *testing.T) {
			if testing.Short() {
				t.Skip("not in short mode")
			}
			t.Parallel()
			restoredFromSnapshot(t, bump, true)
		})
	}
}

func restoredFromSnapshot(t *testing.T, bump uint64, newRelays bool) {
	f := newFleet(t)
	const pods = "/registry/pods/"
	m := &mirror{recorder: newRecorder(), etcd: f.dial(t), prefix: pods}
	r, err := NewReader(ReaderConfig{Etcd: f.dial(t), Conn: f.connect(t, f.urls...), Routes: f.routes, Tier: Core})
	if err != nil {
		t.Fatal(err)
	}
	background(t, func(ctx context.Context) error { return r.Run(ctx, m) })
	waitSource(t, r, m.recorder, SourceStream)
	write := func(name, value string, n int) (last int64) {
		t.Helper()
		for i := range n {
			last = f.mustPut(t, fmt.Sprintf("pods/ns/%s%d", name, i), value)
		}
		return last
	}
	write("overwritten", "kept", 20)
	kept := write("kept", "kept", 20)
	path := f.save(t, kept)
	write("overwritten", "gone", 20)
	gone := write("gone", "gone", 20)
	m.until(t, gone)

	if newRelays {
		for _, relay := range f.relays {
			relay.kill()
		}
	}
	f.restore(t, path, bump)
	if newRelays {
		for _, relay := range f.relays {
			relay.start(t)
		}
	}
	start := time.Now()
	w := newWitness(t, f.dial(t), f.routes)
	// Without a bump, these writes reuse the lost revisions.
	write("overwritten", "back", 10)
	write("back", "back", 60)
	m.wait(t, "a reset", func() bool { return m.all > 1 })
	t.Logf("reset %.1f s after etcd was back", time.Since(start).Seconds())
	eventually(t, "the stream carries events again", func() bool {
		since := r.Status().Since
		revision := write("again", "back", 1)
		return r.Status().Source == SourceStream && m.reaches(revision, time.Second) && r.Status().Since.Equal(since)
	})
	t.Logf("from the stream %.1f s after etcd was back", time.Since(start).Seconds())
	last := write("last", "back", 20)
	if wrong := f.outcome(t, w, m.recorder, asItIs, last); wrong != "" {
		t.Error(wrong)
	}
	m.verify(t)
	if wrong := f.checkStream(t); wrong != "" {
		t.Error(wrong)
	}
	f.resumesTruthfully(t, r, pods, kept-10, last, bump)
	if bump > 0 { // otherwise nobody can tell the revision from its replacement
		f.resumesTruthfully(t, r, pods, gone, last, bump)
	}
}

// resumesTruthfully verifies what a watch from before the restore gets when it resumes.
func (f *fleet) resumesTruthfully(t *testing.T, r *Reader, prefix string, after, upTo int64, bump uint64) {
	t.Helper()
	events, err := since(t, r, prefix, after, upTo)
	var compacted *kv.CompactedError
	switch {
	case errors.As(err, &compacted):
		return
	case bump > 0 || err != nil:
		t.Errorf("after %d: %d events, %v, want it to be compacted", after, len(events), err)
		return
	}
	direct, err := NewReader(ReaderConfig{Etcd: f.dial(t), Routes: f.routes, Tier: Core})
	if err != nil {
		t.Fatal(err)
	}
	direct.revision.Store(upTo)
	want, err := since(t, direct, prefix, after, upTo)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, events); diff != "" {
		t.Errorf("after %d the events differ from etcd's history:\n%s", after, diff)
	}
}
