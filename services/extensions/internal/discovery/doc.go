// Package discovery serves the discovery documents of custom resources: one for each group
// (/apis/{group}) and group-version (/apis/{group}/{version}), and the aggregated form of
// /apis (KEP-3352).
//
// A [Publisher] gets the CRDs by Put and Remove. The documents are a pure function of the
// CRDs of a group (describe.go). Each change of a CRD computes the documents of its group
// and swaps them atomically. So a client that sees the Established condition of a CRD
// finds the CRD in discovery as soon as the informer has delivered that change.
package discovery
