package etcdstore

import (
	"context"
	"errors"
	"testing"

	"triune.dev/shared/bytecache"
	"triune.dev/shared/etcdstore/kv"
	"triune.dev/shared/freshness"
)

// etcdFeed feeds a space from one etcd watch over everything. It is what the event
// log is without NATS.
type etcdFeed struct{ client *kv.Client }

func (f etcdFeed) RequestProgress(ctx context.Context) error { return f.client.RequestProgress(ctx) }

// Since reads history by a watch of its own.
func (f etcdFeed) Since(ctx context.Context, prefix string, after, upTo int64, yield func(kv.Event) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream := f.client.Watch(ctx, kv.WatchOptions{Key: prefix, Prefix: true, After: after, ProgressNotify: true})
	for reached := after; reached < upTo; {
		if err := f.client.RequestProgress(ctx); err != nil {
			return err
		}
		resp, ok := <-stream.C()
		if !ok {
			return errors.New("watch of history ended")
		}
		batch, err := stream.Accept(resp)
		if err != nil {
			return err
		}
		for _, e := range batch.Events {
			if e.Revision > upTo {
				return nil
			}
			if err := yield(e); err != nil {
				return err
			}
		}
		reached = batch.Revision
	}
	return nil
}

// follow keeps the space at etcd's state until the context is done.
func (f etcdFeed) follow(ctx context.Context, space *bytecache.Space, from int64) {
	stream := f.client.Watch(ctx, kv.WatchOptions{Key: "/", Prefix: true, After: from})
	for resp := range stream.C() {
		batch, err := stream.Accept(resp)
		if err != nil {
			return
		}
		space.Apply(batch)
	}
}

// withCache gives a Store a cache, which follows etcd until the test ends.
func withCache(t testing.TB) func(*Config) { return withCacheFedBy(t, etcdFeed.follow) }

// withLaggingCache gives a Store a cache that hears of nothing.
func withLaggingCache(t testing.TB) func(*Config) {
	return withCacheFedBy(t, func(etcdFeed, context.Context, *bytecache.Space, int64) {})
}

func withCacheFedBy(t testing.TB, follow func(etcdFeed, context.Context, *bytecache.Space, int64)) func(*Config) {
	return func(c *Config) {
		t.Helper()
		feed := etcdFeed{client: kv.New(c.Client.Etcd())}
		space := bytecache.New(bytecache.Config{Origin: c.Client, Feed: feed})
		revision, err := c.Client.Revision(t.Context(), "/")
		if err != nil {
			t.Fatal(err)
		}
		space.Reset(revision)
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan struct{})
		go func() {
			defer close(done)
			follow(feed, ctx, space, revision)
		}()
		t.Cleanup(func() {
			cancel()
			<-done
		})
		options, err := CacheOptions(CacheConfig{Codec: c.Codec, Transformer: c.Transformer})
		if err != nil {
			t.Fatal(err)
		}
		cache, err := space.Cache("/registry/pods/", options)
		if err != nil {
			t.Fatal(err)
		}
		c.Cache, c.Prober = cache, freshness.New(c.Client, "/registry/")
	}
}
