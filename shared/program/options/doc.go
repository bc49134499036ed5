// Package options is the command line of the tiers that are not core, and what a
// server is built of from it.
//
// The flags have kube-apiserver's names and meanings, and its defaults unless the
// flag says otherwise. What only core can do (ServiceAccount keys, OIDC, kubelet
// and Service network flags) has no flag here. New are the flags that say where
// the other tiers are: --next-url for the tier that gets what this one does not
// own, and --core-url for the tier that is asked for RBAC rules, token reviews
// and everything else that decides about requests. Where the next tier is core,
// --core-url may be left out.
//
// The order of use is New, AddFlags, parse, Complete, Validate, Config; a service
// adds its own flags beside these and completes the Config with what it serves.
// Core has the options of k8s.io/kubernetes instead.
package options
