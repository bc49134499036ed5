package e2e

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
)

// TestWebhooksOfServices reaches an admission webhook and a conversion webhook through a
// Service, from each tier: by the name of an ExternalName Service or, with the flags of a
// production cluster, at its endpoints, which only an egress proxy reaches.
func TestWebhooksOfServices(t *testing.T) {
	c := server(t)
	ns := newNamespace(t, c)
	k := newKubectl(t, c, ns)
	webhook := startWebhook(t, ns, http.HandlerFunc(convertOrDeny))
	k.Stdin(serviceOf(ns, webhook.port)).Run("apply", "-f", "-")
	client := fmt.Sprintf(`{service: {namespace: %s, name: remote, port: %d, path: /hook}, caBundle: %s}`,
		ns, webhook.port, base64.StdEncoding.EncodeToString(webhook.ca))

	k.Stdin(`apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: lamps.services.triune.dev}
spec:
  group: services.triune.dev
  scope: Namespaced
  names: {plural: lamps, singular: lamp, kind: Lamp, listKind: LampList}
  conversion: {strategy: Webhook, webhook: {conversionReviewVersions: [v1], clientConfig: `+client+`}}
  versions:
  - {name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}}
  - {name: v2, served: true, storage: false, schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}}
`).Run("apply", "-f", "-")
	t.Cleanup(func() { k.Run("delete", "crd", "lamps.services.triune.dev") })
	k.Run("wait", "--for=condition=Established", "crd/lamps.services.triune.dev", "--timeout=30s")
	lamp := "apiVersion: services.triune.dev/%s\nkind: Lamp\nmetadata: {name: %s}\nspec: {watts: 5}\n"
	eventually(t, patience, func(context.Context) error {
		if o := k.Stdin(fmt.Sprintf(lamp, "v2", "two")).Try("apply", "-f", "-"); o.Code != 0 {
			return fmt.Errorf("apply: %+v", o)
		}
		return nil
	})
	k.Says([]string{"apiVersion: services.triune.dev/v1", "converted: services.triune.dev/v1"}, "get", "lamps.v1.services.triune.dev", "two", "-o", "yaml")
	k.Says([]string{"converted: services.triune.dev/v2"}, "get", "lamps.v2.services.triune.dev", "-o", "yaml")

	k.Stdin(`apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingWebhookConfiguration
metadata: {name: `+ns+`}
webhooks:
- name: hook.services.triune.dev
  clientConfig: `+client+`
  rules: [{apiGroups: ["", apiregistration.k8s.io, services.triune.dev], apiVersions: ["*"], operations: [CREATE], resources: [configmaps, apiservices, lamps]}]
  objectSelector: {matchLabels: {of: `+ns+`}}
  failurePolicy: Fail
  sideEffects: None
  admissionReviewVersions: [v1]
`).Run("apply", "-f", "-")
	t.Cleanup(func() { k.Run("delete", "validatingwebhookconfiguration", ns) })
	labelled := "metadata: {name: v1.other.triune.dev, labels: {of: " + ns + "}}\n"
	for tier, object := range map[string]string{
		"core":       "apiVersion: v1\nkind: ConfigMap\n" + labelled,
		"extensions": "apiVersion: services.triune.dev/v1\nkind: Lamp\n" + labelled,
		"aggregator": "apiVersion: apiregistration.k8s.io/v1\nkind: APIService\n" + labelled + "spec: {group: other.triune.dev, version: v1, groupPriorityMinimum: 1, versionPriority: 1, service: {namespace: none, name: none}}\n",
	} {
		eventually(t, patience, func(context.Context) error {
			o := k.Stdin(object).Try("create", "--dry-run=server", "-f", "-")
			if !strings.Contains(o.Stderr, "denied the request: not in this house") {
				return fmt.Errorf("%s: %+v", tier, o)
			}
			return nil
		})
	}
}

// convertOrDeny is a webhook that converts objects with an annotation, and denies all requests
// for admission.
func convertOrDeny(w http.ResponseWriter, req *http.Request) {
	var review struct {
		APIVersion string `json:"apiVersion"`
		Kind       string `json:"kind"`
		Request    struct {
			UID     string           `json:"uid"`
			Desired string           `json:"desiredAPIVersion"`
			Objects []map[string]any `json:"objects"`
		} `json:"request"`
	}
	if err := json.NewDecoder(req.Body).Decode(&review); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	response := map[string]any{"uid": review.Request.UID, "allowed": false, "status": map[string]any{"message": "not in this house"}}
	if review.Kind == "ConversionReview" {
		for _, o := range review.Request.Objects {
			o["apiVersion"] = review.Request.Desired
			if metadata, ok := o["metadata"].(map[string]any); ok {
				metadata["annotations"] = map[string]any{"converted": review.Request.Desired}
			}
		}
		response = map[string]any{"uid": review.Request.UID, "convertedObjects": review.Request.Objects, "result": map[string]any{"status": "Success"}}
	}
	_ = json.NewEncoder(w).Encode(map[string]any{"apiVersion": review.APIVersion, "kind": review.Kind, "response": response})
}
