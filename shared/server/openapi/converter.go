package openapi

import (
	"errors"
	"fmt"
	"sync"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"k8s.io/kube-openapi/pkg/common"
	"k8s.io/kube-openapi/pkg/schemaconv"
	"k8s.io/kube-openapi/pkg/util"
	"k8s.io/kube-openapi/pkg/validation/spec"
	smd "sigs.k8s.io/structured-merge-diff/v6/schema"
	"sigs.k8s.io/structured-merge-diff/v6/typed"
	"sigs.k8s.io/structured-merge-diff/v6/value"

	"triune.dev/shared/server/resources"
)

// TypeConverter returns the converter between objects and typed values of structured merge for
// the resources of gv. It costs nothing until the first object of a kind is converted; then it
// builds the type of that kind, and those of its parts that no other kind has. It knows the
// kinds of the table given to Describe and may be called before Describe.
//
// As in kube-apiserver, the resources of core know the kinds of core, and all other groups know
// each other's: a managed-fields entry in another version is dropped at the next write.
func (s *Service) TypeConverter(gv schema.GroupVersion) managedfields.TypeConverter {
	return s.converters.family(gv.Group == "")
}

// converters holds the type converters of a tier.
type converters struct {
	definitions *definitions

	// core and groups are written only by learn.
	core, groups *family

	// mu guards types, the parts of all types built so far. A part never changes, so types can
	// share it.
	mu    sync.Mutex
	types map[string]smd.TypeDef
}

func newConverters(d *definitions) *converters {
	return &converters{
		definitions: d,
		core:        &family{kinds: map[schema.GroupVersionKind]*kindType{}},
		groups:      &family{kinds: map[schema.GroupVersionKind]*kindType{}},
		types:       map[string]smd.TypeDef{},
	}
}

func (c *converters) family(core bool) *family {
	if core {
		return c.core
	}
	return c.groups
}

// learn registers the kinds of a table.
func (c *converters) learn(t *resources.Table) {
	for _, group := range t.Groups() {
		into := c.family(group.Name == "")
		for _, version := range group.Versions {
			for _, resource := range version.Resources() {
				kind := resource.Kind
				if into.kinds[kind] == nil {
					into.kinds[kind] = &kindType{get: sync.OnceValues(func() (typed.ParseableType, error) {
						return c.build(version.Scheme, kind)
					})}
				}
			}
		}
	}
}

// family is a set of kinds that know each other. It implements managedfields.TypeConverter.
type family struct {
	kinds map[schema.GroupVersionKind]*kindType
}

// kindType is the type of one kind, built on first use.
type kindType struct {
	get func() (typed.ParseableType, error)
}

// noKinds returns a converter that knows no kind. Field managers recognize the error for an
// unknown kind by its type, which is not exported.
var noKinds = sync.OnceValues(func() (managedfields.TypeConverter, error) {
	return managedfields.NewTypeConverter(map[string]*spec.Schema{}, false)
})

// ObjectToTyped returns the typed form of an object, whose group-version-kind must be set.
func (f *family) ObjectToTyped(object runtime.Object, options ...typed.ValidationOptions) (*typed.TypedValue, error) {
	kind := f.kinds[object.GetObjectKind().GroupVersionKind()]
	if kind == nil {
		none, err := noKinds()
		if err != nil {
			return nil, err
		}
		return none.ObjectToTyped(object, options...)
	}
	parseable, err := kind.get()
	if err != nil {
		return nil, err
	}
	if u, ok := object.(*unstructured.Unstructured); ok {
		return parseable.FromUnstructured(u.UnstructuredContent(), options...)
	}
	fields, err := value.NewValueReflect(object)
	if err != nil {
		return nil, err
	}
	return typed.AsTyped(structured{fields, object}, parseable.Schema, parseable.TypeRef, options...)
}

// structured is the value of a Go object, together with that object.
type structured struct {
	value.Value
	object runtime.Object
}

// TypedToObject returns the Go object that a typed value was made from, which the caller must
// not change, or else the unstructured form of the value. It needs no type.
//
// Each field manager asks for the object of a value, to learn its version and to convert it to
// another one.
func (f *family) TypedToObject(v *typed.TypedValue) (runtime.Object, error) {
	if s, ok := v.AsValue().(structured); ok {
		return s.object, nil
	}
	return managedfields.NewDeducedTypeConverter().TypedToObject(v)
}

// build builds the type of one kind.
func (c *converters) build(scheme *runtime.Scheme, kind schema.GroupVersionKind) (typed.ParseableType, error) {
	sample, err := scheme.New(kind)
	if err != nil {
		return typed.ParseableType{}, fmt.Errorf("type of %s: %w", kind, err)
	}
	root := util.GetCanonicalTypeName(sample)
	var parts []string
	err = c.definitions.use(func(v3 map[string]common.OpenAPIDefinition) error {
		if parts, err = closure(v3, root); err != nil {
			return err
		}
		return c.convert(v3, parts)
	})
	if err != nil {
		return typed.ParseableType{}, fmt.Errorf("type of %s: %w", kind, err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	all := &smd.Schema{Types: make([]smd.TypeDef, 0, len(parts)+len(commonTypes))}
	for _, name := range append(parts, commonTypes...) {
		if part, ok := c.types[name]; ok {
			all.Types = append(all.Types, part)
		}
	}
	return typed.ParseableType{Schema: all, TypeRef: smd.TypeRef{NamedType: &root}}, nil
}

// commonTypes are parts of every schema, for values whose type is deduced or unknown.
var commonTypes = []string{"__untyped_atomic_", "__untyped_deduced_"}

// closure returns the names of root and of all definitions that it depends on.
func closure(definitions map[string]common.OpenAPIDefinition, root string) ([]string, error) {
	seen := map[string]bool{root: true}
	names := []string{root}
	for i := 0; i < len(names); i++ {
		definition, ok := definitions[names[i]]
		if !ok {
			return nil, errors.New("no OpenAPI definition of " + names[i])
		}
		for _, part := range definition.Dependencies {
			if !seen[part] {
				seen[part] = true
				names = append(names, part)
			}
		}
	}
	return names, nil
}

// convert builds the named parts that do not exist yet.
func (c *converters) convert(definitions map[string]common.OpenAPIDefinition, names []string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	missing := map[string]*spec.Schema{}
	for _, name := range names {
		if _, ok := c.types[name]; !ok {
			part := definitions[name].Schema
			missing[name] = &part
		}
	}
	converted, err := schemaconv.ToSchemaFromOpenAPI(missing, false)
	if err != nil {
		return err
	}
	for _, part := range converted.Types {
		if _, ok := c.types[part.Name]; !ok {
			c.types[part.Name] = part
		}
	}
	return nil
}
