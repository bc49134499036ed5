// Package filters builds the handler chain that every tier puts in front of its handlers.
//
// The order is kube-apiserver's, with one more filter. After authentication comes
// ownership: a request for a path that the tier does not own goes to the next tier at
// once, with the identity of its user. The filters behind ownership (tracing, audit,
// impersonation, priority and fairness, authorization) run only in the tier that serves
// the request. So each request is audited, counted and authorized once, however many tiers
// it passes.
//
//	audit init, request info, latencies · recovery · wait groups · deadline · CORS ·
//	authentication · OWNERSHIP ─ not ours ─► next tier
//	                     │ ours
//	tracing · audit · impersonation · fairness · authorization · the handler
//
// [Build] makes the chain from a [Config], once, before the tier serves. The filters are
// those of k8s.io/apiserver, except some that copy the request: requestContext and
// withTimeout replace several of these each. Filters that do nothing after the next
// handler has returned run as a sequence instead of nested.
package filters
