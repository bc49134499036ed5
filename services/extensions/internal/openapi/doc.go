// Package openapi describes custom resources in the OpenAPI documents of the
// tier: a v3 document per group-version, and their part of the v2 document.
//
// kube-apiserver builds the v3 document of every CRD when the CRD changes, which
// is where most of the time goes when many CRDs are created. Here a change only
// replaces the source of a document and its tag, which is made of the CRDs' UIDs
// and generations; the document is built when a client asks for it.
package openapi
