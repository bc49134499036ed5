package apiserver

import (
	"errors"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/server/healthz"
)

// TestReadyzFailsUntilEveryHookHasReturned: clients of a server that becomes ready before its
// bootstrap is complete would fail.
func TestReadyzFailsUntilEveryHookHasReturned(t *testing.T) {
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

func TestFailedHookEndsRun(t *testing.T) {
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

// TestPreShutdownHookThatHangs: a hook may wait for a server that has already stopped.
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

// TestLivezGracePeriod: livez succeeds while a hook runs, until --livez-grace-period is over.
// Other endpoints fail.
func TestLivezGracePeriod(t *testing.T) {
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
			h := prepare(s) // runs no hook
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
