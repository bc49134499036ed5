// Package scheme provides the [Scheme] and the [Codecs] of the aggregator for APIServices, legacy
// discovery and errors. Upstream's are in the package of its whole aggregator, which this tier does
// not link.
package scheme

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/kube-aggregator/pkg/apis/apiregistration/install"
)

var (
	// Scheme contains all versions of apiregistration.k8s.io and the common kinds of responses. It
	// must not be modified.
	Scheme = newScheme()
	// Codecs are the codecs of Scheme.
	Codecs = serializer.NewCodecFactory(Scheme)
)

func newScheme() *runtime.Scheme {
	s := runtime.NewScheme()
	install.Install(s)
	// The options of requests for all groups (ListOptions and others) are in the core group.
	core := schema.GroupVersion{Version: "v1"}
	metav1.AddToGroupVersion(s, core)
	s.AddUnversionedTypes(core,
		&metav1.Status{},
		&metav1.APIVersions{},
		&metav1.APIGroupList{},
		&metav1.APIGroup{},
		&metav1.APIResourceList{},
	)
	return s
}
