package apiserver

import (
	"bufio"
	"context"
	"errors"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/component-base/tracing"
)

// TestShutdownOrder checks the order of the package documentation.
func TestShutdownOrder(t *testing.T) {
	var log recorder
	storage := newPods()
	s := newServer(t, func(c *Config) {
		listen(t, c.Generic)
		c.Generic.ShutdownDelayDuration = 300 * time.Millisecond
	})
	if err := s.Install(groupInfo(storage)); err != nil {
		t.Fatal(err)
	}
	hookEnded := make(chan struct{})
	if err := s.AddPostStartHook("hook", func(ctx genericapiserver.PostStartHookContext) error {
		go func() {
			<-ctx.Done()
			log.add("hooks end")
			close(hookEnded)
		}()
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	shutdownBegun, finish := make(chan struct{}), make(chan struct{})
	s.AddPreShutdownHook("pre", func() error {
		close(shutdownBegun)
		<-finish
		select {
		case <-s.lifecycle.notAccepting:
			log.add("pre-shutdown hook, too late")
		default:
			log.add("pre-shutdown hook")
		}
		return nil
	})
	r := run(t, s)
	await(t, "readyz is green", func() bool { code, _ := r.get("/readyz"); return code == http.StatusOK })

	// A watch and a list are in flight.
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		res, err := r.client.Get(r.url + "/apis/" + group + "/v1/pods?watch=true")
		if err != nil {
			t.Error(err)
			return
		}
		defer res.Body.Close()
		for lines := bufio.NewScanner(res.Body); lines.Scan(); {
		}
		log.add("watch ends")
	}()
	<-storage.watching
	listed := make(chan int, 1)
	go func() {
		res, err := r.client.Get(r.url + "/apis/" + group + "/v1/pods")
		if err != nil {
			t.Error(err)
			listed <- 0
			return
		}
		defer res.Body.Close()
		log.add("list is answered")
		listed <- res.StatusCode
	}()
	<-storage.listing

	r.stop()
	<-shutdownBegun
	if code, body := r.get("/readyz"); code != http.StatusInternalServerError || !strings.Contains(body, "shutdown") {
		t.Errorf("readyz during the shutdown: %d %q", code, body)
	}
	if code, _ := r.get("/livez"); code != http.StatusOK {
		t.Errorf("livez during the shutdown: %d; a draining server must not be killed", code)
	}
	if code, _ := r.get("/apis/" + group + "/v1/namespaces/x/pods/p"); code != http.StatusOK {
		t.Errorf("a request during the shutdown delay: %d", code)
	}
	select {
	case <-watched:
		t.Error("the watch has ended while requests are still accepted")
	default:
	}
	close(finish)
	<-watched
	select {
	case <-storage.destroyed:
		t.Error("storage was destroyed before the list was answered")
	default:
	}
	close(storage.answer)
	if code := <-listed; code != http.StatusOK {
		t.Errorf("the request in flight: %d", code)
	}
	if err := r.wait(); err != nil {
		t.Errorf("Run: %v", err)
	}
	<-storage.destroyed
	<-hookEnded
	want := []string{"pre-shutdown hook", "watch ends", "list is answered", "hooks end"}
	if diff := cmp.Diff(want, log.all()); diff != "" {
		t.Errorf("order (-want +got):\n%s", diff)
	}
	if _, err := r.client.Get(r.url + "/livez"); err == nil {
		t.Error("still listening")
	}
}

// TestFailedListenerEndsRun: a server that cannot be reached stops.
func TestFailedListenerEndsRun(t *testing.T) {
	var listener net.Listener
	s := newServer(t, func(c *Config) {
		listen(t, c.Generic)
		listener = c.Generic.SecureServing.Listener
	})
	r := run(t, s)
	if err := listener.Close(); err != nil {
		t.Fatal(err)
	}
	if err := r.wait(); !errors.Is(err, net.ErrClosed) || !strings.HasPrefix(err.Error(), "serve on "+listener.Addr().String()) {
		t.Errorf("Run: %v", err)
	}
}

// TestRunWaitsForNext: Run waits for Next.Run.
func TestRunWaitsForNext(t *testing.T) {
	var log recorder
	s := newServer(t, func(c *Config) {
		listen(t, c.Generic)
		c.Next = &Next{
			Tier: "behind", Handler: http.NotFoundHandler(),
			Run: func(ctx context.Context) error {
				log.add("probes begin")
				<-ctx.Done()
				log.add("probes end")
				return ctx.Err()
			},
			Check: func(*http.Request) error { return errors.New("unreachable") },
		}
	})
	r := run(t, s)
	await(t, "probes", func() bool { return len(log.all()) == 1 })
	if code, body := r.get("/healthz/next-behind"); code != http.StatusServiceUnavailable || !strings.Contains(body, "next tier behind: unreachable") {
		t.Errorf("next tier's check: %d %q", code, body)
	}
	await(t, "readyz does not depend on the next tier", func() bool { code, _ := r.get("/readyz"); return code == http.StatusOK })
	r.stop()
	if err := r.wait(); err != nil {
		t.Errorf("Run: %v", err)
	}
	if diff := cmp.Diff([]string{"probes begin", "probes end"}, log.all()); diff != "" {
		t.Error(diff)
	}
}

func TestCompleteNamesWhatIsMissing(t *testing.T) {
	tests := map[string]struct {
		spoil func(*Config)
		want  string
	}{
		"name":          {func(c *Config) { c.Tier = "" }, "name"},
		"generic":       {func(c *Config) { c.Generic = nil }, "serializer"},
		"serializer":    {func(c *Config) { c.Generic.Serializer = nil }, "serializer"},
		"authenticator": {func(c *Config) { c.Generic.Authentication.Authenticator = nil }, "authenticator"},
		"authorizer":    {func(c *Config) { c.Generic.Authorization.Authorizer = nil }, "authorizer"},
		"version":       {func(c *Config) { c.Generic.EffectiveVersion = nil }, "version"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			c := Config{Tier: "test", Generic: newGeneric()}
			test.spoil(&c)
			if _, err := c.Complete(); err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("got %v, want an error about %q", err, test.want)
			}
		})
	}
}

// TestShutdownSendsRetryAfter: with --shutdown-send-retry-after the server still accepts
// connections until requests in flight are answered, and answers with Retry-After.
func TestShutdownSendsRetryAfter(t *testing.T) {
	storage := newPods()
	s := newServer(t, func(c *Config) {
		listen(t, c.Generic)
		c.Generic.ShutdownSendRetryAfter = true
	})
	if err := s.Install(groupInfo(storage)); err != nil {
		t.Fatal(err)
	}
	r := run(t, s)
	await(t, "readyz is green", func() bool { code, _ := r.get("/readyz"); return code == http.StatusOK })
	listed := make(chan int, 1)
	go func() {
		code, _ := r.get("/apis/" + group + "/v1/pods")
		listed <- code
	}()
	<-storage.listing
	r.stop()
	<-s.lifecycle.notAccepting
	another := r.another()
	await(t, "new requests are answered with Retry-After", func() bool {
		res, err := another.Get(r.url + "/apis/" + group + "/v1/namespaces/x/pods/p")
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		return res.StatusCode == http.StatusTooManyRequests && res.Header.Get("Retry-After") == "5"
	})
	close(storage.answer)
	if code := <-listed; code != http.StatusOK {
		t.Errorf("the request in flight: %d", code)
	}
	if err := r.wait(); err != nil {
		t.Errorf("Run: %v", err)
	}
	if _, err := another.Get(r.url + "/livez"); err == nil {
		t.Error("still listening")
	}
}

// TestSystemdIsNotified: a unit with Type=notify has started once the server listens.
func TestSystemdIsNotified(t *testing.T) {
	socket, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: filepath.Join(t.TempDir(), "notify"), Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer socket.Close()
	t.Setenv("NOTIFY_SOCKET", socket.LocalAddr().String())
	behind := newServer(t, nil)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := behind.Prepare().Run(ctx); err != nil { // it does not listen, and must not notify
		t.Fatal(err)
	}
	run(t, newServer(t, func(c *Config) { listen(t, c.Generic) }))
	if err := socket.SetReadDeadline(time.Now().Add(30 * time.Second)); err != nil {
		t.Fatal(err)
	}
	message := make([]byte, 64)
	n, err := socket.Read(message)
	if err != nil || string(message[:n]) != "READY=1" {
		t.Fatalf("got %q, %v", message[:n], err)
	}
	if os.Getenv("NOTIFY_SOCKET") != "" {
		t.Error("programs that the server starts could notify, too")
	}
}

// recordingTracer is a tracer provider that records its shutdown.
type recordingTracer struct {
	tracing.TracerProvider
	log *recorder
}

func (r recordingTracer) Shutdown(ctx context.Context) error {
	if _, ok := ctx.Deadline(); !ok {
		r.log.add("without a deadline")
	}
	r.log.add("traces are sent")
	return nil
}

// TestTracesAreFlushed: remaining spans are sent at the end of the server that listens. The
// tiers behind it share its tracer provider.
func TestTracesAreFlushed(t *testing.T) {
	var log recorder
	traces := recordingTracer{tracing.NewNoopTracerProvider(), &log}
	head := newServer(t, func(c *Config) {
		listen(t, c.Generic)
		c.Generic.TracerProvider = traces
	})
	behind := newServer(t, func(c *Config) { c.Generic = DelegateConfig(head.Generic()) })
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := behind.Prepare().Run(ctx); err != nil {
		t.Fatal(err)
	}
	if all := log.all(); len(all) > 0 {
		t.Fatalf("at the end of the tier behind: %q", all)
	}
	r := run(t, head)
	r.stop()
	if err := r.wait(); err != nil {
		t.Errorf("Run: %v", err)
	}
	if diff := cmp.Diff([]string{"traces are sent"}, log.all()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
