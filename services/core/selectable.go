package core

import (
	"k8s.io/apimachinery/pkg/runtime/schema"

	"triune.dev/shared/storage/render"
)

// selectable lists where the byte caches find the selectable fields of resources in stored
// objects. Names are those of GetAttrs in pkg/registry/<group>/<resource>/strategy.go of
// Kubernetes, paths those of generated.proto in k8s.io/api; pkg/apis/<group>/<version> has
// their defaults and conversions. TestCore compares them with the registry.
//
// Other resources, and objects stored in another version, are decoded.
var selectable = map[schema.GroupResource]render.Selectable{
	{Resource: "pods"}: {
		APIVersion: "v1", Kind: "Pod", Namespaced: true,
		Fields: []render.SelectableField{
			{Name: "spec.nodeName", Path: []uint8{2, 10}},
			{Name: "spec.restartPolicy", Path: []uint8{2, 3}, Defaulted: true},
			{Name: "spec.schedulerName", Path: []uint8{2, 19}, Defaulted: true},
			// The older field serviceAccount is used if serviceAccountName is not set.
			{Name: "spec.serviceAccountName", Path: []uint8{2, 8}, Fallback: []uint8{2, 9}},
			{Name: "spec.hostNetwork", Path: []uint8{2, 11}, Type: render.Bool},
			{Name: "status.phase", Path: []uint8{3, 1}},
			// podIP takes precedence over the first of podIPs.
			{Name: "status.podIP", Path: []uint8{3, 6}, Fallback: []uint8{3, 12, 1}, Distinct: true},
			{Name: "status.nominatedNodeName", Path: []uint8{3, 11}},
		},
	},
	{Resource: "nodes"}: {
		APIVersion: "v1", Kind: "Node",
		Fields: []render.SelectableField{{Name: "spec.unschedulable", Path: []uint8{2, 4}, Type: render.Bool}},
	},
	{Resource: "namespaces"}: {
		APIVersion: "v1", Kind: "Namespace",
		Fields: []render.SelectableField{
			{Name: "name", Path: []uint8{1, 1}, Distinct: true},
			{Name: "status.phase", Path: []uint8{3, 1}, Defaulted: true},
		},
	},
	{Resource: "events"}: {
		APIVersion: "v1", Kind: "Event", Namespaced: true,
		Fields: []render.SelectableField{
			{Name: "involvedObject.kind", Path: []uint8{2, 1}},
			{Name: "involvedObject.namespace", Path: []uint8{2, 2}},
			{Name: "involvedObject.name", Path: []uint8{2, 3}, Distinct: true},
			{Name: "involvedObject.uid", Path: []uint8{2, 4}, Distinct: true},
			{Name: "involvedObject.apiVersion", Path: []uint8{2, 5}},
			{Name: "involvedObject.resourceVersion", Path: []uint8{2, 6}, Distinct: true},
			{Name: "involvedObject.fieldPath", Path: []uint8{2, 7}},
			{Name: "reason", Path: []uint8{3}},
			{Name: "reportingComponent", Path: []uint8{14}},
			{Name: "source", Path: []uint8{5, 1}, Fallback: []uint8{14}},
			{Name: "type", Path: []uint8{9}},
		},
	},
	{Resource: "secrets"}: {
		APIVersion: "v1", Kind: "Secret", Namespaced: true,
		Fields: []render.SelectableField{{Name: "type", Path: []uint8{3}, Defaulted: true}},
	},
	{Resource: "configmaps"}: {APIVersion: "v1", Kind: "ConfigMap", Namespaced: true},
	{Resource: "services"}: {
		APIVersion: "v1", Kind: "Service", Namespaced: true,
		Fields: []render.SelectableField{
			{Name: "spec.clusterIP", Path: []uint8{2, 3}, Distinct: true},
			{Name: "spec.type", Path: []uint8{2, 4}, Defaulted: true},
		},
	},
	{Resource: "persistentvolumes"}: {
		APIVersion: "v1", Kind: "PersistentVolume",
		Fields: []render.SelectableField{{Name: "name", Path: []uint8{1, 1}, Distinct: true}},
	},
	{Resource: "persistentvolumeclaims"}: {
		APIVersion: "v1", Kind: "PersistentVolumeClaim", Namespaced: true,
		Fields: []render.SelectableField{{Name: "name", Path: []uint8{1, 1}, Distinct: true}},
	},
	{Resource: "replicationcontrollers"}: {
		APIVersion: "v1", Kind: "ReplicationController", Namespaced: true,
		Fields: []render.SelectableField{{Name: "status.replicas", Path: []uint8{3, 1}, Type: render.Int32}},
	},
	{Group: "apps", Resource: "replicasets"}: {
		APIVersion: "apps/v1", Kind: "ReplicaSet", Namespaced: true,
		Fields: []render.SelectableField{{Name: "status.replicas", Path: []uint8{3, 1}, Type: render.Int32}},
	},
	{Group: "batch", Resource: "jobs"}: {
		APIVersion: "batch/v1", Kind: "Job", Namespaced: true,
		Fields: []render.SelectableField{{Name: "status.successful", Path: []uint8{3, 5}, Type: render.Int32}},
	},
	{Group: "certificates.k8s.io", Resource: "certificatesigningrequests"}: {
		APIVersion: "certificates.k8s.io/v1", Kind: "CertificateSigningRequest",
		Fields: []render.SelectableField{{Name: "spec.signerName", Path: []uint8{2, 7}}},
	},
	{Group: "resource.k8s.io", Resource: "resourceclaims"}: {
		APIVersion: "resource.k8s.io/v1", Kind: "ResourceClaim", Namespaced: true,
	},
	{Group: "resource.k8s.io", Resource: "resourceclaimtemplates"}: {
		APIVersion: "resource.k8s.io/v1", Kind: "ResourceClaimTemplate", Namespaced: true,
	},
	{Group: "resource.k8s.io", Resource: "resourceslices"}: {
		APIVersion: "resource.k8s.io/v1", Kind: "ResourceSlice",
		Fields: []render.SelectableField{
			{Name: "spec.nodeName", Path: []uint8{2, 3}},
			{Name: "spec.driver", Path: []uint8{2, 1}},
		},
	},
}
