package filters

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	flowcontrol "k8s.io/api/flowcontrol/v1"
	"k8s.io/apiserver/pkg/endpoints/metrics"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"
	utilflowcontrol "k8s.io/apiserver/pkg/util/flowcontrol"
	fq "k8s.io/apiserver/pkg/util/flowcontrol/fairqueuing"
	flowcontrolrequest "k8s.io/apiserver/pkg/util/flowcontrol/request"
	"k8s.io/component-base/metrics/legacyregistry"
)

// rejectAll is priority and fairness that rejects everything.
type rejectAll struct{ utilflowcontrol.Interface }

func (rejectAll) Handle(_ context.Context, _ utilflowcontrol.RequestDigest,
	note func(*flowcontrol.FlowSchema, *flowcontrol.PriorityLevelConfiguration, string),
	_ func() flowcontrolrequest.WorkEstimate, _ fq.QueueNoteFn, _ func(),
) {
	note(&flowcontrol.FlowSchema{}, &flowcontrol.PriorityLevelConfiguration{}, "")
}

// unusedNames counts the names of unused.
var unusedNames atomic.Int64

// unused returns a name that no test has used before. Verified resources are the process's.
func unused(name string) string { return fmt.Sprint(name, "-", unusedNames.Add(1), "-") }

// series counts the series of the process that have a value like this in a label.
func series(t *testing.T, value string) (n int) {
	t.Helper()
	metrics.Register()
	families, err := legacyregistry.DefaultGatherer.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, family := range families {
		for _, m := range family.GetMetric() {
			for _, label := range m.GetLabel() {
				if strings.Contains(label.GetValue(), value) {
					n++
					break
				}
			}
		}
	}
	return n
}

// TestUnverifiedResourcesLeaveNoSeries: requests that are refused before authorization, that
// time out, or that are aborted, leave no series with the names that they chose.
func TestUnverifiedResourcesLeaveNoSeries(t *testing.T) {
	tests := map[string]struct {
		change func(*Config)
		next   http.HandlerFunc
		query  string
		code   int // 0: aborted
		busy   bool
	}{
		"429 by the number in flight":  {change: func(c *Config) { c.Generic.MaxMutatingRequestsInFlight = 1 }, busy: true, code: 429},
		"429 by priority and fairness": {change: func(c *Config) { c.Generic.FlowControl = rejectAll{} }, code: 429},
		"504": {
			change: func(c *Config) { c.Owns = func(*http.Request) bool { return false } },
			next:   func(_ http.ResponseWriter, req *http.Request) { <-req.Context().Done() }, query: "?timeout=1ns", code: 504,
		},
		"aborted": {
			change: func(c *Config) { c.Owns = func(*http.Request) bool { return false } },
			next:   func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) },
		},
		"429 and a watch that is refused": {change: func(c *Config) { c.Generic.FlowControl = rejectAll{} }, query: "?watch=true", code: 429},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			x := newTier(t, test.change)
			if test.next != nil {
				x.next = test.next
			}
			if test.busy {
				entered, leave := make(chan struct{}), make(chan struct{})
				x.serve = func(http.ResponseWriter, *http.Request) { close(entered); <-leave }
				var wait sync.WaitGroup
				wait.Go(func() { do(x.Edge, newRequest("POST", "/api/v1/nodes", "Authorization: ann")) })
				<-entered
				defer wait.Wait()
				defer close(leave)
			}
			method := "POST"
			if strings.Contains(test.query, "watch") {
				method = "GET"
			}
			ask := func(path string) {
				if test.code == 0 {
					defer func() {
						if recover() == nil {
							t.Error("the answer is not aborted")
						}
					}()
				}
				if w := do(x.Edge, newRequest(method, path+test.query, "Authorization: ann")); w.Code != test.code {
					t.Errorf("%s: %d, want %d", path, w.Code, test.code)
				}
			}
			paths := []string{"/api/%s/things", "/api/v1/%s", "/api/v1/namespaces/n/things/name/%s", "/api/%s"}
			for i := range 50 {
				for _, path := range paths {
					ask(fmt.Sprintf(path, fmt.Sprint("unverified", i)))
				}
			}
			if n := series(t, "unverified"); n > 0 {
				t.Errorf("%d series of unverified resources", n)
			}
		})
	}
}

// TestVerifiedResourcesAreNamed, as by kube-apiserver.
func TestVerifiedResourcesAreNamed(t *testing.T) {
	x := newTier(t, func(c *Config) { c.Generic.MaxMutatingRequestsInFlight = 1 })
	gadgets := unused("gadgets")
	path := "/api/v1/namespaces/n/" + gadgets
	refused := func() int {
		entered, leave := make(chan struct{}), make(chan struct{})
		x.serve = func(http.ResponseWriter, *http.Request) { close(entered); <-leave }
		var wait sync.WaitGroup
		wait.Go(func() { do(x.Edge, newRequest("POST", "/api/v1/nodes", "Authorization: ann")) })
		<-entered
		defer wait.Wait()
		defer close(leave)
		if w := do(x.Edge, newRequest("POST", path, "Authorization: ann")); w.Code != http.StatusTooManyRequests {
			t.Errorf("%d, want 429", w.Code)
		}
		return series(t, gadgets)
	}
	do(x.Edge, newRequest("POST", path, "Authorization: mallory")) // refused
	if n := refused(); n != 0 {
		t.Errorf("%d series of a resource for which no request was allowed", n)
	}
	x.serve = func(http.ResponseWriter, *http.Request) {}
	do(x.Edge, newRequest("POST", path, "Authorization: ann"))
	if n := refused(); n != 2 {
		t.Errorf("%d series of a verified resource, want those of requests and of terminations", n)
	}
}

// TestUnverifiedRequestsKeepTheirResource: an admitted request reaches its handler with its
// whole request info, whichever filter limits it.
func TestUnverifiedRequestsKeepTheirResource(t *testing.T) {
	for name, change := range map[string]func(*Config){
		"max in flight": nil,
		"fairness":      func(c *Config) { c.Generic.FlowControl = admitAll{} },
	} {
		x := newTier(t, change)
		widgets := unused("widgets")
		do(x.Edge, newRequest("DELETE", "/api/v1/namespaces/n/"+widgets+"/w/status", "Authorization: ann"))
		if got, want := x.log().Served, "ann delete:n:"+widgets+":status:w "; len(got) != 1 || !strings.HasPrefix(got[0], want) {
			t.Errorf("%s: served %q, want %q", name, got, want)
		}
	}
}

type admitAll struct{ utilflowcontrol.Interface }

func (admitAll) Handle(_ context.Context, d utilflowcontrol.RequestDigest,
	note func(*flowcontrol.FlowSchema, *flowcontrol.PriorityLevelConfiguration, string),
	_ func() flowcontrolrequest.WorkEstimate, _ fq.QueueNoteFn, execute func(),
) {
	if d.RequestInfo.Resource == "" {
		return // its resource is not visible
	}
	note(&flowcontrol.FlowSchema{}, &flowcontrol.PriorityLevelConfiguration{}, "")
	execute()
}

func TestVerifiedResourcesAreBounded(t *testing.T) {
	r := newResourceSet(10)
	thing := func(name string) *apirequest.RequestInfo {
		return &apirequest.RequestInfo{IsResourceRequest: true, APIVersion: "v1", Resource: name}
	}
	r.add(thing(strings.Repeat("x", maxVerifiedBytes)))
	r.add(&apirequest.RequestInfo{Path: "/healthz"})
	if len(r.hashes) != 0 {
		t.Errorf("%d resources, want none", len(r.hashes))
	}
	for i := range 20 {
		r.add(thing(fmt.Sprint("things", i)))
	}
	if len(r.hashes) != 10 || !r.has(thing("things0")) || r.has(thing("things19")) {
		t.Errorf("%d resources, want the first 10", len(r.hashes))
	}
}
