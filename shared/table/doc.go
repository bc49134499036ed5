// Package table is the resource table of a tier: which resources it serves in
// which group-versions, and which handler answers which verb.
//
// kube-apiserver keeps this knowledge in its router, a route per verb and path.
// Triune keeps it as data. One wildcard route per group-version leads into the
// table; the table decides what the path means, so an unknown resource of an
// owned group-version is 404 here and a wrong method is 405, as in
// kube-apiserver, and neither travels on to the next tier. The same data is what
// discovery and OpenAPI are generated from.
//
// A path below a group-version has four meanings, a [Level] each: the collection
// of a namespace or of the cluster, the collection over all namespaces, an item,
// and a path below an item (proxy). [Match] finds level, resource and parameters
// in a path without touching any storage; it is a pure function.
//
// The handlers themselves are those of k8s.io/apiserver/pkg/endpoints/handlers.
//
// A Table is built once, before it serves, and is then read-only: no lock guards
// it.
package table
