package twins

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"testing"
)

const (
	asTable = "application/json;as=Table;v=v1;g=meta.k8s.io"
	asList  = ";as=PartialObjectMetadataList;v=v1;g=meta.k8s.io"
	asOne   = ";as=PartialObjectMetadata;v=v1;g=meta.k8s.io"
)

// encodings are all encodings of a list, and one that is not supported.
var encodings = []string{
	"application/json", "application/yaml", "application/vnd.kubernetes.protobuf", "application/cbor",
	asTable, "application/json;as=Table;v=v1beta1;g=meta.k8s.io", "application/yaml;as=Table;v=v1;g=meta.k8s.io", "application/cbor;as=Table;v=v1;g=meta.k8s.io",
	"application/json" + asList, "application/vnd.kubernetes.protobuf" + asList, "application/yaml" + asList, "application/cbor" + asList,
	"application/json;as=PartialObjectMetadataList;v=v1beta1;g=meta.k8s.io",
	"application/vnd.kubernetes.protobuf;as=PartialObjectMetadataList;v=v1beta1;g=meta.k8s.io",
	// As kubectl and client-go send it.
	asTable + ",application/json;as=Table;v=v1beta1;g=meta.k8s.io,application/json",
	"application/vnd.kubernetes.protobuf,application/json",
}

// few are the encodings with -short.
var few = []string{"application/json", "application/vnd.kubernetes.protobuf", asTable, "application/json" + asList}

func TestTwins(t *testing.T) { compare(t, startTwins(t)) }

// TestTwinsWithCBOR stores custom resources as CBOR and requests everything in it.
func TestTwinsWithCBOR(t *testing.T) {
	if testing.Short() {
		t.Skip("part of the whole suite")
	}
	w := startTwins(t, "--feature-gates=CBORServingAndStorage=true")
	t.Run("objects", w.objects)
	t.Run("pages", w.pages)
	t.Run("old watches", w.oldWatches)
	t.Run("watches", w.liveWatches)
}

func compare(t *testing.T, w *twins) {
	t.Run("every resource", w.everyResource)
	t.Run("objects", w.objects)
	t.Run("lists", w.lists)
	t.Run("pages", w.pages)
	t.Run("expired", w.expired)
	t.Run("malformed", w.malformed)
	t.Run("old watches", w.oldWatches)
	t.Run("watches", w.liveWatches)
}

// everyResource lists everything at the revision of the copy.
func (w *twins) everyResource(t *testing.T) {
	accepts := encodings
	if testing.Short() {
		accepts = few
	}
	if len(w.content.resources) < 60 {
		t.Fatalf("there are only %d resources", len(w.content.resources))
	}
	for _, r := range w.content.resources {
		t.Run(strings.Join([]string{r.Group, r.Version, r.Resource}, " "), func(t *testing.T) {
			path := fmt.Sprintf("%s?resourceVersion=%d&resourceVersionMatch=Exact", r.path(""), w.filled)
			for _, accept := range accepts {
				w.same(t, get(path, accept))
			}
			zipped := get(path, "application/json")
			zipped.Headers["Accept-Encoding"] = "gzip"
			w.same(t, zipped)
			if testing.Short() {
				return
			}
			w.same(t, get(path+"&includeObject=None", asTable))
			w.same(t, get(path+"&includeObject=Object", asTable))
			w.same(t, get(path+"&pretty=true", "application/json"))
			w.same(t, get(path+"&limit=2", "application/json"))
		})
	}
}

// known names objects of some resources that no server writes to.
var known = []string{
	"/api/v1/namespaces/twins/configmaps/many-03", "/api/v1/namespaces/twins/pods/scheduled", "/api/v1/namespaces/twins/events/old",
	"/api/v1/namespaces/twins/secrets/typed", "/api/v1/namespaces/twins", "/api/v1/nodes/all-kinds",
	"/apis/events.k8s.io/v1/namespaces/twins/events/old", "/apis/apps/v1/namespaces/all-kinds/deployments/web",
	"/apis/apps/v1/namespaces/all-kinds/deployments/web/scale", "/apis/apps/v1/namespaces/all-kinds/deployments/web/status",
	"/apis/autoscaling/v1/namespaces/all-kinds/horizontalpodautoscalers/web", "/apis/autoscaling/v2/namespaces/all-kinds/horizontalpodautoscalers/web",
	"/apis/twins.triune.dev/v1/namespaces/twins/widgets/first", "/apis/twins.triune.dev/v1beta1/namespaces/twins/widgets/first",
	"/apis/twins.triune.dev/v1/namespaces/twins/widgets/third", "/apis/twins.triune.dev/v1beta1/namespaces/twins/widgets/third",
	"/apis/twins.triune.dev/v1/realms/one", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/widgets.twins.triune.dev",
	"/apis/rbac.authorization.k8s.io/v1/clusterroles/all-kinds", "/api/v1/namespaces/twins/configmaps/none", "/apis/twins.triune.dev/v1/namespaces/twins/widgets/none",
}

// objects reads single objects in every encoding.
func (w *twins) objects(t *testing.T) {
	paths := known
	if testing.Short() {
		paths = []string{paths[0], paths[12]}
	}
	for _, path := range paths {
		for _, accept := range append(slices.Clone(encodings), "application/json"+asOne, "application/vnd.kubernetes.protobuf"+asOne, "application/cbor"+asOne, "application/yaml"+asOne, "text/html") {
			w.same(t, get(path, accept))
		}
		for _, query := range []string{"resourceVersion=0", "resourceVersion=1", fmt.Sprint("resourceVersion=", w.filled), "resourceVersion=abc", "resourceVersion=-1", "pretty=true", "includeObject=Object", "limit=1", "export=true"} {
			w.same(t, get(path+"?"+query, ""))
			w.same(t, get(path+"?"+query, asTable))
		}
	}
}

// collections have objects that no server writes to.
var collections = []string{
	"/api/v1/namespaces/twins/configmaps", "/api/v1/namespaces/twins/pods", "/api/v1/pods", "/api/v1/namespaces/twins/events", "/api/v1/namespaces/all-kinds/services",
	"/apis/events.k8s.io/v1/namespaces/twins/events", "/apis/apps/v1/deployments", "/apis/autoscaling/v1/horizontalpodautoscalers",
	"/apis/twins.triune.dev/v1/widgets", "/apis/twins.triune.dev/v1beta1/namespaces/twins/widgets", "/apis/twins.triune.dev/v1/realms",
	"/apis/apiextensions.k8s.io/v1/customresourcedefinitions", "/api/v1/namespaces/empty/configmaps", "/apis/twins.triune.dev/v1/namespaces/empty/widgets",
}

// selections are queries with selectors for every resource.
var selections = []string{
	"labelSelector=third%3D1", "labelSelector=a", "labelSelector=a+in+(1,2),a!%3D2", "labelSelector=!a", "labelSelector=none%3Dsuch", "labelSelector=few%3D3&limit=2",
	"fieldSelector=metadata.name%3Dmany-07", "fieldSelector=metadata.name%3Dfirst", "fieldSelector=metadata.name!%3Dfirst", "fieldSelector=metadata.namespace%3Dtwins",
	"fieldSelector=metadata.namespace%3Dstory", "fieldSelector=metadata.name%3Dfirst,metadata.namespace%3Dtwins", "fieldSelector=metadata.name%3D..", "fieldSelector=metadata.namespace%3D..",
	"fieldSelector=", "labelSelector=", "fieldSelector=metadata.name%3D",
}

// lists uses all ways to request a revision. Answers at the newest revision are compared
// while both etcds have the same one.
func (w *twins) lists(t *testing.T) {
	accepts := encodings
	if testing.Short() {
		accepts = few[:2]
	}
	paths := collections
	if testing.Short() {
		paths = []string{paths[0], paths[1], paths[9]}
	}
	for _, path := range paths {
		t.Run(strings.ReplaceAll(path[1:], "/", " "), func(t *testing.T) {
			for _, accept := range accepts {
				w.sameNow(t, get(path, accept))
			}
			// Caches answer all of the following; a consistent list brings them to the same
			// revision.
			for _, query := range []string{
				"resourceVersion=0", "resourceVersion=0&limit=3", "resourceVersion=0&resourceVersionMatch=NotOlderThan", "limit=3", "limit=1000",
				fmt.Sprintf("resourceVersion=%d", w.filled), fmt.Sprintf("resourceVersion=%d&limit=2", w.filled),
				fmt.Sprintf("resourceVersion=%d&resourceVersionMatch=NotOlderThan&limit=2", w.filled), "timeoutSeconds=5", "resourceVersionMatch=",
			} {
				w.sameFresh(t, path, query)
			}
			for _, query := range selections {
				w.sameFresh(t, path, query)
				if !testing.Short() {
					w.sameFresh(t, path, query+"&resourceVersion=0")
					w.same(t, get(path+"?"+query+w.exactly(), asTable))
				}
			}
			fields := []string{"spec.nodeName%3Dtwin", "spec.nodeName%3D", "status.phase%3DPending", "type%3Dexample.com/type", "reason%3DTwins", "involvedObject.name%3Dwaiting",
				"spec.color%3Dred", "spec.color!%3Dred", "spec.color%3D", "spec.size%3D1", "spec.big%3Dtrue", "spec.shape%3Dsquare", "spec.shape%3Dround,spec.color%3Dred", "spec.none%3D1"}
			for _, field := range fields {
				w.sameFresh(t, path, "fieldSelector="+field)
				w.same(t, get(path+"?fieldSelector="+field+w.exactly(), ""))
				w.sameFresh(t, path, "limit=1&fieldSelector="+field)
			}
		})
	}
}

func (w *twins) exactly() string {
	return fmt.Sprintf("&resourceVersion=%d&resourceVersionMatch=Exact", w.filled)
}

// sameFresh compares after bringing the caches of the resource to the same revision.
func (w *twins) sameFresh(t *testing.T, path, query string) {
	t.Helper()
	w.sameFreshIn(t, path, query, "")
}

func (w *twins) sameFreshIn(t *testing.T, path, query, accept string) {
	t.Helper()
	w.sameAfter(t, get(path+"?"+query, accept), func() error {
		if _, err := w.level(t.Context()); err != nil {
			return err
		}
		_, err := w.ask(t.Context(), get(path, ""))
		return err
	})
}

// pages reads lists page by page, each server with the tokens of the other, which are
// equal.
func (w *twins) pages(t *testing.T) {
	paths := collections
	if testing.Short() {
		paths = paths[8:9]
	}
	for _, path := range paths {
		for _, query := range []string{"limit=1", "limit=7", "limit=2&labelSelector=a", "limit=3&labelSelector=third%3D2", "limit=2&fieldSelector=metadata.namespace%3Dtwins"} {
			for _, version := range []string{"", w.exactly()} {
				r := get(path+"?"+query+version, "")
				a := w.sameNow(t, r)
				for page := 0; ; page++ {
					var list struct {
						Metadata struct{ Continue string }
					}
					if err := json.Unmarshal(a.Body, &list); err != nil {
						t.Errorf("%s: %v", r.Do, err)
						break
					}
					if list.Metadata.Continue == "" || page == 12 {
						break
					}
					r = get(path+"?"+query+"&continue="+url.QueryEscape(list.Metadata.Continue), []string{"", "application/vnd.kubernetes.protobuf", asTable}[page%3])
					w.same(t, r)
					r.Headers = nil
					a = w.same(t, r)
				}
			}
		}
	}
}

var oldest = regexp.MustCompile(` \(\d+\)`)

// token returns a continue token as the API encodes it.
func token(revision int64, start string) string {
	return base64.RawURLEncoding.EncodeToString(fmt.Appendf(nil, `{"v":"meta.k8s.io/v1","rv":%d,"start":%q}`, revision, start))
}

// expired reads at compacted revisions, at which the objects of this suite did not exist
// yet, or which neither server has in memory.
func (w *twins) expired(t *testing.T) {
	for _, path := range []string{"/apis/twins.triune.dev/v1/widgets", "/apis/twins.triune.dev/v1beta1/namespaces/twins/widgets", "/api/v1/namespaces/twins/events", "/apis/twins.triune.dev/v1/realms"} {
		accepts := []string{"application/json", "application/yaml", asTable}
		if strings.HasSuffix(path, "events") {
			accepts = append(accepts, "application/vnd.kubernetes.protobuf")
		}
		for _, accept := range accepts {
			for _, query := range []string{
				fmt.Sprintf("resourceVersion=%d&resourceVersionMatch=Exact", w.compacted-1), "resourceVersion=1&resourceVersionMatch=Exact&limit=1",
				"limit=1&continue=" + token(w.compacted-1, "twins/a"), "limit=1&continue=" + token(1, "a"), "continue=" + token(w.compacted-1, "twins/a"),
				"limit=1&labelSelector=a&continue=" + token(w.compacted-1, "a"),
				fmt.Sprintf("limit=1&resourceVersion=%d", w.compacted-1),
			} {
				a := w.sameNow(t, get(path+"?"+query, accept))
				if a.Code != http.StatusGone {
					t.Errorf("%s?%s is %d, want 410", path, query, a.Code)
				}
			}
			// A 410 has a token to continue with the newest state.
			w.sameNow(t, get(path+"?limit=1&continue="+token(-1, "twins/b"), accept))
			w.sameNow(t, get(path+"?continue="+token(-1, "s"), accept))
		}
		watch := get(path+"?watch=true&resourceVersion=1", "")
		answers, err := w.ask(t.Context(), watch)
		if err != nil {
			t.Fatal(err)
		}
		for i := range answers { // the oldest known revision depends on the server
			answers[i].Body = oldest.ReplaceAll(answers[i].Body, nil)
		}
		if !equal(answers[0], answers[1]) {
			t.Errorf("%s (-kube-apiserver +tested):\n%s", watch.Do, difference(answers[0], answers[1]))
		}
	}
}

// terms returns a selector with n terms.
func terms(n int, separator, format string) string {
	all := make([]string, n)
	for i := range all {
		all[i] = fmt.Sprintf(format, i)
	}
	return url.QueryEscape(strings.Join(all, separator))
}

// malformed sends requests that cannot be answered.
func (w *twins) malformed(t *testing.T) {
	queries := []string{
		"continue=x", "continue=e30", "continue=%00", "limit=1&continue=" + token(0, "a"), "limit=1&continue=" + token(5, ""), "continue=" + token(-2, "a"),
		"continue=" + token(1<<62, "a"), "continue=" + token(w.filled, "../../secrets/a"), "continue=" + token(w.filled, "/../a"), "limit=2&continue=" + token(w.filled, "\x00"),
		"continue=" + token(w.filled, "twins/a") + "&resourceVersion=5", "continue=" + token(w.filled, "twins/a") + "&resourceVersion=0", "continue=" + token(w.filled, "a") + "&resourceVersionMatch=Exact",
		"continue=" + base64.RawURLEncoding.EncodeToString([]byte(`{"v":"meta.k8s.io/v9","rv":1,"start":"a"}`)), "continue=" + base64.StdEncoding.EncodeToString([]byte(`{"v":"meta.k8s.io/v1","rv":5,"start":"a"}`)),
		"limit=-1", "limit=0", "limit=abc", "limit=9223372036854775807", "limit=9223372036854775808", "limit=1.5", "limit=1&limit=2", "limit=",
		"resourceVersion=-1", "resourceVersion=abc", "resourceVersion=1.0", "resourceVersion=18446744073709551616", "resourceVersion=00",
		"resourceVersionMatch=Exact", "resourceVersionMatch=NotOlderThan", "resourceVersionMatch=Newest&resourceVersion=1", "resourceVersion=0&resourceVersionMatch=Exact", "resourceVersionMatch=exact&resourceVersion=5",
		"resourceVersion=1&resourceVersion=2", "sendInitialEvents=true", "sendInitialEvents=false", "sendInitialEvents=maybe", "allowWatchBookmarks=maybe", "allowWatchBookmarks=true",
		"labelSelector=(", "labelSelector=a+in", "labelSelector=a=b=c", "labelSelector=-a", "labelSelector=a+gt+x", "labelSelector=a%3E1", "labelSelector=" + strings.Repeat("a", 300),
		"fieldSelector=x", "fieldSelector=x=y", "fieldSelector=spec.none=1", "fieldSelector=metadata.labels=1", "fieldSelector=a%5C", "fieldSelector=metadata.uid=1", "fieldSelector=status.phase=", "fieldSelector=spec.shape=a",
		"timeoutSeconds=abc", "timeoutSeconds=-1", "timeout=abc", "timeout=0s", "watch=maybe&timeoutSeconds=1", "watch=0", "watch=false", "pretty=maybe", "includeObject=Some", "shardSelector=x", "nothing=1", "a;b", "%zz=1", "=",
		"watch=true&resourceVersion=abc", "watch=true&resourceVersion=-1", "watch=true&resourceVersionMatch=Exact&resourceVersion=1", "watch=true&resourceVersionMatch=NotOlderThan", "watch=true&sendInitialEvents=true",
		"watch=true&sendInitialEvents=true&resourceVersionMatch=Exact", "watch=true&sendInitialEvents=false&resourceVersionMatch=NotOlderThan&timeoutSeconds=1&resourceVersion=0", "watch=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&resourceVersion=abc",
		"watch=true&labelSelector=(", "watch=true&fieldSelector=spec.none=1", "watch=true&continue=x", "watch=true&continue=x&timeoutSeconds=1", "watch=true&timeoutSeconds=abc", "watch=true&includeObject=Some&timeoutSeconds=1",
		"watch=true&limit=-1&timeoutSeconds=1&resourceVersion=" + fmt.Sprint(w.filled) + "&fieldSelector=metadata.name=none",
	}
	paths := []string{"/api/v1/namespaces/twins/configmaps", "/apis/twins.triune.dev/v1/namespaces/twins/widgets", "/api/v1/namespaces/twins/events", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", "/api/v1/namespaces/twins/pods", "/apis/apiregistration.k8s.io/v1/apiservices"}
	accepts := []string{"", "application/vnd.kubernetes.protobuf", asTable, "application/yaml"}
	if testing.Short() {
		paths, accepts = paths[:2], accepts[:1]
	}
	for _, path := range paths {
		t.Run(strings.ReplaceAll(path[1:], "/", " "), func(t *testing.T) {
			for _, query := range queries {
				if testing.Short() && strings.Contains(query, "timeoutSeconds=1") {
					continue // watches end after the timeout
				}
				for _, accept := range accepts {
					w.sameFreshIn(t, path, query, accept)
				}
			}
			many := 10_000
			if testing.Short() {
				many = 1_000
			}
			for _, query := range []string{
				"labelSelector=" + terms(many, ",", "k%d!=v"), "labelSelector=third+in+(" + terms(many, ",", "%d") + ")", "labelSelector=" + terms(many, ",", "third!=%d"),
				"fieldSelector=" + terms(many, ",", "metadata.name!=x%d"), "labelSelector=" + terms(many, ",", "k%d"),
			} {
				w.sameNow(t, get(path+"?"+query, ""))
			}
		})
	}
	// A revision that etcd does not have yet is waited for, then refused.
	w.future(t)
}

// future requests revisions that do not exist yet. The message of the refusal contains the
// newest one.
func (w *twins) future(t *testing.T) {
	paths := []string{"/api/v1/namespaces/twins/configmaps", "/api/v1/namespaces/twins/configmaps/many-01", "/apis/twins.triune.dev/v1/widgets"}
	if testing.Short() {
		paths = paths[:1]
	}
	for _, path := range paths {
		queries := []string{"resourceVersion=999999", "resourceVersion=999999&resourceVersionMatch=Exact", "resourceVersion=999999&limit=2", "resourceVersion=999999&resourceVersionMatch=NotOlderThan&limit=2", "limit=1&continue=" + token(999999, "twins/a")}
		if testing.Short() {
			queries = queries[:1]
		}
		for _, query := range queries {
			w.sameAfter(t, get(path+"?"+query, ""), func() error {
				if _, err := w.level(t.Context()); err != nil {
					return err
				}
				_, err := w.ask(t.Context(), get("/api/v1/configmaps?limit=1", ""))
				return err
			})
		}
	}
}
