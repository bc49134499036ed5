package openapi

import (
	"fmt"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/registry/rest"

	"triune.dev/shared/server/resources"
)

// samples holds empty values of the types that the routes of one resource read and write; the
// builders look up the definitions of their types. Values that a resource does not need are
// nil.
type samples struct {
	storage rest.Storage
	// object is the type of requests and responses; list and watchEvent are those of LIST and
	// WATCH.
	object, list, watchEvent, status runtime.Object
	// The options of the verbs, in the group-version that clients use.
	listOptions, createOptions, updateOptions, patchOptions, deleteOptions runtime.Object
	getOptions, connectOptions                                             runtime.Object
}

// sampler creates the samples of one group-version.
type sampler struct {
	version *resources.GroupVersion
	err     error // first error
}

func samplesOf(version *resources.GroupVersion, resource *resources.Resource) (*samples, error) {
	sample := sampler{version: version}
	storage := resource.Storage
	s := &samples{
		storage:       storage,
		object:        sample.new(resource.Kind),
		status:        sample.option("Status"),
		listOptions:   sample.option("ListOptions"),
		createOptions: sample.option("CreateOptions"),
		updateOptions: sample.option("UpdateOptions"),
		patchOptions:  sample.option("PatchOptions"),
		deleteOptions: sample.option("DeleteOptions"),
	}
	if lister, ok := storage.(rest.Lister); ok {
		s.list = sample.versioned(lister.NewList())
	}
	if _, ok := storage.(rest.Watcher); ok {
		s.watchEvent = sample.new(version.WithKind("WatchEvent"))
	}
	if getter, ok := storage.(rest.GetterWithOptions); ok {
		options, _, _ := getter.NewGetOptions()
		s.getOptions = sample.versioned(options)
	}
	if connecter, ok := storage.(rest.Connecter); ok {
		if options, _, _ := connecter.NewConnectOptions(); options != nil {
			s.connectOptions = sample.versioned(options)
		}
	}
	if sample.err != nil {
		return nil, fmt.Errorf("describe resource %q of %s: %w", resource.Key(), version.GroupVersion, sample.err)
	}
	return s, nil
}

func (m *sampler) new(kind schema.GroupVersionKind) runtime.Object {
	object, err := m.version.Scheme.New(kind)
	if err != nil && m.err == nil {
		m.err = err
	}
	return object
}

// option returns a new value of an options type that every group-version has.
func (m *sampler) option(kind string) runtime.Object {
	return m.new(m.version.OptionsVersion.WithKind(kind))
}

// versioned returns the versioned counterpart of an internal object: in the group-version
// itself or, if that has none, in that of its options.
func (m *sampler) versioned(internal runtime.Object) runtime.Object {
	kinds, _, err := m.version.Scheme.ObjectKinds(internal)
	if err != nil {
		if m.err == nil {
			m.err = err
		}
		return nil
	}
	kind := m.version.WithKind(kinds[0].Kind)
	if !m.version.Scheme.Recognizes(kind) {
		kind = m.version.OptionsVersion.WithKind(kinds[0].Kind)
	}
	return m.new(kind)
}

// produced returns the response of a verb: the object, unless the storage says otherwise.
func (s *samples) produced(verb string) any {
	if metadata, ok := s.storage.(rest.StorageMetadata); ok {
		if object := metadata.ProducesObject(verb); object != nil {
			return object
		}
	}
	return s.object
}

// connected returns the response of a connect by an HTTP method.
func (s *samples) connected(method string) any {
	if metadata, ok := s.storage.(rest.StorageMetadata); ok {
		if object := metadata.ProducesObject(method); object != nil {
			return object
		}
	}
	return ""
}

// deleted returns the response of DELETE: a Status, or the object if the storage returns it.
func (s *samples) deleted() any {
	if storage, ok := s.storage.(rest.MayReturnFullObjectDeleter); ok && storage.DeleteReturnsDeletedObject() {
		return s.produced("DELETE")
	}
	return s.status
}
