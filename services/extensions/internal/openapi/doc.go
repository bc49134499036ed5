// Package openapi adds custom resources to the OpenAPI documents of the tier: a v3 document
// for each group-version, and a part of the v2 document.
//
// A [Publisher] gets the CRDs by Put and Remove. A change of a CRD only replaces the source
// of a document and its tag, which is a hash of the UIDs and generations of its CRDs; the
// document is built when a client requests it. kube-apiserver builds it at each change,
// which takes most of the time when many CRDs are created.
package openapi
