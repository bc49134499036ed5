package apiserver

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	apidiscoveryv2 "k8s.io/api/apidiscovery/v2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/endpoints/discovery"
	"k8s.io/apiserver/pkg/endpoints/discovery/aggregated"
	"k8s.io/klog/v2"

	"triune.dev/shared/transport/documents"
)

const (
	// discoveryTimeout bounds how long a tier that does not answer can delay
	// those that ask the tier in front of it.
	discoveryTimeout = 900 * time.Millisecond
	// discoveryFresh is how long an answer is taken for the present one. A custom
	// resource has to appear within a second, through two tiers. A tier that did not
	// answer is left alone for twice the time that it took to find out, if that is
	// longer: one that hangs must not delay everybody, one that refuses is asked again.
	discoveryFresh = 20 * time.Millisecond

	acceptAggregated = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
)

// nextDiscovery keeps in manager and groups what the next tier serves. A nil
// *nextDiscovery has no next tier.
type nextDiscovery struct {
	path    string
	from    documents.Getter
	manager aggregated.ResourceManager
	groups  discovery.GroupManager // nil when only the aggregated form is kept

	mu     sync.Mutex
	serves bool      // the next tier always serves something
	until  time.Time // what is known counts as fresh until then
	failed bool      // the last question was not answered
	tag    documents.Tag
	known  []apidiscoveryv2.APIGroupDiscovery
}

// expect lists group-versions as Stale until the next tier has said what it serves.
func (n *nextDiscovery) expect(served []schema.GroupVersion) {
	n.mu.Lock()
	defer n.mu.Unlock()
	var groups []apidiscoveryv2.APIGroupDiscovery
	for _, gv := range served {
		groups = append(groups, apidiscoveryv2.APIGroupDiscovery{
			ObjectMeta: metav1.ObjectMeta{Name: gv.Group},
			Versions: []apidiscoveryv2.APIVersionDiscovery{
				{Version: gv.Version, Freshness: apidiscoveryv2.DiscoveryFreshnessStale},
			},
		})
	}
	n.publishLocked(groups)
	n.known, n.serves = groups, len(groups) > 0
}

// before brings the known state up to date, then calls handler.
func (n *nextDiscovery) before(handler http.Handler) http.Handler {
	if n == nil {
		return handler
	}
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		n.refresh()
		handler.ServeHTTP(w, req)
	})
}

// refresh asks the next tier, if it was not asked a moment ago. Concurrent callers
// wait for one answer, so none of their contexts bounds it.
func (n *nextDiscovery) refresh() {
	n.mu.Lock()
	defer n.mu.Unlock()
	began := time.Now()
	if began.Before(n.until) {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), discoveryTimeout)
	defer cancel()
	answer, err := documents.Document(ctx, n.from, documents.Query{Path: n.path, Accept: acceptAggregated, Known: n.tag})
	switch {
	case errors.Is(err, documents.ErrNotFound) && !n.serves:
		// Nothing behind us serves such groups; no tier but core has /api.
		n.publishLocked(nil)
		n.known, n.tag, err = nil, documents.Tag{}, nil
	case err == nil && answer.Modified:
		err = n.learnLocked(answer)
	}
	if err != nil {
		if !n.failed {
			klog.Background().Info("next tier's discovery unavailable", "path", n.path, "error", err.Error())
		}
		n.failed = true
		n.staleLocked()
		n.until = began.Add(max(discoveryFresh, 3*time.Since(began)))
		return
	}
	if n.failed {
		klog.Background().Info("next tier's discovery available again", "path", n.path)
	}
	n.failed = false
	n.until = time.Now().Add(discoveryFresh)
}

func (n *nextDiscovery) learnLocked(answer documents.Answer) error {
	var list apidiscoveryv2.APIGroupDiscoveryList
	if err := json.Unmarshal(answer.Body, &list); err != nil {
		return fmt.Errorf("decode: %w", err)
	}
	n.publishLocked(list.Items)
	n.known, n.tag = list.Items, answer.Tag
	return nil
}

// staleLocked marks what is known as possibly out of date.
func (n *nextDiscovery) staleLocked() {
	if n.tag == (documents.Tag{}) {
		return
	}
	for i := range n.known {
		for j := range n.known[i].Versions {
			n.known[i].Versions[j].Freshness = apidiscoveryv2.DiscoveryFreshnessStale
		}
	}
	n.publishLocked(n.known)
	n.tag = documents.Tag{} // the next answer must replace what was marked
}

// publishLocked makes groups what is known to be served behind this tier. A
// group-version that is as it was is left alone, so that its ETag stays.
func (n *nextDiscovery) publishLocked(groups []apidiscoveryv2.APIGroupDiscovery) {
	present := map[metav1.GroupVersion]bool{}
	for _, group := range groups {
		for _, version := range group.Versions {
			present[metav1.GroupVersion{Group: group.Name, Version: version.Version}] = true
			n.manager.AddGroupVersion(group.Name, *version.DeepCopy())
		}
		if n.groups != nil {
			n.groups.AddGroup(LegacyGroup(group))
		}
	}
	for _, group := range n.known {
		kept := false
		for _, version := range group.Versions {
			gv := metav1.GroupVersion{Group: group.Name, Version: version.Version}
			if present[gv] {
				kept = true
				continue
			}
			n.manager.RemoveGroupVersion(gv)
		}
		if !kept && n.groups != nil {
			n.groups.RemoveGroup(group.Name)
		}
	}
}
