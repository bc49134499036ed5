package etcdstore

import (
	"fmt"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apiserver/pkg/registry/generic"
)

// StoredAs returns the options of getter with kube-apiserver's key and encoding for the
// resources of a group that belongs to a tier. Objects are written in the first of the group's
// versions, and read in all of them.
func StoredAs(getter generic.RESTOptionsGetter, codecs serializer.CodecFactory, versions ...schema.GroupVersion) generic.RESTOptionsGetter {
	return storedAs{getter, codecs, versions}
}

type storedAs struct {
	generic.RESTOptionsGetter
	codecs   serializer.CodecFactory
	versions []schema.GroupVersion
}

// GetRESTOptions implements generic.RESTOptionsGetter.
func (s storedAs) GetRESTOptions(resource schema.GroupResource, example runtime.Object) (generic.RESTOptions, error) {
	options, err := s.RESTOptionsGetter.GetRESTOptions(resource, example)
	if err != nil {
		return options, fmt.Errorf("storage options of %s: %w", resource, err)
	}
	options.ResourcePrefix = resource.Group + "/" + resource.Resource
	config := *options.StorageConfig
	config.GroupResource = resource
	config.Codec = s.codecs.LegacyCodec(s.versions...)
	config.EncodeVersioner = runtime.NewMultiGroupVersioner(s.versions[0], schema.GroupKind{Group: s.versions[0].Group})
	options.StorageConfig = &config
	return options, nil
}
