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
	// discoveryTimeout bounds how long a tier that does not answer delays discovery in the
	// tier in front of it.
	discoveryTimeout = 900 * time.Millisecond
	// discoveryTTL is how long an answer is used. A custom resource has to appear within a
	// second, through two tiers. A failed request is not repeated for twice the time that it
	// took, if that is longer, so that a tier that hangs does not delay every client, and a
	// tier that refuses is asked again soon.
	discoveryTTL = 20 * time.Millisecond

	acceptAggregated = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
)

// nextDiscovery publishes the groups of the next tier to manager and groups. A nil
// *nextDiscovery has no next tier.
type nextDiscovery struct {
	path    string
	getter  documents.Getter
	manager aggregated.ResourceManager
	groups  discovery.GroupManager // nil for aggregated discovery only

	mu           sync.Mutex // guards the fields below
	alwaysServes bool       // the next tier always serves some group
	freshUntil   time.Time
	failed       bool // the last request failed
	tag          documents.Tag
	published    []apidiscoveryv2.APIGroupDiscovery
}

// expect lists group-versions as Stale until the next tier has answered.
func (n *nextDiscovery) expect(versions []schema.GroupVersion) {
	n.mu.Lock()
	defer n.mu.Unlock()
	var groups []apidiscoveryv2.APIGroupDiscovery
	for _, gv := range versions {
		groups = append(groups, apidiscoveryv2.APIGroupDiscovery{
			ObjectMeta: metav1.ObjectMeta{Name: gv.Group},
			Versions: []apidiscoveryv2.APIVersionDiscovery{
				{Version: gv.Version, Freshness: apidiscoveryv2.DiscoveryFreshnessStale},
			},
		})
	}
	n.publishLocked(groups)
	n.published, n.alwaysServes = groups, len(groups) > 0
}

// refreshBefore returns a handler that refreshes the groups and calls handler.
func (n *nextDiscovery) refreshBefore(handler http.Handler) http.Handler {
	if n == nil {
		return handler
	}
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		n.refresh()
		handler.ServeHTTP(w, req)
	})
}

// refresh asks the next tier, unless its groups are fresh. Concurrent callers share one
// request, which therefore has a context of its own.
func (n *nextDiscovery) refresh() {
	n.mu.Lock()
	defer n.mu.Unlock()
	started := time.Now()
	if started.Before(n.freshUntil) {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), discoveryTimeout)
	defer cancel()
	answer, err := documents.Document(ctx, n.getter, documents.Query{Path: n.path, Accept: acceptAggregated, Known: n.tag})
	switch {
	case errors.Is(err, documents.ErrNotFound) && !n.alwaysServes:
		// No tier behind this one serves such groups; only core has /api.
		n.publishLocked(nil)
		n.published, n.tag, err = nil, documents.Tag{}, nil
	case err == nil && answer.Modified:
		err = n.updateLocked(answer)
	}
	if err != nil {
		if !n.failed {
			klog.Background().Info("next tier's discovery unavailable", "path", n.path, "error", err.Error())
		}
		n.failed = true
		n.markStaleLocked()
		n.freshUntil = started.Add(max(discoveryTTL, 3*time.Since(started)))
		return
	}
	if n.failed {
		klog.Background().Info("next tier's discovery available again", "path", n.path)
	}
	n.failed = false
	n.freshUntil = time.Now().Add(discoveryTTL)
}

func (n *nextDiscovery) updateLocked(answer documents.Answer) error {
	var list apidiscoveryv2.APIGroupDiscoveryList
	if err := json.Unmarshal(answer.Body, &list); err != nil {
		return fmt.Errorf("decode: %w", err)
	}
	n.publishLocked(list.Items)
	n.published, n.tag = list.Items, answer.Tag
	return nil
}

// markStaleLocked marks the published groups as Stale.
func (n *nextDiscovery) markStaleLocked() {
	if n.tag == (documents.Tag{}) {
		return
	}
	for i := range n.published {
		for j := range n.published[i].Versions {
			n.published[i].Versions[j].Freshness = apidiscoveryv2.DiscoveryFreshnessStale
		}
	}
	n.publishLocked(n.published)
	n.tag = documents.Tag{} // the next answer must replace the marked groups
}

// publishLocked replaces the published groups. Unchanged group-versions are not removed, so
// that the ETag stays the same.
func (n *nextDiscovery) publishLocked(groups []apidiscoveryv2.APIGroupDiscovery) {
	present := map[metav1.GroupVersion]bool{}
	for _, group := range groups {
		for _, version := range group.Versions {
			present[metav1.GroupVersion{Group: group.Name, Version: version.Version}] = true
			n.manager.AddGroupVersion(group.Name, *version.DeepCopy())
		}
		if n.groups != nil {
			n.groups.AddGroup(ToAPIGroup(group))
		}
	}
	for _, group := range n.published {
		remains := false
		for _, version := range group.Versions {
			gv := metav1.GroupVersion{Group: group.Name, Version: version.Version}
			if present[gv] {
				remains = true
				continue
			}
			n.manager.RemoveGroupVersion(gv)
		}
		if !remains && n.groups != nil {
			n.groups.RemoveGroup(group.Name)
		}
	}
}
