package eventlog

import (
	"errors"
	"testing"

	"github.com/nats-io/nats.go/jetstream"
)

// messages returns the last sequence of core's stream.
func (b *bench) messages(t *testing.T) uint64 { return b.tail(t).sequence }

// incarnation returns the incarnation of core's stream.
func (b *bench) incarnation(t *testing.T) uint64 {
	t.Helper()
	var last *message
	eventually(t, "the stream has an end", func() bool {
		last = b.tail(t).last
		return last != nil
	})
	return last.Incarnation
}

// tail returns the end of core's stream, which a relay may be continuing.
func (b *bench) tail(t *testing.T) tail {
	t.Helper()
	stream := b.coreStream(t)
	var end tail
	eventually(t, "the end of the stream can be read", func() bool {
		var err error
		if end, err = readTail(t.Context(), stream); err != nil && !errors.Is(err, errNoEnd) {
			t.Fatalf("tail: %v", err)
		}
		return err == nil
	})
	return end
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
