package resources

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"k8s.io/apiserver/pkg/endpoints"
	"k8s.io/apiserver/pkg/endpoints/deprecation"
	"k8s.io/apiserver/pkg/endpoints/discovery"
	"k8s.io/apiserver/pkg/endpoints/handlers"
	"k8s.io/apiserver/pkg/features"
	"k8s.io/apiserver/pkg/registry/rest"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"

	"triune.dev/shared/server/reads"
)

// Resource is one resource or subresource of a group-version.
type Resource struct {
	// Name is the plural name of the resource. Subresource is empty for the resource itself.
	Name, Subresource string
	Namespaced        bool
	// Kind is the kind of the objects. ParentKind is that of the resource that a subresource
	// belongs to; for a resource they are equal.
	Kind, ParentKind schema.GroupVersionKind
	Storage          rest.Storage
	// Routes are the verbs at all levels.
	Routes []*Route
	// Discovery is the entry of the resource in the discovery document of the group-version.
	Discovery metav1.APIResource

	scope handlers.RequestScope
	// reads serves requests from stored bytes. It is nil if the resource is not served in its
	// stored form. The handlers for collections are the same at all levels.
	reads       *reads.Resource
	list, watch http.HandlerFunc
	deprecated  deprecated
	levels      map[Target][]*Route
}

// deprecated describes the deprecation of a version.
type deprecated struct {
	is       bool
	removed  string // first release without the version: "1.42"
	warnings []string
}

// Key returns the key of the resource in the table: "pods" or "pods/status".
func (r *Resource) Key() string {
	if r.Subresource == "" {
		return r.Name
	}
	return r.Name + "/" + r.Subresource
}

// at returns the routes of a target of this resource.
func (r *Resource) at(target Target) []*Route {
	target.Resource = ""
	return r.levels[target]
}

// resourceBuilder builds the resources of one group-version.
type resourceBuilder struct {
	config      Config
	version     *GroupVersion
	storage     map[string]rest.Storage
	metaVersion schema.GroupVersion
}

func (b resourceBuilder) build(key string) (*Resource, error) {
	name, subresource, _ := strings.Cut(key, "/")
	if strings.Contains(subresource, "/") {
		return nil, errors.New("a subresource has no subresources")
	}
	parent, ok := b.storage[name]
	if !ok {
		return nil, fmt.Errorf("parent %q has no storage", name)
	}
	scoper, ok := parent.(rest.Scoper)
	if !ok {
		return nil, fmt.Errorf("storage of %q does not say its scope", name)
	}
	storage := b.storage[key]
	if lister, ok := storage.(rest.Lister); ok {
		if err := b.checkLister(lister); err != nil {
			return nil, err
		}
	}
	kind, err := endpoints.GetResourceKind(b.version.GroupVersion, storage, b.version.Scheme)
	if err != nil {
		return nil, err
	}
	parentKind, err := endpoints.GetResourceKind(b.version.GroupVersion, parent, b.version.Scheme)
	if err != nil {
		return nil, err
	}
	resource := &Resource{
		Name: name, Subresource: subresource, Namespaced: scoper.NamespaceScoped(),
		Kind: kind, ParentKind: parentKind, Storage: storage,
	}
	if resource.deprecated, err = b.deprecation(kind); err != nil {
		return nil, err
	}
	if resource.scope, err = b.scope(resource); err != nil {
		return nil, err
	}
	if subresource == "" {
		if resource.reads, err = reads.NewResource(storage, &resource.scope, resource.Namespaced); err != nil {
			return nil, err
		}
	}
	resource.Routes = b.routes(resource)
	resource.levels = map[Target][]*Route{}
	for _, route := range resource.Routes {
		target := Target{Level: route.Level, Watch: route.WatchPrefix}
		resource.levels[target] = append(resource.levels[target], route)
	}
	if resource.Discovery, err = b.discovery(resource); err != nil {
		return nil, err
	}
	b.config.Equivalents.RegisterKindFor(resource.scope.Resource, subresource, kind)
	return resource, nil
}

// checkLister detects at startup what would otherwise fail at the first LIST.
func (b resourceBuilder) checkLister(lister rest.Lister) error {
	kinds, _, err := b.version.Scheme.ObjectKinds(lister.NewList())
	if err != nil {
		return fmt.Errorf("kind of the list: %w", err)
	}
	if _, err := b.version.Scheme.New(b.version.WithKind(kinds[0].Kind)); err != nil {
		return fmt.Errorf("kind of the list: %w", err)
	}
	return nil
}

// deprecation reads the deprecation from the versioned type, whose methods are generated from
// API lifecycle annotations.
func (b resourceBuilder) deprecation(kind schema.GroupVersionKind) (deprecated, error) {
	object, err := b.version.Scheme.New(kind)
	if err != nil {
		return deprecated{}, err
	}
	object.GetObjectKind().SetGroupVersionKind(kind)
	if !deprecation.IsDeprecated(object, b.config.Major, b.config.Minor) {
		return deprecated{}, nil
	}
	return deprecated{
		is:       true,
		removed:  deprecation.RemovedRelease(object),
		warnings: []string{deprecation.WarningMessage(object)},
	}, nil
}

// scope returns the request scope for the handlers of k8s.io/apiserver.
func (b resourceBuilder) scope(r *Resource) (handlers.RequestScope, error) {
	scheme := b.version.Scheme
	internal := schema.GroupVersion{Group: r.Kind.Group, Version: runtime.APIVersionInternal}
	tables, _ := r.Storage.(rest.TableConvertor)
	acceptor, _ := r.Storage.(rest.GroupVersionAcceptor)
	scope := handlers.RequestScope{
		Namer: handlers.ContextBasedNaming{
			Namer:         runtime.Namer(accessor),
			ClusterScoped: !r.Namespaced,
		},
		Serializer:                  b.version.Serializer,
		ParameterCodec:              b.version.ParameterCodec,
		Creater:                     scheme,
		Convertor:                   scheme,
		Defaulter:                   scheme,
		Typer:                       scheme,
		UnsafeConvertor:             runtime.UnsafeObjectConvertor(scheme),
		Authorizer:                  b.config.Authorizer,
		EquivalentResourceMapper:    b.config.Equivalents,
		TableConvertor:              tables,
		Resource:                    b.version.WithResource(r.Name),
		Subresource:                 r.Subresource,
		Kind:                        r.Kind,
		AcceptsGroupVersionDelegate: acceptor,
		HubGroupVersion:             internal,
		MetaGroupVersion:            b.metaVersion,
		MaxRequestBodyBytes:         b.config.MaxRequestBodyBytes,
	}
	reset, err := resetFields(r.Storage)
	if err != nil {
		return scope, err
	}
	scope.FieldManager, err = managedfields.NewDefaultFieldManager(
		b.config.TypeConverter(b.version.GroupVersion),
		scope.UnsafeConvertor, scheme, scheme, r.Kind, internal, r.Subresource, reset)
	if err != nil {
		return scope, fmt.Errorf("field manager: %w", err)
	}
	return scope, nil
}

// resetFields returns the fields that the strategy of a storage resets in every write, such as
// the status in a write of the spec. Managed fields must not record an owner for them
// (KEP-555).
func resetFields(storage rest.Storage) (map[fieldpath.APIVersion]fieldpath.Filter, error) {
	filters, byFilter := storage.(rest.ResetFieldsFilterStrategy)
	sets, bySet := storage.(rest.ResetFieldsStrategy)
	switch {
	case byFilter && bySet:
		return nil, errors.New("the storage names its reset fields twice, as a set and as a filter")
	case byFilter:
		return filters.GetResetFieldsFilter(), nil
	case bySet:
		return fieldpath.NewExcludeFilterSetMap(sets.GetResetFields()), nil
	}
	return nil, nil
}

// discovery returns the discovery entry of the resource.
func (b resourceBuilder) discovery(r *Resource) (metav1.APIResource, error) {
	document := metav1.APIResource{Name: r.Key(), Namespaced: r.Namespaced, Kind: r.Kind.Kind, Verbs: metav1.Verbs{}}
	if provider, ok := r.Storage.(rest.KindProvider); ok {
		document.Kind = provider.Kind()
	}
	if provider, ok := r.Storage.(rest.GroupVersionKindProvider); ok {
		kind := provider.GroupVersionKind(b.version.GroupVersion)
		document.Group, document.Version, document.Kind = kind.Group, kind.Version, kind.Kind
	}
	for _, route := range r.Routes {
		if verb := route.discoveryVerb(); verb != "" && !slices.Contains(document.Verbs, verb) {
			document.Verbs = append(document.Verbs, verb)
		}
	}
	slices.Sort(document.Verbs)
	if provider, ok := r.Storage.(rest.ShortNamesProvider); ok {
		document.ShortNames = provider.ShortNames()
	}
	if provider, ok := r.Storage.(rest.CategoriesProvider); ok {
		document.Categories = provider.Categories()
	}
	if r.Subresource == "" {
		provider, ok := r.Storage.(rest.SingularNameProvider)
		if !ok {
			return document, errors.New("the storage has no singular name")
		}
		document.SingularName = provider.GetSingularName()
	}
	var err error
	document.StorageVersionHash, err = b.storageVersionHash(r)
	return document, err
}

// storageVersionHash returns a hash that changes with the stored version of the resource. It is
// empty for resources that are not stored.
func (b resourceBuilder) storageVersionHash(r *Resource) (string, error) {
	provider, ok := r.Storage.(rest.StorageVersionProvider)
	if !ok || provider.StorageVersion() == nil || !utilfeature.DefaultFeatureGate.Enabled(features.StorageVersionHash) {
		return "", nil
	}
	kinds, _, err := b.version.Scheme.ObjectKinds(r.Storage.New())
	if err != nil {
		return "", err
	}
	stored, ok := provider.StorageVersion().KindForGroupVersionKinds(kinds)
	if !ok {
		return "", fmt.Errorf("no storage version among %v", kinds)
	}
	return discovery.StorageVersionHash(stored.Group, stored.Version, stored.Kind), nil
}
