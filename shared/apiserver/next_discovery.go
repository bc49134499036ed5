package apiserver

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	apidiscoveryv2 "k8s.io/api/apidiscovery/v2"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"

	"k8s.io/apiserver/pkg/endpoints/discovery"
	"k8s.io/apiserver/pkg/endpoints/discovery/aggregated"
	"k8s.io/klog/v2"
)

const (
	// discoveryTimeout bounds how long a tier that does not answer can delay
	// those that ask the tier in front of it.
	discoveryTimeout = 900 * time.Millisecond
	// discoveryFresh is how long an answer is taken for the present one, and
	// discoveryRetry how long a tier that did not answer is left alone. A custom
	// resource has to appear within a second, through two tiers.
	discoveryFresh = 200 * time.Millisecond
	discoveryRetry = 2 * time.Second

	acceptAggregated = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
)

// nextDiscovery keeps in manager and groups what the next tier serves. A nil
// *nextDiscovery has no next tier.
type nextDiscovery struct {
	path    string
	handler http.Handler
	manager aggregated.ResourceManager
	groups  discovery.GroupManager // nil when only the aggregated form is kept

	mu    sync.Mutex
	until time.Time // what is known counts as fresh until then
	etag  string
	known []apidiscoveryv2.APIGroupDiscovery
}

// before brings the known state up to date, then calls handler.
func (n *nextDiscovery) before(handler http.Handler) http.Handler {
	if n == nil {
		return handler
	}
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		n.refresh(req)
		handler.ServeHTTP(w, req)
	})
}

// refresh asks the next tier in the name of req's user, if it was not asked a
// moment ago. Concurrent callers wait for one answer.
func (n *nextDiscovery) refresh(req *http.Request) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if time.Now().Before(n.until) {
		return
	}
	response, err := ask(req, n.handler, n.path, http.Header{
		"Accept": {acceptAggregated}, "If-None-Match": {n.etag},
	})
	if err == nil && response.code == http.StatusOK {
		err = n.learnLocked(response)
	} else if err == nil && response.code != http.StatusNotModified {
		err = fmt.Errorf("status %d", response.code)
	}
	if err != nil {
		klog.Background().Info("next tier's discovery unavailable", "path", n.path, "error", err.Error())
		n.staleLocked()
		n.until = time.Now().Add(discoveryRetry)
		return
	}
	n.until = time.Now().Add(discoveryFresh)
}

func (n *nextDiscovery) learnLocked(response *answer) error {
	var list apidiscoveryv2.APIGroupDiscoveryList
	if err := json.Unmarshal(response.body.Bytes(), &list); err != nil {
		return fmt.Errorf("decode: %w", err)
	}
	n.publishLocked(list.Items)
	n.known, n.etag = list.Items, response.header.Get("Etag")
	return nil
}

// staleLocked marks what is known as possibly out of date.
func (n *nextDiscovery) staleLocked() {
	if n.etag == "" {
		return
	}
	for i := range n.known {
		for j := range n.known[i].Versions {
			n.known[i].Versions[j].Freshness = apidiscoveryv2.DiscoveryFreshnessStale
		}
	}
	n.publishLocked(n.known)
	n.etag = "" // the next answer must replace what was marked
}

func (n *nextDiscovery) publishLocked(groups []apidiscoveryv2.APIGroupDiscovery) {
	copied := make([]apidiscoveryv2.APIGroupDiscovery, 0, len(groups))
	for _, group := range groups {
		copied = append(copied, *group.DeepCopy())
	}
	n.manager.SetGroups(copied)
	if n.groups == nil {
		return
	}
	present := map[string]bool{}
	for _, group := range groups {
		present[group.Name] = true
		n.groups.AddGroup(groupOf(group))
	}
	for _, group := range n.known {
		if !present[group.Name] {
			n.groups.RemoveGroup(group.Name)
		}
	}
}

// answer is a response held in memory.
type answer struct {
	code   int
	header http.Header
	body   bytes.Buffer
}

func (a *answer) Header() http.Header         { return a.header }
func (a *answer) Write(p []byte) (int, error) { a.WriteHeader(http.StatusOK); return a.body.Write(p) }
func (a *answer) WriteHeader(code int) {
	if a.code == 0 {
		a.code = code
	}
}

// ask sends a GET for path to the next tier, in the name of req's user. It is a
// request of its own: the audit trail of req does not see it.
func ask(req *http.Request, handler http.Handler, path string, header http.Header) (response *answer, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), discoveryTimeout)
	defer cancel()
	if user, ok := apirequest.UserFrom(req.Context()); ok {
		ctx = apirequest.WithUser(ctx, user)
	}
	ctx = apirequest.WithRequestInfo(ctx, &apirequest.RequestInfo{Path: path, Verb: "get"})
	question, err := http.NewRequestWithContext(ctx, http.MethodGet, path, nil)
	if err != nil {
		return nil, err
	}
	question.Header = header
	question.RemoteAddr = req.RemoteAddr
	response = &answer{header: http.Header{}}
	defer func() {
		// A proxy that loses its backend in the middle of a body panics, as
		// net/http wants it to.
		switch reason := recover(); reason {
		case nil:
		case http.ErrAbortHandler:
			err = errors.New("connection lost")
		default:
			panic(reason)
		}
	}()
	handler.ServeHTTP(response, question)
	return response, nil
}
