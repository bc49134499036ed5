package apiserver

import (
	"bufio"
	"context"
	"errors"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/server/healthz"
	"k8s.io/component-base/tracing"
)

// TestReadyzIsRedUntilEveryHookHasReturned: a server that says it is ready before
// its bootstrap is complete makes clients fail.
func TestReadyzIsRedUntilEveryHookHasReturned(t *testing.T) {
	s := newServer(t, func(c *Config) { listen(t, c.Generic) })
	finish := map[string]chan struct{}{"first": make(chan struct{}), "second": make(chan struct{})}
	for name, done := range finish {
		if err := s.AddPostStartHook(name, func(ctx genericapiserver.PostStartHookContext) error {
			select {
			case <-done:
			case <-ctx.Done():
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
	}
	r := run(t, s)
	for _, path := range []string{"/readyz", "/livez", "/healthz"} {
		if code, body := r.get(path); code != http.StatusInternalServerError || !strings.Contains(body, "poststarthook/first") || !strings.Contains(body, "poststarthook/second") {
			t.Errorf("%s before the hooks have returned: %d %q", path, code, body)
		}
	}
	close(finish["first"])
	await(t, "first hook is done", func() bool { code, _ := r.get("/readyz/poststarthook/first"); return code == http.StatusOK })
	if code, body := r.get("/readyz?verbose"); code != http.StatusInternalServerError || !strings.Contains(body, "[+]poststarthook/first ok") || !strings.Contains(body, "[-]poststarthook/second failed") {
		t.Errorf("readyz after one of two hooks: %d %q", code, body)
	}
	close(finish["second"])
	await(t, "readyz is green", func() bool { code, _ := r.get("/readyz"); return code == http.StatusOK })
	r.stop()
	if err := r.wait(); err != nil {
		t.Errorf("Run: %v", err)
	}
}

// TestShutdownKeepsItsOrder follows the whole of it: see the package documentation.
func TestShutdownKeepsItsOrder(t *testing.T) {
	var happened events
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
			happened.add("hooks end")
			close(hookEnded)
		}()
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	shutdownBegun, goOn := make(chan struct{}), make(chan struct{})
	s.AddPreShutdownHook("pre", func() error {
		close(shutdownBegun)
		<-goOn
		select {
		case <-s.lifecycle.notAccepting:
			happened.add("pre-shutdown hook, too late")
		default:
			happened.add("pre-shutdown hook")
		}
		return nil
	})
	r := run(t, s)
	await(t, "readyz is green", func() bool { code, _ := r.get("/readyz"); return code == http.StatusOK })

	// A watch and a list are under way.
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
		happened.add("watch ends")
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
		happened.add("list is answered")
		listed <- res.StatusCode
	}()
	<-storage.listing

	r.stop()
	<-shutdownBegun
	if code, body := r.get("/readyz"); code != http.StatusInternalServerError || !strings.Contains(body, "shutdown") {
		t.Errorf("readyz after the end has begun: %d %q", code, body)
	}
	if code, _ := r.get("/livez"); code != http.StatusOK {
		t.Errorf("livez after the end has begun: %d; nobody should kill a server that drains", code)
	}
	if code, _ := r.get("/apis/" + group + "/v1/namespaces/x/pods/p"); code != http.StatusOK {
		t.Errorf("a request during the shutdown delay: %d", code)
	}
	select {
	case <-watched:
		t.Error("the watch has ended while requests are still taken")
	default:
	}
	close(goOn)
	<-watched
	select {
	case <-storage.destroyed:
		t.Error("storage is gone before the list is answered")
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
	if diff := cmp.Diff(want, happened.all()); diff != "" {
		t.Errorf("order (-want +got):\n%s", diff)
	}
	if _, err := r.client.Get(r.url + "/livez"); err == nil {
		t.Error("still listening")
	}
}

func TestHookThatFailsEndsRun(t *testing.T) {
	s := newServer(t, func(c *Config) { listen(t, c.Generic) })
	if err := s.AddPostStartHook("bootstrap", func(genericapiserver.PostStartHookContext) error { return errors.New("no etcd") }); err != nil {
		t.Fatal(err)
	}
	others := make(chan struct{})
	if err := s.AddPostStartHook("patient", func(ctx genericapiserver.PostStartHookContext) error {
		<-ctx.Done()
		close(others)
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	err := run(t, s).wait()
	if err == nil || err.Error() != `post-start hook "bootstrap": no etcd` {
		t.Errorf("Run: %v", err)
	}
	<-others
}

// TestListenerThatFailsEndsRun: a server that nobody can reach any more is not one.
func TestListenerThatFailsEndsRun(t *testing.T) {
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

func TestPreShutdownHooksAllRun(t *testing.T) {
	var h hooks
	var ran []string
	for _, name := range []string{"a", "b"} {
		h.pre = append(h.pre, preShutdownHook{name, func() error { ran = append(ran, name); return errors.New("oh") }})
	}
	err := h.stop(time.Minute)
	if !slices.Equal(ran, []string{"a", "b"}) {
		t.Errorf("ran %v", ran)
	}
	if err == nil || err.Error() != "pre-shutdown hook \"a\": oh\npre-shutdown hook \"b\": oh" {
		t.Errorf("error %v", err)
	}
}

// TestPreShutdownHookThatHangs: what it waits for may have ended before.
func TestPreShutdownHookThatHangs(t *testing.T) {
	leave := make(chan struct{})
	defer close(leave)
	h := hooks{pre: []preShutdownHook{{"stuck", func() error { <-leave; return nil }}}}
	if err := h.stop(time.Millisecond); err == nil || !strings.Contains(err.Error(), "not done") {
		t.Errorf("got %v", err)
	}
}

func TestHooksHaveOneName(t *testing.T) {
	s := newServer(t, func(c *Config) { c.Generic.DisabledPostStartHooks.Insert("off") })
	hook := func(genericapiserver.PostStartHookContext) error { return nil }
	if err := s.AddPostStartHook("twice", hook); err != nil {
		t.Fatal(err)
	}
	if err := s.AddPostStartHook("twice", hook); err == nil || !strings.Contains(err.Error(), `"twice"`) {
		t.Errorf("adding a hook twice: %v", err)
	}
	for range 2 {
		if err := s.AddPostStartHook("off", hook); err != nil {
			t.Errorf("a disabled hook: %v", err)
		}
	}
	if slices.ContainsFunc(s.health.readyz, func(c healthz.HealthChecker) bool { return c.Name() == "poststarthook/off" }) {
		t.Error("readyz waits for a disabled hook")
	}
}

// TestRunWaitsForNext: Run waits for what keeps the way to the next tier.
func TestRunWaitsForNext(t *testing.T) {
	var happened events
	s := newServer(t, func(c *Config) {
		listen(t, c.Generic)
		c.Next = &Next{
			Tier: "behind", Handler: http.NotFoundHandler(),
			Run: func(ctx context.Context) error {
				happened.add("probes begin")
				<-ctx.Done()
				happened.add("probes end")
				return ctx.Err()
			},
			Check: func(*http.Request) error { return errors.New("unreachable") },
		}
	})
	r := run(t, s)
	await(t, "probes", func() bool { return len(happened.all()) == 1 })
	if code, body := r.get("/healthz/next-behind"); code != http.StatusServiceUnavailable || !strings.Contains(body, "next tier behind: unreachable") {
		t.Errorf("next tier's check: %d %q", code, body)
	}
	await(t, "readyz does not depend on the next tier", func() bool { code, _ := r.get("/readyz"); return code == http.StatusOK })
	r.stop()
	if err := r.wait(); err != nil {
		t.Errorf("Run: %v", err)
	}
	if diff := cmp.Diff([]string{"probes begin", "probes end"}, happened.all()); diff != "" {
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

// detailedCheck is well, and says so at length.
type detailedCheck struct{ bad error }

func (detailedCheck) Name() string                { return "detailed" }
func (c detailedCheck) Check(*http.Request) error { return c.bad }
func (detailedCheck) Detail() string              { return "and how\n" }

// TestDetailOfACheck: what a check has to say is on its own path; in the list of all it
// is a line as any other, and a failure is told as of any other.
func TestDetailOfACheck(t *testing.T) {
	for _, tc := range []struct {
		bad         error
		code        int
		path, lines string
	}{
		{nil, http.StatusOK, "ok\nand how\n", "[+]detailed ok\n"},
		{errors.New("not well"), http.StatusInternalServerError, "internal server error: not well\n", "[-]detailed failed: reason withheld\n"},
	} {
		s := newServer(t, func(c *Config) {
			listen(t, c.Generic)
			c.Generic.AddReadyzChecks(detailedCheck{tc.bad})
		})
		r := run(t, s)
		await(t, "the server answers", func() bool { code, _ := r.get("/livez/ping"); return code == http.StatusOK })
		if code, body := r.get("/readyz/detailed"); code != tc.code || body != tc.path {
			t.Errorf("the check is %d %q, want %d %q", code, body, tc.code, tc.path)
		}
		if _, body := r.get("/readyz?verbose"); !strings.Contains(body, tc.lines) || strings.Contains(body, "and how") {
			t.Errorf("the list is %q, want a line %q", body, tc.lines)
		}
		r.stop()
		if err := r.wait(); err != nil {
			t.Errorf("Run: %v", err)
		}
	}
}

// TestLivezHasPatience: --livez-grace-period keeps livez green while a hook runs, and
// nothing else, and not for ever.
func TestLivezHasPatience(t *testing.T) {
	for name, tt := range map[string]struct {
		grace time.Duration
		livez int
	}{
		"during the grace period": {time.Hour, http.StatusOK},
		"after it":                {time.Nanosecond, http.StatusInternalServerError},
	} {
		t.Run(name, func(t *testing.T) {
			s := newServer(t, func(c *Config) { c.Generic.LivezGracePeriod = tt.grace })
			if err := s.AddPostStartHook("slow", func(genericapiserver.PostStartHookContext) error { return nil }); err != nil {
				t.Fatal(err)
			}
			h := serving(s) // which runs no hook
			for path, want := range map[string]int{
				"/livez/poststarthook/slow":  tt.livez,
				"/livez":                     tt.livez,
				"/readyz/poststarthook/slow": http.StatusInternalServerError,
				"/healthz":                   http.StatusInternalServerError,
			} {
				if w := do(h, http.MethodGet, path); w.Code != want {
					t.Errorf("%s: %d, want %d", path, w.Code, want)
				}
			}
		})
	}
}

// TestShutdownSendsRetryAfter: with --shutdown-send-retry-after whoever connects while
// requests in flight are answered is told to come back, instead of finding nobody.
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
	await(t, "clients are told to come back", func() bool {
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

// TestSystemdIsTold: a unit with Type=notify is up once the server listens.
func TestSystemdIsTold(t *testing.T) {
	socket, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: filepath.Join(t.TempDir(), "notify"), Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer socket.Close()
	t.Setenv("NOTIFY_SOCKET", socket.LocalAddr().String())
	behind := newServer(t, nil)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := behind.Prepare().Run(ctx); err != nil { // it does not listen, and has nothing to tell
		t.Fatal(err)
	}
	run(t, newServer(t, func(c *Config) { listen(t, c.Generic) }))
	if err := socket.SetReadDeadline(time.Now().Add(30 * time.Second)); err != nil {
		t.Fatal(err)
	}
	told := make([]byte, 64)
	n, err := socket.Read(told)
	if err != nil || string(told[:n]) != "READY=1" {
		t.Fatalf("told %q, %v", told[:n], err)
	}
	if os.Getenv("NOTIFY_SOCKET") != "" {
		t.Error("programs that the server starts could tell, too")
	}
}

// lastSpans is a tracer provider that notes when it is asked for the spans it still has.
type lastSpans struct {
	tracing.TracerProvider
	events *events
}

func (s lastSpans) Shutdown(ctx context.Context) error {
	if _, ok := ctx.Deadline(); !ok {
		s.events.add("without a limit")
	}
	s.events.add("traces are sent")
	return nil
}

// TestLastTracesAreSent: what batches spans has some left when a server ends. The tiers
// behind the one that listens share it.
func TestLastTracesAreSent(t *testing.T) {
	var happened events
	traces := lastSpans{tracing.NewNoopTracerProvider(), &happened}
	head := newServer(t, func(c *Config) {
		listen(t, c.Generic)
		c.Generic.TracerProvider = traces
	})
	behind := newServer(t, func(c *Config) { c.Generic = Follower(head.Generic()) })
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := behind.Prepare().Run(ctx); err != nil {
		t.Fatal(err)
	}
	if all := happened.all(); len(all) > 0 {
		t.Fatalf("at the end of a follower: %q", all)
	}
	r := run(t, head)
	r.stop()
	if err := r.wait(); err != nil {
		t.Errorf("Run: %v", err)
	}
	if diff := cmp.Diff([]string{"traces are sent"}, happened.all()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
