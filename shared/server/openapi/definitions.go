package openapi

import (
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	apiopenapi "k8s.io/apiserver/pkg/endpoints/openapi"
	"k8s.io/kube-openapi/pkg/common"
	"k8s.io/kube-openapi/pkg/validation/spec"
)

// Prefixes of references to definitions in each version of OpenAPI.
const (
	refV2 = "#/definitions/"
	refV3 = "#/components/schemas/"
)

// definitions holds the definitions of all Go types of the tier while they are in use.
// Generating those of Kubernetes takes some 6 ms and holding them 6 MB, so they are generated
// on demand and dropped when they have not been used for a while.
type definitions struct {
	generate common.GetOpenAPIDefinitions
	schemes  []*runtime.Scheme
	keep     time.Duration

	// inUse is held while v3 is in use, because the builders write to the definitions.
	inUse sync.Mutex
	v3    map[string]common.OpenAPIDefinition

	// mu guards names and drop.
	mu    sync.Mutex
	names *names
	drop  *time.Timer
}

// use calls f with the v3 definitions. f must not retain them or anything made from them.
// Concurrent calls wait for each other.
func (d *definitions) use(f func(v3 map[string]common.OpenAPIDefinition) error) error {
	d.inUse.Lock()
	defer d.inUse.Unlock()
	if d.v3 == nil {
		d.v3 = d.generate(references(refV3))
	}
	d.touch()
	return f(d.v3)
}

// naming returns the mapping from definitions to group-version-kinds.
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

// touch postpones the time at which everything is dropped.
func (d *definitions) touch() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.drop != nil {
		d.drop.Stop()
	}
	d.drop = time.AfterFunc(d.keep, d.forget)
}

func (d *definitions) forget() {
	d.inUse.Lock()
	defer d.inUse.Unlock()
	d.mu.Lock()
	defer d.mu.Unlock()
	d.v3, d.names, d.drop = nil, nil, nil
}

// references returns a function that makes references with the given prefix. Definitions keep
// their names.
func references(prefix string) common.ReferenceCallback {
	return func(name string) spec.Ref {
		return spec.MustCreateRef(prefix + common.EscapeJsonPointer(name))
	}
}

// names caches the group-version-kinds of definitions in the form used by documents. The
// builders look them up for every reference.
type names struct {
	namer *apiopenapi.DefinitionNamer

	mu         sync.Mutex
	extensions map[string]spec.Extensions // the values are never modified
}

// lookup returns the name of a definition in a document, and its extensions.
func (n *names) lookup(definition string) (string, spec.Extensions) {
	n.mu.Lock()
	defer n.mu.Unlock()
	extensions, known := n.extensions[definition]
	if !known {
		_, extensions = n.namer.GetDefinitionName(definition)
		n.extensions[definition] = extensions
	}
	return definition, extensions
}
