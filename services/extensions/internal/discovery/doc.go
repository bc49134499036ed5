// Package discovery tells clients which custom resources there are: a document
// per group (/apis/{group}) and per group-version (/apis/{group}/{version}), and
// the same in the aggregated form of /apis (KEP-3352).
//
// What the documents say is a pure function of the CRDs of a group (describe.go).
// A change of a CRD recomputes its group, at once, and swaps the documents
// atomically, so a client that sees the Established condition of a CRD through
// this server finds it in discovery no later than the time that the informer
// takes to deliver the same change.
package discovery
