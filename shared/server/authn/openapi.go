package authn

import "k8s.io/kube-openapi/pkg/validation/spec"

// SecurityDefinitions is what OpenAPI documents say of authentication, as
// kube-apiserver says it wherever bearer tokens are accepted. Certificates have
// no form there.
func SecurityDefinitions() *spec.SecurityDefinitions {
	return &spec.SecurityDefinitions{"BearerToken": {SecuritySchemeProps: spec.SecuritySchemeProps{
		Type:        "apiKey",
		Name:        "authorization",
		In:          "header",
		Description: "Bearer Token authentication",
	}}}
}
