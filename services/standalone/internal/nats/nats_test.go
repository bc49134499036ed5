package nats

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestServerKeepsItsStreams(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "nats")
	first, err := Start(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := first.Check(); err != nil {
		t.Errorf("check: %v", err)
	}
	if address := first.server.Addr(); address != nil {
		t.Errorf("listens on %v", address)
	}
	with(t, first, func(js jetstream.JetStream) {
		if _, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "s", Subjects: []string{"e"}}); err != nil {
			t.Fatal(err)
		}
		// As large as an event can be.
		if _, err := js.Publish(t.Context(), "e", make([]byte, 3<<20)); err != nil {
			t.Fatal(err)
		}
	})
	first.Close()
	if err := first.Check(); err == nil {
		t.Error("a closed server is well")
	}

	second, err := Start(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	defer second.Close()
	with(t, second, func(js jetstream.JetStream) {
		stream, err := js.Stream(t.Context(), "s")
		if err != nil {
			t.Fatal(err)
		}
		if kept := stream.CachedInfo().State; kept.Msgs != 1 || kept.Bytes < 3<<20 {
			t.Errorf("after a restart: %+v", kept)
		}
	})
}

func with(t *testing.T, s *Server, do func(jetstream.JetStream)) {
	t.Helper()
	conn, err := s.Connect()
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	js, err := jetstream.New(conn)
	if err != nil {
		t.Fatal(err)
	}
	do(js)
}

func TestStartOnWhatIsNoDirectory(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	begin := time.Now()
	if _, err := Start(t.Context(), file); err == nil || !strings.Contains(err.Error(), "NATS in "+file) {
		t.Errorf("got %v", err)
	}
	if took := time.Since(begin); took > startLimit/2 {
		t.Errorf("took %v", took)
	}
}

func TestStartIsGivenUp(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Start(ctx, t.TempDir()); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}
