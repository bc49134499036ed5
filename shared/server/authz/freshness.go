package authz

import (
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/utils/clock"
)

// rulesPrefix is the path prefix of the objects that RBAC reads.
const rulesPrefix = "/apis/rbac.authorization.k8s.io/"

// Freshness measures how old the authorization data of this process may be. It observes the
// requests of the informers: while watches of all kinds of rules are open, the data is
// current; after one has ended, the data is as old as that end. The transport ends watches
// on dead connections, because it probes idle ones.
//
// Make one with NewFreshness. It is safe for concurrent use.
type Freshness struct {
	clock clock.PassiveClock

	mu sync.Mutex
	// watches has an entry for each of ruleResources; guarded by mu.
	watches map[string]*watchState
}

// watchState is the state of the watches of one resource.
type watchState struct {
	open int
	// endedAt is the time at which open became zero, or the start of the process.
	endedAt time.Time
}

// NewFreshness returns a Freshness that has observed no watch yet.
func NewFreshness(c clock.PassiveClock) *Freshness {
	f := &Freshness{clock: c, watches: map[string]*watchState{}}
	for _, resource := range ruleResources {
		f.watches[resource] = &watchState{endedAt: c.Now()}
	}
	return f
}

// Age returns the longest time for which some kind of rules has not been watched, or zero
// if all are watched. For a kind that was never watched, the time begins with NewFreshness.
func (f *Freshness) Age() time.Duration {
	f.mu.Lock()
	defer f.mu.Unlock()
	var age time.Duration
	for w := range maps.Values(f.watches) {
		if w.open == 0 {
			age = max(age, f.clock.Since(w.endedAt))
		}
	}
	return age
}

// WrapTransport returns a transport that sends with next and observes the watches of rules.
// It is a transport.WrapperFunc of client-go.
func (f *Freshness) WrapTransport(next http.RoundTripper) http.RoundTripper {
	return observingTransport{freshness: f, next: next}
}

type observingTransport struct {
	freshness *Freshness
	next      http.RoundTripper
}

// RoundTrip implements http.RoundTripper.
func (o observingTransport) RoundTrip(req *http.Request) (*http.Response, error) {
	resource, ok := watchedRules(req)
	if !ok {
		return o.next.RoundTrip(req)
	}
	res, err := o.next.RoundTrip(req)
	if err != nil || res.StatusCode != http.StatusOK {
		return res, err
	}
	o.freshness.opened(resource)
	res.Body = &watchBody{ReadCloser: res.Body, ended: sync.OnceFunc(func() { o.freshness.ended(resource) })}
	return res, nil
}

// watchedRules returns the resource that a request watches, if it is one of ruleResources.
func watchedRules(req *http.Request) (resource string, ok bool) {
	rest, ok := strings.CutPrefix(req.URL.Path, rulesPrefix)
	if !ok || req.Method != http.MethodGet {
		return "", false
	}
	query := req.URL.Query()
	if value := query.Get("watch"); value != "true" && value != "1" {
		return "", false
	}
	segments := strings.Split(rest, "/")
	// Informers watch version/resource, in all namespaces.
	if len(segments) != 2 || !slices.Contains(ruleResources, segments[1]) {
		return "", false
	}
	return segments[1], true
}

var ruleResources = []string{"clusterrolebindings", "clusterroles", "rolebindings", "roles"}

func (f *Freshness) opened(resource string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.watches[resource].open++
}

func (f *Freshness) ended(resource string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	w := f.watches[resource]
	if w.open--; w.open == 0 {
		w.endedAt = f.clock.Now()
	}
}

// watchBody calls ended when either side ends the watch. ended may be called repeatedly.
type watchBody struct {
	io.ReadCloser
	ended func()
}

func (b *watchBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err != nil {
		b.ended()
	}
	return n, err
}

func (b *watchBody) Close() error {
	b.ended()
	return b.ReadCloser.Close()
}
