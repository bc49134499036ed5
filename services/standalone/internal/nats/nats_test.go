package nats

import (
	"context"
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
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
		t.Error("a closed server is healthy")
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

// TestCallsOutliveTheServer checks that calls during and after Close return errors, and that
// connections may be closed before, during and after Close.
func TestCallsOutliveTheServer(t *testing.T) {
	rounds := 100
	if testing.Short() {
		rounds = 10
	}
	for range rounds {
		closeUnderLoad(t)
	}
}

func closeUnderLoad(t *testing.T) {
	s, err := Start(t.Context(), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	conn, err := s.Connect()
	if err != nil {
		t.Fatal(err)
	}
	js, err := jetstream.New(conn)
	if err != nil {
		t.Fatal(err)
	}
	stream, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "s", Subjects: []string{"e"}})
	if err != nil {
		t.Fatal(err)
	}
	calls := map[string]func(context.Context) error{
		"publish": func(ctx context.Context) error {
			_, err := js.Publish(ctx, "e", []byte("x"))
			return err
		},
		"consume": func(ctx context.Context) error {
			consumer, err := stream.OrderedConsumer(ctx, jetstream.OrderedConsumerConfig{})
			if err != nil {
				return err
			}
			messages, err := consumer.Messages()
			if err != nil {
				return err
			}
			defer messages.Stop()
			_, err = messages.Next(jetstream.NextContext(ctx))
			return err
		},
		"stream": func(ctx context.Context) error {
			_, err := stream.Info(ctx)
			return err
		},
		"connect": func(context.Context) error {
			conn, err := s.Connect()
			if err != nil {
				return err
			}
			defer conn.Close()
			return conn.Flush()
		},
		"check": func(context.Context) error { return s.Check() },
	}
	// Unanswered requests end with the context.
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var callers, begun sync.WaitGroup
	for name, do := range calls {
		begun.Add(1)
		callers.Go(func() {
			err := do(ctx)
			begun.Done()
			if err != nil {
				t.Errorf("%s: %v", name, err)
			}
			for err == nil {
				err = do(ctx)
			}
		})
	}
	begun.Wait()
	var closers sync.WaitGroup
	for _, i := range rand.Perm(3) {
		closers.Go([]func(){s.Close, s.Close, conn.Close}[i])
	}
	closers.Wait()
	cancel()
	callers.Wait()
	for name, do := range calls {
		if err := do(t.Context()); err == nil {
			t.Errorf("%s: a closed server answers", name)
		}
	}
}

// TestConnectionsEndWithTheServer checks that Close closes open connections, which would
// otherwise try to reconnect forever.
func TestConnectionsEndWithTheServer(t *testing.T) {
	s, err := Start(t.Context(), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	conn, err := s.Connect()
	if err != nil {
		t.Fatal(err)
	}
	s.Close()
	if !conn.IsClosed() {
		t.Error("the connection goes on")
	}
	if conn, err := s.Connect(); err == nil {
		conn.Close()
		t.Error("a closed server takes a connection")
	}
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

func TestStartWithoutDirectory(t *testing.T) {
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

func TestCancelStart(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Start(ctx, t.TempDir()); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}
