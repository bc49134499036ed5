package eventlog

import "testing"

// The server of the only replica of a stream goes away, for good or until the stream has been
// recreated elsewhere. Readers miss nothing, no watch ends, and the stream carries events
// again.
func TestAStreamIsRecreatedWithoutItsOnlyReplica(t *testing.T) {
	b := newClusterBench(t)
	b.stream.Replicas = 1
	w := newWitness(t, b.etcd, b.routes)
	relay := b.relay(t, "a", nil)
	background(t, relay.Run)
	r, sink := b.read(t, nil)
	waitSource(t, r, sink, SourceStream)
	sink.until(t, b.put(t, "pods/ns/before", "x"))
	home, incarnation := b.coreLeader(t), b.incarnation(t)
	home.Shutdown()
	home.WaitForShutdown()
	eventually(t, "the stream is recreated elsewhere", func() bool {
		b.put(t, "pods/ns/meanwhile", "x")
		known, _, err := records{b.etcd, relay.cfg.StatePrefix}.read(t.Context(), b.routes.Stream(Core))
		return err == nil && known.Incarnation != incarnation && r.Status().Source == SourceStream
	})
	// Its server does not know yet that the stream was recreated.
	home.run(t)
	b.clusterReady(t)
	for range 50 {
		sink.until(t, b.put(t, "pods/ns/again", "x"))
	}
	b.endsIntact(t, w, r, sink)
}
