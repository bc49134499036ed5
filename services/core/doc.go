// Package core is the middle tier: every built-in resource of Kubernetes.
//
// What the resources mean, their defaulting, validation, strategies and
// subresources, comes from the storage providers of k8s.io/kubernetes. Core
// installs them on a resource table over Triune's own storage, authenticates
// tokens for all tiers, and runs what brings a new cluster to life: system
// namespaces, bootstrap RBAC, priority classes, flow schemas, the kubernetes
// Service with its endpoints, and the default ServiceCIDR.
//
// Core takes kube-apiserver's flags and adds those that name the next tier.
package core
