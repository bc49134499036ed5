// Package scheme registers the kinds of apiregistration.k8s.io, so that the
// aggregator can encode and decode APIServices, discovery and the errors it
// answers.
//
// Upstream completes its registration in the package of the whole aggregator;
// having it apart keeps that server out of this tier's binary.
package scheme

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/kube-aggregator/pkg/apis/apiregistration/install"
)

var (
	// Scheme knows apiregistration.k8s.io in all its versions and the kinds that
	// every API answers with. It must not be changed.
	Scheme = newScheme()
	// Codecs encodes and decodes the kinds of Scheme.
	Codecs = serializer.NewCodecFactory(Scheme)
)

func newScheme() *runtime.Scheme {
	s := runtime.NewScheme()
	install.Install(s)
	// Options of requests (ListOptions and its kin) are those of the core group,
	// whatever group the request is for.
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
