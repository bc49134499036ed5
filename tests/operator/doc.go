// Package operator is a controller as people write them with controller-runtime: two versions
// of a custom resource with a conversion webhook, defaults, validation with warnings, a
// finalizer, objects that it owns, status with conditions, an index, events and leader
// election. Its test runs it unchanged with kube-apiserver and with the servers under test, and
// compares what its users see.
package operator
