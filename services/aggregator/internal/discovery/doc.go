// Package discovery answers /api, /apis and /apis/<group> for the whole chain.
//
// Aggregated discovery (KEP-3352) is merged from three kinds of sources: what
// the next tier serves, which includes the tiers behind it; our own group,
// apiregistration.k8s.io; and every remote APIService. Nobody waits for a source:
// each is asked in the background with conditional requests, and a request is
// answered from the last merged document, encoded once per media type.
//
// A source that does not answer keeps the place and the resources it last had,
// and its group-versions are marked Stale: clients then report those as failed
// and go on with the rest. A group-version that has an APIService but was
// never described by anybody is listed as Stale without resources, so a tier
// that is down since our start is partial too, not missing.
//
// [Merge] is a pure function of what is known; [Manager] keeps it known.
package discovery
