package autoregister

import "k8s.io/apimachinery/pkg/runtime/schema"

// Priority holds the priorities in the spec of an APIService.
type Priority struct {
	// Group is spec.groupPriorityMinimum, and Version is spec.versionPriority.
	Group, Version int32
}

// customPriority is the priority of custom resources: lower than all built-in groups, with
// versions in Kubernetes' order of version names.
var customPriority = Priority{Group: 1000, Version: 100}

// builtIn holds the priorities of Kubernetes' own groups, by version, as in kube-apiserver
// (pkg/controlplane/apiserver and cmd/kube-apiserver/app). kubectl lists groups in this order, and
// uses it to choose among resources of the same name.
var builtIn = map[string]struct {
	group    int32
	versions map[string]int32
}{
	"":                             {18000, map[string]int32{"v1": 1}},
	"apps":                         {17800, map[string]int32{"v1": 15}},
	"events.k8s.io":                {17750, map[string]int32{"v1": 15, "v1beta1": 5}},
	"authentication.k8s.io":        {17700, map[string]int32{"v1": 15, "v1beta1": 9, "v1alpha1": 1}},
	"authorization.k8s.io":         {17600, map[string]int32{"v1": 15}},
	"autoscaling":                  {17500, map[string]int32{"v2": 30, "v1": 15, "v2beta1": 9, "v2beta2": 1}},
	"batch":                        {17400, map[string]int32{"v1": 15, "v1beta1": 9, "v2alpha1": 9}},
	"certificates.k8s.io":          {17300, map[string]int32{"v1": 15, "v1beta1": 9, "v1alpha1": 1}},
	"networking.k8s.io":            {17200, map[string]int32{"v1": 15, "v1beta1": 9}},
	"policy":                       {17100, map[string]int32{"v1": 15, "v1beta1": 9}},
	"rbac.authorization.k8s.io":    {17000, map[string]int32{"v1": 15}},
	"storage.k8s.io":               {16800, map[string]int32{"v1": 15, "v1beta1": 9, "v1alpha1": 1}},
	"admissionregistration.k8s.io": {16700, map[string]int32{"v1": 15, "v1beta1": 12, "v1alpha1": 9}},
	"apiextensions.k8s.io":         {16700, map[string]int32{"v1": 15}},
	"scheduling.k8s.io":            {16600, map[string]int32{"v1": 15, "v1alpha2": 2}},
	"coordination.k8s.io":          {16500, map[string]int32{"v1": 15, "v1beta1": 13, "v1alpha2": 12}},
	"node.k8s.io":                  {16300, map[string]int32{"v1": 15, "v1beta1": 9, "v1alpha1": 1}},
	"discovery.k8s.io":             {16200, map[string]int32{"v1": 15, "v1beta1": 12}},
	"resource.k8s.io":              {16200, map[string]int32{"v1": 21, "v1beta2": 15, "v1beta1": 9, "v1alpha3": 1}},
	"flowcontrol.apiserver.k8s.io": {16100, map[string]int32{"v1": 21, "v1beta3": 18, "v1beta2": 15, "v1beta1": 12, "v1alpha1": 9}},
	"internal.apiserver.k8s.io":    {16000, map[string]int32{"v1alpha1": 9}},
	"storagemigration.k8s.io":      {15800, map[string]int32{"v1beta1": 9}},
}

// BuiltIn returns the priority of a built-in group-version, or false if gv is not built in.
func BuiltIn(gv schema.GroupVersion) (Priority, bool) {
	group, ok := builtIn[gv.Group]
	if !ok {
		return Priority{}, false
	}
	version, ok := group.versions[gv.Version]
	return Priority{Group: group.group, Version: version}, ok
}

// PriorityOf returns the priority of a group-version without a remote APIService.
func PriorityOf(gv schema.GroupVersion) Priority {
	if priority, ok := BuiltIn(gv); ok {
		return priority
	}
	return customPriority
}
