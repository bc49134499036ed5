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

	// mu guards names, which are read-only once made, and drop.
	mu    sync.Mutex
	names *apiopenapi.DefinitionNamer
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

// namer tells which group-version-kinds a definition stands for.
func (d *definitions) namer() *apiopenapi.DefinitionNamer {
	d.touch()
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.names == nil {
		d.names = apiopenapi.NewDefinitionNamer(d.schemes...)
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
