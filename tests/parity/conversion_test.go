package parity

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"triune.dev/tests/hooks"
)

// conversionReview is a ConversionReview of apiextensions.k8s.io/v1, with objects that need
// not be valid.
type conversionReview struct {
	metav1.TypeMeta `json:",inline"`
	Request         *conversionRequest  `json:"request,omitempty"`
	Response        *conversionResponse `json:"response,omitempty"`
}

type conversionRequest struct {
	UID               string           `json:"uid"`
	DesiredAPIVersion string           `json:"desiredAPIVersion"`
	Objects           []map[string]any `json:"objects"`
}

type conversionResponse struct {
	UID              string           `json:"uid"`
	ConvertedObjects []map[string]any `json:"convertedObjects"`
	Result           metav1.Status    `json:"result"`
}

// conversionAnswer is the annotation of an object that names how its conversion goes wrong.
const conversionAnswer = "answer"

// wrongConversions change a correct response.
var wrongConversions = map[string]func(*conversionReview){
	"refused": func(r *conversionReview) {
		r.Response.Result = metav1.Status{Status: "Failure", Message: "not this one"}
	},
	"refused-bare": func(r *conversionReview) { r.Response.Result = metav1.Status{} },
	"wrong-uid":    func(r *conversionReview) { r.Response.UID = "another" },
	"none":         func(r *conversionReview) { r.Response.ConvertedObjects = nil },
	"twice": func(r *conversionReview) {
		r.Response.ConvertedObjects = append(r.Response.ConvertedObjects, r.Response.ConvertedObjects...)
	},
	"no-response":     func(r *conversionReview) { r.Response = nil },
	"other-kind":      func(r *conversionReview) { r.Kind = "AdmissionReview" },
	"other-version":   func(r *conversionReview) { r.APIVersion = "apiextensions.k8s.io/v1beta1" },
	"unconverted":     eachConverted(func(o map[string]any) { o["apiVersion"] = "example.com/v9" }),
	"kind":            eachConverted(func(o map[string]any) { o["kind"] = "Other" }),
	"untyped":         eachConverted(func(o map[string]any) { delete(o, "apiVersion"); delete(o, "kind") }),
	"renamed":         eachMetadata(func(m map[string]any) { m["name"] = "other" }),
	"moved":           eachMetadata(func(m map[string]any) { m["namespace"] = "other" }),
	"uid":             eachMetadata(func(m map[string]any) { m["uid"] = "other" }),
	"old":             eachMetadata(func(m map[string]any) { m["resourceVersion"] = "1" }),
	"finalizers":      eachMetadata(func(m map[string]any) { m["finalizers"] = []any{"example.com/other"} }),
	"labels":          eachMetadata(func(m map[string]any) { m["labels"] = map[string]any{"converted": "yes"} }),
	"bad-labels":      eachMetadata(func(m map[string]any) { m["labels"] = map[string]any{"not a label!": "x"} }),
	"labels-number":   eachMetadata(func(m map[string]any) { m["labels"] = 3 }),
	"no-metadata":     eachConverted(func(o map[string]any) { delete(o, "metadata") }),
	"metadata-number": eachConverted(func(o map[string]any) { o["metadata"] = 3 }),
	"no-spec":         eachConverted(func(o map[string]any) { delete(o, "spec") }),
	"unknown-field":   eachConverted(func(o map[string]any) { o["unknown"] = true }),
	"invalid":         eachConverted(func(o map[string]any) { o["spec"] = map[string]any{"size": "big", "length": "long"} }),
}

func eachConverted(change func(map[string]any)) func(*conversionReview) {
	return func(r *conversionReview) {
		for _, o := range r.Response.ConvertedObjects {
			change(o)
		}
	}
}

func eachMetadata(change func(map[string]any)) func(*conversionReview) {
	return eachConverted(func(o map[string]any) {
		if metadata, ok := o["metadata"].(map[string]any); ok {
			change(metadata)
		}
	})
}

// serveConversions is a conversion webhook: spec.size of v1 is spec.length of v2.
func serveConversions(w http.ResponseWriter, req *http.Request) {
	var review conversionReview
	if err := json.NewDecoder(req.Body).Decode(&review); err != nil || review.Request == nil {
		http.Error(w, "not a review", http.StatusBadRequest)
		return
	}
	asked := review.Request
	wrong := ""
	review.Request, review.Response = nil, &conversionResponse{UID: asked.UID, Result: metav1.Status{Status: metav1.StatusSuccess}}
	for _, o := range asked.Objects {
		if metadata, ok := o["metadata"].(map[string]any); ok {
			if annotations, ok := metadata["annotations"].(map[string]any); ok && annotations[conversionAnswer] != nil {
				wrong = fmt.Sprint(annotations[conversionAnswer])
			}
		}
		convertThing(o, asked.DesiredAPIVersion)
		review.Response.ConvertedObjects = append(review.Response.ConvertedObjects, o)
	}
	if send, ok := hooks.NoReviews[wrong]; ok {
		send(w)
		return
	}
	if change, ok := wrongConversions[wrong]; ok {
		change(&review)
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(review) // the client may have gone
}

func convertThing(o map[string]any, to string) {
	o["apiVersion"] = to
	spec, ok := o["spec"].(map[string]any)
	if !ok {
		return
	}
	from, into := "size", "length"
	if strings.HasSuffix(to, "/v1") {
		from, into = into, from
	}
	if value, ok := spec[from]; ok {
		delete(spec, from)
		spec[into] = value
	}
}

// convertedDefinition returns a CRD with two versions and a conversion webhook.
func convertedDefinition(webhook map[string]any) map[string]any {
	version := func(name, field string) map[string]any {
		object := func(properties map[string]any) map[string]any {
			return map[string]any{"type": "object", "properties": properties}
		}
		integer := map[string]any{"type": "integer"}
		return map[string]any{
			"name": name, "served": true, "storage": name == "v1", "subresources": map[string]any{"status": map[string]any{}},
			"additionalPrinterColumns": []any{map[string]any{"name": "Measure", "type": "integer", "jsonPath": ".spec." + field}},
			"selectableFields":         []any{map[string]any{"jsonPath": ".spec.colour"}, map[string]any{"jsonPath": ".spec." + field}},
			"schema": map[string]any{"openAPIV3Schema": object(map[string]any{
				"spec":   object(map[string]any{field: integer, "colour": map[string]any{"type": "string"}}),
				"status": object(map[string]any{"ready": map[string]any{"type": "boolean"}}),
			})},
		}
	}
	return map[string]any{
		"metadata": map[string]any{"name": "things.${ns}.example.com"},
		"spec": map[string]any{
			"group": "${ns}.example.com", "scope": "Namespaced",
			"names":    map[string]any{"plural": "things", "singular": "thing", "kind": "Thing", "listKind": "ThingList"},
			"versions": []any{version("v1", "size"), version("v2", "length")},
			"conversion": map[string]any{"strategy": "Webhook", "webhook": map[string]any{
				"conversionReviewVersions": []any{"v1"}, "clientConfig": webhook,
			}},
		},
	}
}

// TestConversion reads and writes custom resources in the version that is not stored,
// through a webhook that is found by its URL and one that is found by its Service.
func TestConversion(t *testing.T) {
	site := newHookSite(t, [2]*Peer{peers.reference, peers.tested})
	server := site.certificate.Serve(http.HandlerFunc(serveConversions))
	t.Cleanup(server.Close)
	for name, webhook := range map[string]map[string]any{
		"url":     {"url": server.URL + "/convert", "caBundle": bundle(site.certificate)},
		"service": {"service": map[string]any{"namespace": site.namespace, "name": "hook", "path": "/convert", "port": portOf(server)}, "caBundle": bundle(site.certificate)},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newConvertedPair(t, server, webhook)
			for _, r := range conversionSteps() {
				p.same(r)
			}
			p.removeThings()
		})
	}
	t.Run("wrong answers", func(t *testing.T) {
		t.Parallel()
		p := newConvertedPair(t, server, map[string]any{"url": server.URL, "caBundle": bundle(site.certificate)})
		for _, answer := range slices.Sorted(maps.Keys(allWrongConversions())) {
			t.Run(answer, func(t *testing.T) {
				p := p.in(t)
				for _, r := range wrongConversionSteps(answer) {
					p.same(r)
				}
			})
		}
		p.removeThings()
	})
	for name, webhook := range map[string]map[string]any{
		"unknown authority": {"url": server.URL, "caBundle": bundle(site.other)},
		"no such service":   {"service": map[string]any{"namespace": site.namespace, "name": "none"}, "caBundle": bundle(site.certificate)},
		"nobody listens":    {"url": "https://127.0.0.1:1/convert", "caBundle": bundle(site.certificate)},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newConvertedPair(t, server, webhook)
			for _, r := range wrongConversionSteps("unreachable") {
				p.same(r)
			}
			p.removeThings()
		})
	}
}

func portOf(server *httptest.Server) any {
	address := server.Listener.Addr().String()
	return json.Number(address[strings.LastIndexByte(address, ':')+1:])
}

// newConvertedPair starts a conversation with a CRD that the webhook converts.
func newConvertedPair(t *testing.T, server *httptest.Server, webhook map[string]any) *pair {
	t.Helper()
	p := newPair(t)
	p.createNamespace()
	for _, n := range p.normalisers {
		n.Hosts = append(n.Hosts, server.Listener.Addr().String())
	}
	p.same(Request{Do: "POST /apis/apiextensions.k8s.io/v1/customresourcedefinitions", Unchecked: true, Object: convertedDefinition(webhook)})
	for _, version := range []string{"v1", "v2"} {
		p.same(Request{Do: "GET /apis/${ns}.example.com/" + version + "/namespaces/${ns}/things", Until: "ThingList"})
	}
	return p
}

// removeThings removes the CRD, and waits until no replica's discovery has its group.
func (p *pair) removeThings() {
	p.t.Helper()
	p.same(Request{Do: "DELETE /apis/apiextensions.k8s.io/v1/customresourcedefinitions/things.${ns}.example.com", Unchecked: true})
	ctx, cancel := context.WithTimeout(p.t.Context(), requestTimeout)
	defer cancel()
	for i, vars := range []map[string]string{p.reference, p.tested} {
		for unseen := 0; unseen < sightings*(*replicas); unseen++ {
			groups, err := p.peers[i].Send(ctx, Request{Do: "GET /apis"}, vars)
			if err != nil {
				p.t.Fatalf("%s still has the group: %v", p.peers[i].Name, err)
			}
			if strings.Contains(string(groups.Body), vars["ns"]+".example.com") {
				unseen = -1
				time.Sleep(20 * time.Millisecond)
			}
		}
	}
}

func allWrongConversions() map[string]bool {
	all := map[string]bool{}
	for name := range wrongConversions {
		all[name] = true
	}
	for name := range hooks.NoReviews {
		all[name] = true
	}
	return all
}

const (
	thingsV1   = "/apis/${ns}.example.com/v1/namespaces/${ns}/things"
	thingsV2   = "/apis/${ns}.example.com/v2/namespaces/${ns}/things"
	mergePatch = "application/merge-patch+json"
	applyPatch = "application/apply-patch+yaml"
	asTable    = "application/json;as=Table;v=v1;g=meta.k8s.io"
)

func thing(version, name string, spec, annotations map[string]any) map[string]any {
	metadata := map[string]any{"name": name}
	if annotations != nil {
		metadata["annotations"] = annotations
		metadata["labels"] = map[string]any{conversionAnswer: annotations[conversionAnswer]}
	}
	return map[string]any{"apiVersion": "${ns}.example.com/" + version, "kind": "Thing", "metadata": metadata, "spec": spec}
}

// conversionSteps are every verb in both versions.
func conversionSteps() []Request {
	table, merge, apply := map[string]string{"Accept": asTable}, map[string]string{"Content-Type": mergePatch}, map[string]string{"Content-Type": applyPatch}
	steps := []Request{
		{Do: "POST " + thingsV1, Object: thing("v1", "a", map[string]any{"size": 1, "colour": "red"}, nil)},
		{Do: "POST " + thingsV2, Object: thing("v2", "b", map[string]any{"length": 2, "colour": "blue"}, nil)},
		{Do: "POST " + thingsV2 + "?dryRun=All", Object: thing("v2", "c", map[string]any{"length": 3}, nil)},
		{Do: "POST " + thingsV2, Object: thing("v2", "c", map[string]any{"length": "three"}, nil)},
		{Do: "POST " + thingsV2 + "?fieldValidation=Strict", Object: thing("v2", "c", map[string]any{"size": 3}, nil)},
		{Do: "POST " + thingsV2 + "?fieldValidation=Warn", Object: thing("v2", "d", map[string]any{"size": 3}, nil)},
	}
	read := func() {
		for _, things := range []string{thingsV1, thingsV2} {
			steps = append(steps,
				Request{Do: "GET " + things + "/a"}, Request{Do: "GET " + things + "/b"}, Request{Do: "GET " + things},
				Request{Do: "GET " + things + "?limit=1", Volatile: []string{"metadata.continue"}}, // names a revision
				Request{Do: "GET " + things + "?fieldSelector=spec.colour%3Dblue"},
				Request{Do: "GET " + things, Headers: table}, Request{Do: "GET " + things + "/b", Headers: table},
				Request{Do: "GET " + things + "?watch=true", Events: 3},
			)
		}
	}
	read()
	steps = append(steps,
		Request{Do: "PATCH " + thingsV2 + "/a", Headers: merge, Body: `{"spec":{"length":10}}`},
		Request{Do: "PATCH " + thingsV1 + "/b", Headers: merge, Body: `{"spec":{"size":20}}`},
		Request{Do: "PATCH " + thingsV2 + "/a/status", Headers: merge, Body: `{"status":{"ready":true},"spec":{"length":99}}`},
		Request{Do: "GET " + thingsV1 + "/a/status"},
		Request{Do: "PATCH " + thingsV2 + "/a?fieldManager=one", Headers: apply, Object: thing("v2", "a", map[string]any{"length": 11}, nil)},
		Request{Do: "PATCH " + thingsV2 + "/a?fieldManager=one&force=true", Headers: apply, Object: thing("v2", "a", map[string]any{"length": 11}, nil)},
		Request{Do: "PATCH " + thingsV1 + "/a?fieldManager=two", Headers: apply, Object: thing("v1", "a", map[string]any{"size": 12}, nil)},
		Request{Do: "PATCH " + thingsV1 + "/a?fieldManager=two&force=true", Headers: apply, Object: thing("v1", "a", map[string]any{"size": 12}, nil)},
		Request{Do: "PATCH " + thingsV2 + "/a?fieldManager=one", Headers: apply, Object: thing("v2", "a", map[string]any{"colour": "green"}, nil)},
		Request{Do: "PATCH " + thingsV2 + "/e?fieldManager=one", Headers: apply, Object: thing("v2", "e", map[string]any{"length": 5}, nil)},
	)
	read()
	steps = append(steps,
		Request{Do: "PUT " + thingsV2 + "/b", Object: thing("v2", "b", map[string]any{"length": 21}, nil)},
		Request{Do: "DELETE " + thingsV2 + "/b"},
		Request{Do: "DELETE " + thingsV2 + "?labelSelector=none"},
		// What is stored in the old version is converted when it is read.
		Request{Do: "PATCH /apis/apiextensions.k8s.io/v1/customresourcedefinitions/things.${ns}.example.com", Unchecked: true, Headers: map[string]string{"Content-Type": "application/json-patch+json"},
			Body: `[{"op":"replace","path":"/spec/versions/0/storage","value":false},{"op":"replace","path":"/spec/versions/1/storage","value":true}]`},
		Request{Do: "PATCH " + thingsV1 + "/d", Headers: merge, Body: `{"metadata":{"labels":{"a":"b"}}}`},
		Request{Do: "GET " + thingsV1}, Request{Do: "GET " + thingsV2}, Request{Do: "GET " + thingsV2 + "/a"}, Request{Do: "GET " + thingsV1 + "/d"},
		Request{Do: "DELETE " + thingsV1},
		Request{Do: "GET " + thingsV2},
	)
	return steps
}

// wrongConversionSteps are requests for an object whose conversion fails. There is no LIST and
// no WATCH of v2: kube-apiserver's watch cache cannot be filled any more and refuses both for a
// while.
func wrongConversionSteps(answer string) []Request {
	annotations := map[string]any{conversionAnswer: answer}
	selected := "?labelSelector=" + conversionAnswer + "%3D" + answer
	merge := map[string]string{"Content-Type": mergePatch}
	return []Request{
		{Do: "POST " + thingsV1, Object: thing("v1", answer, map[string]any{"size": 1}, annotations)},
		{Do: "POST " + thingsV2, Object: thing("v2", answer+"-2", map[string]any{"length": 1}, annotations)},
		{Do: "GET " + thingsV1 + "/" + answer},
		{Do: "GET " + thingsV2 + "/" + answer},
		{Do: "PATCH " + thingsV2 + "/" + answer, Headers: merge, Body: `{"spec":{"length":2}}`},
		{Do: "PUT " + thingsV2 + "/" + answer, Object: thing("v2", answer, map[string]any{"length": 3}, annotations)},
		{Do: "DELETE " + thingsV2 + "/" + answer},
		{Do: "DELETE " + thingsV1 + selected},
	}
}
