// Package scheme registers the kinds of apiextensions.k8s.io, so that the
// extensions tier can encode and decode CustomResourceDefinitions and the
// errors it answers.
//
// Upstream keeps the same registration in the package of its whole server;
// having it apart keeps that server out of this tier's binary.
package scheme

import (
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/install"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apiserver/pkg/features"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
)

var (
	// Scheme knows apiextensions.k8s.io in all its versions and the kinds of
	// meta.k8s.io that every API answers with. It is complete when the package
	// is initialised and must not be changed afterwards.
	Scheme = newScheme()
	// Codecs encodes and decodes the kinds of Scheme. Streaming of collections
	// follows the feature gates, read once at initialisation.
	Codecs = newCodecs()
)

func newScheme() *runtime.Scheme {
	s := runtime.NewScheme()
	install.Install(s)
	// The options of requests (ListOptions and so on) are looked up in the
	// versioned core group whatever group the request is for.
	core := schema.GroupVersion{Version: "v1"}
	metav1.AddToGroupVersion(s, core)
	s.AddUnversionedTypes(core,
		&metav1.Status{},
		&metav1.WatchEvent{},
		&metav1.APIVersions{},
		&metav1.APIGroupList{},
		&metav1.APIGroup{},
		&metav1.APIResourceList{},
	)
	return s
}

func newCodecs() serializer.CodecFactory {
	var opts []serializer.CodecFactoryOptionsMutator
	if utilfeature.DefaultFeatureGate.Enabled(features.StreamingCollectionEncodingToJSON) {
		opts = append(opts, serializer.WithStreamingCollectionEncodingToJSON())
	}
	if utilfeature.DefaultFeatureGate.Enabled(features.StreamingCollectionEncodingToProtobuf) {
		opts = append(opts, serializer.WithStreamingCollectionEncodingToProtobuf())
	}
	return serializer.NewCodecFactory(Scheme, opts...)
}
