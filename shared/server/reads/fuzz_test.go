package reads

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// FuzzLists lists with arbitrary selectors, limits, continue tokens and resource versions.
// The answers from stored bytes must equal those of upstream's handler, page by page, with
// and without an index.
func FuzzLists(f *testing.F) {
	w := newWorld(f)
	pods, widgets := w.pods(f), w.widgets(f)
	for i := range 40 {
		namespace, name := []string{"default", "kube-system", "a"}[i%3], fmt.Sprintf("n%02d", i)
		pods.create(f, pod(namespace, name, i))
		widgets.create(f, widget(namespace, name, i))
	}
	now := pods.settle(f)
	token := func(text string) string { return base64.RawURLEncoding.EncodeToString([]byte(text)) }
	for _, seed := range []struct {
		label, field   string
		limit          int64
		token          string
		version, match string
	}{
		{label: "app=app-1"}, {label: "app in (app-1,app-2),every"}, {label: "app!=app-1,!odd"}, {label: "odd=", limit: 3}, {label: "app notin (app-1, app-2)", limit: 2},
		{label: "every=one,app in (app-3,)"}, {label: "a/b==c"}, {label: "app>1"}, {label: "x in ()"}, {label: "\x00"},
		{field: "metadata.name=n06"}, {field: "metadata.namespace!=default", limit: 5}, {field: "spec.nodeName=node-1,status.phase!=Failed"}, {field: `spec.nodeName=\,`}, {field: "a=b=c"},
		{limit: 7, version: "0"}, {limit: -1}, {version: "1", match: "Exact"}, {version: "x"}, {match: "NotOlderThan"},
		{limit: 3, token: token(`{"v":"meta.k8s.io/v1","rv":` + strconv.FormatInt(now, 10) + `,"start":"default/n03\u0000"}`)},
		{limit: 3, token: token(`{"v":"meta.k8s.io/v1","rv":-1,"start":"../n03"}`)}, {limit: 3, token: token(`{"v":"meta.k8s.io/v1","rv":0,"start":"/"}`)},
		{limit: 3, token: token(`{"v":"meta.k8s.io/v2","rv":5,"start":"a"}`)}, {limit: 3, token: "x"}, {token: token(`{"rv":1e99}`), version: "5"},
	} {
		f.Add(seed.label, seed.field, seed.limit, seed.token, seed.version, seed.match)
	}
	f.Fuzz(func(t *testing.T, label, field string, limit int64, token, version, match string) {
		if later(version, token, now) {
			return // both would wait for it
		}
		query := url.Values{}
		for name, value := range map[string]string{
			"labelSelector": label, "fieldSelector": field, "continue": token, "resourceVersion": version, "resourceVersionMatch": match,
		} {
			if value != "" {
				query.Set(name, value)
			}
		}
		if limit != 0 {
			query.Set("limit", strconv.FormatInt(limit, 10))
		}
		for _, r := range []*resource{pods, widgets} {
			for _, namespace := range []string{"", "/namespaces/default"} {
				page := query
				for range 3 {
					path := r.path + namespace + "/" + r.scope.Resource.Resource + "?" + page.Encode()
					a, _ := r.compare(t, path, http.Header{"Accept": {"application/json"}})
					var list struct{ Metadata metav1.ListMeta }
					if err := json.Unmarshal(a.unpacked, &list); err != nil {
						t.Fatalf("GET %s: %v", path, err)
					}
					if a.status != http.StatusOK || list.Metadata.Continue == "" {
						break
					}
					page = url.Values{
						"labelSelector": query["labelSelector"], "fieldSelector": query["fieldSelector"], "limit": query["limit"],
						"continue": {list.Metadata.Continue},
					}
				}
			}
		}
	})
}

// later reports whether a resource version or a continue token asks for a revision that is
// yet to come.
func later(version, token string, now int64) bool {
	if n, err := strconv.ParseUint(version, 10, 64); err == nil && n > uint64(now) {
		return true
	}
	data, err := base64.RawURLEncoding.DecodeString(token)
	var asked struct {
		Revision int64 `json:"rv"`
	}
	return err == nil && json.Unmarshal(data, &asked) == nil && asked.Revision > now
}
