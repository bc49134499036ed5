package eventlog

import "testing"

// NATS has room for the whole history of one stream or none. Each stream stores what fits and
// reports how much that is, and a later relay does not shrink it.
func TestStreamsStoreWhatFits(t *testing.T) {
	for name, tc := range map[string]struct {
		start func(testing.TB) *bench
		store int64
		whole int // number of streams with the whole history
	}{
		"one server, room for none":    {newBench, 1 << 30, 0},
		"one server, room for one":     {newBench, 5 << 30, 1},
		"three servers, room for none": {newClusterBench, 1 << 30, 0},
	} {
		t.Run(name, func(t *testing.T) {
			b := tc.start(t)
			for _, s := range b.servers() {
				s.Shutdown()
				s.WaitForShutdown()
				s.opts.JetStreamMaxStore = tc.store
			}
			for _, s := range b.servers() {
				s.run(t)
			}
			if b.cluster != nil {
				b.clusterReady(t)
			}
			relay := b.relay(t, "a", nil)
			stop := background(t, relay.Run)
			whole := func(r *Relay) (whole, less int) {
				for _, s := range r.Status().Streams {
					switch s.History.MaxBytes {
					case DefaultFileBytes:
						whole++
					case minStreamBytes:
						less++
					}
				}
				return whole, less
			}
			usable := func(r *Relay) func() bool {
				return func() bool {
					whole, less := whole(r)
					return whole == tc.whole && whole+less == len(Tiers)
				}
			}
			eventually(t, "all streams say what they keep", usable(relay))
			js, revision := b.jetStream(t), b.put(t, "pods/ns/a", "x")
			config := b.coreStream(t).CachedInfo().Config
			if config.MaxBytes == minStreamBytes {
				config.MaxBytes += 1 << 20 // some room became free
				if _, err := js.UpdateStream(t.Context(), config); err != nil {
					t.Fatal(err)
				}
			}
			stop()
			b.runRelay(t, "b", nil)
			r, sink := b.read(t, nil)
			waitSource(t, r, sink, SourceStream)
			sink.until(t, b.put(t, "pods/ns/b", "x"))
			if got := b.coreStream(t).CachedInfo().Config.MaxBytes; got != config.MaxBytes {
				t.Errorf("the next relay has the stream keep %d bytes, before %d", got, config.MaxBytes)
			}
			if got, err := since(t, r, "/registry/pods/", revision-1, revision); err != nil || len(got) != 1 {
				t.Errorf("history %v, %v", got, err)
			}
		})
	}
}
