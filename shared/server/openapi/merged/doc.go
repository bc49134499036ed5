// Package merged serves OpenAPI documents merged from several servers: a tier's own, those of
// the tiers behind it, and those of extension servers.
//
// [NewDocuments] returns a [Documents] over [Source] values. It is safe for concurrent use
// until Close. Nothing is fetched or built before the first request, and then only with
// conditional requests: a server is asked again once its last answer is older than a moment. A
// failing server is not asked for a while, and its last answer is still served; a server that
// has never answered is missing. A request waits only a bounded time for a server; a late
// answer is used by the next request.
//
// OpenAPI v3 (KEP-2896) is an index of documents. The indexes are merged, and a request for a
// document is passed on to the server that owns it. The v2 document of an extension server
// without v3 is converted, as in kube-aggregator.
//
// OpenAPI v2 is a single document, so the documents must be merged: see [Spec.Splice]. The
// rules are those of kube-openapi. The merge operates on JSON text, because decoded documents
// of Kubernetes take forty megabytes, and nearly all of the text is copied unchanged.
package merged
