package reads

import (
	"testing"

	"triune.dev/shared/bytecache"
)

// TestWatchSleepsThroughWhatIsNotItsOwn: what a watch is woken for.
func TestWatchSleepsThroughWhatIsNotItsOwn(t *testing.T) {
	pods := newHistoryWorld(t, bytecache.Config{}).pods(t).watched(t, false)
	const all, own = "/api/v1/pods?watch=1", "/api/v1/namespaces/ns-0/pods?watch=1"
	everything, namespace := bytecache.Interest{Key: pods.cache.Prefix()}, bytecache.Interest{Key: pods.cache.Prefix() + "ns-0/"}
	one, node := bytecache.Interest{Key: pods.cache.Prefix() + "ns-0/a"}, bytecache.Interest{Field: "spec.nodeName", Value: "node-1"}
	for _, tc := range []struct {
		path string
		want bytecache.Interest
	}{
		{all, everything},
		{all + "&labelSelector=app%3Dred", everything},
		{all + "&fieldSelector=metadata.name%3Da", everything},
		{all + "&fieldSelector=metadata.namespace%3Dns-0", namespace},
		{all + "&fieldSelector=metadata.namespace%3Dns-0,metadata.name%3Da", one},
		{all + "&fieldSelector=spec.nodeName%3Dnode-1", node},
		{all + "&fieldSelector=metadata.name!%3Da,spec.nodeName%3D%3Dnode-1&labelSelector=app", node},
		{all + "&fieldSelector=spec.nodeName!%3Dnode-1", everything},
		{all + "&fieldSelector=spec.nodeName%3D", bytecache.Interest{Field: "spec.nodeName"}},
		{own, namespace},
		{own + "&fieldSelector=metadata.name%3Da", one},
		{own + "&fieldSelector=metadata.name%3Da,spec.nodeName%3Dnode-1", one},
		{own + "&fieldSelector=spec.nodeName%3Dnode-1", node},
	} {
		s, _ := pods.direct(t, tc.path+"&resourceVersion=1", "application/json")
		if got := s.request.Interest; got != tc.want {
			t.Errorf("%s is woken for %+v, want %+v", tc.path, got, tc.want)
		}
	}
	// Versions of custom resources have fields of their own, which the cache has not.
	pods.handlers.config.OwnFields = true
	s, _ := pods.direct(t, own+"&fieldSelector=spec.nodeName%3Dnode-1&resourceVersion=1", "application/json")
	if got := s.request.Interest; got != namespace {
		t.Errorf("with fields of its own it is woken for %+v", got)
	}
}
