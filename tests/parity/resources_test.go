package parity

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
)

// TestEveryResource sends every method to every resource and subresource of the reference:
// to the collection, to an object that does not exist, and with bodies that are empty,
// invalid, or of another kind.
func TestEveryResource(t *testing.T) {
	for _, gv := range groupVersions(t, peers.reference) {
		t.Run(strings.ReplaceAll(strings.TrimPrefix(gv.path, "/"), "/", " "), func(t *testing.T) {
			for _, r := range gv.resources {
				t.Run(strings.ReplaceAll(r.Name, "/", " "), func(t *testing.T) {
					t.Parallel()
					p := newPair(t)
					for _, request := range probes(gv.path, r.Name, r.Namespaced) {
						p.same(request)
					}
				})
			}
		})
	}
}

// probes returns the requests for one resource or subresource ("pods/log").
func probes(group, resource string, namespaced bool) []Request {
	resource, subresource, isSub := strings.Cut(resource, "/")
	base := group + "/"
	if namespaced {
		base += "namespaces/none-such/"
	}
	collection := base + resource
	object := collection + "/none-such"
	if isSub {
		object += "/" + subresource
	}
	var all []Request
	add := func(do, body string, headers map[string]string) {
		all = append(all, Request{Do: do, Body: body, Headers: headers})
	}
	merge := map[string]string{"Content-Type": "application/merge-patch+json"}
	apply := map[string]string{"Content-Type": "application/apply-patch+yaml"}
	strategic := map[string]string{"Content-Type": "application/strategic-merge-patch+json"}
	if !isSub {
		if namespaced {
			// Use a namespace without objects: each server has its own cluster-wide
			// objects.
			add("GET "+collection, "", nil)
			add("GET "+collection, "", map[string]string{"Accept": "application/json;as=Table;v=v1;g=meta.k8s.io"})
			add("GET "+collection+"?limit=1&resourceVersion=0", "", nil)
		} else {
			add("GET "+collection+"?labelSelector=none-such", "", nil)
			add("GET "+collection+"?labelSelector=none-such", "", map[string]string{"Accept": "application/json;as=Table;v=v1;g=meta.k8s.io"})
		}
		add("POST "+collection, "{}", nil)
		add("POST "+collection, `{"metadata":{"name":"Not A Name"}}`, nil)
		add("POST "+collection, `{"kind":"Nothing","apiVersion":"none/v1"}`, nil)
		add("PUT "+collection, "{}", nil)
		add("PATCH "+collection, "{}", merge)
		add("DELETE "+collection+"?labelSelector=none-such", "", nil)
		add("GET "+collection+"?watch=true&labelSelector=none-such&timeoutSeconds=1&resourceVersion=0&fieldSelector=none%3Dsuch", "", nil)
	}
	add("GET "+object, "", nil)
	add("GET "+object, "", map[string]string{"Accept": "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io"})
	add("POST "+object, "{}", nil)
	add("PUT "+object, "{}", nil)
	add("PUT "+object, `{"metadata":{"name":"none-such"}}`, nil)
	add("PATCH "+object, "{}", merge)
	add("PATCH "+object, "{}", strategic)
	add("PATCH "+object+"?fieldManager=m", "{}", apply)
	add("PATCH "+object, "{}", nil)
	add("DELETE "+object, "", nil)
	add("OPTIONS "+object, "", nil)
	add(fmt.Sprintf("%s %s", "FROB", object), "", nil)
	if !namespaced && !isSub {
		add("GET "+group+"/namespaces/none-such/"+resource, "", nil)
	}
	add(http.MethodGet+" "+object+"/nothing", "", nil)
	return all
}
