package etcdstore

import (
	"context"
	"testing"

	"triune.dev/shared/storage/bytecache"
	"triune.dev/shared/storage/eventlog"
	"triune.dev/shared/storage/kv"
	"triune.dev/shared/storage/readindex"
)

// withCache gives a Store a cache that follows etcd until the test ends, as in a process
// without NATS.
func withCache(t testing.TB) func(*Config) {
	return func(c *Config) {
		t.Helper()
		reader, err := eventlog.NewReader(eventlog.ReaderConfig{Etcd: c.Client.Etcd(), Routes: eventlog.NewRoutes("test", c.Prefix)})
		if err != nil {
			t.Fatal(err)
		}
		space := bytecache.New(bytecache.Config{Origin: c.Client, Feed: reader})
		ctx, cancel := context.WithCancel(context.Background())
		ended := make(chan error, 1)
		go func() { ended <- reader.Run(ctx, sink{space}) }()
		t.Cleanup(func() {
			cancel()
			if err := <-ended; err != nil {
				t.Errorf("event log: %v", err)
			}
		})
		addCache(t, c, space)
	}
}

// sink applies an event log to a space.
type sink struct{ *bytecache.Space }

func (s sink) Reset(revision int64) { s.Replace(revision) }

// withLaggingCache gives a Store a cache that no event reaches.
func withLaggingCache(t testing.TB) func(*Config) {
	return func(c *Config) {
		t.Helper()
		space := bytecache.New(bytecache.Config{Origin: c.Client, Feed: silence{}})
		revision, err := c.Client.Revision(t.Context(), "/")
		if err != nil {
			t.Fatal(err)
		}
		space.Reset(revision)
		addCache(t, c, space)
	}
}

// silence is an event log without events.
type silence struct{}

func (silence) RequestProgress(context.Context) error { return nil }

func (silence) Since(context.Context, string, int64, int64, func(kv.Event) error) error {
	return &kv.CompactedError{}
}

func addCache(t testing.TB, c *Config, space *bytecache.Space) {
	t.Helper()
	keys, err := newKeySpace(c.Prefix, c.ResourcePrefix)
	if err != nil {
		t.Fatal(err)
	}
	prefix, err := keys.all()
	if err != nil {
		t.Fatal(err)
	}
	options, err := CacheOptions(CacheConfig{Codec: c.Codec, Transformer: c.Transformer})
	if err != nil {
		t.Fatal(err)
	}
	c.Cache, err = space.Cache(prefix, options)
	if err != nil {
		t.Fatal(err)
	}
	c.Prober = readindex.New(c.Client, keys.root)
}

// reload gives the Store the cache of a new process, which decrypts as the Store does.
func (f *fixture) reload(t testing.TB) {
	t.Helper()
	if f.cache == nil {
		return
	}
	options, err := CacheOptions(CacheConfig{Codec: f.codec, Transformer: f.transformer})
	if err != nil {
		t.Fatal(err)
	}
	space, prefix := f.cache.Space(), f.cache.Prefix()
	f.cache.Release()
	if f.cache, err = space.Cache(prefix, options); err != nil {
		t.Fatal(err)
	}
	f.watches.Cache = f.cache
}
