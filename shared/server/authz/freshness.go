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

// rulesPath begins the paths of the objects that authorization rests on.
const rulesPath = "/apis/rbac.authorization.k8s.io/"

// Freshness knows how old the authorization data of this process may be. It
// watches the informers at work: while the watches of all kinds of rules are
// open the data is current, as far as a watch can tell; once one of them has
// ended the data is as old as that end. A watch that is open but dead is ended by
// whoever carries it, which probes idle connections.
//
// The zero value is not usable; its methods are safe for concurrent use.
type Freshness struct {
	clock clock.PassiveClock

	mu sync.Mutex
	// watches has an entry for each of ruleResources.
	watches map[string]*watched
}

// watched is the watches of one resource.
type watched struct {
	open int
	// ended is when open went to zero; at first, when the process began.
	ended time.Time
}

// NewFreshness returns a Freshness that has seen nothing yet.
func NewFreshness(c clock.PassiveClock) *Freshness {
	f := &Freshness{clock: c, watches: map[string]*watched{}}
	for _, resource := range ruleResources {
		f.watches[resource] = &watched{ended: c.Now()}
	}
	return f
}

// Age is how long some kind of rules has not been watched, zero when all are.
// What has never been watched has not been since the start.
func (f *Freshness) Age() time.Duration {
	f.mu.Lock()
	defer f.mu.Unlock()
	var age time.Duration
	for w := range maps.Values(f.watches) {
		if w.open == 0 {
			age = max(age, f.clock.Since(w.ended))
		}
	}
	return age
}

// Observe returns a transport that sends with next and takes note of the watches
// of rules among what it sends. Its signature is that of a wrapper in
// rest.Config.
func (f *Freshness) Observe(next http.RoundTripper) http.RoundTripper {
	return observer{freshness: f, next: next}
}

type observer struct {
	freshness *Freshness
	next      http.RoundTripper
}

func (o observer) RoundTrip(req *http.Request) (*http.Response, error) {
	resource, ok := watchOf(req)
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

// watchOf returns the resource whose objects the request watches, if that is one
// of the kinds of rules.
func watchOf(req *http.Request) (resource string, ok bool) {
	rest, ok := strings.CutPrefix(req.URL.Path, rulesPath)
	if !ok || req.Method != http.MethodGet {
		return "", false
	}
	query := req.URL.Query()
	if value := query.Get("watch"); value != "true" && value != "1" {
		return "", false
	}
	segments := strings.Split(rest, "/")
	// version/resource, for all namespaces; nothing else is what informers watch.
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
		w.ended = f.clock.Now()
	}
}

// watchBody reports the end of a watch, whichever side ends it.
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
