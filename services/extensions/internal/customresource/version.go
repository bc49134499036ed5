package customresource

import (
	"fmt"
	"net/http"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	registry "k8s.io/apiextensions-apiserver/pkg/registry/customresource"
	"k8s.io/apiextensions-apiserver/pkg/registry/customresource/tableconvertor"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/endpoints/handlers"
	"k8s.io/klog/v2"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"

	"triune.dev/shared/server/reads"
)

// version serves one version of a CRD. It is immutable.
type version struct {
	// reads has no validators; schemas are built only if an object must be decoded.
	reads *endpoints
	// get, list and watch are the handlers of reads.
	get, list, watch http.HandlerFunc
	// writes also has validators and managers of managed fields.
	writes *expiring[endpoints]
	// deprecated is reported in metrics; warnings are sent with every response.
	deprecated bool
	warnings   []string
}

// endpoints are the storage of a version and its request scopes.
type endpoints struct {
	storage registry.CustomResourceStorage
	// resource, status and scale are the scopes of the three endpoints; the
	// latter two are nil if the version lacks the subresource.
	resource, status, scale *handlers.RequestScope
}

// destroy stops the storage, which subresources share.
func (e *endpoints) destroy() { e.storage.CustomResource.Destroy() }

// buildVersion must be called with mu held.
func (s *serving) buildVersion(v *apiextensionsv1.CustomResourceDefinitionVersion) (*version, error) {
	reads, err := s.newEndpoints(v.Name, nil, nil)
	if err != nil {
		return nil, err
	}
	out := &version{reads: reads, deprecated: v.Deprecated}
	out.writes = newExpiring(func() (*endpoints, error) { return s.newWrites(v.Name, reads) })
	if v.Deprecated {
		out.warnings = append(out.warnings, deprecationWarning(s.crd, v))
	}
	if err := s.addReads(out); err != nil {
		reads.destroy()
		return nil, err
	}
	return out, nil
}

// newEndpoints makes the endpoints of a version. Those of reads have a storage of their
// own and no validators; those of writes have validators and share the storage of base.
func (s *serving) newEndpoints(name string, checks *validators, base *endpoints) (_ *endpoints, err error) {
	v := versionOf(s.crd, name)
	parameters := newParameterScheme(schema.GroupVersion{Group: s.crd.Spec.Group, Version: name})
	types := newTyper(parameters)
	storage, err := s.newStorage(v, types, checks, base)
	if err != nil {
		return nil, err
	}
	out := &endpoints{storage: storage}
	defer func() {
		if err != nil {
			out.destroy()
		}
	}()
	scopes := scopeBuilder{serving: s, version: v, parameters: parameters, typer: types, storage: storage, manage: checks != nil}
	if out.resource, err = scopes.forResource(); err != nil {
		return nil, err
	}
	if hasStatus(v) {
		if out.status, err = scopes.forStatus(out.resource); err != nil {
			return nil, err
		}
	}
	if hasScale(v) {
		if out.scale, err = scopes.forScale(out.resource); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// addReads makes the handlers of reads. They use stored bytes if the storage has a cache of
// them.
func (s *serving) addReads(v *version) error {
	storage, scope, patience := v.reads.storage.CustomResource, v.reads.resource, s.config.MinRequestTimeout
	v.get = handlers.GetResource(storage, scope)
	v.list = handlers.ListResource(storage, storage, scope, false, patience)
	v.watch = handlers.ListResource(storage, storage, scope, true, patience)
	// The storage of custom resources only copies the objects that the store returns,
	// which does not matter if bytes are sent.
	bytes, err := reads.NewResource(storage.Store, scope, !s.clusterScoped())
	if err != nil || bytes == nil {
		return err
	}
	v.get = bytes.Get(v.get)
	v.list = bytes.List(v.list)
	v.watch = bytes.ListAndWatch(patience, true, v.watch)
	return nil
}

// newStorage makes the registry of a version: its strategy, for which CEL is compiled, over
// a storage of the configuration or that of base.
func (s *serving) newStorage(v *apiextensionsv1.CustomResourceDefinitionVersion, types typer, checks *validators, base *endpoints) (registry.CustomResourceStorage, error) {
	var none registry.CustomResourceStorage
	subresources, err := internalSubresources(v)
	if err != nil {
		return none, err
	}
	options := storageOptions{RESTOptionsGetter: s.config.RESTOptionsGetter}
	if checks == nil {
		checks = &validators{}
	}
	if base != nil {
		options.shared = base.storage.CustomResource.Storage.Storage
	}
	kind := s.gvk(v.Name)
	options.converter, options.schemas = s.converter, s.schemas
	options.storedAs = schema.GroupVersion{Group: kind.Group, Version: s.storageVersion}
	options.readAs = kind.GroupVersion()
	columns, err := tableconvertor.New(columnsOf(v))
	if err != nil {
		// New then returns a convertor with the default columns.
		klog.V(2).InfoS("using the default printer columns", "crd", s.crd.Name, "version", v.Name, "err", err)
	}
	names := s.crd.Status.AcceptedNames
	storage, err := registry.NewStorage(
		schema.GroupResource{Group: kind.Group, Resource: names.Plural},
		schema.GroupResource{Group: kind.Group, Resource: names.Singular},
		kind,
		kind.GroupVersion().WithKind(names.ListKind),
		registry.NewStrategy(
			types,
			!s.clusterScoped(),
			kind,
			checks.object,
			checks.status,
			checks.structural,
			subresources.Status,
			subresources.Scale,
			v.SelectableFields,
		),
		options,
		names.Categories,
		columns,
		s.replicasPaths,
	)
	if err != nil {
		return none, fmt.Errorf("make the storage: %w", err)
	}
	return storage, nil
}

// collectStatusResets returns the fields that the status strategy of each version resets.
func (s *serving) collectStatusResets() (map[fieldpath.APIVersion]*fieldpath.Set, error) {
	resets := map[fieldpath.APIVersion]*fieldpath.Set{}
	for i := range s.crd.Spec.Versions {
		v := &s.crd.Spec.Versions[i]
		if !hasStatus(v) || (!v.Served && !v.Storage) {
			continue
		}
		subresources, err := internalSubresources(v)
		if err != nil {
			return nil, fmt.Errorf("version %s: %w", v.Name, err)
		}
		// The reset fields do not depend on schemas, so the strategy gets none.
		strategy := registry.NewStatusStrategy(registry.NewStrategy(nil, !s.clusterScoped(), s.gvk(v.Name), nil, nil, nil, subresources.Status, subresources.Scale, nil))
		for apiVersion, fields := range strategy.GetResetFields() {
			resets[apiVersion] = fields
		}
	}
	return resets, nil
}

// internalSubresources converts the subresources of v; it never returns nil
// without an error.
func internalSubresources(v *apiextensionsv1.CustomResourceDefinitionVersion) (*apiextensions.CustomResourceSubresources, error) {
	out := &apiextensions.CustomResourceSubresources{}
	if v.Subresources == nil {
		return out, nil
	}
	if err := apiextensionsv1.Convert_v1_CustomResourceSubresources_To_apiextensions_CustomResourceSubresources(v.Subresources, out, nil); err != nil {
		return nil, fmt.Errorf("convert the subresources: %w", err)
	}
	return out, nil
}
