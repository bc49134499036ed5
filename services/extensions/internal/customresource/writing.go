package customresource

import (
	"fmt"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	structuralschema "k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/validation"

	"triune.dev/services/extensions/internal/compactcrd"
)

// validators check the objects of writes.
type validators struct {
	object, status validation.SchemaValidator
	structural     *structuralschema.Structural
}

// newValidators compiles the schema of a version. The strategy compiles CEL.
func (s *serving) newValidators(version string) (v validators, err error) {
	if v.structural, err = s.schemas.forVersion(version); err != nil {
		return v, err
	}
	crd, err := compactcrd.Expand(s.crd)
	if err != nil {
		return v, err
	}
	definition := versionOf(crd, version)
	props, err := internalSchema(definition)
	if err != nil {
		return v, err
	}
	if v.object, _, err = validation.NewSchemaValidator(props); err != nil {
		return v, fmt.Errorf("make the validator: %w", err)
	}
	if !hasStatus(definition) || props == nil {
		return v, nil
	}
	// A write to status is validated against the schema of status alone.
	if status, ok := props.Properties["status"]; ok {
		if v.status, _, err = validation.NewSchemaValidator(&status); err != nil {
			return v, fmt.Errorf("make the validator of status: %w", err)
		}
	}
	return v, nil
}

// versionOf returns the named version of crd, or nil.
func versionOf(crd *apiextensionsv1.CustomResourceDefinition, name string) *apiextensionsv1.CustomResourceDefinitionVersion {
	for i := range crd.Spec.Versions {
		if crd.Spec.Versions[i].Name == name {
			return &crd.Spec.Versions[i]
		}
	}
	return nil
}

// newWrites makes the endpoints of writes to a version, over the storage of its reads. It
// returns errRetired if the serving has been destroyed.
func (s *serving) newWrites(name string, reads *endpoints) (*endpoints, error) {
	s.mu.Lock()
	destroyed := s.destroyed
	s.mu.Unlock()
	if destroyed {
		return nil, errRetired
	}
	checks, err := s.newValidators(name)
	if err != nil {
		return nil, fmt.Errorf("writes to version %s: %w", name, err)
	}
	return s.newEndpoints(name, &checks, reads)
}
