package bytecache

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"go.etcd.io/etcd/api/v3/mvccpb"

	"triune.dev/shared/storage/kv"
)

// keyService decrypts values that begin with "sealed:".
type keyService struct {
	mu sync.Mutex
	// hung, if not nil, holds up every decryption until it is closed.
	hung chan struct{}
	err  error
}

func (k *keyService) set(change func()) {
	k.mu.Lock()
	defer k.mu.Unlock()
	change()
}

func (k *keyService) open(ctx context.Context, _ string, stored []byte) ([]byte, bool, error) {
	k.mu.Lock()
	hung, err := k.hung, k.err
	k.mu.Unlock()
	if hung != nil {
		select {
		case <-hung:
		case <-ctx.Done():
			return nil, false, ctx.Err()
		}
	}
	if err != nil {
		return nil, false, err
	}
	return []byte(strings.TrimPrefix(string(stored), "sealed:")), false, nil
}

// sealedEtcd has one object of each of two resources, and their history.
type sealedEtcd struct {
	mu      sync.Mutex
	now     int64
	values  map[string]string
	changed []kv.Event
}

func (e *sealedEtcd) put(key, value string) kv.Event {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.now++
	event := kv.Event{Kind: kv.Modified, Key: key, Revision: e.now, Value: []byte(value), Previous: []byte(e.values[key])}
	e.values[key] = value
	e.changed = append(e.changed, event)
	return event
}

func (e *sealedEtcd) List(_ context.Context, r kv.Range) (kv.Page, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	page := kv.Page{Revision: e.now}
	for key, value := range e.values {
		if key >= r.Start && key < r.End {
			page.KVs = append(page.KVs, &mvccpb.KeyValue{Key: []byte(key), Value: []byte(value), ModRevision: e.now})
			page.Count++
		}
	}
	return page, nil
}

func (e *sealedEtcd) RequestProgress(context.Context) error { return nil }

func (e *sealedEtcd) Since(_ context.Context, prefix string, after, upTo int64, yield func(kv.Event) error) error {
	e.mu.Lock()
	events := slices.Clone(e.changed)
	e.mu.Unlock()
	for _, event := range events {
		if strings.HasPrefix(event.Key, prefix) && event.Revision > after && event.Revision <= upTo {
			if err := yield(event); err != nil {
				return err
			}
		}
	}
	return nil
}

// sealedSpace returns a space with a plain cache and one whose values a key service
// decrypts, both loaded.
func sealedSpace(t *testing.T, config Config) (etcd *sealedEtcd, service *keyService, plain, sealed *Cache) {
	t.Helper()
	etcd = &sealedEtcd{now: 100, values: map[string]string{"/plain/a": "0", "/sealed/a": "sealed:0"}}
	service = &keyService{}
	config.Origin, config.Feed = etcd, etcd
	space := New(config)
	var err error
	if plain, err = space.Cache("/plain/", Options{}); err != nil {
		t.Fatal(err)
	}
	if sealed, err = space.Cache("/sealed/", Options{Decrypt: service.open, SlowDecrypt: true}); err != nil {
		t.Fatal(err)
	}
	space.Reset(100)
	for _, c := range []*Cache{plain, sealed} {
		if err := c.Load(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	return etcd, service, plain, sealed
}

// read returns the object, and the revision of the cache.
func read(t *testing.T, c *Cache) string {
	t.Helper()
	entry, revision, err := c.Get(t.Context(), c.Prefix()+"a")
	switch {
	case err != nil:
		return err.Error()
	case entry.Err != nil:
		return fmt.Sprintf("%v at %d", entry.Err, revision)
	}
	return fmt.Sprintf("%s at %d", entry.Data(), revision)
}

func expectRead(t *testing.T, c *Cache, want string) {
	t.Helper()
	if got := read(t, c); got != want {
		t.Errorf("%s: %s, want %s", c.Prefix(), got, want)
	}
}

// TestHangingKeyServiceDelaysOnlyItsResource checks that a hanging key service delays the
// resource that needs it and no other, and that Await waits as long as its context allows.
func TestHangingKeyServiceDelaysOnlyItsResource(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		etcd, service, plain, sealed := sealedSpace(t, Config{})
		cursor, err := sealed.Cursor(t.Context(), 100)
		if err != nil {
			t.Fatal(err)
		}
		release := make(chan struct{})
		service.set(func() { service.hung = release })
		apply(plain, etcd.put("/sealed/a", "sealed:1"))
		apply(plain, etcd.put("/plain/a", "1"))
		apply(plain, etcd.put("/sealed/a", "sealed:2"))
		synctest.Wait()

		expectRead(t, plain, "1 at 103")
		expectRead(t, sealed, "0 at 100")
		if snapshot, ok := sealed.SnapshotAt(101); ok {
			t.Errorf("there is a state at 101 that nobody has decrypted: %+v", snapshot)
		}
		ctx, cancel := context.WithCancel(t.Context())
		waited := make(chan error, 1)
		go func() { waited <- sealed.Await(ctx, 102) }()
		synctest.Wait()
		cancel()
		if err := <-waited; !errors.Is(err, context.Canceled) {
			t.Errorf("one without patience waited: %v", err)
		}
		go func() { waited <- sealed.Await(t.Context(), 102) }()
		if changes, err := cursor.Available(t.Context()); err != nil || len(changes.List) != 0 || changes.Revision != 100 {
			t.Errorf("a cursor has read %+v, %v", changes, err)
		}
		close(release)
		if err := <-waited; err != nil {
			t.Errorf("wait for 102: %v", err)
		}
		synctest.Wait()
		expectRead(t, sealed, "2 at 103")
		changes, err := cursor.Next(t.Context(), nil)
		if err != nil || len(changes.List) != 2 || string(changes.List[0].Now.Data()) != "1" || changes.Revision != 103 {
			t.Errorf("the cursor then reads %+v, %v", changes, err)
		}
	})
}

// TestDecryptQueueIsBounded checks that the queue does not grow without limit, and that
// neither lagging nor sleeping cursors lose changes when it is dropped.
func TestDecryptQueueIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const limit = 20_000
		etcd, service, plain, sealed := sealedSpace(t, Config{LogBytes: limit})
		lagging, err := sealed.Cursor(t.Context(), 100)
		if err != nil {
			t.Fatal(err)
		}
		apply(plain, etcd.put("/sealed/a", "sealed:first"))
		synctest.Wait()
		release := make(chan struct{})
		service.set(func() { service.hung = release })
		for i := range 100 {
			apply(plain, etcd.put("/sealed/a", fmt.Sprintf("sealed:%d %s", i, strings.Repeat("x", 1000))))
			sealed.mu.Lock()
			if sealed.queue.bytes > limit {
				t.Errorf("%d bytes wait", sealed.queue.bytes)
			}
			sealed.mu.Unlock()
		}
		close(release)
		synctest.Wait()
		for want := int64(101); want <= 201; {
			changes, err := lagging.Next(t.Context(), nil)
			if err != nil {
				t.Fatal(err)
			}
			for _, change := range changes.List {
				if change.Revision != want || change.Now.Err != nil {
					t.Fatalf("revision %d, error %v, want %d", change.Revision, change.Now.Err, want)
				}
				want++
			}
		}
	})
}

// TestCursorSurvivesDroppedDecryptQueue checks that a cursor that was opened after a reset,
// and resumes from before it, continues when the queue is dropped.
func TestCursorSurvivesDroppedDecryptQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		etcd, service, plain, sealed := sealedSpace(t, Config{LogBytes: 100})
		for i := range 3 {
			etcd.put("/sealed/a", fmt.Sprintf("sealed:%d", i))
		}
		plain.Space().Reset(103)
		resumed, err := sealed.Cursor(t.Context(), 101)
		if err != nil {
			t.Fatal(err)
		}
		release := make(chan struct{})
		service.set(func() { service.hung = release })
		apply(plain, etcd.put("/sealed/a", "sealed:"+strings.Repeat("x", 200)))
		close(release)
		synctest.Wait()
		for at := int64(101); at < 104; {
			changes, err := resumed.Next(t.Context(), nil)
			if err != nil || len(changes.List) == 0 || changes.List[0].Revision != at+1 {
				t.Fatalf("after %d: %+v, %v", at, changes, err)
			}
			at = changes.Revision
		}
	})
}

// TestReadsRecoverFromFailedDecryption checks that reads fail while the key service does,
// and that the next read after its recovery succeeds.
func TestReadsRecoverFromFailedDecryption(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		etcd, service, plain, sealed := sealedSpace(t, Config{})
		cursor, err := sealed.Cursor(t.Context(), 101)
		if err != nil {
			t.Fatal(err)
		}
		service.set(func() { service.err = errors.New("no key") })
		apply(plain, etcd.put("/sealed/a", "sealed:1"))
		synctest.Wait()
		expectRead(t, sealed, "no key at 101")
		entry, _, _ := sealed.Get(t.Context(), "/sealed/a")
		sealed.RetryDecrypt(t.Context(), entry)
		expectRead(t, sealed, "no key at 101")

		service.set(func() { service.err = nil })
		sealed.RetryDecrypt(t.Context(), entry)
		expectRead(t, sealed, "1 at 101")
		apply(plain, etcd.put("/sealed/a", "sealed:2"))
		if changes, err := cursor.Next(t.Context(), nil); err != nil || len(changes.List) != 1 || string(changes.List[0].Now.Data()) != "2" {
			t.Errorf("a cursor reads %+v, %v", changes, err)
		}
	})
}

// TestDecryptionTimesOut checks that a change that is not decrypted in time has an error.
func TestDecryptionTimesOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		etcd, service, plain, sealed := sealedSpace(t, Config{})
		service.set(func() { service.hung = make(chan struct{}) })
		apply(plain, etcd.put("/sealed/a", "sealed:1"))
		if err := sealed.Await(t.Context(), 101); err != nil {
			t.Fatal(err)
		}
		expectRead(t, sealed, "context deadline exceeded at 101")
	})
}
