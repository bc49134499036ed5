package h2

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"testing"
	"time"

	"golang.org/x/net/http2"
)

// RFC 9113, section 5.4.2: RST_STREAM cancels the request and frees its stream.
func TestRSTStreamCancelsTheRequest(t *testing.T) {
	ended := make(chan error, 1)
	o := bounds
	o.MaxConcurrentStreams = 1
	p := dial(t, start(t, newServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/" {
			_, err := io.ReadAll(r.Body)
			<-r.Context().Done()
			if err == nil {
				ended <- errors.New("the body ends as if it were whole")
				return
			}
			ended <- r.Context().Err()
		}
	}), o, nil)))
	p.open(1, "POST", "/", false)
	p.ok(p.framer.WriteData(1, false, []byte("x")))
	p.ok(p.framer.WriteRSTStream(1, http2.ErrCodeCancel))
	if err := within(t, ended, "the handler"); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	p.get(3, "/other")
	p.wantAnswer(3, "200", "")
}

// reportEnd sends the first bytes and reports what ends the request.
func reportEnd(wrote, ended chan error) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		gone := w.(http.CloseNotifier).CloseNotify() //nolint:staticcheck // k8s.io/apiserver wants it
		flush(w)
		_, err := w.Write(make([]byte, 1<<20))
		wrote <- err
		<-gone
		<-r.Context().Done()
		ended <- r.Context().Err()
	})
}

func TestDisconnectCancelsRequests(t *testing.T) {
	wrote, ended := make(chan error, 1), make(chan error, 1)
	p := dial(t, startOurs(t, reportEnd(wrote, ended)), window(10))
	p.get(1, "/")
	p.await(func(f http2.Frame) bool { _, ok := f.(*http2.DataFrame); return ok })
	_ = p.conn.NetConn().Close()
	if err := within(t, wrote, "Write"); err == nil {
		t.Error("Write succeeds")
	}
	within(t, ended, "the request's context")
}

func TestWriteDeadlineEndsTheStream(t *testing.T) {
	wrote := make(chan error, 1)
	p := dial(t, startOurs(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if err := http.NewResponseController(w).SetWriteDeadline(time.Now()); err != nil {
			t.Error(err)
		}
		_, err := w.Write(make([]byte, 1<<20))
		wrote <- err
	})), window(10))
	p.get(1, "/")
	p.wantReset(1, http2.ErrCodeInternal)
	if err := within(t, wrote, "Write"); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Error(err)
	}
	p.ping()
}

func TestReadDeadlineEndsReading(t *testing.T) {
	p := dial(t, startOurs(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := http.NewResponseController(w).SetReadDeadline(time.Now()); err != nil {
			t.Error(err)
		}
		if _, err := r.Body.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("Read: %v", err)
		}
		_, _ = io.WriteString(w, "too late")
	})))
	p.open(1, "POST", "/", false)
	p.wantAnswer(1, "200", "too late")
}

// A deadline has no effect after it was cleared or the request has ended.
func TestClearedDeadlinesHaveNoEffect(t *testing.T) {
	p := dial(t, startOurs(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		rc := http.NewResponseController(w)
		for _, at := range []time.Time{time.Now().Add(time.Hour), {}} {
			if err := errors.Join(rc.SetWriteDeadline(at), rc.SetReadDeadline(at), rc.EnableFullDuplex()); err != nil {
				t.Error(err)
			}
		}
		_, _ = io.WriteString(w, "in time")
	})))
	p.get(1, "/")
	p.wantAnswer(1, "200", "in time")
}

// RFC 9113, section 6.8: requests in flight complete, and new ones are ignored without affecting
// them.
func TestShutdownLetsRequestsInFlightFinish(t *testing.T) {
	begun, finish := make(chan struct{}), make(chan struct{})
	server := startOurs(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		close(begun)
		<-finish
		_, _ = io.Copy(w, r.Body)
	}))
	p := dial(t, server)
	p.open(1, "POST", "/", false)
	within(t, begun, "the handler")
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	down := make(chan error, 1)
	go func() { down <- server.Config.Shutdown(ctx) }()
	if away := p.wantGoAway(http2.ErrCodeNo); away.LastStreamID != 1 {
		t.Errorf("GOAWAY of %d, want 1", away.LastStreamID)
	}
	// A client may send these before it receives GOAWAY.
	p.open(3, "POST", "/", false)
	p.ok(p.framer.WriteData(3, false, []byte("x")))
	p.ok(p.framer.WriteWindowUpdate(3, 1))
	p.ok(p.framer.WriteHeaders(http2.HeadersFrameParam{StreamID: 3, BlockFragment: p.fields("x", "y"), EndHeaders: true, EndStream: true}))
	p.ok(p.framer.WriteRSTStream(3, http2.ErrCodeCancel))
	p.ok(p.framer.WriteData(1, true, []byte("whole")))
	p.ping()
	close(finish)
	p.wantAnswer(1, "200", "whole")
	p.wantClosed()
	if err := within(t, down, "Shutdown"); err != nil {
		t.Error(err)
	}
}

func TestIdleConnectionsAreClosed(t *testing.T) {
	o := bounds
	o.IdleTimeout = 50 * time.Millisecond
	release := make(chan struct{})
	p := dial(t, start(t, newServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-release }), o, nil)))
	p.get(1, "/")
	close(release)
	p.wantGoAway(http2.ErrCodeNo)
	p.wantClosed()
}

// A client that never sends the preface leaves nothing behind.
func TestMissingPrefaceClosesTheConnection(t *testing.T) {
	p := connect(t, startOurs(t, blocking(t)))
	_ = p.conn.Close() // before the preface
}

// A closed connection with unread frames starts no handlers, because their requests would never be
// canceled.
func TestClosedConnectionsRefuseRequests(t *testing.T) {
	client, ours := net.Pipe()
	defer client.Close()
	defer ours.Close()
	ran := make(chan context.Context, 1)
	s := &server{Options: bounds, http: &http.Server{}, conns: map[*conn]struct{}{}}
	c := s.newConn(ours, ours, nil, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { ran <- r.Context() }))
	c.headers = newHeaderBlock(s.maxHeaderList())
	c.mu.Lock()
	c.failLocked(io.ErrClosedPipe)
	c.mu.Unlock()
	c.headers.start(&http2.HeadersFrame{FrameHeader: http2.FrameHeader{StreamID: 1, Flags: http2.FlagHeadersEndStream}})
	if err := c.handleHeaderBlock(requestBlock(":method", "GET", ":scheme", "https", ":path", "/"), true); !errors.Is(err, io.ErrClosedPipe) {
		t.Errorf("a request is taken: %v", err)
		within(t, ran, "its handler")
	}
}
