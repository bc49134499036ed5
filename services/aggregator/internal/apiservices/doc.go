// Package apiservices determines which group-versions the aggregator serves itself.
//
// A [Table], made by [NewTable], watches APIServices while [Table.Run] runs. After each change it
// builds a new [Snapshot] and replaces the current one; a request uses a single snapshot. A
// group-version whose APIService names a Service belongs to this tier and is served by its
// remote.Backend. All others, with a local APIService or without one, belong to the next tier,
// which knows whether they exist.
//
// The snapshot also holds the groups of legacy discovery in kube-aggregator's order: groups by
// their highest groupPriorityMinimum, versions by versionPriority and then by Kubernetes' order of
// version names.
package apiservices
