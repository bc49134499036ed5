package customresource

import (
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"
)

// widgets is an established CRD with two served versions and one that is not; v1
// has both subresources.
func widgets(change ...func(*apiextensionsv1.CustomResourceDefinition)) *apiextensionsv1.CustomResourceDefinition {
	names := apiextensionsv1.CustomResourceDefinitionNames{Plural: "widgets", Singular: "widget", Kind: "Widget", ListKind: "WidgetList"}
	selector := ".status.selector"
	crd := &apiextensionsv1.CustomResourceDefinition{
		ObjectMeta: metav1.ObjectMeta{Name: "widgets.example.com", UID: types.UID("1")},
		Spec: apiextensionsv1.CustomResourceDefinitionSpec{
			Group: "example.com",
			Names: names,
			Scope: apiextensionsv1.NamespaceScoped,
			Conversion: &apiextensionsv1.CustomResourceConversion{
				Strategy: apiextensionsv1.NoneConverter,
			},
			Versions: []apiextensionsv1.CustomResourceDefinitionVersion{
				{Name: "v1", Served: true, Storage: true, Subresources: &apiextensionsv1.CustomResourceSubresources{
					Status: &apiextensionsv1.CustomResourceSubresourceStatus{},
					Scale: &apiextensionsv1.CustomResourceSubresourceScale{
						SpecReplicasPath: ".spec.replicas", StatusReplicasPath: ".status.replicas", LabelSelectorPath: &selector,
					},
				}},
				{Name: "v1beta1", Served: true},
				{Name: "v1alpha1"},
			},
		},
		Status: apiextensionsv1.CustomResourceDefinitionStatus{
			AcceptedNames: names,
			Conditions: []apiextensionsv1.CustomResourceDefinitionCondition{
				{Type: apiextensionsv1.NamesAccepted, Status: apiextensionsv1.ConditionTrue},
				{Type: apiextensionsv1.Established, Status: apiextensionsv1.ConditionTrue},
			},
		},
	}
	for _, c := range change {
		c(crd)
	}
	return crd
}

func clusterScoped(crd *apiextensionsv1.CustomResourceDefinition) {
	crd.Spec.Scope = apiextensionsv1.ClusterScoped
}

func conditions(types ...apiextensionsv1.CustomResourceDefinitionConditionType) func(*apiextensionsv1.CustomResourceDefinition) {
	return func(crd *apiextensionsv1.CustomResourceDefinition) {
		crd.Status.Conditions = nil
		for _, t := range types {
			crd.Status.Conditions = append(crd.Status.Conditions, apiextensionsv1.CustomResourceDefinitionCondition{
				Type: t, Status: apiextensionsv1.ConditionTrue,
			})
		}
	}
}

func TestLookup(t *testing.T) {
	request := func(change func(*apirequest.RequestInfo)) *apirequest.RequestInfo {
		info := &apirequest.RequestInfo{
			IsResourceRequest: true, Verb: "get", APIGroup: "example.com", APIVersion: "v1",
			Namespace: "default", Resource: "widgets", Name: "one",
		}
		if change != nil {
			change(info)
		}
		return info
	}
	tests := []struct {
		name string
		crd  *apiextensionsv1.CustomResourceDefinition
		info *apirequest.RequestInfo
		want bool
	}{
		{"an object in a namespace", widgets(), request(nil), true},
		{"a second served version", widgets(), request(func(i *apirequest.RequestInfo) { i.APIVersion = "v1beta1" }), true},
		{"a version that is not served", widgets(), request(func(i *apirequest.RequestInfo) { i.APIVersion = "v1alpha1" }), false},
		{"a version that does not exist", widgets(), request(func(i *apirequest.RequestInfo) { i.APIVersion = "v2" }), false},
		{"another resource", widgets(), request(func(i *apirequest.RequestInfo) { i.Resource = "gadgets" }), false},
		{"the resource of another group", widgets(), request(func(i *apirequest.RequestInfo) { i.APIGroup = "example.org" }), false},
		{"a namespaced object without namespace", widgets(), request(func(i *apirequest.RequestInfo) { i.Namespace = "" }), false},
		{"a create across namespaces", widgets(), request(func(i *apirequest.RequestInfo) { i.Namespace, i.Verb = "", "create" }), false},
		{"a list across namespaces", widgets(), request(func(i *apirequest.RequestInfo) { i.Namespace, i.Verb = "", "list" }), true},
		{"a watch across namespaces", widgets(), request(func(i *apirequest.RequestInfo) { i.Namespace, i.Verb = "", "watch" }), true},
		{"a deletecollection across namespaces", widgets(), request(func(i *apirequest.RequestInfo) { i.Namespace, i.Verb = "", "deletecollection" }), false},
		{"a cluster-scoped object", widgets(clusterScoped), request(func(i *apirequest.RequestInfo) { i.Namespace = "" }), true},
		{"a cluster-scoped object in a namespace", widgets(clusterScoped), request(nil), false},
		{"a CRD whose names were never accepted", widgets(conditions()), request(nil), false},
		{"a CRD that is not established yet", widgets(conditions(apiextensionsv1.NamesAccepted)), request(nil), true},
		{"an established CRD whose names are in conflict now", widgets(conditions(apiextensionsv1.Established)), request(nil), true},
		{"a wrong verb is not a matter of lookup", widgets(), request(func(i *apirequest.RequestInfo) { i.Verb = "" }), true},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			table := newTable(buildNothing, 0)
			defer table.close()
			table.put(test.crd)
			if got := lookup(table, test.info) != nil; got != test.want {
				t.Errorf("lookup found a row: %v, want %v", got, test.want)
			}
		})
	}
}

func TestEndpointOf(t *testing.T) {
	tests := []struct {
		version, subresource string
		want                 endpoint
	}{
		{"v1", "", resourceEndpoint},
		{"v1", "status", statusEndpoint},
		{"v1", "scale", scaleEndpoint},
		{"v1", "log", noEndpoint},
		{"v1beta1", "status", noEndpoint},
		{"v1beta1", "scale", noEndpoint},
		{"v1beta1", "", resourceEndpoint},
	}
	for _, test := range tests {
		t.Run(test.version+"/"+test.subresource, func(t *testing.T) {
			got := endpointOf(widgets(), &apirequest.RequestInfo{APIVersion: test.version, Subresource: test.subresource})
			if got != test.want {
				t.Errorf("endpoint %d, want %d", got, test.want)
			}
		})
	}
}
