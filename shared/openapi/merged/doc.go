// Package merged serves OpenAPI documents over several servers: a tier's own,
// those of the tiers behind it, and those of extension servers.
//
// Nothing is fetched or built before somebody asks, and then with conditional
// requests: a server is asked again only when its last answer is older than a
// moment. A server that fails is left alone for a while, and what it said last is
// served on; one that never answered is missing. A request waits a bounded time
// for a server, whose late answer is there for the next request.
//
// OpenAPI v3 (KEP-2896) is an index of documents. The indexes are joined, and a
// document is asked of the server whose it is, by the client's own request. An
// extension server without v3 has its v2 converted, as kube-aggregator does.
//
// OpenAPI v2 is one document, so the documents must become one: see [Splice]. The
// rules are kube-openapi's; the work is done on JSON text, for decoded Kubernetes
// takes forty megabytes and nearly all of it is copied unseen.
package merged
