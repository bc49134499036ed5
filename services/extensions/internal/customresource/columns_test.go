package customresource

import (
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
)

func TestDeprecationWarning(t *testing.T) {
	own := "use something else"
	tests := []struct {
		name     string
		version  apiextensionsv1.CustomResourceDefinitionVersion
		versions []apiextensionsv1.CustomResourceDefinitionVersion
		want     string
	}{
		{
			name:    "the author's text",
			version: apiextensionsv1.CustomResourceDefinitionVersion{Name: "v1alpha1", Deprecated: true, DeprecationWarning: &own},
			want:    own,
		},
		{
			name:    "no successor",
			version: apiextensionsv1.CustomResourceDefinitionVersion{Name: "v1", Deprecated: true},
			versions: []apiextensionsv1.CustomResourceDefinitionVersion{
				{Name: "v1beta1", Served: true}, {Name: "v2", Served: false}, {Name: "v3", Served: true, Deprecated: true},
			},
			want: "example.com/v1 Widget is deprecated",
		},
		{
			name:    "the newest successor, by Kubernetes' order of versions",
			version: apiextensionsv1.CustomResourceDefinitionVersion{Name: "v1alpha1", Deprecated: true},
			versions: []apiextensionsv1.CustomResourceDefinitionVersion{
				{Name: "v2", Served: true}, {Name: "v10", Served: true}, {Name: "v11beta1", Served: true},
			},
			want: "example.com/v1alpha1 Widget is deprecated; use example.com/v10 Widget",
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			crd := widgets(func(c *apiextensionsv1.CustomResourceDefinition) { c.Spec.Versions = test.versions })
			if got := deprecationWarning(crd, &test.version); got != test.want {
				t.Errorf("%q, want %q", got, test.want)
			}
		})
	}
}
