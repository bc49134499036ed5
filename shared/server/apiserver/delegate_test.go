package apiserver

import (
	"context"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"
	auditinternal "k8s.io/apiserver/pkg/apis/audit"
	"k8s.io/apiserver/pkg/audit/policy"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	genericapiserver "k8s.io/apiserver/pkg/server"
)

// auditLog records events, and counts how often it is started and stopped.
type auditLog struct {
	recorder
	runs, shutdowns atomic.Int32
}

func (l *auditLog) ProcessEvents(events ...*auditinternal.Event) bool {
	for _, event := range events {
		l.add(string(event.Stage) + " " + event.RequestURI)
	}
	return true
}
func (l *auditLog) Run(<-chan struct{}) error { l.runs.Add(1); return nil }
func (l *auditLog) Shutdown()                 { l.shutdowns.Add(1) }
func (*auditLog) String() string              { return "test" }

// TestTwoTiersInOneProcess runs a head and a tier behind it as standalone does. Each request
// must be authorized and audited once.
func TestTwoTiersInOneProcess(t *testing.T) {
	var log recorder
	audited := &auditLog{}
	g := newGeneric()
	listen(t, g)
	g.AuditBackend = audited
	g.AuditPolicyRuleEvaluator = policy.NewFakePolicyRuleEvaluator(auditinternal.LevelMetadata, []auditinternal.Stage{auditinternal.StageRequestReceived, auditinternal.StageResponseStarted})
	var authorized recorder
	g.Authorization.Authorizer = authorizer.AuthorizerFunc(func(_ context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
		authorized.add(a.GetVerb() + " " + a.GetPath())
		return authorizer.DecisionAllow, "", nil
	})
	storage := newPods()
	tail := newServer(t, func(c *Config) { c.Tier, c.Generic = "tail", DelegateConfig(g) })
	if err := tail.Install(groupInfo(storage)); err != nil {
		t.Fatal(err)
	}
	bootstrapped := make(chan struct{})
	if err := tail.AddPostStartHook("bootstrap", func(ctx genericapiserver.PostStartHookContext) error {
		<-bootstrapped
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	head := newServer(t, func(c *Config) {
		c.Tier, c.Generic = "head", g
		c.Next = &Next{Tier: "tail", Handler: tail.Delegated()}
	})
	var r *running
	tail.AddPreShutdownHook("of the tail", func() error {
		code, _ := r.get("/apis/" + group + "/v1/namespaces/x/pods/p")
		log.add("pre-shutdown hook of the tail: " + http.StatusText(code))
		return nil
	})
	head.Adopt(tail)
	if len(tail.hooks.pre) != 0 || len(head.hooks.pre) != 1 {
		t.Errorf("pre-shutdown hooks: %d of the tail, %d of the head", len(tail.hooks.pre), len(head.hooks.pre))
	}

	behind, stopBehind := context.WithCancel(context.Background())
	var tailDone sync.WaitGroup
	tailDone.Go(func() {
		if err := tail.Prepare().Run(behind); err != nil {
			t.Errorf("tail: %v", err)
		}
	})
	defer tailDone.Wait()
	defer stopBehind()
	r = run(t, head)

	if code, body := r.get("/readyz"); code != http.StatusInternalServerError || !strings.Contains(body, "poststarthook/bootstrap") {
		t.Errorf("the head is ready before the tail: %d %q", code, body)
	}
	close(bootstrapped)
	await(t, "readyz is green", func() bool { code, _ := r.get("/readyz"); return code == http.StatusOK })

	path := "/apis/" + group + "/v1/namespaces/x/pods/p"
	if code, _ := r.get(path); code != http.StatusOK {
		t.Errorf("a resource of the tail: %d", code)
	}
	if got := slices.DeleteFunc(authorized.all(), func(e string) bool { return e != "get "+path }); len(got) != 1 {
		t.Errorf("authorized %d times", len(got))
	}
	if got := slices.DeleteFunc(audited.all(), func(e string) bool { return e != "ResponseComplete "+path }); len(got) != 1 {
		t.Errorf("audited %d times", len(got))
	}

	// A watch of the tail ends with the head.
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		res, err := r.client.Get(r.url + "/apis/" + group + "/v1/pods?watch=true")
		if err != nil {
			t.Error(err)
			return
		}
		defer res.Body.Close()
		_, _ = io.Copy(io.Discard, res.Body)
		log.add("watch ends")
	}()
	<-storage.watching
	r.stop()
	<-watched
	if err := r.wait(); err != nil {
		t.Errorf("head: %v", err)
	}
	select {
	case <-storage.destroyed:
		t.Error("the tail has stopped with the head, which does not own it")
	default:
	}
	stopBehind()
	tailDone.Wait()
	<-storage.destroyed
	if diff := cmp.Diff([]string{"pre-shutdown hook of the tail: OK", "watch ends"}, log.all()); diff != "" {
		t.Errorf("order (-want +got):\n%s", diff)
	}
	if audited.runs.Load() != 1 || audited.shutdowns.Load() != 1 {
		t.Errorf("audit backend started %d times and stopped %d times", audited.runs.Load(), audited.shutdowns.Load())
	}
}

func TestDelegateConfigOwnsNothingOfTheHead(t *testing.T) {
	g := newGeneric()
	listen(t, g)
	defer g.SecureServing.Listener.Close()
	g.DisabledPostStartHooks.Insert("off")
	delegate := DelegateConfig(g)
	if delegate.SecureServing != nil {
		t.Error("the delegate listens")
	}
	if delegate.NonLongRunningRequestWaitGroup == g.NonLongRunningRequestWaitGroup || delegate.WatchRequestWaitGroup == g.WatchRequestWaitGroup {
		t.Error("a delegate would wait for the head's requests at its end")
	}
	if len(delegate.ReadyzChecks)+len(delegate.LivezChecks)+len(delegate.HealthzChecks) != 0 {
		t.Error("the delegate has the head's checks, which the head would adopt")
	}
	delegate.DisabledPostStartHooks.Insert("more")
	if g.DisabledPostStartHooks.Has("more") || !delegate.DisabledPostStartHooks.Has("off") {
		t.Error("disabled hooks are shared or lost")
	}
	s := newServer(t, func(c *Config) { c.Generic = delegate })
	for _, hook := range s.hooks.post {
		if slices.Contains(limitHooks, hook.name) {
			t.Errorf("the delegate runs %s, which the head runs", hook.name)
		}
	}
}
