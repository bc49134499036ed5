// Package resources is the resource table of a tier: the resources it serves, their group-versions,
// and the handlers of their verbs.
//
// kube-apiserver has this information in its router, as one route per verb and path. Triune has
// it as data. One wildcard route per group-version leads to the table, and the table interprets
// the path: an unknown resource of a known group-version is 404 and an unsupported method is
// 405, as in kube-apiserver, and neither request is delegated to the next tier. Discovery and
// OpenAPI are generated from the same data.
//
// [New] returns an empty [Table], and [Table.Install] adds groups to it. A path below a
// group-version has one of four meanings, each a [Level]: the collection of a namespace or of
// the cluster, the collection across namespaces, an item, or a path below an item (proxy).
// [Match] finds level, resource and parameters of a path; it is a pure function and accesses no
// storage. The handlers are those of k8s.io/apiserver/pkg/endpoints/handlers.
//
// A Table is built before it serves, by one goroutine. Afterwards it is read-only and safe for
// concurrent use without a lock.
package resources
