package resources

import (
	"fmt"
	"net/http"
	"path"
	"slices"
	"sort"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/registry/rest"
	genericapiserver "k8s.io/apiserver/pkg/server"
)

// Path prefixes of group-versions.
const (
	LegacyPrefix = "/api"
	GroupPrefix  = "/apis"
)

// Config is the configuration that all resources of a tier share.
type Config struct {
	// Admission is called for every write. Nil admits everything.
	Admission admission.Interface
	// Authorizer is called by handlers that find out late what a request does, such as a create
	// by update. Required.
	Authorizer authorizer.Authorizer
	// Equivalents registers the kind of each resource; admission webhooks use it to match
	// equivalent resources. Required.
	Equivalents runtime.EquivalentResourceRegistry
	// TypeConverter returns the converter to the typed form of objects of one group-version,
	// which server-side apply and the managed fields of all other writes need. It is called
	// while the table is built, so the converter should do its work on first use. Required.
	TypeConverter func(schema.GroupVersion) managedfields.TypeConverter
	// MinRequestTimeout is the minimum timeout of a watch that sets none; each watch gets a
	// random timeout between one and two times this value.
	MinRequestTimeout time.Duration
	// MaxRequestBodyBytes limits the body of a write; 0 means no limit.
	MaxRequestBodyBytes int64
	// Major and Minor are the Kubernetes version, which determines what is deprecated.
	Major, Minor int
}

// Table is the set of resources that a tier serves. Build it with New and Install; then it is
// read-only.
type Table struct {
	config   Config
	versions map[string]*GroupVersion // by path: "/api/v1", "/apis/apps/v1"
	groups   []Group                  // in order of installation
}

// Group is one API group of the table.
type Group struct {
	Name string
	// Prefix is LegacyPrefix or GroupPrefix.
	Prefix string
	// Versions are in order of preference.
	Versions []*GroupVersion
}

// GroupVersion is the set of resources of one group-version.
type GroupVersion struct {
	schema.GroupVersion
	// Root is the path of the group-version: "/api/v1" or "/apis/apps/v1".
	Root string
	// OptionsVersion is the group-version of ListOptions and similar types in this group.
	OptionsVersion schema.GroupVersion
	Scheme         *runtime.Scheme
	Serializer     runtime.NegotiatedSerializer
	ParameterCodec runtime.ParameterCodec

	resources map[string]*Resource
	ordered   []*Resource
}

// New returns an empty table.
func New(config Config) *Table {
	return &Table{config: config, versions: map[string]*GroupVersion{}}
}

// Install adds the group-versions of info under prefix. Versions without resources are skipped.
// It fails if the group is already installed, or if a storage lacks an interface that the table
// requires.
func (t *Table) Install(prefix string, info *genericapiserver.APIGroupInfo) error {
	if len(info.PrioritizedVersions) == 0 {
		return fmt.Errorf("install API group under %s: no version", prefix)
	}
	group := Group{Name: info.PrioritizedVersions[0].Group, Prefix: prefix}
	for _, gv := range info.PrioritizedVersions {
		storage := info.VersionedResourcesStorageMap[gv.Version]
		if len(storage) == 0 {
			continue
		}
		version, err := t.build(prefix, gv, info, storage)
		if err != nil {
			return fmt.Errorf("install API group version %s: %w", gv, err)
		}
		if t.versions[version.Root] != nil {
			return fmt.Errorf("install API group version %s: installed twice", gv)
		}
		t.versions[version.Root] = version
		group.Versions = append(group.Versions, version)
	}
	if len(group.Versions) > 0 {
		t.groups = append(t.groups, group)
	}
	return nil
}

func (t *Table) build(prefix string, gv schema.GroupVersion, info *genericapiserver.APIGroupInfo, storage map[string]rest.Storage) (*GroupVersion, error) {
	version := &GroupVersion{
		GroupVersion:   gv,
		Root:           path.Join(prefix, gv.Group, gv.Version),
		OptionsVersion: gv,
		Scheme:         info.Scheme,
		Serializer:     info.NegotiatedSerializer,
		ParameterCodec: info.ParameterCodec,
		resources:      make(map[string]*Resource, len(storage)),
	}
	if info.OptionsExternalVersion != nil {
		version.OptionsVersion = *info.OptionsExternalVersion
	}
	metaVersion := metav1.SchemeGroupVersion
	if info.MetaGroupVersion != nil {
		metaVersion = *info.MetaGroupVersion
	}
	names := make([]string, 0, len(storage))
	for name := range storage {
		if strings.ToLower(name) != name {
			return nil, fmt.Errorf("resource %q: the name must be lower case", name)
		}
		names = append(names, name)
	}
	sort.Strings(names)
	builder := resourceBuilder{config: t.config, version: version, storage: storage, metaVersion: metaVersion}
	for _, name := range names {
		resource, err := builder.build(name)
		if err != nil {
			return nil, fmt.Errorf("resource %q: %w", name, err)
		}
		version.resources[name] = resource
		version.ordered = append(version.ordered, resource)
	}
	return version, nil
}

// Groups returns the installed groups in the order of installation.
func (t *Table) Groups() []Group { return slices.Clone(t.groups) }

// Roots returns the paths of all group-versions, sorted.
func (t *Table) Roots() []string {
	roots := make([]string, 0, len(t.versions))
	for root := range t.versions {
		roots = append(roots, root)
	}
	sort.Strings(roots)
	return roots
}

// Version returns the group-version served at root, such as "/apis/apps/v1".
func (t *Table) Version(root string) (*GroupVersion, bool) {
	version, ok := t.versions[root]
	return version, ok
}

// Destroy destroys the storage of every resource. The table must no longer serve.
func (t *Table) Destroy() {
	for _, version := range t.versions {
		for _, resource := range version.ordered {
			resource.Storage.Destroy()
		}
	}
}

// Resources returns the resources and subresources, sorted by key.
func (v *GroupVersion) Resources() []*Resource { return slices.Clone(v.ordered) }

// Resource returns the resource or subresource with the given key.
func (v *GroupVersion) Resource(name string) (*Resource, bool) {
	resource, ok := v.resources[name]
	return resource, ok
}

func (v *GroupVersion) scope(name string) (namespaced, found bool) {
	resource, found := v.resources[name]
	return found && resource.Namespaced, found
}

// ServeHTTP serves a request whose URL path lies below Root. Discovery serves the root itself.
func (v *GroupVersion) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	target, ok := Match(v, strings.TrimPrefix(req.URL.Path, v.Root))
	if !ok {
		v.notFound(w, req)
		return
	}
	routes := v.resources[target.Resource].at(target)
	if len(routes) == 0 {
		v.notFound(w, req)
		return
	}
	for _, route := range routes {
		if route.Method == req.Method {
			if route.Negotiable(w, req, v.Serializer) {
				route.Handler(w, req)
			}
			return
		}
	}
	v.methodNotAllowed(w, req)
}
