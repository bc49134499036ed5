package openapi

import (
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	apiopenapi "k8s.io/apiserver/pkg/endpoints/openapi"
	"k8s.io/kube-openapi/pkg/common"
	"k8s.io/kube-openapi/pkg/validation/spec"
)

// What a reference to a definition looks like in each version of OpenAPI.
const (
	refV2 = "#/definitions/"
	refV3 = "#/components/schemas/"
)

// definitions holds the definitions of all Go types of the tier while they are
// in use. To make those of Kubernetes takes some 6 ms and to hold them 6 MB; so
// they are made when asked for and dropped when nobody has asked for a while.
type definitions struct {
	generate common.GetOpenAPIDefinitions
	schemes  []*runtime.Scheme
	keep     time.Duration

	// using is held by whoever uses v3: the builders write into the definitions.
	using sync.Mutex
	v3    map[string]common.OpenAPIDefinition

	// mu guards names and drop.
	mu    sync.Mutex
	names *names
	drop  *time.Timer
}

// use calls f with the v3 definitions. Neither they nor anything made of them may
// be kept beyond the call. Calls wait for each other.
func (d *definitions) use(f func(v3 map[string]common.OpenAPIDefinition) error) error {
	d.using.Lock()
	defer d.using.Unlock()
	if d.v3 == nil {
		d.v3 = d.generate(references(refV3))
	}
	d.touch()
	return f(d.v3)
}

// naming tells which group-version-kinds a definition stands for.
func (d *definitions) naming() *names {
	d.touch()
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.names == nil {
		d.names = &names{
			namer:      apiopenapi.NewDefinitionNamer(d.schemes...),
			extensions: map[string]spec.Extensions{},
		}
	}
	return d.names
}

// touch puts off the time at which everything is dropped.
func (d *definitions) touch() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.drop != nil {
		d.drop.Stop()
	}
	d.drop = time.AfterFunc(d.keep, d.forget)
}

func (d *definitions) forget() {
	d.using.Lock()
	defer d.using.Unlock()
	d.mu.Lock()
	defer d.mu.Unlock()
	d.v3, d.names, d.drop = nil, nil, nil
}

// references returns the function that makes references with the given prefix.
// Definitions go by their own names.
func references(prefix string) common.ReferenceCallback {
	return func(name string) spec.Ref {
		return spec.MustCreateRef(prefix + common.EscapeJsonPointer(name))
	}
}

// names remembers the group-version-kinds of definitions in the form in which
// they stand in documents. The builders ask for them with every reference.
type names struct {
	namer *apiopenapi.DefinitionNamer

	mu         sync.Mutex
	extensions map[string]spec.Extensions // never written to once they are in here
}

// of returns the name of a definition in a document and its extensions.
func (n *names) of(definition string) (string, spec.Extensions) {
	n.mu.Lock()
	defer n.mu.Unlock()
	extensions, known := n.extensions[definition]
	if !known {
		_, extensions = n.namer.GetDefinitionName(definition)
		n.extensions[definition] = extensions
	}
	return definition, extensions
}
