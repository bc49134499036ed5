package openapi

import (
	"encoding/json"
	"fmt"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/controller/openapi/builder"
	"k8s.io/apiextensions-apiserver/pkg/features"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/kube-openapi/pkg/handler"
	"k8s.io/kube-openapi/pkg/spec3"
	"k8s.io/kube-openapi/pkg/validation/spec"

	"triune.dev/services/extensions/internal/compactcrd"
	"triune.dev/shared/server/openapi"
)

// buildV3 returns the v3 document of a group-version, in JSON.
func buildV3(gv schema.GroupVersion, crds []*apiextensionsv1.CustomResourceDefinition) ([]byte, error) {
	var parts []*spec3.OpenAPI
	for _, crd := range crds {
		crd, err := compactcrd.Expand(crd)
		if err != nil {
			return nil, err
		}
		part, err := builder.BuildOpenAPIV3(crd, gv.Version, builder.Options{IncludeSelectableFields: selectableFields()})
		if err != nil {
			return nil, fmt.Errorf("build OpenAPI v3 of %s in %s: %w", crd.Name, gv, err)
		}
		parts = append(parts, part)
	}
	merged, err := builder.MergeSpecsV3(parts...)
	if err != nil {
		return nil, fmt.Errorf("merge OpenAPI v3 of %s: %w", gv, err)
	}
	return json.Marshal(merged)
}

// buildV2 returns the v2 document of the tier, in JSON: static merged with the CRDs.
func buildV2(static openapi.Source, crds []*apiextensionsv1.CustomResourceDefinition) ([]byte, error) {
	own, err := static.Build()
	if err != nil {
		return nil, err
	}
	if len(crds) == 0 {
		return own, nil
	}
	var base spec.Swagger
	if err := json.Unmarshal(own, &base); err != nil {
		return nil, fmt.Errorf("read back OpenAPI v2: %w", err)
	}
	var parts []*spec.Swagger
	for _, crd := range crds {
		crd, err := compactcrd.Expand(crd)
		if err != nil {
			return nil, err
		}
		for _, v := range crd.Spec.Versions {
			if !v.Served {
				continue
			}
			part, err := builder.BuildOpenAPIV2(crd, v.Name, builder.Options{V2: true, IncludeSelectableFields: selectableFields()})
			if err != nil {
				return nil, fmt.Errorf("build OpenAPI v2 of %s in %s: %w", crd.Name, v.Name, err)
			}
			// The static document has no defaults, and types in both must be equal to be
			// merged.
			part.Definitions = handler.PruneDefaults(part.Definitions)
			parts = append(parts, part)
		}
	}
	merged, err := builder.MergeSpecs(&base, parts...)
	if err != nil {
		return nil, fmt.Errorf("merge OpenAPI v2: %w", err)
	}
	return merged.MarshalJSON()
}

func selectableFields() bool {
	return utilfeature.DefaultFeatureGate.Enabled(features.CustomResourceFieldSelectors)
}
