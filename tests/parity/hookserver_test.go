package parity

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"time"

	admissionv1 "k8s.io/api/admission/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"triune.dev/tests/hooks"
)

// hookServer is the webhooks' server of one of the two servers. It answers as the path
// says, /<namespace of the case>/<type of webhook>/<name>/<answer>, and records the
// reviews.
type hookServer struct {
	*httptest.Server

	mu      sync.Mutex
	reviews map[string][]review // by the namespace of the case; guarded by mu
}

// review is a request that a webhook has received.
type review struct {
	Path, Query, Method string
	Header              http.Header
	Body                json.RawMessage
}

func newHookServer(certificate *hooks.Certificate) *hookServer {
	s := &hookServer{reviews: map[string][]review{}}
	s.Server = certificate.Serve(http.HandlerFunc(s.serve))
	return s
}

// take removes and returns the recorded reviews of a case.
func (s *hookServer) take(namespace string) []review {
	s.mu.Lock()
	defer s.mu.Unlock()
	taken := s.reviews[namespace]
	delete(s.reviews, namespace)
	return taken
}

// probing webhooks answer with a warning, which shows that their configuration is active.
const probing = "probing"

func (s *hookServer) serve(w http.ResponseWriter, req *http.Request) {
	parts := strings.Split(strings.TrimPrefix(req.URL.Path, "/"), "/")
	if len(parts) != 4 {
		http.NotFound(w, req)
		return
	}
	namespace, name, does := parts[0], parts[2], parts[3]
	var body json.RawMessage
	var asked admissionv1.AdmissionReview
	if err := json.NewDecoder(req.Body).Decode(&body); err != nil || json.Unmarshal(body, &asked) != nil || asked.Request == nil {
		http.Error(w, "not a review", http.StatusBadRequest)
		return
	}
	if does != probing {
		header := maps.Clone(req.Header)
		header.Del("Content-Length") // depends on uids and times
		s.mu.Lock()
		s.reviews[namespace] = append(s.reviews[namespace], review{req.URL.Path, req.URL.RawQuery, req.Method, header, body})
		s.mu.Unlock()
	}
	if send, ok := hooks.NoReviews[does]; ok {
		send(w)
		return
	}
	answer, ok := hookAnswers[does]
	if !ok {
		http.NotFound(w, req)
		return
	}
	answered := answer(hookRequest{name: name, kind: parts[1], AdmissionRequest: asked.Request, http: req})
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(answered) // the client may have gone
}

// hookRequest is a request to a webhook with a name.
type hookRequest struct {
	name, kind string
	*admissionv1.AdmissionRequest
	http *http.Request
}

// annotations returns the annotations of the object of the request.
func (r hookRequest) annotations() map[string]string {
	var object metav1.PartialObjectMetadata
	if json.Unmarshal(r.Object.Raw, &object) != nil {
		return nil
	}
	return object.Annotations
}

// answered returns a review with the response.
func (r hookRequest) answered(response *admissionv1.AdmissionResponse) any {
	if response.UID == "" {
		response.UID = r.UID
	}
	return &admissionv1.AdmissionReview{
		TypeMeta: metav1.TypeMeta{APIVersion: "admission.k8s.io/v1", Kind: "AdmissionReview"}, Response: response,
	}
}

func (r hookRequest) allow() any { return r.answered(&admissionv1.AdmissionResponse{Allowed: true}) }

func (r hookRequest) deny(status *metav1.Status) any {
	return r.answered(&admissionv1.AdmissionResponse{Result: status})
}

// patch allows the request with a JSON patch.
func (r hookRequest) patch(patch string) any {
	patchType := admissionv1.PatchTypeJSONPatch
	return r.answered(&admissionv1.AdmissionResponse{Allowed: true, Patch: []byte(patch), PatchType: &patchType})
}

// annotate sets an annotation.
func (r hookRequest) annotate(name, value string) any {
	all := maps.Clone(r.annotations())
	if all == nil {
		all = map[string]string{}
	}
	all[name] = value
	encoded, _ := json.Marshal(all) // of strings
	return r.patch(fmt.Sprintf(`[{"op":"add","path":"/metadata/annotations","value":%s}]`, encoded))
}

// warn allows the request with warnings.
func (r hookRequest) warn(warnings ...string) any {
	return r.answered(&admissionv1.AdmissionResponse{Allowed: true, Warnings: warnings})
}

func patchOf(change func(*admissionv1.AdmissionResponse)) func(hookRequest) any {
	return func(r hookRequest) any {
		response := &admissionv1.AdmissionResponse{Allowed: true}
		change(response)
		return r.answered(response)
	}
}

func fixedPatch(patch string) func(hookRequest) any {
	return func(r hookRequest) any { return r.patch(patch) }
}

func denial(status metav1.Status) func(hookRequest) any {
	return func(r hookRequest) any { return r.deny(&status) }
}

// hookAnswers has the answers of webhooks by name.
var hookAnswers = map[string]func(hookRequest) any{
	probing:  func(r hookRequest) any { return r.warn("probed by " + r.kind) },
	"allow":  hookRequest.allow,
	"deny":   denial(metav1.Status{Message: "I say no"}),
	"silent": func(r hookRequest) any { return r.deny(nil) },
	"conflict": denial(metav1.Status{
		Status: metav1.StatusFailure, Code: http.StatusConflict, Reason: metav1.StatusReasonConflict, Message: "another one was first",
		Details: &metav1.StatusDetails{Name: "n", Group: "g", Kind: "k", UID: "u", RetryAfterSeconds: 7, Causes: []metav1.StatusCause{{Type: "T", Message: "m", Field: "f"}}},
	}),
	"teapot":       denial(metav1.Status{Code: http.StatusTeapot, Reason: "ShortAndStout", Message: "I am a teapot\nand \"quoted\""}),
	"reason":       denial(metav1.Status{Reason: metav1.StatusReasonInvalid}),
	"success":      denial(metav1.Status{Status: metav1.StatusSuccess, Code: http.StatusOK}),
	"server-error": denial(metav1.Status{Code: http.StatusInternalServerError, Message: "broken"}),
	"too-many":     denial(metav1.Status{Code: http.StatusTooManyRequests, Reason: metav1.StatusReasonTooManyRequests, Details: &metav1.StatusDetails{RetryAfterSeconds: 3}}),
	"huge":         denial(metav1.Status{Message: strings.Repeat("no ", 1<<20)}),
	"label":        func(r hookRequest) any { return r.annotate("by-"+r.name, string(r.Operation)) },
	"order":        func(r hookRequest) any { return r.annotate("order", r.annotations()["order"]+r.name) },
	"once":         once,
	"resize":       fixedPatch(`[{"op":"add","path":"/spec","value":{"size":7,"unknown":1}}]`),
	"replicas":     fixedPatch(`[{"op":"replace","path":"/spec/replicas","value":3}]`),
	"unlabel":      fixedPatch(`[{"op":"remove","path":"/metadata/labels"}]`),
	"priority":     fixedPatch(`[{"op":"replace","path":"/spec/versionPriority","value":77}]`),
	"column":       fixedPatch(`[{"op":"add","path":"/spec/names/shortNames","value":["mutated"]}]`),
	"rename":       fixedPatch(`[{"op":"replace","path":"/metadata/name","value":"other"}]`),
	"warn":         func(r hookRequest) any { return r.warn("one of "+r.name, "", "two: \"ü\" \\ \n\t\x00", "three") },
	"warn-much":    func(r hookRequest) any { return r.warn(strings.Repeat("x", 300), strings.Repeat("y", 5000), "z") },
	"annotate-audit": patchOf(func(r *admissionv1.AdmissionResponse) {
		r.AuditAnnotations = map[string]string{"a": "b", "bad key/": "c"}
	}),
	"slow":      slow,
	"wrong-uid": patchOf(func(r *admissionv1.AdmissionResponse) { r.UID = types.UID("another") }),
	"no-response": func(hookRequest) any {
		return map[string]any{"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1"}
	},
	"other-kind":    wrapped("SubjectAccessReview", "authorization.k8s.io/v1"),
	"other-version": wrapped("AdmissionReview", "admission.k8s.io/v2"),
	"beta":          wrapped("AdmissionReview", "admission.k8s.io/v1beta1"),
	"untyped":       wrapped("", ""),
	"null":          func(hookRequest) any { return nil },
	"list":          func(hookRequest) any { return []any{} },
	"patch-untyped": patchOf(func(r *admissionv1.AdmissionResponse) { r.Patch = []byte("[]") }),
	"patch-missing": patchOf(func(r *admissionv1.AdmissionResponse) { r.PatchType = patchTypeOf(admissionv1.PatchTypeJSONPatch) }),
	"patch-other": patchOf(func(r *admissionv1.AdmissionResponse) {
		r.Patch, r.PatchType = []byte(`{"a":1}`), patchTypeOf("MergePatch")
	}),
	"patch-no-json":   fixedPatch("{"),
	"patch-object":    fixedPatch(`{"op":"add"}`),
	"patch-empty":     fixedPatch("[]"),
	"patch-operation": fixedPatch(`[{"op":"multiply","path":"/metadata/name","value":2}]`),
	"patch-path":      fixedPatch(`[{"op":"replace","path":"/none/such","value":1}]`),
	"patch-test":      fixedPatch(`[{"op":"test","path":"/metadata/name","value":"another"}]`),
	"patch-type":      fixedPatch(`[{"op":"add","path":"/metadata/labels","value":{"a":1}}]`),
	"patch-kind":      fixedPatch(`[{"op":"replace","path":"/kind","value":"Secret"}]`),
	"patch-all":       fixedPatch(`[{"op":"replace","path":"","value":{}}]`),
	"patch-null":      fixedPatch(`[{"op":"replace","path":"","value":null}]`),
	"patch-invalid":   fixedPatch(`[{"op":"add","path":"/metadata/labels","value":{"not a label!":"x"}}]`),
	"patch-version":   fixedPatch(`[{"op":"add","path":"/metadata/resourceVersion","value":"1"}]`),
	"patch-denied": patchOf(func(r *admissionv1.AdmissionResponse) {
		r.Allowed, r.Patch, r.PatchType = false, []byte(`[{"op":"remove","path":"/metadata/labels"}]`), patchTypeOf(admissionv1.PatchTypeJSONPatch)
	}),
}

func patchTypeOf(t admissionv1.PatchType) *admissionv1.PatchType { return &t }

// once makes a change unless it was made before.
func once(r hookRequest) any {
	if _, done := r.annotations()["once-"+r.name]; done {
		return r.allow()
	}
	return r.annotate("once-"+r.name, "")
}

// slow answers after the timeout.
func slow(r hookRequest) any {
	select {
	case <-r.http.Context().Done():
	case <-time.After(requestTimeout):
	}
	return r.allow()
}

// wrapped answers with a review of another type.
func wrapped(kind, apiVersion string) func(hookRequest) any {
	return func(r hookRequest) any {
		return map[string]any{"kind": kind, "apiVersion": apiVersion, "response": map[string]any{"uid": r.UID, "allowed": true}}
	}
}

// bundle returns the CA bundle of the webhooks.
func bundle(c *hooks.Certificate) string { return base64.StdEncoding.EncodeToString(c.CA) }
