// Package discovery serves /api, /apis and /apis/<group> for all tiers.
//
// A [Manager], made by [NewManager], polls the sources while [Manager.Run] runs, and serves their
// merged documents. Aggregated discovery (KEP-3352) has three sources: the next tier, which
// includes the tiers behind it; this tier's own group, apiregistration.k8s.io; and every remote
// APIService. Sources are polled in the background with conditional requests. A request gets the
// last merged document, which is encoded once per media type.
//
// A source that does not answer keeps its place and its last resources, but its group-versions are
// marked Stale: clients report them as failed and continue with the others. A group-version with
// an APIService that no source has described is listed as Stale without resources, so that a tier
// that has been down since the start is not missing.
//
// [Merge] is a pure function of its [Input].
package discovery
