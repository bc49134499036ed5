package customresource

import (
	"cmp"
	"fmt"
	"slices"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kubeversion "k8s.io/apimachinery/pkg/version"
)

// columnsOf returns the columns of a version's Table without the name, which is always
// present. The default is the age.
func columnsOf(v *apiextensionsv1.CustomResourceDefinitionVersion) []apiextensionsv1.CustomResourceColumnDefinition {
	if len(v.AdditionalPrinterColumns) > 0 {
		return v.AdditionalPrinterColumns
	}
	return []apiextensionsv1.CustomResourceColumnDefinition{ageColumn()}
}

// scaleColumns returns the columns of a Scale's Table. The paths are those of Scale, not of
// the custom resource.
func scaleColumns(scale *apiextensionsv1.CustomResourceSubresourceScale) []apiextensionsv1.CustomResourceColumnDefinition {
	var columns []apiextensionsv1.CustomResourceColumnDefinition
	if scale.SpecReplicasPath != "" {
		columns = append(columns, apiextensionsv1.CustomResourceColumnDefinition{
			Name: "Desired", Type: "integer", Description: "Number of desired replicas", JSONPath: ".spec.replicas",
		})
	}
	if scale.StatusReplicasPath != "" {
		columns = append(columns, apiextensionsv1.CustomResourceColumnDefinition{
			Name: "Available", Type: "integer", Description: "Number of actual replicas", JSONPath: ".status.replicas",
		})
	}
	return append(columns, ageColumn())
}

func ageColumn() apiextensionsv1.CustomResourceColumnDefinition {
	return apiextensionsv1.CustomResourceColumnDefinition{
		Name:        "Age",
		Type:        "date",
		Description: metav1.ObjectMeta{}.SwaggerDoc()["creationTimestamp"],
		JSONPath:    ".metadata.creationTimestamp",
	}
}

// deprecationWarning returns the text of the Warning header for a deprecated version: that
// of the CRD, or one that names the newest served version that is not deprecated, if it is
// newer.
func deprecationWarning(crd *apiextensionsv1.CustomResourceDefinition, v *apiextensionsv1.CustomResourceDefinitionVersion) string {
	if v.DeprecationWarning != nil {
		return *v.DeprecationWarning
	}
	kind := crd.Spec.Names.Kind
	text := fmt.Sprintf("%s/%s %s is deprecated", crd.Spec.Group, v.Name, kind)
	var newer []string
	for _, other := range crd.Spec.Versions {
		if other.Served && !other.Deprecated && kubeversion.CompareKubeAwareVersionStrings(v.Name, other.Name) < 0 {
			newer = append(newer, other.Name)
		}
	}
	if len(newer) == 0 {
		return text
	}
	newest := slices.MaxFunc(newer, func(a, b string) int {
		return cmp.Or(kubeversion.CompareKubeAwareVersionStrings(a, b), cmp.Compare(a, b))
	})
	return fmt.Sprintf("%s; use %s/%s %s", text, crd.Spec.Group, newest, kind)
}
