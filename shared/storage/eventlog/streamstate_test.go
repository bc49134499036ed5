package eventlog

import (
	"testing"

	"github.com/nats-io/nats.go/jetstream"
)

// messages returns the last sequence of core's stream.
func (b *bench) messages(t *testing.T) uint64 {
	t.Helper()
	end, err := readTail(t.Context(), b.coreStream(t))
	if err != nil {
		t.Fatal(err)
	}
	return end.sequence
}

func (b *bench) coreStream(t *testing.T) jetstream.Stream {
	t.Helper()
	conn := b.connectNATS(t)
	js, err := jetstream.New(conn)
	if err != nil {
		t.Fatal(err)
	}
	s, err := js.Stream(t.Context(), b.routes.Stream(Core))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func (b *bench) incarnation(t *testing.T) uint64 {
	t.Helper()
	var end tail
	// Progress replaces the previous one, which may have been the last message.
	eventually(t, "the stream has an end", func() bool {
		var err error
		if end, err = readTail(t.Context(), b.coreStream(t)); err != nil {
			t.Fatalf("tail: %v", err)
		}
		return end.last != nil
	})
	return end.last.Incarnation
}
