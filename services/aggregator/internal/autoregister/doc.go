// Package autoregister maintains APIServices for all group-versions of the tiers behind this one:
// for built-in ones according to the discovery of the next tier, and for custom resources
// according to the CRDs.
//
// Make a [Registrar] with [New], call [Registrar.WatchCRDs] and run it with [Registrar.Run]; call
// [Registrar.SetServed] whenever the discovery of the next tier changes.
//
// The objects are those of kube-apiserver, including labels and priorities. An APIService of a
// built-in group-version is created or corrected once per process ("onstart"), so that an
// administrator can change it afterwards. An APIService of a CRD is always corrected ("true"). An
// APIService without the label is never changed.
//
// Unlike in kube-apiserver, the next tier is another process: it is unknown at the start, may be
// completely or partially down, and may be upgraded at any time. A built-in group-version is
// therefore registered when it is first seen, and none is removed before all tiers were seen at
// the same time. A removed APIService is registered again if its group-version returns.
package autoregister
