// Package autoregister keeps an APIService for every group-version that the tiers
// behind this one serve: for the built-in ones as the next tier's discovery tells
// them, for those of custom resources as the CRDs do.
//
// The objects are kube-apiserver's, label and priorities included, and so is who
// has the last word. An APIService for a built-in group-version is created or
// corrected once per process ("onstart"): an administrator may change it while we
// run. One for a CRD is kept as it should be always ("true"). One without the
// label is nobody's business here.
//
// What is different from kube-apiserver comes of the chain being several
// processes. The next tier is not known at start, may be away, may be away in
// part, and may be upgraded while we run. So a built-in group-version is
// registered when it is first seen, and none is removed before the next tier has
// told everything it serves, its own tail included; an APIService that was removed
// is registered again should its group-version come back.
package autoregister
