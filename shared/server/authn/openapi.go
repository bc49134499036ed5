package authn

import "k8s.io/kube-openapi/pkg/validation/spec"

// SecurityDefinitions returns the security definitions of OpenAPI documents. They are
// kube-apiserver's for a server that accepts bearer tokens; OpenAPI v2 cannot describe
// client certificates.
func SecurityDefinitions() *spec.SecurityDefinitions {
	return &spec.SecurityDefinitions{"BearerToken": {SecuritySchemeProps: spec.SecuritySchemeProps{
		Type:        "apiKey",
		Name:        "authorization",
		In:          "header",
		Description: "Bearer Token authentication",
	}}}
}
