package openapi

import (
	"crypto/sha512"
	"fmt"
	"maps"
	"slices"
	"sync"

	"k8s.io/apiextensions-apiserver/pkg/apihelpers"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/component-base/version"

	"triune.dev/shared/server/openapi"
)

// Documents are the OpenAPI documents of the tier. Its methods are safe for concurrent use.
type Documents interface {
	SetV2(openapi.Source)
	SetV3(path string, source openapi.Source)
	DeleteV3(path string)
}

// Publisher keeps the documents of all established CRDs up to date. It is safe
// for concurrent use.
type Publisher struct {
	documents Documents
	static    openapi.Source

	// mu serialises Put and Remove and guards crds.
	mu sync.Mutex
	// crds holds the established CRDs by name.
	crds map[string]*apiextensionsv1.CustomResourceDefinition
}

// NewPublisher returns a publisher without CRDs. static is the v2 document of the tier's own
// resources; its paths take precedence over those of CRDs.
func NewPublisher(documents Documents, static openapi.Source) *Publisher {
	return &Publisher{
		documents: documents,
		static:    static,
		crds:      map[string]*apiextensionsv1.CustomResourceDefinition{},
	}
}

// Put publishes crd if it is established. crd must not be changed afterwards.
func (p *Publisher) Put(crd *apiextensionsv1.CustomResourceDefinition) {
	if !apihelpers.IsCRDConditionTrue(crd, apiextensionsv1.Established) || crd.Spec.Group == apiextensions.GroupName {
		p.Remove(crd)
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	old := p.crds[crd.Name]
	if old != nil && old.UID == crd.UID && old.Generation == crd.Generation {
		return
	}
	p.crds[crd.Name] = crd
	p.publishLocked(old, crd)
}

// Remove withdraws crd.
func (p *Publisher) Remove(crd *apiextensionsv1.CustomResourceDefinition) {
	p.mu.Lock()
	defer p.mu.Unlock()
	old := p.crds[crd.Name]
	if old == nil {
		return
	}
	delete(p.crds, crd.Name)
	p.publishLocked(old)
}

// publishLocked replaces the sources of the documents of the given CRDs; nil is ignored.
func (p *Publisher) publishLocked(changed ...*apiextensionsv1.CustomResourceDefinition) {
	touched := map[schema.GroupVersion]bool{}
	for _, crd := range changed {
		if crd == nil {
			continue
		}
		for _, v := range crd.Spec.Versions {
			touched[schema.GroupVersion{Group: crd.Spec.Group, Version: v.Name}] = true
		}
	}
	for gv := range touched {
		path := "apis/" + gv.String()
		if crds := p.servingLocked(gv); len(crds) > 0 {
			p.documents.SetV3(path, openapi.Source{
				Tag:   tag(crds),
				Build: func() ([]byte, error) { return buildV3(gv, crds) },
			})
		} else {
			p.documents.DeleteV3(path)
		}
	}
	all := p.allLocked()
	p.documents.SetV2(openapi.Source{
		Tag:   tag(all),
		Build: func() ([]byte, error) { return buildV2(p.static, all) },
	})
}

// servingLocked returns the CRDs that serve gv, sorted by name.
func (p *Publisher) servingLocked(gv schema.GroupVersion) []*apiextensionsv1.CustomResourceDefinition {
	return slices.DeleteFunc(p.allLocked(), func(crd *apiextensionsv1.CustomResourceDefinition) bool {
		return crd.Spec.Group != gv.Group || !apihelpers.HasServedCRDVersion(crd, gv.Version)
	})
}

func (p *Publisher) allLocked() []*apiextensionsv1.CustomResourceDefinition {
	all := make([]*apiextensionsv1.CustomResourceDefinition, 0, len(p.crds))
	for _, name := range slices.Sorted(maps.Keys(p.crds)) {
		all = append(all, p.crds[name])
	}
	return all
}

// tag returns the tag of the document of crds. It is the same in all replicas of a release;
// another release may build the document differently.
func tag(crds []*apiextensionsv1.CustomResourceDefinition) string {
	hash := sha512.New()
	fmt.Fprintln(hash, version.Get().GitVersion)
	for _, crd := range crds {
		fmt.Fprintln(hash, crd.UID, crd.Generation)
	}
	return fmt.Sprintf("%X", hash.Sum(nil))
}
