package apiserver

import (
	"crypto/tls"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"golang.org/x/net/http2"
	"k8s.io/apiserver/pkg/endpoints/responsewriter"
)

// TestHTTP2Server: both implementations of HTTP/2 have the same limits, and finish a request
// in flight before they stop.
func TestHTTP2Server(t *testing.T) {
	for name, ours := range map[HTTP2Server]bool{"": true, TriuneHTTP2: true, GoHTTP2: false} {
		t.Run(string(name), func(t *testing.T) {
			s := newServer(t, func(c *Config) {
				listen(t, c.Generic)
				c.Generic.SecureServing.HTTP2MaxStreamsPerConnection = 7
				c.HTTP2Server = name
			})
			begun, release := make(chan struct{}), make(chan struct{})
			s.UnlistedHandle("/served", http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
				_, direct := responsewriter.GetOriginal(w).(interface {
					TryWrite([][]byte) (interface{ Flush() }, bool)
				})
				close(begun)
				<-release
				_, _ = fmt.Fprint(w, req.Proto, " ", direct) // the test reads it
			}))
			r := run(t, s)
			await(t, "readyz is green", func() bool { code, _ := r.get("/readyz"); return code == http.StatusOK })
			checkSettings(t, strings.TrimPrefix(r.url, "https://"))

			answered := make(chan string, 1)
			go func() {
				_, body := r.get("/served")
				answered <- body
			}()
			<-begun
			r.stop()
			<-s.lifecycle.notAccepting
			close(release)
			if got, want := <-answered, fmt.Sprint("HTTP/2.0 ", ours); got != want {
				t.Errorf("%q, want %q", got, want)
			}
			if err := r.wait(); err != nil {
				t.Errorf("Run: %v", err)
			}
		})
	}
}

// checkSettings checks the HTTP/2 settings that a server sends.
func checkSettings(t *testing.T, address string) {
	t.Helper()
	conn, err := tls.Dial("tcp", address, &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"h2"}}) // the test's own certificate
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	framer := http2.NewFramer(conn, conn)
	if _, err := io.WriteString(conn, http2.ClientPreface); err != nil {
		t.Fatal(err)
	}
	if err := framer.WriteSettings(); err != nil {
		t.Fatal(err)
	}
	f, err := framer.ReadFrame()
	settings, ok := f.(*http2.SettingsFrame)
	if err != nil || !ok {
		t.Fatalf("%v, %v", f, err)
	}
	for id, want := range map[http2.SettingID]uint32{
		http2.SettingMaxConcurrentStreams: 7, http2.SettingMaxFrameSize: uploadPerStream, http2.SettingInitialWindowSize: uploadPerStream,
		http2.SettingMaxHeaderListSize: maxHeaderBytes + 10*32,
	} {
		if got, _ := settings.Value(id); got != want {
			t.Errorf("%v is %d, want %d", id, got, want)
		}
	}
}
