// Package options is the command line of the aggregator and the extensions tier, and
// turns it into the configuration of their servers. Core has the options of
// k8s.io/kubernetes instead; of this package it uses [EventLog], [HTTP2], [Files] and
// some functions.
//
// The flags have kube-apiserver's names and meanings, and its defaults unless the flag
// says otherwise. Features that only core has (ServiceAccount keys, OIDC, kubelets and
// Service networks) have no flags here. Additional flags say where other tiers are:
// --next-url for the tier that gets requests which this one does not own, and --core-url
// for the tier that provides RBAC rules, token reviews and other inputs of decisions.
// --core-url may be left out if the next tier is core.
//
// [New] returns the default [Options] of a [Tier]. Then call AddFlags, parse the flags,
// and call Complete, Validate and Config, once each and from one goroutine. A service
// adds flags of its own beside these and completes the [Config].
package options
