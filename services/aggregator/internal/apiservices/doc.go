// Package apiservices is the table that says which group-versions the
// aggregator serves itself.
//
// The table is a [Snapshot], built anew from all APIServices when any of them
// changes and swapped in one step; a request sees one snapshot from its first
// question to its last. A group-version whose APIService names a Service is
// ours and goes to its remote.Backend. One whose APIService is local, or that
// has none, is not ours: it goes to the next tier, which knows better than any
// table whether it exists.
//
// The snapshot also holds what legacy discovery says about groups, in
// kube-aggregator's order: groups by their highest groupPriorityMinimum, versions
// by versionPriority and then by Kubernetes' order of version names.
package apiservices
