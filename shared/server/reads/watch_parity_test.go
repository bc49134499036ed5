package reads

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/registry/rest"

	"triune.dev/shared/storage/bytecache"
)

func (r *resource) change(t testing.TB, namespace, name string, change func(obj runtime.Object)) {
	t.Helper()
	update := rest.DefaultUpdatedObjectInfo(nil, func(_ context.Context, _, old runtime.Object) (runtime.Object, error) {
		obj := old.DeepCopyObject()
		change(obj)
		return obj, nil
	})
	_, _, err := r.store.Update(inNamespace(namespace), name, update, nil, rest.ValidateAllObjectUpdateFunc, false, &metav1.UpdateOptions{})
	if err != nil {
		t.Fatalf("update %s: %v", name, err)
	}
}

// transcript records a watch as its client sees it.
type transcript struct {
	Status int
	Header http.Header
	Body   string
}

// expiredFloor is the oldest revision that is known, which is the log's in one case
// and etcd's in the other.
var expiredFloor = regexp.MustCompile(`(too old resource version: \d+ )\(\d+\)`)

func record(t testing.TB, url, accept string) transcript {
	t.Helper()
	resp := open(t, plainClient, context.Background(), url, accept)
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Errorf("GET %s: %v", url, err)
	}
	resp.Header.Del("Date")
	return transcript{resp.StatusCode, resp.Header, expiredFloor.ReplaceAllString(string(body), "$1")}
}

const (
	asPartial     = ";as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
	asPartialBeta = ";as=PartialObjectMetadata;g=meta.k8s.io;v=v1beta1"
	asTableBeta   = "application/json;as=Table;g=meta.k8s.io;v=v1beta1"

	endBookmark = "sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true"
)

// TestWatchAnswersAsUpstream checks that upstream's handler and ours return the same bytes
// for the same requests, while objects change.
func TestWatchAnswersAsUpstream(t *testing.T) {
	w := newHistoryWorld(t, bytecache.Config{}).pods(t).watched(t, false)
	// The oldest revision, which messages name, may differ by a few between the two. Give
	// all of them as many digits, because lengths in protobuf depend on that.
	for range 100 {
		if _, err := w.etcd.Put(t.Context(), "/digits", ""); err != nil {
			t.Fatal(err)
		}
	}
	for i := range 6 {
		w.create(t, pod(fmt.Sprintf("ns-%d", i%2), fmt.Sprintf("old-%d", i), i))
	}
	compacted := w.revision(t)
	w.change(t, "ns-0", "old-0", func(obj runtime.Object) { obj.(*corev1.Pod).Spec.NodeName = "node-2" })
	if _, err := w.etcd.Compact(t.Context(), compacted); err != nil {
		t.Fatal(err)
	}
	begin := w.revision(t)
	w.delete(t, "ns-0", "old-2")
	w.change(t, "ns-1", "old-1", func(obj runtime.Object) { obj.(*corev1.Pod).Labels = map[string]string{"app": "app-3"} })
	w.change(t, "ns-1", "old-3", func(obj runtime.Object) { obj.(*corev1.Pod).Labels["app"] = "app-1" })
	w.settle(t) // resourceVersion=0 is whatever the cache has
	from := fmt.Sprintf("resourceVersion=%d", begin)
	queries := map[string]bool{ // whether it is served here
		"":                                     true,
		"resourceVersion=0":                    true,
		from:                                   true,
		from + "&allowWatchBookmarks=true":     true,
		from + "&labelSelector=app%3Dapp-3":    true,
		from + "&labelSelector=app%21%3Dapp-3": true,
		from + "&labelSelector=app+in+(app-1,app-2),odd":                                                           true,
		from + "&fieldSelector=spec.nodeName%3Dnode-2":                                                             true,
		from + "&fieldSelector=metadata.name%3Dold-1":                                                              true,
		from + "&fieldSelector=metadata.name%3Dold-1,metadata.namespace%3Dns-1":                                    true,
		from + "&fieldSelector=metadata.namespace%3Dns-1":                                                          true,
		from + "&fieldSelector=metadata.name%3Dold-1&labelSelector=app":                                            true,
		"labelSelector=app%3Dapp-3":                                                                                true,
		"fieldSelector=metadata.namespace%3Dns-0":                                                                  true,
		"fieldSelector=metadata.name%3Dnone":                                                                       true,
		"sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true":                        true,
		"sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true&resourceVersion=0":      true,
		"sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true&" + from:                true,
		"sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true&labelSelector=app":      true,
		"sendInitialEvents=true&resourceVersionMatch=NotOlderThan&" + from:                                         true,
		"sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true&resourceVersion=900000": true,
		"sendInitialEvents=false&resourceVersionMatch=NotOlderThan&" + from:                                        true,
		"sendInitialEvents=true":                    false,
		"sendInitialEvents=maybe":                   false,
		"resourceVersionMatch=Exact&" + from:        false,
		"resourceVersionMatch=NotOlderThan&" + from: false,
		"resourceVersion=1":                         true,
		"resourceVersion=900000":                    true,
		"resourceVersion=-1":                        false,
		"resourceVersion=abc":                       false,
		"timeoutSeconds=-1":                         false,
		"limit=1&" + from:                           true,
		"continue=abc":                              false,
		"labelSelector=%3D%3D":                      false,
		"fieldSelector=spec.gizmo%3D1":              false,
		"pretty=true&" + from:                       true,
	}
	accepts := map[string]bool{
		"application/json": true, "application/vnd.kubernetes.protobuf": true, "*/*": true, "application/json;stream=watch": true,
		"application/json" + asPartial: true, "application/vnd.kubernetes.protobuf" + asPartial: true, "application/json" + asPartialBeta: true,
		"application/vnd.kubernetes.protobuf;stream=watch, application/json": true,
		"application/yaml": false, "application/cbor": false, "image/png": false,
		asTable: true, asTableBeta: true, asTable + "," + asTableBeta + ",application/json": true,
		"application/vnd.kubernetes.protobuf;as=Table;g=meta.k8s.io;v=v1": false, "application/json;as=Table;g=meta.k8s.io;v=v2": false, "application/yaml;as=Table;g=meta.k8s.io;v=v1": false,
	}
	type request struct{ path, accept string }
	var requests []request
	served := 0
	add := func(path, query, accept string, here bool) {
		if !strings.Contains(query, "timeoutSeconds") {
			query += "&timeoutSeconds=4"
		}
		requests = append(requests, request{path + "?watch=true&" + query, accept})
		if here {
			served++
		}
	}
	for query, here := range queries {
		for _, accept := range []string{"application/json", "application/vnd.kubernetes.protobuf"} {
			add("/api/v1/pods", query, accept, here)
		}
		add("/api/v1/namespaces/ns-1/pods", query, "application/json", here)
	}
	for accept, here := range accepts {
		add("/api/v1/pods", from, accept, here)
		add("/api/v1/pods", "sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true", accept, here)
		add("/api/v1/pods", "resourceVersion=1", accept, here)
	}
	for _, include := range []string{"None", "Metadata", "Object"} {
		for _, query := range []string{from, "resourceVersion=0", endBookmark, "labelSelector=app%3Dapp-3&" + from, "resourceVersion=1", endBookmark + "&resourceVersion=900000"} {
			add("/api/v1/pods", query+"&includeObject="+include, asTable, true)
			add("/api/v1/namespaces/ns-1/pods", query+"&includeObject="+include, asTableBeta, true)
		}
	}
	add("/api/v1/pods", from+"&includeObject=Some", asTable, false)
	add("/api/v1/pods", from+"&includeObject=Some", "application/json", true)
	type pair struct{ theirs, ours transcript }
	pairs := make([]pair, len(requests))
	var done sync.WaitGroup
	before := w.fallbacks.Load()
	for i, r := range requests {
		done.Go(func() { pairs[i].theirs = record(t, w.theirs.URL+r.path, r.accept) })
		done.Go(func() { pairs[i].ours = record(t, w.mine.URL+r.path, r.accept) })
	}
	done.Wait()
	events := 0
	for i, r := range requests {
		text, _ := url.QueryUnescape(r.path)
		if diff := cmp.Diff(pairs[i].theirs, pairs[i].ours); diff != "" {
			t.Errorf("%s as %s (-k8s.io/apiserver +ours):\n%s", text, r.accept, diff)
		}
		if expired := strings.Contains(r.path, "resourceVersion=1&"); !expired && pairs[i].theirs.Header.Get("Content-Type") == protobufStream[0] {
			events += protobufFrames(t, []byte(pairs[i].ours.Body))
		} else {
			events += strings.Count(pairs[i].ours.Body, "\n")
		}
	}
	if events < len(requests) {
		t.Errorf("%d events in %d transcripts: they prove nothing", events, len(requests))
	}
	if fallbacks := int(w.fallbacks.Load() - before); fallbacks != len(requests)-served {
		t.Errorf("%d requests fell back, want %d", fallbacks, len(requests)-served)
	}
}

// TestWatchLiveAsUpstream compares the events of open watches: every way into and out of a
// selector.
func TestWatchLiveAsUpstream(t *testing.T) {
	world := newHistoryWorld(t, bytecache.Config{})
	pods, custom := world.pods(t).watched(t, false), world.widgets(t).watched(t, false)
	type stream struct {
		name string
		pair [3]transcript
	}
	var streams []*stream
	var done, opened sync.WaitGroup
	start := func(w *watched, path, accept string) {
		s := &stream{name: path + " as " + accept}
		streams = append(streams, s)
		for i, base := range []string{w.theirs.URL, w.mine.URL, w.pushing.URL} {
			opened.Add(1)
			done.Go(func() {
				resp := open(t, plainClient, context.Background(), base+path, accept)
				opened.Done()
				body, err := io.ReadAll(resp.Body)
				if err != nil {
					t.Errorf("GET %s: %v", path, err)
				}
				resp.Header.Del("Date")
				s.pair[i] = transcript{resp.StatusCode, resp.Header, string(body)}
			})
		}
	}
	pods.create(t, pod("ns-0", "first", 1))
	from := fmt.Sprintf("&timeoutSeconds=6&resourceVersion=%d", pods.revision(t))
	for _, accept := range []string{"application/json", "application/vnd.kubernetes.protobuf", "application/json" + asPartial, "application/vnd.kubernetes.protobuf" + asPartialBeta, asTable, asTableBeta} {
		for _, query := range []string{"", "&labelSelector=app%3Dred", "&labelSelector=app%21%3Dred", "&fieldSelector=spec.nodeName%3Dnode-1"} {
			start(pods, "/api/v1/pods?watch=1"+query+from, accept)
		}
		start(pods, "/api/v1/namespaces/ns-0/pods?watch=1&fieldSelector=metadata.name%3Da"+from, accept)
	}
	for _, accept := range []string{"application/json", "application/json" + asPartial, asTable, asTableBeta} {
		for _, query := range []string{"", "&labelSelector=app%3Dred", "&includeObject=None", "&includeObject=Object&allowWatchBookmarks=true"} {
			start(custom, "/apis/example.com/v1/widgets?watch=1"+query+from, accept)
		}
	}
	opened.Wait()
	paint := func(color string) func(runtime.Object) {
		return func(obj runtime.Object) {
			obj.(metav1.Object).SetLabels(map[string]string{"app": color})
		}
	}
	for _, name := range []string{"a", "aa", "b"} {
		pods.create(t, pod("ns-0", name, 1))
		for _, color := range []string{"red", "red ", "blue", "green", "red"} {
			pods.change(t, "ns-0", name, paint(strings.TrimSpace(color)))
			pods.change(t, "ns-0", name, func(obj runtime.Object) { obj.(*corev1.Pod).Spec.NodeName += "1" })
		}
		pods.delete(t, "ns-0", name)
		custom.create(t, widget("ns-0", name, 1))
		for _, color := range []string{"red", "blue", "red"} {
			custom.change(t, "ns-0", name, paint(color))
		}
		custom.delete(t, "ns-0", name)
	}
	began := time.Now()
	done.Wait()
	if time.Since(began) > 30*time.Second {
		t.Error("the streams did not end at their timeout")
	}
	events := 0
	for _, s := range streams {
		if diff := cmp.Diff(s.pair[0], s.pair[1]); diff != "" {
			t.Errorf("%s (-k8s.io/apiserver +ours):\n%s", s.name, diff)
		}
		if diff := cmp.Diff(s.pair[1], s.pair[2]); diff != "" {
			t.Errorf("%s (-ours +ours, pushed):\n%s", s.name, diff)
		}
		events += len(s.pair[1].Body)
	}
	if events < 100_000 {
		t.Errorf("%d bytes of events: too few to prove anything", events)
	}
	if n := pods.fallbacks.Load() + custom.fallbacks.Load(); n != 0 {
		t.Errorf("%d fallbacks", n)
	}
}
